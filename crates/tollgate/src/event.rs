//! Log events, each emitted once: the log line is made from one value, and metrics will use the
//! same.
//!
//! Promises: every event names its provider and numbers. No event contains a key, a query, a header
//! or a body.
//!
//! Never: decides. Nothing waits for an event to be emitted.

use std::fmt;

use tollgate_core::ask::Priority;
use tollgate_core::health::{Fault, HealthState, HealthStatus, Rate, Reason};
use tollgate_core::time::Span;

/// An unknown value is written as `none`.
struct OrNone<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for OrNone<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(known) => known.fmt(f),
            None => f.write_str("none"),
        }
    }
}

/// A rate with its unit: `18rps`.
struct PerSecond(Rate);

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}rps", self.0)
    }
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum LogEvent<'a> {
    /// A provider's health changed.
    Transition {
        /// Whose.
        provider: &'a str,
        /// Before.
        from: HealthState,
        /// After.
        to: HealthState,
        /// Why.
        reason: Reason,
        /// Its current status.
        status: &'a HealthStatus,
    },
    /// A provider limited a call: its scope cools down.
    Cooldown {
        /// Whose.
        provider: &'a str,
        /// The part of it, if not all.
        entity: Option<&'a str>,
        /// For how long.
        duration: Span,
        /// What the provider asked for, as it was read.
        retry_after: Option<Span>,
        /// The provider's current status.
        status: &'a HealthStatus,
    },
    /// A call got a response.
    Completed {
        /// The call.
        id: &'a str,
        /// Whose.
        provider: &'a str,
        /// The status of the response.
        status: u16,
        /// Attempts made.
        attempts: u32,
        /// Time spent waiting for permits.
        waited: Span,
        /// How urgent it was.
        priority: Priority,
    },
    /// A call ended without a response.
    Rejected {
        /// The call.
        id: &'a str,
        /// Why, in words.
        error: &'a crate::Error,
    },
    /// An attempt got no response.
    AttemptFailed {
        /// Whose.
        provider: &'a str,
        /// Why.
        fault: Fault,
    },
    /// The TLS handshake with an upstream failed: a bad certificate, or the connection broke.
    TlsFailed {
        /// Which.
        host: &'a str,
        /// Why, in words.
        why: &'a str,
    },
    /// A permit was too old when the bytes should have left, and was returned.
    StalePermit {
        /// Whose.
        provider: &'a str,
        /// How old.
        age: Span,
    },
    /// The ledger's store cannot be reached; each provider's `on_store_loss` says what follows.
    StoreLost {
        /// Why, in words.
        why: &'a str,
    },
    /// The ledger's store is reachable again.
    StoreBack {
        /// How long it was unreachable.
        away: Span,
        /// How many uncounted calls were made since the start.
        uncounted: u64,
    },
    /// A cached response was served.
    FromCache {
        /// The call.
        id: &'a str,
        /// Whose.
        provider: &'a str,
        /// `cache` or `stale`.
        source: &'static str,
        /// How old it is.
        age: Span,
        /// Why it may be stale; `fresh` if it is not.
        why: &'static str,
    },
    /// A response is not stored.
    NotStored {
        /// The call.
        id: &'a str,
        /// Whose.
        provider: &'a str,
        /// Why not.
        why: &'static str,
    },
    /// Responses are cached in memory only.
    CacheOnlyInMemory {
        /// Why.
        why: &'a str,
    },
    /// The cache file was damaged, and a new one was created.
    CacheRecreated {
        /// Where the old one is.
        file: &'a str,
    },
    /// A login returned a new token.
    TokenRenewed {
        /// Whose.
        provider: &'a str,
        /// The token's lifetime.
        lives: Span,
    },
    /// A login returned no token.
    TokenNotRenewed {
        /// Whose.
        provider: &'a str,
        /// Why.
        error: &'a crate::Error,
    },
    /// A key was rejected and is suspended for a while.
    KeySuspended {
        /// Whose.
        provider: &'a str,
        /// The status of the response.
        status: u16,
    },
    /// A reload has replaced the providers.
    Reloaded {
        /// How many.
        providers: usize,
    },
    /// A part of the configuration was rejected; its old version stays.
    ReloadRejected {
        /// Place, error and remedy, in one line.
        problem: &'a str,
    },
    /// An operator has sent a command for a provider.
    OperatorCommand {
        /// Whose.
        provider: &'a str,
        /// `offline`, `cache-only`, `resume`, `reset` or `set`.
        command: &'a str,
    },
    /// The gateway accepts calls.
    Listening {
        /// Where.
        address: std::net::SocketAddr,
    },
    /// The file descriptor limit of this process: the soft limit at the start, and now.
    Descriptors {
        /// At the start.
        before: u64,
        /// Now, raised to the hard limit if that was allowed.
        now: u64,
    },
    /// The gateway is shutting down: it finishes running calls first.
    Draining,
}

