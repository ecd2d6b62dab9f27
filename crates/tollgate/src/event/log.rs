//! The log line of each fact.
//!
//! Promises: one line per fact, with the standard's keys where there are any (A16).
//!
//! Never: decides what happened.

use std::fmt;

use tollgate_core::health::Rate;

use super::{CallEnd, CallResult, Event, KeySuspension};

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
            Event::Transition { .. } | Event::Cooldown { .. } | Event::Degrade { .. } => {
                self.log_health();
            }
            Event::PathClosed { .. } | Event::PathOpened { .. } => self.log_paths(),
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
            | Event::ClientErrors(_)
            | Event::CostInDoubt(..)
            | Event::KeySuspended(_) => self.log_upstream(),
            Event::LedgerDamaged { rows } => tracing::error!(
                event = "ledger_damaged",
                rows,
                why = "stored limits could not be read and count as used up for one period; check the disk"
            ),
            Event::LedgerLogHeld { bytes } => tracing::error!(
                event = "ledger_log_held",
                bytes,
                why = "another program reads ledger.db in a transaction that stays open, so its log grows; end that program"
            ),
            Event::StoreNotRemembered { why } => {
                tracing::error!(event = "store_not_remembered", why = &**why);
            }
            Event::FromCache { .. }
            | Event::NotStored { .. }
            | Event::CacheOnlyInMemory { .. }
            | Event::CacheStoreLost { .. }
            | Event::CacheStoreBack { .. }
            | Event::CacheRecreated { .. } => self.log_cache(),
            Event::StoreLost { .. }
            | Event::StoreBack { .. }
            | Event::GuardStoreLost { .. }
            | Event::GuardStoreBack { .. }
            | Event::Reloaded { .. }
            | Event::ReloadRejected { .. }
            | Event::OperatorCommand { .. }
            | Event::Listening { .. }
            | Event::Descriptors { .. }
            | Event::OutOfDescriptors { .. }
            | Event::LimitsLoosened { .. }
            | Event::ConnectionsRaised { .. }
            | Event::ConnectionsExhausted { .. }
            | Event::ConnectionsDropped { .. }
            | Event::Draining => self.log_process(),
            Event::TaskQueueFull { .. } | Event::DeskFailed { .. } | Event::GuardDenied { .. } => {
                self.log_decision_service();
            }
            Event::SourceFetched { .. }
            | Event::SourcePutBack { .. }
            | Event::SourceFailed { .. } => self.log_sources(),
            Event::Alert { .. } | Event::WebhookFailed { .. } => self.log_alert(),
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
            } => {
                tracing::warn!(
                    comp = "ratelimiter", state = to.log_name(), event = "state_transition",
                    sleep = %OrNone(status.sleep_remaining), consec429 = status.consec429,
                    err_rate_30s = %status.err_rate, rate = %OrNone(status.rate.map(PerSecond)),
                    sem = %OrNone(status.sem), retry_after = "none",
                    provider = &**provider, from = from.log_name(), to = to.log_name(), reason = %reason
                );
            }
            Event::Cooldown {
                provider,
                entity,
                duration,
                retry_after,
                status,
            } => {
                tracing::warn!(
                    comp = "ratelimiter", state = status.state.log_name(), event = "cooldown",
                    sleep = %duration, consec429 = status.consec429,
                    err_rate_30s = %status.err_rate, rate = %OrNone(status.rate.map(PerSecond)),
                    sem = %OrNone(status.sem), retry_after = %OrNone(*retry_after),
                    provider = &**provider, entity = entity.as_deref().unwrap_or("none")
                );
            }
            Event::Degrade {
                provider,
                entity,
                is_on,
                remaining,
                below,
                recover,
            } => {
                let event = if *is_on { "degraded" } else { "recovered" };
                let entity = entity.as_deref().unwrap_or("none");
                tracing::warn!(
                    event,
                    provider = &**provider,
                    entity,
                    remaining,
                    below,
                    recover
                );
            }
            _ => debug_assert!(false, "this fact has a line of another group: {self:?}"),
        }
    }

    /// Events of paths that fail.
    fn log_paths(&self) {
        match self {
            Event::PathClosed {
                provider,
                path,
                failures,
                sleep,
            } => {
                let path = path.as_deref().unwrap_or("other paths");
                tracing::warn!(event = "path_closed", provider = &**provider, path, failures, sleep = %OrNone(*sleep));
            }
            Event::PathOpened { provider, path } => {
                let path = path.as_deref().unwrap_or("other paths");
                tracing::info!(event = "path_opened", provider = &**provider, path);
            }
            _ => debug_assert!(false, "this fact has a line of another group: {self:?}"),
        }
    }

    /// Events of attempts, connections and credentials.
    fn log_upstream(&self) {
        match self {
            Event::AttemptFailed {
                provider, fault, ..
            } => {
                let fault = fault.as_str();
                tracing::info!(event = "failed", provider = &**provider, fault);
            }
            Event::TlsFailed { host, why } => {
                tracing::warn!(event = "tls_failed", host = &**host, why = &**why);
            }
            Event::StalePermit { provider, age } => {
                tracing::warn!(event = "stale_permit", provider = &**provider, age = %age);
            }
            Event::TokenRenewed { provider, lives } => {
                tracing::info!(event = "token_renewed", provider = &**provider, lives = %lives);
            }
            Event::TokenNotRenewed { provider, error } => {
                tracing::warn!(event = "token_not_renewed", provider = &**provider, error = %error);
            }
            Event::ClientErrors(one) => {
                let (id, provider) = (&*one.id, &*one.provider);
                let (status, count) = (one.status, one.count);
                tracing::info!(event = "client_error", id, provider, status, count);
            }
            Event::CostInDoubt(provider, why) => {
                tracing::warn!(event = "cost_in_doubt", provider = &**provider, why = %why);
            }
            Event::KeySuspended(one) => {
                let KeySuspension {
                    provider,
                    key,
                    why,
                    lasts,
                } = &**one;
                tracing::warn!(event = "key_suspended", provider = &**provider, key, why = %why, lasts = %lasts);
            }
            _ => debug_assert!(false, "this fact has a line of another group: {self:?}"),
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
                let (id, provider) = (&**id, &**provider);
                tracing::debug!(event = "not_stored", id, provider, why);
            }
            Event::CacheStoreLost { why } => {
                tracing::warn!(event = "cache_store_lost", why = &**why);
            }
            Event::CacheStoreBack { away } => {
                tracing::info!(event = "cache_store_back", away = %away);
            }
            Event::CacheOnlyInMemory { why } => {
                tracing::warn!(event = "cache_only_in_memory", why = &**why);
            }
            Event::CacheRecreated { file } => {
                tracing::warn!(event = "cache_recreated", file = &**file);
            }
            _ => debug_assert!(false, "this fact has a line of another group: {self:?}"),
        }
    }

    /// Events of guards and tasks.
    fn log_decision_service(&self) {
        match self {
            Event::TaskQueueFull {
                queue,
                pending,
                shadow,
            } => {
                let queue = &**queue;
                tracing::warn!(event = "task_queue_full", queue, pending, shadow);
            }
            Event::GuardDenied {
                guard,
                shadow,
                count,
            } => {
                tracing::info!(event = "guard_denied", guard = &**guard, shadow, count);
            }
            Event::DeskFailed { why } => {
                tracing::error!(event = "desk_failed", why = &**why);
            }
            _ => debug_assert!(false, "this fact has a line of another group: {self:?}"),
        }
    }

    /// Events of sources.
    fn log_sources(&self) {
        match self {
            Event::SourceFetched {
                source,
                status,
                bytes,
                from,
            } => {
                let source = &**source;
                tracing::info!(event = "source_fetched", source, status, bytes, from);
            }
            Event::SourcePutBack {
                source,
                reason,
                retry_in,
            } => {
                let (source, error) = (&**source, "RateLimitExceeded");
                tracing::info!(event = "source_put_back", source, error, reason, retry_in = %OrNone(*retry_in));
            }
            Event::SourceFailed {
                source,
                why,
                retry_in,
            } => {
                let (source, why) = (&**source, &**why);
                tracing::warn!(event = "source_failed", source, why, retry_in = %OrNone(*retry_in));
            }
            _ => debug_assert!(false, "this fact has a line of another group: {self:?}"),
        }
    }

    /// Events of alerts and their webhooks.
    fn log_alert(&self) {
        match self {
            Event::Alert {
                provider,
                entity,
                alert,
                is_firing,
            } => {
                tracing::warn!(
                    event = "alert", status = if *is_firing { "firing" } else { "resolved" },
                    level = alert.level.as_str(), kind = alert.kind.as_str(), provider = &**provider,
                    entity = entity.as_deref().unwrap_or("none"), value = alert.value,
                    threshold = alert.threshold, message = %alert
                );
            }
            Event::WebhookFailed {
                number,
                attempts,
                gives_up,
                why,
            } => {
                let (webhook, why) = (number, &**why);
                tracing::warn!(event = "webhook_failed", webhook, attempts, gives_up, why);
            }
            _ => debug_assert!(false, "this fact has a line of another group: {self:?}"),
        }
    }

    /// Events of this process as a whole.
    fn log_process(&self) {
        match self {
            Event::StoreLost { why } => {
                tracing::error!(event = "store_lost", why = &**why);
            }
            Event::StoreBack { away, uncounted } => {
                tracing::warn!(event = "store_back", away = %away, uncounted);
            }
            Event::GuardStoreLost { why } => {
                tracing::error!(event = "guard_store_lost", why = &**why);
            }
            Event::GuardStoreBack { away } => {
                tracing::warn!(event = "guard_store_back", away = %away);
            }
            Event::Reloaded { providers } => {
                tracing::info!(event = "reloaded", providers);
            }
            Event::ReloadRejected { problem } => {
                tracing::error!(event = "reload_rejected", problem = &**problem);
            }
            Event::OperatorCommand {
                provider,
                command,
                settings,
            } => {
                let settings = settings.as_deref();
                tracing::warn!(
                    event = "operator",
                    provider = &**provider,
                    command,
                    settings
                );
            }
            Event::Listening { address } => {
                tracing::info!(event = "listening", %address);
            }
            Event::Descriptors { before, now } => {
                tracing::debug!(event = "descriptors", before, now);
            }
            Event::OutOfDescriptors { address } => {
                let address = OrNone(*address);
                tracing::error!(
                    event = "out_of_descriptors", %address,
                    hint = "raise `ulimit -n`, or lower connections_max"
                );
            }
            Event::LimitsLoosened { provider, change } => {
                tracing::warn!(
                    event = "limits_loosened",
                    provider = &**provider,
                    change = &**change
                );
            }
            Event::ConnectionsRaised {
                provider,
                connections,
            } => {
                let provider = &**provider;
                tracing::info!(event = "connections_raised", provider, connections);
            }
            Event::ConnectionsExhausted {
                provider,
                connections,
                why,
            } => {
                let provider = &**provider;
                tracing::warn!(event = "connections_exhausted", provider, connections, why);
            }
            Event::ConnectionsDropped { connections } => {
                tracing::warn!(event = "connections_dropped", connections);
            }
            Event::Draining => {
                tracing::info!(event = "draining");
            }
            _ => debug_assert!(false, "this fact has a line of another group: {self:?}"),
        }
    }
}

