//! Facts, each told once: the log line comes from one value, and metrics will come from the same.
//!
//! Promises: every fact names its provider and numbers; nothing of a fact is a key, a query, a
//! header or a body.
//!
//! Never: decides. Nothing waits for a fact to be told.

use std::fmt;

use tollgate_core::ask::Priority;
use tollgate_core::health::{Fault, HealthState, HealthStatus, Rate, Reason};
use tollgate_core::time::Span;

/// What is not known is `none`.
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
        /// How it stands now.
        status: &'a HealthStatus,
    },
    /// A provider refused a call: its scope rests.
    Cooldown {
        /// Whose.
        provider: &'a str,
        /// The part of it, if not all.
        entity: Option<&'a str>,
        /// For how long.
        duration: Span,
        /// What the provider asked for, as it was read.
        retry_after: Option<Span>,
        /// How the provider stands now.
        status: &'a HealthStatus,
    },
    /// A call came to an answer.
    Completed {
        /// The call.
        id: &'a str,
        /// Whose.
        provider: &'a str,
        /// What it said.
        status: u16,
        /// Attempts made.
        attempts: u32,
        /// Time spent waiting for permits.
        waited: Span,
        /// How urgent it was.
        priority: Priority,
    },
    /// A call ended without one.
    Rejected {
        /// The call.
        id: &'a str,
        /// Why, in words.
        error: &'a crate::Error,
    },
    /// An attempt found no answer.
    AttemptFailed {
        /// Whose.
        provider: &'a str,
        /// Why.
        fault: Fault,
    },
    /// An upstream could not prove who it is, or broke off in the middle of it.
    TlsFailed {
        /// Which.
        host: &'a str,
        /// Why, in words.
        why: &'a str,
    },
    /// A permit was too old when the bytes should have left, and went back.
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
    /// The ledger's store is there again.
    StoreBack {
        /// How long it was away.
        away: Span,
        /// How many calls have gone on uncounted since the start.
        uncounted: u64,
    },
    /// An answer came from what was kept.
    FromCache {
        /// The call.
        id: &'a str,
        /// Whose.
        provider: &'a str,
        /// `cache` or `stale`.
        source: &'static str,
        /// How old it is.
        age: Span,
        /// Why it may be old; `fresh` if it is not.
        why: &'static str,
    },
    /// An answer is not kept.
    NotStored {
        /// The call.
        id: &'a str,
        /// Whose.
        provider: &'a str,
        /// Why not.
        why: &'static str,
    },
    /// Answers are kept in memory only.
    CacheOnlyInMemory {
        /// Why.
        why: &'a str,
    },
    /// The file of kept answers was damaged, and a new one was begun.
    CacheRecreated {
        /// Where the old one is.
        file: &'a str,
    },
    /// A login gave a new token.
    TokenRenewed {
        /// Whose.
        provider: &'a str,
        /// How long it lives.
        lives: Span,
    },
    /// A login gave none.
    TokenNotRenewed {
        /// Whose.
        provider: &'a str,
        /// Why.
        error: &'a crate::Error,
    },
    /// A key was refused and is not used for a while.
    KeySuspended {
        /// Whose.
        provider: &'a str,
        /// What the provider said.
        status: u16,
    },
    /// Other providers are in force.
    Reloaded {
        /// How many.
        providers: usize,
    },
    /// A part of the configuration was refused; its old version stays.
    ReloadRejected {
        /// Place, fault and remedy, in one line.
        problem: &'a str,
    },
    /// An operator wants something of a provider.
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
    /// How many descriptors this process may have: the soft limit as it was, and as it is.
    Descriptors {
        /// When it started.
        before: u64,
        /// Now, raised to the hard limit if that was allowed.
        now: u64,
    },
    /// The gateway ends: calls under way are finished first.
    Draining,
}

impl LogEvent<'_> {
    /// Tells it.
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
                tracing::error!(event = "reload_refused", problem)
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

    /// What the rate limiter did, with the keys of its standard (A16).
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
            // Told by whoever called this.
            _ => {}
        }
    }

    /// The one that every call tells: cheap unless somebody listens.
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

    /// What the cache did.
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
            // Told by whoever called this.
            _ => {}
        }
    }
}
