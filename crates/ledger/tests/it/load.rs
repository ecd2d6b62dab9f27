//! Load on a store of many hosts while it fails: owners that take permits as fast as they get them,
//! and the provider's own log, which judges.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::smallvec;
use tokio::sync::watch;
use tollgate_core::ask::{Ask, Evidence, Outcome, Verdict};
use tollgate_core::limit::Rule;
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, Ledger, ProviderLedger};
use tollgate_sim::checker::{Arrival, ArrivalFilter, Checker, Priority};
use tollgate_sim::rule::{CallId, Cost, Unit};

use crate::backend::{Owner, arrived, term};

/// The limit: so many in each such window.
pub(crate) const LIMIT: u64 = 20;
pub(crate) const WINDOW: Span = Span::from_millis(300);

/// How long a call may be on its way: after rows were lost, the limit is closed for so long and a
/// window.
const LATE: Span = Span::from_millis(300);

/// A permit must be used within this time: its slot is held for longer than that.
const USE_WITHIN: Span = Span::from_millis(500);

/// A fault that is not over by then is not survived. Beside a compiler, a restart, a promotion and the
/// windows that follow take some ten seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// A limit that owners use as fast as they get permits: so many in each such window.
#[derive(Clone, Copy)]
pub(crate) struct UsedLimit {
    pub(crate) limit: u64,
    pub(crate) window: Span,
}

/// Over before a fault is, so that owners go on.
const SHORT: UsedLimit = UsedLimit {
    limit: LIMIT,
    window: WINDOW,
};

/// The window outlasts a kill, a restart and a promotion: what was forgotten can be granted twice.
pub(crate) const OUTLASTS_FAULTS: UsedLimit = UsedLimit {
    limit: LIMIT,
    window: Span::from_secs(5),
};

/// Owners under load.
pub(crate) struct Load {
    limit: UsedLimit,
    log: Arc<Mutex<Checker>>,
    arrived: watch::Sender<u64>,
    tasks: tokio::task::JoinSet<()>,
    owners: Vec<ProviderLedger>,
}

impl Load {
    /// Each of these ledgers is an owner that takes permits.
    pub(crate) fn start(ledgers: &[Ledger]) -> Load {
        Load::of(SHORT, ledgers)
    }

    /// The same with this limit.
    pub(crate) fn of(limit: UsedLimit, ledgers: &[Ledger]) -> Load {
        let mut load = Load {
            limit,
            log: Arc::new(Mutex::new(Checker::new())),
            arrived: watch::Sender::new(0),
            tasks: tokio::task::JoinSet::new(),
            owners: Vec::new(),
        };
        for ledger in ledgers {
            let owner = Owner::numbered(ledger, ledger.owner().0);
            load.owners.push(owner.ledger.clone());
            let (log, count) = (load.log.clone(), load.arrived.clone());
            load.tasks.spawn(take_permits(owner, limit, log, count));
        }
        load
    }

    /// Waits until so many more calls have arrived.
    pub(crate) async fn more(&self, calls: u64) {
        let mut arrived = self.arrived.subscribe();
        let until = *arrived.borrow() + calls;
        let enough = arrived.wait_for(|arrived| *arrived >= until);
        let enough = tokio::time::timeout(PATIENCE, enough).await;
        assert!(
            enough.is_ok(),
            "no more calls after the fault; lost: {:?}",
            self.owners
                .iter()
                .map(ProviderLedger::loss_reason)
                .collect::<Vec<_>>(),
        );
    }

    /// How many calls have arrived.
    pub(crate) fn arrived(&self) -> u64 {
        *self.arrived.borrow()
    }

    /// Ends it. The provider judges.
    pub(crate) fn judge(self) {
        let limit = self.limit.limit;
        let most = self.most_in_a_window();
        assert!(most <= limit, "{most} in a window, {limit} allowed");
    }

    /// Ends it. So many calls were in the fullest window, by the provider's own log.
    pub(crate) fn most_in_a_window(self) -> u64 {
        drop(self.tasks);
        let log = self.log.lock();
        log.max_in_any_window(self.limit.window, Unit::Calls, ArrivalFilter::Arrived)
    }
}