/// The event of every call: a line at `info` if it was rejected, and else at `debug`.
pub(super) fn log_call(end: &CallEnd) {
    let id = &*end.id;
    if let CallResult::Rejected(error) = &end.result {
        tracing::info!(event = "rejected", id, blame = error.blame().as_str(), error = %error);
        return;
    }
    // Without a status its caller has got no response: `reason` says why.
    let status = end.result.status();
    let event = if status.is_some() {
        "completed"
    } else {
        "ended"
    };
    tracing::debug!(
        event, id, provider = end.provider.as_deref().unwrap_or("none"),
        source = end.source, status = %OrNone(status), attempts = end.attempts,
        waited = %end.waited, priority = ?end.priority.unwrap_or_default(),
        decision = end.decision.as_str(), reason = %OrNone(end.result.reason()),
        limit = end.limit.as_deref().unwrap_or("none")
    );
}

/// The line of the access log: one for every call, whoever responded.
pub(super) fn log_access(end: &CallEnd) {
    let (method, path) = match &end.request {
        Some((method, path)) => (method.as_str(), &**path),
        None => ("none", "none"),
    };
    tracing::info!(
        event = "access", id = &*end.id, method, path,
        status = %OrNone(end.result.status()), source = end.source,
        wait = %end.waited, attempts = end.attempts,
        provider = end.provider.as_deref().unwrap_or("none"),
        caller = end.caller.as_deref().unwrap_or("none"),
        decision = end.decision.as_str(), reason = %OrNone(end.result.reason())
    );
}
