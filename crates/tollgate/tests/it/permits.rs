//! The permit stage under paused time: which calls wake, when, and what happens to those that
//! leave.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use smallvec::smallvec;
use tokio::time::advance;
use tollgate::permits::{Denied, PermitRequest, Permits};
use tollgate::{LimitReport, Permit};
use tollgate_core::ask::{CellId, Evidence, LimitReading, Priority, Scopes, Term};
use tollgate_core::gate::{CallerId, GateSettings, Order};
use tollgate_core::limit::{CellView, Rule};
use tollgate_core::time::{Micros, Span, Wall};
use tollgate_ledger::{Clock, Ledger, ProviderLedger};

fn secs(secs: u64) -> Span {
    Span::from_secs(secs)
}

struct Stage {
    ledger: ProviderLedger,
    permits: Permits,
    rule: Arc<Rule>,
}

impl Stage {
    fn new(rule: Rule) -> Stage {
        Stage::with(rule, GateSettings::default())
    }

    fn with(rule: Rule, settings: GateSettings) -> Stage {
        let ledger = Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000))).provider("p");
        let permits = Permits::new(ledger.clone(), settings);
        Stage {
            ledger,
            permits,
            rule: Arc::new(rule),
        }
    }

    fn wanted(&self) -> PermitRequest {
        let cell = CellId::named(&["x"]);
        PermitRequest {
            terms: smallvec![Term {
                cell,
                rule: self.rule.clone(),
                cost: 1,
                reserve: 0
            }],
            scopes: Scopes::new(),
            priority: Priority::Normal,
            caller: CallerId(0),
            patience: secs(86_400),
            evidence: Evidence::Report {
                timeout: secs(30),
                late: secs(5),
            },
            seniority: None,
            edition: self.permits.edition(),
        }
    }

    async fn take(&self) -> Permit {
        self.permits.acquire(self.wanted()).await.expect("a permit")
    }

    fn now(&self) -> Micros {
        self.ledger.now().at
    }

    async fn used(&self) -> u64 {
        self.view().await.used
    }

    async fn view(&self) -> CellView {
        let cells = vec![(CellId::named(&["x"]), self.rule.clone())];
        self.ledger.peek(cells).await.remove(0)
    }
}

fn sliding(limit: u64, period: Span) -> Rule {
    Rule::sliding(limit, period)
        .expect("a sane rule")
        .drift_ppm(0)
}

fn finish(mut permit: Permit) {
    permit.sent();
    permit.arrived(LimitReport::default());
    permit.finished(|_| None);
}

/// M4: the call waits exactly until a permit is free.
#[tokio::test(start_paused = true)]
async fn m4_a_call_waits_exactly_until_a_permit_is_free() {
    let stage = Stage::new(sliding(1, secs(10)));
    finish(stage.take().await);
    let start = stage.now();
    let permit = stage.take().await;
    // tokio's timer has a grain of one millisecond and fires late, never early.
    let waited = stage.now().since(start);
    assert!(
        waited >= secs(10) && waited <= secs(10) + Span::from_millis(1),
        "{waited}"
    );
    assert_eq!(permit.waited(), waited);
}

