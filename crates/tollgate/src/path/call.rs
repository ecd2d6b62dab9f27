//! What a caller asks for, before it is routed.
//!
//! Promises: holds exactly what the caller said.
//!
//! Never: decides anything.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, Method, Uri};
use tollgate_config::Secret;
use tollgate_core::ask::Priority;
use tollgate_core::time::Span;

use crate::foreign::ForeignClient;

/// What a caller asks for.
#[derive(Debug)]
pub struct HttpCall<B> {
    /// The provider or URL.
    pub target: Target,
    /// The method.
    pub method: Method,
    /// The headers to send, hop-by-hop ones and our own already removed.
    pub headers: HeaderMap,
    /// The body to send.
    pub body: B,
    /// Options of the call.
    pub options: CallOptions,
}

/// The provider or URL that a call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A provider by name.
    Provider {
        /// The name.
        name: String,
        /// The path below it, with its slash.
        path: String,
        /// The query, without `?`.
        query: Option<String>,
    },
    /// A URL; its host determines the provider.
    Url {
        /// `https`.
        tls: bool,
        /// Host and port.
        authority: String,
        /// The path, with its slash.
        path: String,
        /// The query, without `?`.
        query: Option<String>,
    },
}

impl Target {
    /// An absolute URL of `http` or `https`.
    #[must_use]
    pub fn from_url(url: &Uri) -> Option<Target> {
        let tls = match url.scheme_str()?.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        Some(Target::Url {
            tls,
            authority: url.authority()?.as_str().to_owned(),
            path: url.path().to_owned(),
            query: url.query().map(str::to_owned),
        })
    }
}

impl From<&str> for Target {
    /// A provider by name, without a path.
    fn from(name: &str) -> Target {
        Target::Provider {
            name: name.to_owned(),
            path: String::new(),
            query: None,
        }
    }
}

/// Options of a call.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// The call's id in logs.
    pub id: Arc<str>,
    /// Its priority; a known caller's own maximum applies.
    pub priority: Priority,
    /// The caller named no priority: a known caller has its own.
    pub uses_default_priority: bool,
    /// Who calls.
    pub caller: Option<String>,
    /// The token that proves it.
    pub token: Option<Secret>,
    /// The operator asks, in the name of any caller and with any priority.
    pub is_operator: bool,
    /// The entity, if the path does not determine it.
    pub entity: Option<String>,
    /// What it costs, by unit.
    pub costs: Vec<(String, u64)>,
    /// How long it may wait and run in total.
    pub timeout: Option<Span>,
    /// It does not wait for a permit: it gets one at once, or an error that says when to come back. Its time to run is
    /// that of `timeout`, and waits between attempts are those of every call.
    pub no_wait: bool,
    /// The caller's address.
    pub ip: Option<IpAddr>,
    /// It wants its own response, even if an identical call is in flight.
    pub no_dedup: bool,
    /// How it uses the cache.
    pub cache: UseCache,
    /// The client that sends it; `None` = our own connections.
    pub client: Option<ForeignClient>,
}

/// How a call uses the cache (S11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UseCache {
    /// As the provider's file says.
    #[default]
    Yes,
    /// Not at all: neither read nor store.
    No,
    /// Only the cache: a miss is 504.
    Only,
    /// Do not read, but store.
    Refresh,
}

/// A name of a caller that is safe in a log: 1 to 64 letters, digits and `-_.:`.
#[must_use]
pub fn is_caller_name(name: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(is_known)
}
