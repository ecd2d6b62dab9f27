//! 10,000 waiters for one paced limit, in one process: how long until the last is granted, in which
//! order, and how often each was polled. Compared with governor and leaky-bucket, one after
//! another.
//!
//! Promises: all waiters are queued before the first permit is free, and each wants one permit.
//! Polls are counted around the future that a user awaits.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::num::NonZeroU32;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tollgate::LimitReport;
use tollgate::permits::{PermitRequest, Permits};
use tollgate_core::ask::{CellId, Evidence, Priority, Scopes, Term, Terms};
use tollgate_core::gate::{CallerId, GateSettings};
use tollgate_core::limit::Rule;
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, Ledger};

use crate::report::{Part, table};

const WAITERS: u32 = 10_000;
/// Permits per second, and how many may go at once.
const RATE: u32 = 1_000;
const BURST: u32 = 10;

/// The compared limiters.
#[derive(Clone)]
enum Limiter {
    Ours(Permits, Arc<Rule>),
    Governor(Arc<governor::DefaultDirectRateLimiter>),
    LeakyBucket(Arc<leaky_bucket::RateLimiter>),
}

/// The figures of one limiter.
struct Figures {
    name: &'static str,
    /// The duration as a multiple of the ideal duration.
    stretch: f64,
    /// Waiters that were granted before an earlier waiter.
    overtaken: usize,
    /// Polls per waiter.
    polls: f64,
}

pub fn run() -> anyhow::Result<Part> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut figures = Vec::new();
    for name in ["governor", "leaky-bucket", "Tollgate"] {
        let local = tokio::task::LocalSet::new();
        figures.push(local.block_on(&runtime, one(name))?);
    }
    Ok(report(&figures))
}

fn limiter(name: &str) -> anyhow::Result<Limiter> {
    let number = |of| NonZeroU32::new(of).context("not zero");
    Ok(match name {
        "governor" => {
            let quota = governor::Quota::per_second(number(RATE)?).allow_burst(number(BURST)?);
            Limiter::Governor(Arc::new(governor::RateLimiter::direct(quota)))
        }
        "leaky-bucket" => Limiter::LeakyBucket(Arc::new(
            leaky_bucket::RateLimiter::builder()
                .max(BURST as usize)
                .initial(BURST as usize)
                .refill(1)
                .interval(Duration::from_secs(1) / RATE)
                .build(),
        )),
        _ => {
            let rule = Rule::bucket(RATE.into(), Span::from_secs(1), BURST.into())?;
            // The queue has room for all waiters.
            let settings = GateSettings {
                waiting_max: WAITERS as usize,
                ..GateSettings::default()
            };
            let permits = Permits::new(Ledger::memory(Clock::System).provider("pace"), settings);
            Limiter::Ours(permits, Arc::new(rule))
        }
    })
}

async fn one(name: &'static str) -> anyhow::Result<Figures> {
    let limiter = limiter(name)?;
    let (polls, gone) = (Rc::new(Cell::new(0_u64)), Rc::new(RefCell::new(Vec::new())));
    let began = Instant::now();
    let tasks: Vec<_> = (0..WAITERS)
        .map(|number| {
            let (limiter, polls, gone) = (limiter.clone(), polls.clone(), gone.clone());
            tokio::task::spawn_local(async move {
                let wait = pin!(limiter.wait());
                Counted { wait, polls }.await;
                gone.borrow_mut().push(number);
            })
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    let took = began.elapsed().as_secs_f64();
    let ideal = f64::from(WAITERS - BURST) / f64::from(RATE);
    let gone = gone.borrow();
    Ok(Figures {
        name,
        stretch: took / ideal,
        overtaken: gone.windows(2).filter(|pair| pair[0] > pair[1]).count(),
        polls: polls.get() as f64 / f64::from(WAITERS),
    })
}

impl Limiter {
    async fn wait(self) {
        match self {
            Limiter::Governor(limiter) => limiter.until_ready().await,
            Limiter::LeakyBucket(limiter) => limiter.acquire_one().await,
            Limiter::Ours(permits, rule) => {
                let term = Term {
                    cell: CellId::named(&["pace"]),
                    rule,
                    cost: 1,
                    reserve: 0,
                };
                let request = PermitRequest {
                    terms: Terms::from_elem(term, 1),
                    scopes: Scopes::new(),
                    priority: Priority::Normal,
                    caller: CallerId(0),
                    patience: Span::from_secs(600),
                    evidence: Evidence::Report {
                        timeout: Span::from_secs(30),
                        late: Span::from_secs(5),
                    },
                    seniority: None,
                    edition: permits.edition(),
                };
                // Sent and settled at once: the row measures the wait.
                if let Ok(mut permit) = permits.acquire(request).await {
                    permit.sent();
                    permit.arrived(LimitReport::default());
                    permit.finished(|_| None);
                }
            }
        }
    }
}

/// A future that counts how often it is polled.
struct Counted<'a, F> {
    wait: Pin<&'a mut F>,
    polls: Rc<Cell<u64>>,
}

impl<F: Future> Future for Counted<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.polls.set(self.polls.get() + 1);
        self.wait.as_mut().poll(context)
    }
}

fn report(figures: &[Figures]) -> Part {
    let mut part = Part::default();
    let Some((ours, peers)) = figures.split_last() else {
        return part;
    };
    let show = |one: &Figures| {
        let Figures { stretch, polls, .. } = one;
        let order = match one.overtaken {
            0 => "in order".to_owned(),
            some => format!("{some} out of order"),
        };
        format!("{stretch:.3}x, {order}, {polls:.1}")
    };
    let peers: Vec<String> = peers
        .iter()
        .map(|one| format!("{} {}", one.name, show(one)))
        .collect();
    part.goal(
        "pace with 10,000 waiters, 1,000 a second: time vs ideal, order, polls per waiter",
        &peers.join("; "),
        show(ours),
        "≤ 1.02x, in order, ≤ 3",
        ours.stretch <= 1.02 && ours.overtaken == 0 && ours.polls <= 3.0,
    );
    let lines: Vec<Vec<String>> = figures
        .iter()
        .map(|one| {
            vec![
                one.name.to_owned(),
                format!("{:.3}x", one.stretch),
                one.overtaken.to_string(),
                format!("{:.1}", one.polls),
            ]
        })
        .collect();
    let head = [
        "10,000 waiters",
        "time vs ideal",
        "granted before an earlier waiter",
        "polls per waiter",
    ];
    part.section("Pace", table(&head, &lines));
    part
}
