//! The log line of each fact.
//!
//! Promises: one line per fact, with the standard's keys where there are any (A16).
//!
//! Never: decides what happened.

use std::fmt;

use tollgate_core::health::Rate;

use super::{CallEnd, Event};

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
    /// Writes the log line, if the fact has one.
    pub(super) fn log(&self) {
        match self {
            Event::CallEnded(end) => log_call(end),
            Event::Transition { .. } | Event::Cooldown { .. } => self.log_health(),
            Event::Request {
                id,
                provider,
                method,
                path,
            } => {
                tracing::debug!(event = "request", id = &**id, provider = &**provider, %method, path = &**path);
            }
            Event::AttemptFailed { .. }
            | Event::TlsFailed { .. }
            | Event::StalePermit { .. }
            | Event::TokenRenewed { .. }
            | Event::TokenNotRenewed { .. }
            | Event::KeySuspended { .. } => self.log_upstream(),
            Event::LedgerDamaged { rows } => tracing::error!(
                event = "ledger_damaged",
                rows,
                why = "stored limits could not be read and count as used up for one period; check the disk"
            ),
            Event::FromCache { .. }
            | Event::NotStored { .. }
            | Event::CacheOnlyInMemory { .. }
            | Event::CacheRecreated { .. } => self.log_cache(),
            Event::StoreLost { .. }
            | Event::StoreBack { .. }
            | Event::Reloaded { .. }
            | Event::ReloadRejected { .. }
            | Event::OperatorCommand { .. }
            | Event::Listening { .. }
            | Event::Descriptors { .. }
            | Event::OutOfDescriptors { .. }
            | Event::LimitsLoosened { .. }
            | Event::ConnectionsDropped { .. }
            | Event::Draining => self.log_process(),
            // Of every call, and said by the lines above: for subscribers only.
            Event::Decision { .. }
            | Event::Attempt { .. }
            | Event::Response { .. }
            | Event::CacheMiss { .. } => {}
        }
    }

    /// Events of the rate limiter, with the standard's keys (A16).
    fn log_health(&self) {
        if let Event::Transition {
            provider,
            from,
            to,
            reason,
            status,
        } = self
        {
            tracing::warn!(
                comp = "ratelimiter", state = to.log_name(), event = "state_transition",
                sleep = %OrNone(status.sleep_remaining), consec429 = status.consec429,
                err_rate_30s = %status.err_rate, rate = %OrNone(status.rate.map(PerSecond)),
                sem = %OrNone(status.sem), retry_after = "none",
                provider = &**provider, from = from.log_name(), to = to.log_name(), reason = %reason
            );
        }
        if let Event::Cooldown {
            provider,
            entity,
            duration,
            retry_after,
            status,
        } = self
        {
            tracing::warn!(
                comp = "ratelimiter", state = status.state.log_name(), event = "cooldown",
                sleep = %duration, consec429 = status.consec429,
                err_rate_30s = %status.err_rate, rate = %OrNone(status.rate.map(PerSecond)),
                sem = %OrNone(status.sem), retry_after = %OrNone(*retry_after),
                provider = &**provider, entity = entity.as_deref().unwrap_or("none")
            );
        }
    }

    /// Events of attempts, connections and credentials.
    fn log_upstream(&self) {
        if let Event::AttemptFailed {
            provider, fault, ..
        } = self
        {
            let fault = fault.as_str();
            tracing::info!(event = "failed", provider = &**provider, fault);
        }
        if let Event::TlsFailed { host, why } = self {
            tracing::warn!(event = "tls_failed", host = &**host, why = &**why);
        }
        if let Event::StalePermit { provider, age } = self {
            tracing::warn!(event = "stale_permit", provider = &**provider, age = %age);
        }
        if let Event::TokenRenewed { provider, lives } = self {
            tracing::info!(event = "token_renewed", provider = &**provider, lives = %lives);
        }
        if let Event::TokenNotRenewed { provider, error } = self {
            tracing::warn!(event = "token_not_renewed", provider = &**provider, error = %error);
        }
        if let Event::KeySuspended { provider, status } = self {
            tracing::warn!(event = "key_suspended", provider = &**provider, status);
        }
    }

    /// Events of the cache.
    fn log_cache(&self) {
        if let Event::FromCache {
            id,
            provider,
            source,
            age,
            why,
        } = self
        {
            tracing::debug!(event = "from_cache", id = &**id, provider = &**provider, source, age = %age, why);
        }
        if let Event::NotStored { id, provider, why } = self {
            let (id, provider) = (&**id, &**provider);
            tracing::debug!(event = "not_stored", id, provider, why);
        }
        if let Event::CacheOnlyInMemory { why } = self {
            tracing::warn!(event = "cache_only_in_memory", why = &**why);
        }
        if let Event::CacheRecreated { file } = self {
            tracing::warn!(event = "cache_recreated", file = &**file);
        }
    }

    /// Events of this process as a whole.
    fn log_process(&self) {
        if let Event::StoreLost { why } = self {
            tracing::error!(event = "store_lost", why = &**why);
        }
        if let Event::StoreBack { away, uncounted } = self {
            tracing::warn!(event = "store_back", away = %away, uncounted);
        }
        if let Event::Reloaded { providers } = self {
            tracing::info!(event = "reloaded", providers);
        }
        if let Event::ReloadRejected { problem } = self {
            tracing::error!(event = "reload_rejected", problem = &**problem);
        }
        if let Event::OperatorCommand { provider, command } = self {
            tracing::warn!(event = "operator", provider = &**provider, command);
        }
        if let Event::Listening { address } = self {
            tracing::info!(event = "listening", %address);
        }
        if let Event::Descriptors { before, now } = self {
            tracing::debug!(event = "descriptors", before, now);
        }
        if let Event::OutOfDescriptors { address } = self {
            let address = OrNone(*address);
            tracing::error!(
                event = "out_of_descriptors", %address,
                hint = "raise `ulimit -n`, or lower connections_max"
            );
        }
        if let Event::LimitsLoosened { provider, change } = self {
            tracing::warn!(
                event = "limits_loosened",
                provider = &**provider,
                change = &**change
            );
        }
        if let Event::ConnectionsDropped { connections } = self {
            tracing::warn!(event = "connections_dropped", connections);
        }
        if let Event::Draining = self {
            tracing::info!(event = "draining");
        }
    }
}

/// The event of every call: a line at `info` if it was rejected, and else at `debug`.
fn log_call(end: &CallEnd) {
    let id = &*end.id;
    if let Some(error) = &end.error {
        tracing::info!(event = "rejected", id, blame = error.blame().as_str(), error = %error);
        return;
    }
    tracing::debug!(
        event = "completed", id, provider = end.provider.as_deref().unwrap_or("none"),
        source = end.source, status = %OrNone(end.status), attempts = end.attempts,
        waited = %end.waited, priority = ?end.priority.unwrap_or_default()
    );
}