impl LogEvent<'_> {
    /// Emits the log line.
    pub fn emit(&self) {
        match self {
            LogEvent::Transition { .. } | LogEvent::Cooldown { .. } => self.emit_health(),
            LogEvent::Completed { .. } => self.emit_completed(),
            LogEvent::Rejected { id, error } => {
                tracing::info!(event = "refused", id, blame = error.blame().as_str(), error = %error);
            }
            LogEvent::AttemptFailed { provider, fault } => {
                tracing::info!(event = "failed", provider, fault = fault.as_str());
            }
            LogEvent::TlsFailed { host, why } => tracing::warn!(event = "no_tls", host, why),
            LogEvent::StalePermit { provider, age } => {
                tracing::warn!(event = "stale_permit", provider, age = %age);
            }
            LogEvent::StoreLost { why } => tracing::error!(event = "store_lost", why),
            LogEvent::StoreBack { away, uncounted } => {
                tracing::warn!(event = "store_back", away = %away, uncounted);
            }
            LogEvent::FromCache { .. }
            | LogEvent::NotStored { .. }
            | LogEvent::CacheOnlyInMemory { .. }
            | LogEvent::CacheRecreated { .. } => self.emit_cache(),
            LogEvent::TokenRenewed { provider, lives } => {
                tracing::info!(event = "token_renewed", provider, lives = %lives);
            }
            LogEvent::TokenNotRenewed { provider, error } => {
                tracing::warn!(event = "token_not_renewed", provider, error = %error);
            }
            LogEvent::KeySuspended { provider, status } => {
                tracing::warn!(event = "key_set_aside", provider, status);
            }
            LogEvent::Reloaded { providers } => tracing::info!(event = "reloaded", providers),
            LogEvent::ReloadRejected { problem } => {
                tracing::error!(event = "reload_refused", problem);
            }
            LogEvent::OperatorCommand {
                provider,
                command: order,
            } => {
                tracing::warn!(event = "operator", provider, order);
            }
            LogEvent::Listening { address } => tracing::info!(event = "listening", %address),
            LogEvent::Descriptors { before, now } => {
                tracing::debug!(event = "descriptors", before, now);
            }
            LogEvent::Draining => tracing::info!(event = "draining"),
        }
    }

    /// Events of the rate limiter, with the standard's keys (A16).
    fn emit_health(&self) {
        match self {
            LogEvent::Transition {
                provider,
                from,
                to,
                reason,
                status,
            } => tracing::warn!(
                comp = "ratelimiter", state = to.log_name(), event = "state_transition",
                sleep = %OrNone(status.sleep_remaining), consec429 = status.consec429,
                err_rate_30s = %status.err_rate, rate = %OrNone(status.rate.map(PerSecond)),
                sem = %OrNone(status.sem), retry_after = "none",
                provider, from = from.log_name(), to = to.log_name(), reason = %reason
            ),
            LogEvent::Cooldown {
                provider,
                entity,
                duration: rest,
                retry_after,
                status,
            } => tracing::warn!(
                comp = "ratelimiter", state = status.state.log_name(), event = "cooldown",
                sleep = %rest, consec429 = status.consec429,
                err_rate_30s = %status.err_rate, rate = %OrNone(status.rate.map(PerSecond)),
                sem = %OrNone(status.sem), retry_after = %OrNone(*retry_after),
                provider, entity = entity.unwrap_or("none")
            ),
            // The caller handles all other events.
            _ => {}
        }
    }

    /// The event of every call: cheap unless the level is enabled.
    fn emit_completed(&self) {
        if let LogEvent::Completed {
            id,
            provider,
            status,
            attempts,
            waited,
            priority,
        } = self
        {
            tracing::debug!(
                event = "answered", id, provider, status, attempts,
                waited = %waited, priority = ?priority
            );
        }
    }

    /// Events of the cache.
    fn emit_cache(&self) {
        match self {
            LogEvent::FromCache {
                id,
                provider,
                source,
                age,
                why,
            } => {
                tracing::debug!(event = "from_cache", id, provider, source, age = %age, why);
            }
            LogEvent::NotStored { id, provider, why } => {
                tracing::debug!(event = "not_kept", id, provider, why);
            }
            LogEvent::CacheOnlyInMemory { why } => {
                tracing::warn!(event = "cache_only_in_memory", why);
            }
            LogEvent::CacheRecreated { file } => tracing::warn!(event = "cache_begun_anew", file),
            // The caller handles all other events.
            _ => {}
        }
    }
}
