//! A Rust client under one workload: with a limiter of the crate registry, or without one in front
//! of our gateway, which does the limiting.
//!
//! The scenario says when a call is handed to the limiter; the limiter decides when it is sent. The
//! provider's own log judges what was sent; the client prints only the results of the calls.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use tower::{Service, ServiceExt};

use super::scenario::{Scenario, Tally, Urgency};
use crate::load::Caller;

/// The limiter that decides when a call is sent.
#[derive(Clone)]
enum Limiter {
    /// The gateway does.
    None,
    Governor(Arc<governor::DefaultDirectRateLimiter>),
    LeakyBucket(Arc<leaky_bucket::RateLimiter>),
    Tower(tower::buffer::Buffer<(), std::future::Ready<Result<(), tower::BoxError>>>),
}

/// Runs a workload to its end and prints the tally.
pub fn run(tool: &str, file: &str) -> anyhow::Result<()> {
    let scenario: Scenario = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    let tally = local.block_on(&runtime, calls(tool, &scenario))?;
    println!("{}", serde_json::to_string(&tally)?);
    // Calls that still wait are dropped.
    std::process::exit(0);
}

async fn calls(tool: &str, scenario: &Scenario) -> anyhow::Result<Tally> {
    let limiter = limiter(tool, scenario)?;
    let rest = scenario.url.strip_prefix("http://").context("a URL")?;
    let (server, path) = rest.split_once('/').unwrap_or((rest, ""));
    let line = Rc::new(Line {
        server: server.parse()?,
        path: format!("/{path}"),
        idle: RefCell::default(),
        tally: RefCell::default(),
    });
    if scenario.on_word {
        println!("ready");
        std::io::stdin().read_line(&mut String::new())?;
    }
    let began = tokio::time::Instant::now();
    for (index, (at, urgency)) in scenario.calls.iter().enumerate() {
        let (limiter, line, urgency) = (limiter.clone(), line.clone(), *urgency);
        let at = began + Duration::from_millis(*at);
        let id = format!("{tool}-{}-{index}", scenario.number);
        tokio::task::spawn_local(async move {
            tokio::time::sleep_until(at).await;
            let submitted = SystemTime::now().duration_since(UNIX_EPOCH);
            let submitted = submitted.map_or(0.0, |since| since.as_secs_f64());
            limiter.wait().await;
            line.send(&id, urgency, submitted).await;
        });
    }
    tokio::time::sleep_until(began + Duration::from_millis(scenario.until_ms)).await;
    Ok(line.tally.borrow().clone())
}

fn limiter(tool: &str, scenario: &Scenario) -> anyhow::Result<Limiter> {
    let Scenario { limit, burst, .. } = *scenario;
    let period = Duration::from_millis(scenario.period_ms);
    let small = |number: u64| NonZeroU32::new(u32::try_from(number).unwrap_or(1));
    Ok(match tool {
        "governor" => {
            let gap = period / u32::try_from(limit)?;
            let quota = governor::Quota::with_period(gap).context("a period")?;
            let quota = quota.allow_burst(small(burst).context("a burst")?);
            Limiter::Governor(Arc::new(governor::RateLimiter::direct(quota)))
        }
        "leaky-bucket" => {
            let burst = usize::try_from(burst)?;
            let limiter = leaky_bucket::RateLimiter::builder()
                .max(burst)
                .initial(burst)
                .refill(usize::try_from(limit)?)
                .interval(period)
                .build();
            Limiter::LeakyBucket(Arc::new(limiter))
        }
        "tower" => {
            let go = tower::service_fn(|()| std::future::ready(Ok::<(), tower::BoxError>(())));
            let limited =
                tower::limit::RateLimit::new(go, tower::limit::rate::Rate::new(limit, period));
            Limiter::Tower(tower::buffer::Buffer::new(limited, 10_000))
        }
        _ => Limiter::None,
    })
}

impl Limiter {
    async fn wait(self) {
        match self {
            Limiter::None => {}
            Limiter::Governor(limiter) => limiter.until_ready().await,
            Limiter::LeakyBucket(limiter) => limiter.acquire_one().await,
            Limiter::Tower(mut buffer) => {
                if let Ok(ready) = buffer.ready().await {
                    let _went = ready.call(()).await;
                }
            }
        }
    }
}

/// The connections to one server, and the results of the calls.
struct Line {
    server: SocketAddr,
    path: String,
    idle: RefCell<Vec<Caller>>,
    tally: RefCell<Tally>,
}

impl Line {
    async fn send(&self, id: &str, urgency: Urgency, submitted: f64) {
        self.tally.borrow_mut().sent += 1;
        let word = match urgency {
            Urgency::High => "high",
            Urgency::Normal => "normal",
            Urgency::Low => "low",
        };
        // The last two headers are for the gateway; providers ignore them.
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nX-Call-Id: {id}\r\nX-Priority: {word}\r\n\
             X-Submitted-At: {submitted:.6}\r\nX-Tollgate-Priority: {word}\r\n\
             X-Tollgate-Timeout: 10m\r\n\r\n",
            self.path, self.server
        );
        let status = self.call(request.as_bytes()).await;
        let mut tally = self.tally.borrow_mut();
        match status {
            Ok(429) => tally.refused += 1,
            Ok(200..300) => tally.ok += 1,
            _ => tally.failed += 1,
        }
    }

    async fn call(&self, request: &[u8]) -> anyhow::Result<u16> {
        let idle = self.idle.borrow_mut().pop();
        let mut caller = match idle {
            Some(caller) => caller,
            None => Caller::connect(self.server).await?,
        };
        let ended = caller.call(request).await?;
        self.idle.borrow_mut().push(caller);
        Ok(ended.status)
    }
}
