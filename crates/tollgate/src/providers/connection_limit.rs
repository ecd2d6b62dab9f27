//! How many connections the upstreams of a provider get.
//!
//! Promises: a number of the provider's file is the number. Without one, calls that wait for nothing but a
//! connection get more of them, as far as the memory and the file descriptors of all providers together
//! allow: at once where a limit of the file bounds the calls; otherwise only when calls have waited for
//! so long that a 429 would have come, and a 429 takes back what it has grown to. So the first burst into
//! an unknown limit is no larger than the default. When there are no more, the log says so, and `status` too.
//!
//! Never: closes a connection, or lets a call go that another limit holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tollgate_core::limit::Rule;
use tollgate_core::scope::LIMITED_WITHIN;
use tollgate_core::time::Span;
use tollgate_ledger::ProviderLedger;

use super::policy::{CompiledPolicy, connections_rule};
use crate::body_memory::BodyMemory;
use crate::event::{Event, Events};
use crate::permits::BlockedHook;
use crate::pool::open_connections;

/// The buffers of a connection: 64 KiB to read and 64 KiB to write. All connections together may take
/// as much as all bodies, which is 2,048 of them by default.
const BUFFERS: usize = 128 * 1024;

/// How often the log says that connections are what calls wait for.
const REPORT_EVERY: Span = Span::from_secs(60);

/// The most that a provider may grow to: as many as the descriptors of this process allow, and 4,096
/// until the program says how many it has.
static GROWN_MAX: AtomicUsize = AtomicUsize::new(4_096);

/// Sets how many connections the upstreams of one provider may get by themselves: each takes a file
/// descriptor.
pub fn set_upstream_connections_max(connections: usize) {
    GROWN_MAX.store(connections, Ordering::Relaxed);
}

/// The connections of one provider.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    provider: Arc<str>,
    events: Events,
    ledger: ProviderLedger,
    /// The number of the provider's file, or the default.
    base: AtomicUsize,
    may_grow: AtomicBool,
    /// A limit of the file bounds how many calls can go at once.
    is_bounded: AtomicBool,
    /// What it has grown to; at most `base`: it has not.
    grown: AtomicUsize,
    /// The rule of that number.
    rule: ArcSwapOption<Rule>,
    /// One change at a time: growth and a reload exclude each other.
    change: Mutex<()>,
    /// When it was last reported, in microseconds; 0 = never.
    reported: AtomicU64,
}

impl ConnectionLimit {
    pub(super) fn new(
        policy: &CompiledPolicy,
        events: &Events,
        ledger: &ProviderLedger,
    ) -> ConnectionLimit {
        let limit = ConnectionLimit {
            provider: policy.provider.name.as_str().into(),
            events: events.clone(),
            ledger: ledger.clone(),
            base: AtomicUsize::new(0),
            may_grow: AtomicBool::new(false),
            is_bounded: AtomicBool::new(false),
            grown: AtomicUsize::new(0),
            rule: ArcSwapOption::empty(),
            change: Mutex::new(()),
            reported: AtomicU64::new(0),
        };
        limit.configure(policy);
        limit
    }

    /// Applies a changed file. What it has grown to stays, unless the file has a number now.
    pub(super) fn configure(&self, policy: &CompiledPolicy) {
        let _change = self.change.lock();
        self.base.store(policy.connections_max, Ordering::Relaxed);
        let may_grow = policy.provider.connections_may_grow;
        self.may_grow.store(may_grow, Ordering::Relaxed);
        let is_bounded = policy.limits.iter().any(|limit| limit.counts_calls());
        self.is_bounded.store(is_bounded, Ordering::Relaxed);
        if !may_grow {
            self.forget_growth();
        }
    }

    /// The provider limited a call. If no limit of the file bounds the calls, what it has grown to may be
    /// what was too much: it starts again.
    pub(crate) fn on_limited(&self) {
        if !self.is_bounded.load(Ordering::Relaxed) {
            let _change = self.change.lock();
            self.forget_growth();
        }
    }

    fn forget_growth(&self) {
        self.grown.store(0, Ordering::Relaxed);
        self.rule.store(None);
    }

    /// How many there may be now.
    pub(crate) fn max(&self) -> usize {
        let base = self.base.load(Ordering::Relaxed);
        base.max(self.grown.load(Ordering::Relaxed))
    }

    /// The limit on calls that it is; `None` if another limit is lower anyway.
    pub(crate) fn rule(&self, policy: &CompiledPolicy) -> Option<Arc<Rule>> {
        let own = policy.connections.as_ref()?;
        if self.grown.load(Ordering::Acquire) > policy.connections_max
            && let Some(rule) = &*self.rule.load()
        {
            return Some(rule.clone());
        }
        Some(own.clone())
    }

