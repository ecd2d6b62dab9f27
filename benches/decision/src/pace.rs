//! Ten thousand callers wait at one limit: how long they take in all, how often each is woken, and
//! whether they go in the order in which they came.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tollgate::path::permit::{Permits, Wanted};
use tollgate_core::ask::{CellId, Evidence, OwnerId, Priority, Scopes, Term};
use tollgate_core::gate::{CallerId, Settings};
use tollgate_core::limit::{HoldUntil, Rule};
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, Ledger};

use crate::Effort;
use crate::report::{Goal, Report};

const WAITERS: usize = 10_000;
const PER_SECOND: u32 = 2_000;
const BURST: u32 = 20;

/// What came of the waiters.
struct Paced {
    name: &'static str,
    /// Beside the ideal time.
    ratio: f64,
    polls: f64,
    /// Waiters that went before one who had come earlier.
    overtook: usize,
}

pub fn run(_: Effort, report: &mut Report) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let all = runtime.block_on(tokio::task::LocalSet::new().run_until(async {
        [governor().await, leaky_bucket().await, ours().await]
    }));
    let [governor, leaky, ours] = &all;
    let peers = |show: &dyn Fn(&Paced) -> String| format!("{}, {}", show(governor), show(leaky));
    report.goal(Goal {
        measure: format!("pace, {WAITERS} waiters: time beside the ideal (governor, leaky-bucket)"),
        peer: peers(&|one| format!("{:.2}x", one.ratio)),
        floor: "–".to_owned(),
        ours: format!("{:.3}x", ours.ratio),
        value: ours.ratio,
        bar: 1.02,
        unit: "x",
    });
    report.goal(Goal {
        measure: "pace: polls per waiter".to_owned(),
        peer: peers(&|one| format!("{:.1}", one.polls)),
        floor: "–".to_owned(),
        ours: format!("{:.2}", ours.polls),
        value: ours.polls,
        bar: 3.0,
        unit: "",
    });
    report.goal(Goal {
        measure: "pace: waiters that overtook one who came earlier".to_owned(),
        peer: peers(&|one| one.overtook.to_string()),
        floor: "–".to_owned(),
        ours: ours.overtook.to_string(),
        value: ours.overtook as f64,
        bar: 0.0,
        unit: "",
    });
    for one in &all {
        eprintln!("{}: {:.3}x, {:.2} polls", one.name, one.ratio, one.polls);
    }
}

async fn governor() -> Paced {
    let quota = governor::Quota::per_second(PER_SECOND.try_into().expect("not zero"))
        .allow_burst(BURST.try_into().expect("not zero"));
    let limiter = Arc::new(governor::RateLimiter::direct(quota));
    paced("governor", || {
        let limiter = limiter.clone();
        async move { limiter.until_ready().await }
    })
    .await
}

async fn leaky_bucket() -> Paced {
    let limiter = leaky_bucket::RateLimiter::builder()
        .max(BURST as usize)
        .initial(BURST as usize)
        .refill(PER_SECOND as usize / 1_000)
        .interval(Duration::from_millis(1))
        .build();
    let limiter = Arc::new(limiter);
    paced("leaky-bucket", || {
        let limiter = limiter.clone();
        async move { limiter.acquire_one().await }
    })
    .await
}

async fn ours() -> Paced {
    let settings = Settings {
        waiting_max: WAITERS,
        ..Settings::default()
    };
    let permits = Permits::new(Ledger::memory(Clock::System), OwnerId::default(), settings);
    let rule = Rule::bucket(PER_SECOND.into(), Span::from_secs(1), BURST.into())
        .expect("a rule")
        .hold_until(HoldUntil::Send);
    let term = Term {
        cell: CellId::named(&["pace"]),
        rule: Arc::new(rule),
        cost: 1,
        leave: 0,
    };
    paced("Tollgate", || {
        let wanted = Wanted {
            terms: [term.clone()].into_iter().collect(),
            scopes: Scopes::new(),
            priority: Priority::Normal,
            caller: CallerId::default(),
            patience: Span::from_secs(600),
            evidence: Evidence::None {
                use_within: Span::ZERO,
            },
            seniority: None,
        };
        let permits = permits.clone();
        async move {
            let mut permit = permits.acquire(wanted).await.expect("a permit");
            permit.sent();
        }
    })
    .await
}

/// All waiters at once, until the last one has gone.
async fn paced<F: Future<Output = ()> + 'static>(
    name: &'static str,
    wait: impl Fn() -> F,
) -> Paced {
    let polls = Rc::new(Cell::new(0_usize));
    let went = Rc::new(RefCell::new(Vec::with_capacity(WAITERS)));
    let began = Instant::now();
    let mut tasks = Vec::with_capacity(WAITERS);
    for index in 0..WAITERS {
        let counted = Counted {
            inner: Box::pin(wait()),
            polls: polls.clone(),
        };
        let went = went.clone();
        tasks.push(tokio::task::spawn_local(async move {
            counted.await;
            went.borrow_mut().push(index);
        }));
    }
    for task in tasks {
        task.await.expect("a waiter");
    }
    let took = began.elapsed().as_secs_f64();
    let ideal = (WAITERS as f64 - f64::from(BURST)) / f64::from(PER_SECOND);
    let mut latest = 0;
    let mut overtaken = 0;
    for index in went.borrow().iter() {
        overtaken += usize::from(*index < latest);
        latest = latest.max(*index);
    }
    Paced {
        name,
        ratio: took / ideal,
        polls: polls.get() as f64 / WAITERS as f64,
        overtook: overtaken,
    }
}

/// A future that counts how often it is polled.
struct Counted<F> {
    inner: Pin<Box<F>>,
    polls: Rc<Cell<usize>>,
}

impl<F: Future<Output = ()>> Future for Counted<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.polls.set(self.polls.get() + 1);
        self.inner.as_mut().poll(cx)
    }
}
