//! How many permits of one provider several nodes get from one Redis or Postgres server on this
//! machine, and how many requests that takes.
//!
//! `cargo run --release -p tollgate-ledger --example shared_store -- redis 4 5`: 4 nodes, 5 seconds.
//! The server is started for it. Prints one line per run.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::smallvec;
use tollgate_core::ask::{
    Ask, CellId, Evidence, Outcome, PermitId, Priority, Scopes, Settle, Term, Verdict,
};
use tollgate_core::limit::Rule;
use tollgate_core::time::Span;
use tollgate_ledger::postgres::PostgresAddress;
use tollgate_ledger::redis::RedisAddress;
use tollgate_ledger::{Clock, Ledger, NetworkedOptions, ProviderLedger};
use tollgate_sim::test_servers::{PostgresServer, RedisServer};

/// Asks of one offer, and offers of a node at the same time.
const ASKS: u64 = 64;
const OFFERS: u64 = 4;

enum Server {
    Redis(RedisServer),
    Postgres(PostgresServer),
}

impl Server {
    fn start(kind: &str) -> Server {
        match kind {
            "redis" => Server::Redis(RedisServer::start(&[])),
            "postgres" => Server::Postgres(PostgresServer::start(&["track_functions=all"])),
            other => panic!("{other} is neither redis nor postgres"),
        }
    }

    fn open(&self) -> Ledger {
        let options = NetworkedOptions::default();
        match self {
            Server::Redis(server) => {
                let address = RedisAddress::parse(&server.url()).expect("its own address");
                Ledger::redis(&address, Clock::System, &options).0
            }
            Server::Postgres(server) => {
                let url = server.url("postgres");
                let address = PostgresAddress::parse(&url).expect("its own address");
                Ledger::postgres(&address, Clock::System, &options)
            }
        }
    }

    /// Requests that the server has handled.
    fn requests(&self) -> u64 {
        match self {
            Server::Redis(server) => {
                let stats = server
                    .command(&["INFO", "commandstats"])
                    .unwrap_or_default();
                let line = stats
                    .lines()
                    .find(|line| line.starts_with("cmdstat_evalsha:"));
                let calls = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next());
                calls.and_then(|calls| calls.parse().ok()).unwrap_or(0)
            }
            Server::Postgres(server) => {
                let calls =
                    "SELECT calls FROM pg_stat_user_functions WHERE funcname = 'tollgate_exchange'";
                server.sql("postgres", calls).parse().unwrap_or(0)
            }
        }
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let kind = arguments.first().map_or("redis", String::as_str);
    let number = |index: usize, default: u64| {
        let given = arguments.get(index).and_then(|text| text.parse().ok());
        given.unwrap_or(default)
    };
    let (nodes, seconds) = (number(1, 4), number(2, 5));
    let server = Server::start(kind);
    let granted = Arc::new(AtomicU64::new(0));
    let ledgers: Vec<Ledger> = (0..nodes).map(|_| server.open()).collect();
    let mut tasks = tokio::task::JoinSet::new();
    for ledger in &ledgers {
        let seq = Arc::new(AtomicU64::new(0));
        for _ in 0..OFFERS {
            let (provider, owner) = (ledger.provider("p"), ledger.owner());
            let (granted, seq) = (granted.clone(), seq.clone());
            tasks.spawn(async move {
                loop {
                    let asks = (0..ASKS).map(|_| {
                        let seq = seq.fetch_add(1, Ordering::Relaxed);
                        ask(PermitId { owner, seq })
                    });
                    take(&provider, asks.collect(), &granted).await;
                }
            });
        }
    }
    // A short limit is closed for a window at first.
    tick(Duration::from_secs(2)).await;
    let (before, requests) = (granted.load(Ordering::Relaxed), server.requests());
    tick(Duration::from_secs(seconds)).await;
    let permits = granted.load(Ordering::Relaxed) - before;
    let requests = server.requests() - requests;
    println!(
        "{kind}, {nodes} nodes: {} permits/s, {} requests/s, {} permits per request",
        permits / seconds,
        requests / seconds,
        permits / requests.max(1)
    );
}

async fn tick(time: Duration) {
    let mut ticks = tokio::time::interval(time);
    ticks.tick().await;
    ticks.tick().await;
}

fn ask(id: PermitId) -> Ask {
    let rule = Rule::bucket(1_000_000_000, Span::from_secs(1), 1_000_000_000);
    Ask {
        id,
        terms: smallvec![Term {
            cell: CellId::named(&["x"]),
            rule: Arc::new(rule.expect("a valid rule")),
            cost: 1,
            reserve: 0,
        }],
        scopes: Scopes::new(),
        priority: Priority::Normal,
        max_wait: Span::from_secs(60),
        evidence: Evidence::Report {
            timeout: Span::from_secs(30),
            late: Span::from_secs(5),
        },
    }
}

async fn take(provider: &ProviderLedger, asks: Vec<Ask>, granted: &AtomicU64) {
    let Ok(offered) = provider.offer(asks.clone()).await else {
        return tokio::task::yield_now().await;
    };
    for (ask, (id, verdict)) in asks.into_iter().zip(offered.verdicts) {
        if matches!(verdict, Verdict::Go { .. }) {
            granted.fetch_add(1, Ordering::Relaxed);
            provider.settle(Settle::Permit {
                id,
                terms: ask.terms,
                scopes: ask.scopes,
                outcome: Outcome::Arrived {
                    age: Span::ZERO,
                    limited: false,
                    readings: Vec::new(),
                },
            });
        }
    }
}