/// Each owner uses the provider, with a limit of its own. One whose first reply comes after a fault takes a
/// server without rows for a new one (docs/many-hosts.md): a window was granted twice with all rules, if its
/// connection took longer than the whole limit.
pub(crate) async fn use_before(ledgers: &[Ledger]) {
    let rule = Arc::new(Rule::sliding(1, Span::from_secs(10)).unwrap());
    for (number, ledger) in ledgers.iter().enumerate() {
        let mut owner = Owner::of(ledger);
        let mut events = owner.ledger.events();
        let ask = owner.ask(smallvec![term(&format!("before {number}"), &rule)]);
        let decided = async {
            while owner.ledger.offer(vec![ask.clone()]).await.is_err() {
                events.next().await;
            }
        };
        let decided = tokio::time::timeout(PATIENCE, decided).await;
        assert!(decided.is_ok(), "{:?}", owner.ledger.loss_reason());
    }
}

/// Owners that use up a quota of an hour as fast as they get it; `meanwhile` starts when a third of it is
/// used, and can see how many are. Returns how many permits were used in all.
pub(crate) async fn use_up_quota(
    ledgers: &[Ledger],
    quota: u64,
    meanwhile: impl AsyncFnOnce(watch::Receiver<u64>),
) -> u64 {
    let used = watch::Sender::new(0);
    let mut tasks = tokio::task::JoinSet::new();
    for ledger in ledgers {
        let owner = Owner::numbered(ledger, ledger.owner().0);
        tasks.spawn(use_up(owner, quota, used.clone()));
    }
    let mut seen = used.subscribe();
    let third = seen.wait_for(|used| *used >= quota / 3);
    let third = tokio::time::timeout(PATIENCE, third).await;
    assert!(third.is_ok(), "the quota is not used");
    drop(third);
    meanwhile(seen).await;
    let rest = async { while tasks.join_next().await.is_some() {} };
    let rest = tokio::time::timeout(PATIENCE, rest).await;
    assert!(rest.is_ok(), "nobody says that the quota is used up");
    *used.borrow()
}

async fn use_up(mut owner: Owner, quota: u64, used: watch::Sender<u64>) {
    let rule = Arc::new(Rule::sliding(quota, Span::from_secs(3_600)).unwrap());
    let mut events = owner.ledger.events();
    loop {
        let ask = owner.ask(smallvec![term("hour", &rule)]);
        let Ok(offered) = owner.ledger.offer(vec![ask.clone()]).await else {
            drop(tokio::time::timeout(Duration::from_millis(100), events.next()).await);
            continue;
        };
        match offered.verdicts.into_iter().next() {
            Some((_, Verdict::Go { marks })) => {
                used.send_modify(|used| *used += 1);
                owner.settle(&crate::backend::Permit { ask, marks }, arrived());
            }
            Some((_, Verdict::Wait { after, .. })) if after < Span::from_secs(60) => {
                let wait = Duration::from_micros(after.0).max(Duration::from_millis(1));
                drop(tokio::time::timeout(wait, events.next()).await);
            }
            Some(_) | None => return,
        }
    }
}

async fn take_permits(
    mut owner: Owner,
    limit: UsedLimit,
    log: Arc<Mutex<Checker>>,
    count: watch::Sender<u64>,
) {
    let rule = Arc::new(Rule::sliding(limit.limit, limit.window).unwrap());
    let mut events = owner.ledger.events();
    loop {
        let asked = Clock::System.at();
        let ask = Ask {
            evidence: Evidence::Report {
                timeout: Span::from_secs(1),
                late: LATE,
            },
            ..owner.ask(smallvec![term("x", &rule)])
        };
        let Ok(offered) = owner.ledger.offer(vec![ask.clone()]).await else {
            // The store is lost: its return is an event.
            events.next().await;
            continue;
        };
        match offered.verdicts.into_iter().next() {
            // A permit that came late, because this process was held up, must not be used any more.
            Some((_, Verdict::Go { marks })) if Clock::System.at().since(asked) > USE_WITHIN => {
                owner.settle(&crate::backend::Permit { ask, marks }, Outcome::Unsent);
            }
            Some((_, Verdict::Go { marks })) => {
                let number = {
                    let mut log = log.lock();
                    let id = CallId(log.arrivals().len() as u64);
                    log.record_arrival(Arrival {
                        id,
                        at: Clock::System.at(),
                        cost: Cost::CALL,
                        priority: Priority::Normal,
                        accepted: true,
                    });
                    id.0 + 1
                };
                owner.settle(&crate::backend::Permit { ask, marks }, arrived());
                count.send_replace(number);
            }
            Some((_, Verdict::Wait { after, .. })) => {
                let wait = Duration::from_micros(after.0).max(Duration::from_millis(1));
                drop(tokio::time::timeout(wait, events.next()).await);
            }
            Some((_, Verdict::Never(_))) | None => return,
        }
    }
}
