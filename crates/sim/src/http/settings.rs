//! What a simulated provider is told before it starts.
//!
//! Promises: plain data; every field has a default that makes a friendly provider on a free loopback
//! port with no limit at all.
//!
//! Never: read from a file or the environment here; the command line fills it in `cmd/serve.rs`.

use std::net::{Ipv4Addr, SocketAddr};

use tollgate_core::time::Span;

use crate::fault::{FaultParseError, PlannedFault};
use crate::latency::Latency;
use crate::rule::{RuleSpec, SpecError};

use super::style::Style;

/// A free port of the loopback address.
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// How the provider behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// A second address that serves only the control plane (`/-/…`): it answers even while the first
    /// one resets every connection.
    pub control: Option<SocketAddr>,
    /// The limits, all of which must allow a request.
    pub rules: Vec<RuleSpec>,
    /// Whether every first path segment has limits of its own.
    pub per_entity: bool,
    /// Where the caller's key is; every key then has limits of its own.
    pub key: Option<KeyLocation>,
    /// How it answers excess.
    pub style: Style,
    /// Delays on the way up (a request counts after it), of the work and the body (a refusal has
    /// neither), and on the way down.
    pub latency: Latency,
    /// Feeds the dice of the delays.
    pub seed: u64,
    /// Status of a success.
    pub status: u16,
    /// Smallest size of a success's body.
    pub body_bytes: usize,
    /// What goes wrong, and when.
    pub faults: Vec<PlannedFault>,
}

/// Where a request carries its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyLocation {
    /// In the header of this name.
    Header(String),
    /// In the query parameter of this name.
    Query(String),
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: LOOPBACK,
            control: None,
            rules: Vec::new(),
            per_entity: false,
            key: None,
            style: Style::default(),
            latency: Latency::constant(Span::ZERO, Span::ZERO, Span::ZERO),
            seed: 1,
            status: 200,
            body_bytes: 0,
            faults: Vec::new(),
        }
    }
}

impl Settings {
    /// A provider with these limits, written as `sliding 40/10s, in-flight 4`.
    ///
    /// # Errors
    /// The first rule that cannot be read.
    pub fn with_rules(rules: &str) -> Result<Settings, SpecError> {
        Ok(Settings {
            rules: RuleSpec::parse_all(rules)?,
            ..Settings::default()
        })
    }

    /// Answers excess this way.
    #[must_use]
    pub fn style(self, style: Style) -> Settings {
        Settings { style, ..self }
    }

    /// Takes its time this way.
    #[must_use]
    pub fn latency(self, latency: Latency) -> Settings {
        Settings { latency, ..self }
    }

    /// Gives every first path segment limits of its own.
    #[must_use]
    pub fn per_entity(self) -> Settings {
        Settings {
            per_entity: true,
            ..self
        }
    }

    /// Gives every key limits of its own.
    #[must_use]
    pub fn per_key(self, place: KeyLocation) -> Settings {
        Settings {
            key: Some(place),
            ..self
        }
    }

    /// Plans a fault, written as `outage 8s..11s 503`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn fault(mut self, line: &str) -> Result<Settings, FaultParseError> {
        self.faults.push(line.parse()?);
        Ok(self)
    }
}
