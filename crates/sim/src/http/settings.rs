//! The settings of a simulated provider.
//!
//! Promises: plain data; every field has a default; the defaults give a provider on a free loopback
//! port without any limit.
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
    /// A second address that serves only the control plane (`/-/…`): it responds even while the
    /// first one resets every connection.
    pub control: Option<SocketAddr>,
    /// The limits, all of which must allow a request.
    pub rules: Vec<RuleSpec>,
    /// Whether each first path segment is counted separately.
    pub per_entity: bool,
    /// Beginning of the path that is not part of the entity, such as `/v3/football`.
    pub strip: String,
    /// Where the caller's key is; each key is then counted separately.
    pub key: Option<KeyLocation>,
    /// How it responds above a limit.
    pub style: Style,
    /// Delays of the uplink (a request counts after it), of the work and the body (a 429 has
    /// neither), and of the downlink.
    pub latency: Latency,
    /// Seeds the delays.
    pub seed: u64,
    /// Status of a successful response.
    pub status: u16,
    /// Smallest body of a successful response.
    pub body_bytes: usize,
    /// Planned faults.
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
            strip: String::new(),
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
    /// The first rule that cannot be parsed.
    pub fn with_rules(rules: &str) -> Result<Settings, SpecError> {
        Ok(Settings {
            rules: RuleSpec::parse_all(rules)?,
            ..Settings::default()
        })
    }

    /// Sets the style of 429s.
    #[must_use]
    pub fn style(self, style: Style) -> Settings {
        Settings { style, ..self }
    }

    /// Sets the delays.
    #[must_use]
    pub fn latency(self, latency: Latency) -> Settings {
        Settings { latency, ..self }
    }

    /// Counts each first path segment separately.
    #[must_use]
    pub fn per_entity(self) -> Settings {
        Settings {
            per_entity: true,
            ..self
        }
    }

    /// Counts each key separately.
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
    /// If it cannot be parsed.
    pub fn fault(mut self, line: &str) -> Result<Settings, FaultParseError> {
        self.faults.push(line.parse()?);
        Ok(self)
    }
}