    /// Twice as many, if that is possible. `Err`: why not.
    fn grow(&self) -> Result<usize, &'static str> {
        let _change = self.change.lock();
        if !self.may_grow.load(Ordering::Relaxed) {
            return Err("`connections` in the provider's file sets this number; raise it");
        }
        let memory = BodyMemory::of_process();
        let by_memory = memory.max() / BUFFERS;
        let by_descriptors = GROWN_MAX.load(Ordering::Relaxed);
        // All providers together: each connection that is open now takes its part.
        let most = by_memory.min(by_descriptors);
        let (now, room) = (self.max(), most.saturating_sub(open_connections()));
        if now >= most || room == 0 || memory.is_scarce() {
            return Err(if by_descriptors < by_memory {
                "this process has descriptors for no more; raise `ulimit -n`, or set `connections`"
            } else {
                "their buffers would take more than `body_memory`; raise it, or set `connections`"
            });
        }
        let next = now.saturating_mul(2).min(now + room).min(most);
        self.rule.store(connections_rule(next as u64));
        self.grown.store(next, Ordering::Release);
        Ok(next)
    }

    /// Is it time to report again?
    fn is_due(&self) -> bool {
        let now = self.ledger.at().0.max(1);
        let last = self.reported.load(Ordering::Relaxed);
        let is_due = last == 0 || now.saturating_sub(last) >= REPORT_EVERY.0;
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        is_due
            && self
                .reported
                .compare_exchange(last, now, set, fetch)
                .is_ok()
    }
}

impl BlockedHook for ConnectionLimit {
    fn patience(&self) -> Span {
        let is_settled = self.is_bounded.load(Ordering::Relaxed);
        match is_settled || !self.may_grow.load(Ordering::Relaxed) {
            true => Span::ZERO,
            false => LIMITED_WITHIN,
        }
    }

    fn on_blocked(&self) -> bool {
        let provider = self.provider.clone();
        match self.grow() {
            Ok(connections) => {
                self.events.emit(Event::ConnectionsRaised {
                    provider,
                    connections,
                });
                true
            }
            Err(why) => {
                if self.is_due() {
                    self.events.emit(Event::ConnectionsExhausted {
                        provider,
                        connections: self.max(),
                        why,
                    });
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_config::{Environment, ProviderFile};
    use tollgate_core::feedback::Dialects;
    use tollgate_ledger::{Clock, Ledger};

    use super::*;

    fn limit(rest: &str) -> (ConnectionLimit, CompiledPolicy) {
        let file = format!("name: x\ndomain: api.example.org\n{rest}");
        let draft = ProviderFile::read("x.yaml", &file).unwrap();
        let provider = draft.check(&Environment::empty()).provider.unwrap();
        let policy = CompiledPolicy::new(provider, &Dialects::built_in());
        let ledger = Ledger::memory(Clock::System).provider("x");
        let limit = ConnectionLimit::new(&policy, &Events::new(), &ledger);
        (limit, policy)
    }

    fn capped() -> (ConnectionLimit, CompiledPolicy) {
        limit("connections: 40")
    }

    /// Only where nothing bounds the calls a 429 has to be waited for.
    #[tokio::test]
    async fn the_first_burst_into_an_unknown_limit_does_not_grow() {
        assert_eq!(limit("").0.patience(), LIMITED_WITHIN);
        for bounded in ["limits: [40/10s]", "connections: 2"] {
            assert_eq!(limit(bounded).0.patience(), Span::ZERO, "{bounded}");
        }
        let (limit, _) = limit("limits: [40/10s]");
        assert!(limit.on_blocked());
        let grown = limit.max();
        limit.on_limited();
        assert_eq!(limit.max(), grown, "its own limits bound it");
    }

    #[tokio::test]
    async fn a_number_of_the_file_stays() {
        let (limit, policy) = limit("connections: 2");
        assert!(!limit.on_blocked());
        assert_eq!((limit.max(), limit.rule(&policy).unwrap().limit()), (2, 2));
    }

    #[tokio::test]
    async fn the_default_grows_as_far_as_memory_and_descriptors_allow() {
        let (limit, policy) = limit("");
        assert_eq!(limit.max(), 32);
        assert!(limit.on_blocked());
        assert_eq!(
            (limit.max(), limit.rule(&policy).unwrap().limit()),
            (64, 64)
        );
        // A 429 that no limit foresaw takes it back.
        limit.on_limited();
        assert_eq!(
            (limit.max(), limit.rule(&policy).unwrap().limit()),
            (32, 32)
        );
        assert!(limit.on_blocked());
        let steps = (0..99).take_while(|_| limit.on_blocked()).count();
        assert!(steps <= 6, "{steps} steps to {}", limit.max());
        assert!(limit.max() <= 4_096);
        // A number that the file has now replaces it.
        let (_, capped) = capped();
        limit.configure(&capped);
        assert_eq!(
            (limit.max(), limit.rule(&capped).unwrap().limit()),
            (40, 40)
        );
    }
}
