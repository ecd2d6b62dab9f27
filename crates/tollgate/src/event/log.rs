//! The log line of each fact.
//!
//! Promises: one line per fact, with the standard's keys where there are any (A16).
//!
//! Never: decides what happened.

use std::fmt;

use tollgate_core::health::Rate;

use super::Event;

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

impl Event {
    /// Writes the log line, if the fact has one. For facts that no registry knows; a bus does it
    /// itself.
    pub fn log(&self) {
        match self {
            Event::Transition { .. } | Event::Cooldown { .. } => self.log_health(),
            Event::Request {
                id,
                provider,
                method,
                path,
            } => {
                tracing::debug!(event = "request", id = &**id, provider = &**provider, %method, path = &**path);
            }
            Event::Completed { .. } => self.log_completed(),
            Event::Rejected { id, error } => {
                tracing::info!(event = "rejected", id = &**id, blame = error.blame().as_str(), error = %error);
            }
            Event::AttemptFailed {
                provider, fault, ..
            } => {
                tracing::info!(
                    event = "failed",
                    provider = &**provider,
                    fault = fault.as_str()
                );
            }
            Event::TlsFailed { host, why } => {
                tracing::warn!(event = "tls_failed", host = &**host, why = &**why);
            }
            Event::StalePermit { provider, age } => {
                tracing::warn!(event = "stale_permit", provider = &**provider, age = %age);
            }
            Event::StoreLost { why } => tracing::error!(event = "store_lost", why = &**why),
            Event::StoreBack { away, uncounted } => {
                tracing::warn!(event = "store_back", away = %away, uncounted);
            }
            Event::FromCache { .. }
            | Event::NotStored { .. }
            | Event::CacheOnlyInMemory { .. }
            | Event::CacheRecreated { .. } => self.log_cache(),
            Event::TokenRenewed { provider, lives } => {
                tracing::info!(event = "token_renewed", provider = &**provider, lives = %lives);
            }
            Event::TokenNotRenewed { provider, error } => {
                tracing::warn!(event = "token_not_renewed", provider = &**provider, error = %error);
            }
            Event::KeySuspended { provider, status } => {
                tracing::warn!(event = "key_suspended", provider = &**provider, status);
            }
            Event::Reloaded { providers } => tracing::info!(event = "reloaded", providers),
            Event::ReloadRejected { problem } => {
                tracing::error!(event = "reload_rejected", problem = &**problem);
            }
            Event::OperatorCommand { provider, command } => {
                tracing::warn!(event = "operator", provider = &**provider, command);
            }
            Event::Listening { address } => tracing::info!(event = "listening", %address),
            Event::Descriptors { before, now } => {
                tracing::debug!(event = "descriptors", before, now);
            }
            Event::Draining => tracing::info!(event = "draining"),
            // Of every call, and said by the lines above: for subscribers only.
            Event::Decision { .. }
            | Event::Attempt { .. }
            | Event::Response { .. }
            | Event::CacheMiss { .. } => {}
        }
    }

    /// Events of the rate limiter, with the standard's keys (A16).
    fn log_health(&self) {
        match self {
            Event::Transition {
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
                provider = &**provider, from = from.log_name(), to = to.log_name(), reason = %reason
            ),
            Event::Cooldown {
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
                provider = &**provider, entity = entity.as_deref().unwrap_or("none")
            ),
            // The caller handles all other events.
            _ => {}
        }
    }

    /// The event of every call: cheap unless the level is enabled.
    fn log_completed(&self) {
        if let Event::Completed {
            id,
            provider,
            status,
            attempts,
            waited,
            priority,
        } = self
        {
            tracing::debug!(
                event = "completed", id = &**id, provider = &**provider, status, attempts,
                waited = %waited, priority = ?priority
            );
        }
    }

    /// Events of the cache.
    fn log_cache(&self) {
        match self {
            Event::FromCache {
                id,
                provider,
                source,
                age,
                why,
            } => {
                tracing::debug!(event = "from_cache", id = &**id, provider = &**provider, source, age = %age, why);
            }
            Event::NotStored { id, provider, why } => {
                tracing::debug!(
                    event = "not_stored",
                    id = &**id,
                    provider = &**provider,
                    why
                );
            }
            Event::CacheOnlyInMemory { why } => {
                tracing::warn!(event = "cache_only_in_memory", why = &**why);
            }
            Event::CacheRecreated { file } => {
                tracing::warn!(event = "cache_recreated", file = &**file);
            }
            // The caller handles all other events.
            _ => {}
        }
    }
}
