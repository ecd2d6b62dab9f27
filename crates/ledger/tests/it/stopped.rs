//! Processes share a limit while one is killed during a commit and another is stopped with granted
//! permits, judged by a simulated provider.
//!
//! `STOP_SECONDS=10 cargo test -p tollgate-ledger stopped` is the long version.

use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;
use tollgate_core::limit::Rule;
use tollgate_core::time::Micros;
use tollgate_ledger::{Clock, Event, Ledger};
use tollgate_sim::test_host::TempFolder;

use crate::backend::{Owner, secs, term};
use crate::child::Worker;
use crate::processes::limited_by_provider;

const LIMIT: u64 = 40;

/// The test ends its workers when it is done; this is far more than a busy machine needs.
const LONG_ENOUGH_MS: u64 = 120_000;

fn stop_seconds() -> u64 {
    std::env::var("STOP_SECONDS").map_or(1, |seconds| seconds.parse().unwrap())
}

fn sent(reported: impl IntoIterator<Item = (String, u64)>) -> impl Iterator<Item = u64> {
    let sent = reported.into_iter().filter(|(word, _)| word == "sent");
    sent.map(|(_, at)| at)
}

fn one_killed_and_one_stopped(processes: usize) {
    let folder = TempFolder::unmade("ledger");
    let stop = stop_seconds() * 1_000_000;
    let start = |place: &str| {
        let words = format!("{LIMIT} {LONG_ENOUGH_MS} {place}");
        Worker::start("hammer", folder.path(), &words)
    };
    let mut steady = start("nowhere 1");
    let others: Vec<Worker> = (3..processes).map(|_| start("nowhere 1")).collect();
    let mut arrivals = Vec::new();
    // Between "locked" and "unlocked", while it holds the lock. With only two processes, this one
    // is dead before the other one is stopped.
    let mut killed = start("before-commit 3");
    killed.wait_for("at");
    arrivals.extend(sent(killed.kill()));
    // The others continue, unless the process was stopped while it held the folder's lock. Then
    // they continue when it resumes, and the test stops another process.
    let mut stopped = Vec::new();
    let mut meanwhile = 0;
    while meanwhile == 0 {
        assert!(stopped.len() < 5, "no other process continued");
        let mut worker = start("stop:sending 2");
        let at = worker.wait_for("at");
        worker.stop();
        let let_go = worker.resume_after(Duration::from_micros(stop));
        loop {
            let now = steady.wait_for("sent");
            arrivals.push(now);
            if now > at + stop {
                break;
            }
            meanwhile += u64::from(now > at);
        }
        let_go.join().unwrap();
        for _ in 0..3 {
            arrivals.push(worker.wait_for("sent"));
        }
        stopped.push(worker);
    }
    while arrivals.len() as u64 <= LIMIT {
        arrivals.push(steady.wait_for("sent"));
    }
    for worker in others.into_iter().chain([steady]).chain(stopped) {
        arrivals.extend(sent(worker.kill()));
    }
    assert_eq!(limited_by_provider(LIMIT, arrivals), 0);
}

#[test]
fn a13_two_processes_of_which_one_is_killed_or_stopped_keep_one_limit() {
    one_killed_and_one_stopped(2);
}

#[test]
fn a13_four_processes_of_which_one_is_killed_and_one_stopped_keep_one_limit() {
    one_killed_and_one_stopped(4);
}

#[test]
fn a13_eight_processes_of_which_one_is_killed_and_one_stopped_keep_one_limit() {
    one_killed_and_one_stopped(8);
}

/// A13: the worst case, a process stopped while it holds the folder's lock. Within a second the
/// others detect that the store is lost and follow `on_store_loss`. As soon as the process resumes
/// they recover by themselves, and its earlier decisions are too old to be used.
#[tokio::test]
async fn a_process_stopped_while_holding_the_lock_loses_the_store_until_it_resumes() {
    let folder = TempFolder::unmade("ledger");
    let mut owner = Owner::of(&Ledger::sqlite(folder.path(), Clock::System).unwrap());
    let rule = Arc::new(Rule::sliding(LIMIT, secs(1)).unwrap());
    let mut events = owner.ledger.events();
    let words = format!("{LIMIT} {LONG_ENOUGH_MS} stop:before-commit 3");
    let mut stopped = Worker::start("hammer", folder.path(), &words);
    let at = stopped.wait_for("at");
    stopped.stop();
    let ask = owner.ask(smallvec![term("second", &rule)]);
    assert!(owner.ledger.offer(vec![ask]).await.is_err());
    let lost_after = owner.ledger.now().at.since(Micros(at));
    assert!(owner.ledger.loss().is_some_and(|loss| !loss.is_final));
    assert!(
        lost_after >= secs(1),
        "a transaction of another process is no loss"
    );
    // While the store is lost, later asks do not wait for the lock as long as the first one.
    let asked = owner.ledger.now().at;
    for _ in 0..3 {
        let ask = owner.ask(smallvec![term("second", &rule)]);
        assert!(owner.ledger.offer(vec![ask]).await.is_err());
    }
    // Three waits like the first one would take three seconds.
    assert!(owner.ledger.now().at.since(asked) < secs(3));
    let let_go = stopped.resume_after(Duration::from_secs(stop_seconds()));
    while events.next().await.unwrap() != Event::Recovered {}
    let_go.join().unwrap();
    assert_eq!(
        (owner.ledger.loss(), owner.ledger.loss_reason()),
        (None, None)
    );
    let mut arrivals: Vec<u64> = Vec::new();
    for _ in 0..LIMIT {
        arrivals.push(stopped.wait_for("sent"));
    }
    arrivals.extend(sent(stopped.kill()));
    assert_eq!(limited_by_provider(LIMIT, arrivals), 0);
}
