//! Five greedy clients: four send 59 background calls a second, one sends a user click once a
//! second, except while the providers are down; a key adds a burst of clicks.
//!
//! Promises: both sides get the same calls, at the same moments. Direct clients retry on a 429 or a
//! failure, as most programs do; governed clients only wait.
//!
//! Never: slows down because responses are late.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tollgate::ProviderRegistry;
use tollgate_core::ask::Priority;
use tollgate_ledger::Clock;

use super::outages::Outages;
use super::page;

/// Calls per second of all clients together.
const CALLS_PER_SECOND: u64 = 60;

/// One of this many calls is a click.
const CALLS_PER_CLICK: u64 = 60;

/// The number of the first call of a burst: above all numbers of a demonstration of 600 s.
const FIRST_BURST: u64 = 1_000_000;

/// Retries of a direct client, each after twice the delay: a common default.
const DIRECT_RETRIES: u32 = 4;
const DIRECT_BACKOFF: Duration = Duration::from_millis(250);

/// The clients of one side.
#[derive(Debug)]
pub(super) struct ClientGroup {
    to: SocketAddr,
    path: &'static str,
    retries: u32,
    done: AtomicUsize,
    lost: AtomicUsize,
    /// The next number of a click in a burst.
    clicks: AtomicU64,
    /// Shows the calls of a side that does not go through Tollgate.
    page: Option<ProviderRegistry>,
}

impl ClientGroup {
    /// `page`: where to show what became of the calls.
    pub(super) fn direct(to: SocketAddr, page: Option<ProviderRegistry>) -> ClientGroup {
        ClientGroup {
            to,
            path: "/items",
            retries: DIRECT_RETRIES,
            done: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            clicks: AtomicU64::new(FIRST_BURST),
            page,
        }
    }

    pub(super) fn governed(to: SocketAddr) -> ClientGroup {
        ClientGroup {
            path: "/demo/items",
            retries: 0,
            ..ClientGroup::direct(to, None)
        }
    }

    /// Calls answered.
    pub(super) fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// Calls that failed for good.
    pub(super) fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// Sends calls for this many seconds; then waits for those in flight.
    pub(super) async fn run(self: Arc<ClientGroup>, seconds: u64, outages: Outages) {
        let mut calls = JoinSet::new();
        let mut beat = tokio::time::interval(Duration::from_micros(1_000_000 / CALLS_PER_SECOND));
        for number in 0..seconds * CALLS_PER_SECOND {
            beat.tick().await;
            while calls.try_join_next().is_some() {}
            let is_click = number.is_multiple_of(CALLS_PER_CLICK)
                && outages.has_clicks(number / CALLS_PER_SECOND);
            calls.spawn(self.clone().call(number, is_click));
        }
        while calls.join_next().await.is_some() {}
    }

    /// Sends this many clicks at once.
    pub(super) fn click(self: Arc<ClientGroup>, calls: u64) {
        for _ in 0..calls {
            let number = self.clicks.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(self.clone().call(number, true));
        }
    }

    async fn call(self: Arc<ClientGroup>, number: u64, is_click: bool) {
        let wall = Clock::System.now().wall.0;
        let priority = if is_click { "high" } else { "low" };
        let request = format!(
            "GET {}/{number} HTTP/1.1\r\nHost: demo\r\nConnection: close\r\nX-Call-Id: {number}\r\nX-Submitted-At: {}.{:06}\r\nX-Priority: {priority}\r\nX-Tollgate-Priority: {priority}\r\n\r\n",
            self.path,
            wall / 1_000_000,
            wall % 1_000_000,
        );
        for tried in 0..=self.retries {
            let status = send(self.to, &request).await;
            if let Some(registry) = &self.page {
                let priority = if is_click {
                    Priority::High
                } else {
                    Priority::Low
                };
                page::on_direct_call(registry, status, priority).await;
            }
            if status == Some(200) {
                self.done.fetch_add(1, Ordering::Relaxed);
                return;
            }
            if tried < self.retries {
                super::sleep(DIRECT_BACKOFF * 2_u32.pow(tried)).await;
            }
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// The status of one request; `None` without a response.
async fn send(to: SocketAddr, request: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(to).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.ok()?;
    let line = response.get(..12)?;
    std::str::from_utf8(line)
        .ok()?
        .rsplit(' ')
        .next()?
        .parse()
        .ok()
}