#[tokio::test(start_paused = true)]
async fn a_response_wakes_waiters_without_a_known_time() {
    let stage = Stage::new(Rule::in_flight(1).unwrap());
    let first = stage.take().await;
    let waiting = tokio::spawn({
        let (permits, wanted) = (stage.permits.clone(), stage.wanted());
        async move { permits.acquire(wanted).await.unwrap() }
    });
    advance(Duration::from_secs(7)).await;
    assert!(!waiting.is_finished());
    finish(first);
    let second = waiting.await.unwrap();
    assert!(
        second.waited() < secs(7) + Span::from_millis(4),
        "{}",
        second.waited()
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_past_the_deadline_is_rejected_at_once() {
    let stage = Stage::new(sliding(1, secs(10)));
    finish(stage.take().await);
    let start = stage.now();
    let denied = stage
        .permits
        .acquire(PermitRequest {
            patience: secs(3),
            ..stage.wanted()
        })
        .await;
    let Err(Denied::Rejected { retry_in, .. }) = denied else {
        panic!("{denied:?}")
    };
    assert_eq!((retry_in, stage.now()), (secs(10), start));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_while_waiting_has_its_own_error() {
    let stage = Stage::new(Rule::in_flight(1).unwrap());
    let _running = stage.take().await;
    let denied = stage
        .permits
        .acquire(PermitRequest {
            patience: secs(3),
            ..stage.wanted()
        })
        .await;
    assert!(
        matches!(denied, Err(Denied::TimedOut { blocker: Some(_) })),
        "{denied:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_beyond_the_queue_bound_is_rejected() {
    let settings = GateSettings {
        waiting_max: 1,
        ..GateSettings::default()
    };
    let stage = Stage::with(Rule::in_flight(1).unwrap(), settings);
    let _running = stage.take().await;
    let mut waiting = pin!(stage.permits.acquire(stage.wanted()));
    assert!(futures_pending(waiting.as_mut()).await);
    let denied = stage.permits.acquire(stage.wanted()).await;
    assert_eq!(denied.unwrap_err(), Denied::Full);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_leaves_the_queue_at_once() {
    let stage = Stage::new(Rule::in_flight(1).unwrap());
    let running = stage.take().await;
    {
        let mut leaving = pin!(stage.permits.acquire(stage.wanted()));
        assert!(futures_pending(leaving.as_mut()).await);
        assert_eq!(stage.permits.waiting(Priority::Normal), 1);
    }
    assert_eq!(stage.permits.waiting(Priority::Normal), 0);
    finish(running);
    assert!(stage.take().await.waited() <= Span::from_millis(4));
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_was_decided_but_not_taken_goes_to_the_next() {
    let stage = Stage::new(sliding(1, secs(10)));
    let unused = stage.take().await;
    {
        let mut leaving = pin!(stage.permits.acquire(stage.wanted()));
        assert!(futures_pending(leaving.as_mut()).await);
        tokio::task::yield_now().await;
        drop(unused);
        assert_eq!(stage.used().await, 0);
        // The driver receives it and decides, and nobody polls for the result.
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        assert_eq!(stage.used().await, 1);
    }
    assert_eq!(stage.take().await.waited(), Span::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_permit_dropped_before_a_byte_left_is_given_back_and_after_that_it_counts() {
    let stage = Stage::new(sliding(1, secs(10)));
    drop(stage.take().await);
    assert_eq!(stage.used().await, 0);
    let mut permit = stage.take().await;
    permit.sent();
    drop(permit);
    assert_eq!(stage.used().await, 1);
    let start = stage.now();
    drop(stage.take().await);
    assert!(
        stage.now().since(start) >= secs(15),
        "late arrival and a window"
    );
}

#[tokio::test(start_paused = true)]
async fn without_waiters_a_permit_is_granted_at_once() {
    let stage = Stage::new(sliding(1, secs(10)));
    let mut first = pin!(stage.permits.acquire(stage.wanted()));
    let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(first.as_mut().poll(cx))).await;
    assert!(polled.is_ready(), "no other task has run");
    assert_eq!(stage.used().await, 1);
}

/// M3: a permit that becomes free belongs to the call that waits for it, although the ledger would
/// grant it to a call that asks before the queue has heard of it.
#[tokio::test(start_paused = true)]
async fn m3_a_new_call_does_not_take_the_permit_of_a_waiting_one() {
    for is_offered in [false, true] {
        let stage = Stage::new(sliding(1, secs(10)));
        let unsent = stage.take().await;
        let mut waiting = pin!(stage.permits.acquire(stage.wanted()));
        assert!(futures_pending(waiting.as_mut()).await);
        if is_offered {
            // The driver offers it, and the ledger rejects it for now.
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        }
        drop(unsent);
        assert_eq!(stage.used().await, 0, "the ledger has one to grant");
        let mut newcomer = pin!(stage.permits.acquire(stage.wanted()));
        assert!(futures_pending(newcomer.as_mut()).await, "it overtakes");
        let first = at_once(waiting).await;
        assert!(futures_pending(newcomer.as_mut()).await, "one at a time");
        drop(first);
        drop(at_once(newcomer).await);
    }
}

/// The result, without any wait for a timer.
async fn at_once(acquire: impl Future<Output = Result<Permit, Denied>>) -> Permit {
    tokio::time::timeout(Duration::from_millis(1), acquire)
        .await
        .expect("a wake-up")
        .expect("a permit")
}

/// M4: a call that leaves the queue wakes those that waited behind it: they need less.
#[tokio::test(start_paused = true)]
async fn m4_a_call_that_leaves_wakes_those_behind_it() {
    let stage = Stage::new(sliding(10, secs(60)));
    for _ in 0..7 {
        finish(stage.take().await);
    }
    let mut cheap = pin!(stage.permits.acquire(stage.wanted()));
    {
        let mut request = stage.wanted();
        request.terms[0].cost = 5;
        let mut costly = pin!(stage.permits.acquire(request));
        assert!(futures_pending(costly.as_mut()).await);
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        assert!(futures_pending(cheap.as_mut()).await);
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        assert!(
            futures_pending(cheap.as_mut()).await,
            "not before the other"
        );
    }
    drop(at_once(cheap).await);
}

/// A recalled call that does not ask again wakes those that wait for its return.
#[tokio::test(start_paused = true)]
async fn a_call_that_does_not_return_wakes_those_that_wait_for_it() {
    let stage = Stage::new(Rule::in_flight(1).unwrap());
    let who = (CallerId(0), Priority::Normal);
    stage
        .permits
        .expect_return(stage.permits.new_seniority(), who);
    let missing = stage.permits.new_seniority();
    stage.permits.expect_return(missing, who);
    stage.permits.cancel_return(missing - 1);
    let mut newcomer = pin!(stage.permits.acquire(stage.wanted()));
    for _ in 0..4 {
        assert!(futures_pending(newcomer.as_mut()).await, "it overtakes");
        tokio::task::yield_now().await;
    }
    stage.permits.cancel_return(missing);
    drop(at_once(newcomer).await);
}

/// M3: urgent calls overtake, and order is that of arrival inside one priority.
#[tokio::test(start_paused = true)]
async fn m3_urgent_calls_overtake_and_the_rest_keep_their_order() {
    let stage = Stage::new(sliding(1, secs(1)));
    finish(stage.take().await);
    let (sender, mut receiver) = tokio::sync::mpsc::channel(16);
    for (name, priority) in [
        (1, Priority::Low),
        (2, Priority::Normal),
        (3, Priority::Normal),
        (4, Priority::High),
    ] {
        let (permits, sender) = (stage.permits.clone(), sender.clone());
        let wanted = PermitRequest {
            priority,
            ..stage.wanted()
        };
        tokio::spawn(async move {
            finish(permits.acquire(wanted).await.unwrap());
            sender.send(name).await.unwrap();
        });
        tokio::task::yield_now().await;
    }
    let mut order = Vec::new();
    for _ in 0..4 {
        order.push(receiver.recv().await.unwrap());
    }
    assert_eq!(order, [4, 2, 3, 1]);
}

/// M13: a strict provider's calls go in order of arrival, whatever their priority.
#[tokio::test(start_paused = true)]
async fn m13_strict_order_lets_nobody_overtake() {
    let settings = GateSettings {
        order: Order::Fifo,
        ..GateSettings::default()
    };
    let stage = Stage::with(Rule::paced(1, secs(1)).unwrap(), settings);
    finish(stage.take().await);
    let (sender, mut receiver) = tokio::sync::mpsc::channel(16);
    for (name, priority) in [
        (1, Priority::Low),
        (2, Priority::High),
        (3, Priority::Normal),
    ] {
        let (permits, sender) = (stage.permits.clone(), sender.clone());
        let wanted = PermitRequest {
            priority,
            ..stage.wanted()
        };
        tokio::spawn(async move {
            finish(permits.acquire(wanted).await.unwrap());
            sender.send(name).await.unwrap();
        });
        tokio::task::yield_now().await;
    }
    for expected in 1..=3 {
        assert_eq!(receiver.recv().await, Some(expected));
    }
}

/// A first-use window that was never opened at the provider must not end early here.
#[tokio::test(start_paused = true)]
async fn a_failed_call_counts_but_opens_no_window() {
    let stage = Stage::new(Rule::fixed(2, secs(10)).expect("a sane rule").drift_ppm(0));
    let mut failed = stage.take().await;
    failed.sent();
    failed.failed();
    failed.finished(|_| None);
    assert_eq!(stage.used().await, 1);
    advance(Duration::from_secs(9)).await;
    finish(stage.take().await);
    let start = stage.now();
    finish(stage.take().await);
    assert!(
        stage.now().since(start) >= secs(10),
        "one window after the proof"
    );
}

#[tokio::test(start_paused = true)]
async fn response_feedback_reaches_the_ledger_with_its_mark() {
    let stage = Stage::new(sliding(10, secs(10)));
    let mut permit = stage.take().await;
    permit.sent();
    let reading = LimitReading {
        term: 0,
        remaining: Some(3),
        ..LimitReading::default()
    };
    let nonsense = LimitReading {
        term: 7,
        remaining: Some(0),
        ..LimitReading::default()
    };
    permit.arrived(LimitReport {
        limited: false,
        readings: vec![reading, nonsense],
    });
    assert_eq!(stage.view().await.remaining, 3);
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_with_the_last_handle() {
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let stage = Stage::new(sliding(1, secs(10)));
    finish(stage.take().await);
    assert_eq!(tasks(), before + 1);
    drop(stage);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(tasks(), before);
}

/// M4: ten thousand waiters are woken once each, in order, at the pace of the limit.
#[tokio::test(start_paused = true)]
async fn m4_ten_thousand_waiters_are_woken_in_order_without_polling() {
    const WAITERS: usize = 10_000;
    let settings = GateSettings {
        waiting_max: WAITERS,
        ..GateSettings::default()
    };
    let stage = Stage::with(
        Rule::bucket(1_000, secs(1), 1).unwrap().drift_ppm(0),
        settings,
    );
    let polls = Arc::new(AtomicUsize::new(0));
    let order = Arc::new(parking_lot::Mutex::new(Vec::with_capacity(WAITERS)));
    let start = stage.now();
    let tasks: Vec<_> = (0..WAITERS)
        .map(|name| {
            let (permits, wanted) = (stage.permits.clone(), stage.wanted());
            let (polls, order) = (polls.clone(), order.clone());
            tokio::spawn(async move {
                let acquire = Box::pin(async move { permits.acquire(wanted).await.unwrap() });
                let permit = Counted {
                    inner: acquire,
                    polls,
                }
                .await;
                order.lock().push(name);
                finish(permit);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let order = std::mem::take(&mut *order.lock());
    assert!(order.is_sorted(), "in order of arrival");
    let (ideal, took) = (secs(10), stage.now().since(start));
    assert!(took.0 * 100 <= ideal.0 * 102, "{took} for {WAITERS}");
    let polls = polls.load(Ordering::Relaxed);
    assert!(polls <= 3 * WAITERS, "{polls} polls");
}

/// Counts how often a future is polled.
struct Counted<F> {
    inner: Pin<Box<F>>,
    polls: Arc<AtomicUsize>,
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.inner.as_mut().poll(context)
    }
}

/// Polls once and says whether it is still pending.
async fn futures_pending<F: Future>(mut future: Pin<&mut F>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}
