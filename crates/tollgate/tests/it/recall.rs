//! Limits that change while calls wait, under paused time (R-A13).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::smallvec;
use tokio::time::advance;
use tollgate::LimitReport;
use tollgate::permits::{Denied, PermitRequest, Permits};
use tollgate_core::ask::{CellId, Evidence, Priority, Scopes, Term};
use tollgate_core::gate::{CallerId, GateSettings};
use tollgate_core::limit::Rule;
use tollgate_core::time::{Micros, Span, Wall};
use tollgate_ledger::{Clock, Ledger, ProviderLedger};

const PERIOD: Span = Span::from_secs(10);

/// Callers that want a permit under the current limit, and when each got it.
#[derive(Clone)]
struct Waiters {
    ledger: ProviderLedger,
    permits: Permits,
    limit: Arc<Mutex<Arc<Rule>>>,
    granted: Arc<Mutex<Vec<(usize, Micros)>>>,
}

fn rule(limit: u64) -> Arc<Rule> {
    let rule = Rule::sliding(limit, PERIOD).expect("a sane rule");
    Arc::new(rule.drift_ppm(0))
}

impl Waiters {
    fn new(limit: u64) -> Waiters {
        let ledger = Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000))).provider("p");
        Waiters {
            permits: Permits::new(ledger.clone(), GateSettings::default()),
            limit: Arc::new(Mutex::new(rule(limit))),
            granted: Arc::default(),
            ledger,
        }
    }

    fn wanted(&self, seniority: u64) -> PermitRequest {
        // The edition first: see `Permits::edition`.
        let edition = self.permits.edition();
        PermitRequest {
            terms: smallvec![Term {
                cell: CellId::named(&["x"]),
                rule: self.limit.lock().clone(),
                cost: 1,
                reserve: 0
            }],
            scopes: Scopes::new(),
            priority: Priority::Normal,
            caller: CallerId(0),
            patience: Span::from_secs(86_400),
            evidence: Evidence::Report {
                timeout: Span::from_secs(30),
                late: Span::from_secs(5),
            },
            seniority: Some(seniority),
            edition,
        }
    }

    /// One caller: asks again for as long as it is recalled, and gets its response at once.
    fn join(&self, number: usize) {
        let waiters = self.clone();
        let seniority = self.permits.new_seniority();
        tokio::spawn(async move {
            let mut permit = loop {
                match waiters.permits.acquire(waiters.wanted(seniority)).await {
                    Ok(permit) => break permit,
                    Err(Denied::Recalled) => {}
                    Err(denied) => panic!("{denied}"),
                }
            };
            let now = waiters.ledger.now().at;
            waiters.granted.lock().push((number, now));
            permit.sent();
            permit.arrived(LimitReport::default());
            permit.finished(|_| None);
        });
    }

    fn change(&self, limit: u64) {
        *self.limit.lock() = rule(limit);
        self.permits.replace(GateSettings::default());
    }

    /// The most grants in any window that ends after `from`.
    fn max_in_window(&self, from: Micros) -> usize {
        let went = self.granted.lock();
        let ends = went.iter().map(|(_, at)| *at).filter(|at| *at > from);
        let inside = |end: Micros| {
            let within = |at: &Micros| *at <= end && end.since(*at) < PERIOD;
            went.iter().filter(|(_, at)| within(at)).count()
        };
        ends.map(inside).max().unwrap_or(0)
    }
}

/// R-A13: lowered from 10 to 2 while 30 wait: from then on never more than two in any window,
/// earlier grants included, in the order of arrival, and every call goes in the end.
#[tokio::test(start_paused = true)]
async fn a_lower_limit_applies_to_waiting_calls_and_resets_nothing() {
    let waiters = Waiters::new(10);
    for number in 0..40 {
        waiters.join(number);
    }
    advance(Duration::from_secs(1)).await;
    assert_eq!(waiters.granted.lock().len(), 10);
    waiters.change(2);
    let changed = waiters.ledger.now().at;
    for _ in 0..1_700 {
        advance(Duration::from_millis(100)).await;
    }
    assert_eq!(waiters.granted.lock().len(), 40);
    assert!(
        waiters.max_in_window(changed) <= 2,
        "{}",
        waiters.max_in_window(changed)
    );
    let order: Vec<usize> = waiters
        .granted
        .lock()
        .iter()
        .map(|(number, _)| *number)
        .collect();
    assert_eq!(order, (0..40).collect::<Vec<_>>());
}

/// R-A13: a hundred changes up and down while calls wait and arrive: never more than the highest
/// limit that held in the window, and no call is lost.
#[tokio::test(start_paused = true)]
async fn limits_hold_while_they_keep_changing() {
    let waiters = Waiters::new(5);
    let begin = waiters.ledger.now().at;
    for round in 0_usize..100 {
        waiters.join(round);
        waiters.join(round);
        advance(Duration::from_millis(700)).await;
        waiters.change([1, 5, 3, 4, 2][round % 5]);
    }
    waiters.change(5);
    for _ in 0..5_000 {
        advance(Duration::from_millis(100)).await;
    }
    assert_eq!(waiters.granted.lock().len(), 200);
    assert!(
        waiters.max_in_window(begin) <= 5,
        "{}",
        waiters.max_in_window(begin)
    );
}

/// R-A13: a call that arrives in the very instant of the change does not overtake the recalled
/// ones, although a raised limit has room for it at once.
#[tokio::test(start_paused = true)]
async fn a_call_arriving_during_a_change_queues_behind_waiting_calls() {
    let waiters = Waiters::new(10);
    for number in 0..40 {
        waiters.join(number);
    }
    advance(Duration::from_secs(1)).await;
    assert_eq!(waiters.granted.lock().len(), 10);
    waiters.change(20);
    // No recalled call has run yet.
    waiters.join(40);
    for _ in 0..400 {
        advance(Duration::from_millis(100)).await;
    }
    let order: Vec<usize> = waiters
        .granted
        .lock()
        .iter()
        .map(|(number, _)| *number)
        .collect();
    assert_eq!(order, (0..=40).collect::<Vec<_>>());
}

/// R-A13: a call reads its limits, they are replaced, and then it asks: it must ask again under the
/// new ones, although the old ones have room. Before this test, nothing showed if it did not.
#[tokio::test(start_paused = true)]
async fn a_call_that_read_its_limits_before_the_change_asks_again() {
    let waiters = Waiters::new(10);
    let old = waiters.wanted(waiters.permits.new_seniority());
    waiters.change(1);
    let denied = waiters.permits.acquire(old).await;
    assert_eq!(denied.unwrap_err(), Denied::Recalled);
    let new = waiters.wanted(waiters.permits.new_seniority());
    assert!(waiters.permits.acquire(new).await.is_ok());
}

/// R-A13: waiting calls hear of the change at once, not at the next timer.
#[tokio::test(start_paused = true)]
async fn a_raised_limit_wakes_waiting_calls_at_once() {
    let waiters = Waiters::new(1);
    for number in 0..3 {
        waiters.join(number);
    }
    advance(Duration::from_secs(1)).await;
    assert_eq!(waiters.granted.lock().len(), 1);
    waiters.change(3);
    let changed = waiters.ledger.now().at;
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
    let granted = waiters.granted.lock().clone();
    assert_eq!(granted.len(), 3, "{granted:?}");
    assert!(granted[1..].iter().all(|(_, at)| *at == changed));
}
