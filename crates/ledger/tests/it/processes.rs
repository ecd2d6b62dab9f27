//! Several processes on one folder, killed and stopped, judged by a simulated provider.

use std::thread::JoinHandle;

use rustix::process::Signal;
use smallvec::smallvec;
use tollgate_core::ask::{ScopeId, Settle};
use tollgate_core::limit::Rule;
use tollgate_core::time::Micros;
use tollgate_ledger::{Clock, Event, Ledger};
use tollgate_sim::rule::{CallId, Cost, Counting, Provider, RuleDecision, RuleSpec};
use tollgate_sim::test_host::TempFolder;

use crate::backend::{Owner, secs, term};
use crate::child::Worker;

/// W7's quota.
pub(crate) const QUOTA: u64 = 200;

/// The most that one transaction grants of it.
pub(crate) const BATCH_MAX: u64 = 2;

/// Uses up the remaining quota and returns how much that was.
pub(crate) fn use_up(folder: &TempFolder) -> u64 {
    let mut worker = Worker::start("quota", folder.path(), &format!("{QUOTA} nowhere 1"));
    let mut sent = 0;
    while let Some((word, _)) = worker.next() {
        match word.as_str() {
            "sent" => sent += 1,
            "rejected" => return sent,
            other => panic!("{other}"),
        }
    }
    panic!("the child ended before the quota was used up")
}

/// Kills one process after another at this failpoint, then uses up the rest.
fn kill_at(failpoint: &str, kills: u32) {
    let folder = TempFolder::unmade("ledger");
    let mut sent = 0;
    for kill in 0..kills {
        let words = format!("{QUOTA} {failpoint} {}", kill % 3 + 1);
        let mut worker = Worker::start("quota", folder.path(), &words);
        loop {
            match worker.next() {
                Some((word, _)) if word == "sent" => sent += 1,
                Some((word, _)) if word == "at" => break,
                other => panic!("{other:?}"),
            }
        }
        sent += worker.kill().len() as u64;
    }
    let sent = sent + use_up(&folder);
    assert!(sent <= QUOTA, "{sent} of {QUOTA} were sent");
    // One transaction may be between commit and hand-out, another granted but not yet sent.
    let wasted = QUOTA - sent;
    let granted = if failpoint == "after-handing-out" {
        2
    } else {
        1
    };
    assert!(
        wasted <= u64::from(kills) * BATCH_MAX * granted,
        "{wasted} wasted by {kills} kills"
    );
}

#[test]
fn h9_a_kill_before_the_commit_counts_nothing() {
    let folder = TempFolder::unmade("ledger");
    for _ in 0..8 {
        let words = format!("{QUOTA} before-commit 1");
        let mut worker = Worker::start("quota", folder.path(), &words);
        assert_eq!(worker.next().unwrap().0, "at");
        assert!(worker.kill().is_empty());
    }
    assert_eq!(use_up(&folder), QUOTA);
}

/// A former bug, found by W7: after a kill during opening no process could open the folder.
#[test]
fn h9_a_kill_while_opening_the_folder_does_not_block_the_next_process() {
    let folder = TempFolder::unmade("ledger");
    for failpoint in ["opening", "opened", "opening"] {
        let words = format!("{QUOTA} {failpoint} 1");
        let mut worker = Worker::start("quota", folder.path(), &words);
        assert_eq!(worker.next().unwrap().0, "at");
        assert!(worker.kill().is_empty());
    }
    assert_eq!(use_up(&folder), QUOTA);
}

#[test]
fn h9_a_kill_before_the_commit_with_granted_permits_keeps_the_quota() {
    kill_at("before-commit", 12);
}

#[test]
fn h9_a_kill_between_commit_and_hand_out_keeps_the_quota() {
    kill_at("after-commit", 12);
}

#[test]
fn h9_a_kill_after_the_hand_out_keeps_the_quota() {
    kill_at("after-handing-out", 12);
}

/// R-A4: a full disk may waste permits, but never grants a permit twice.
#[test]
fn a_full_disk_loses_the_store_but_keeps_the_count() {
    let folder = TempFolder::unmade("ledger");
    let words = format!("{QUOTA} nowhere 1");
    let mut worker = Worker::start_on_a_full_disk("quota", folder.path(), &words);
    let mut reported: Vec<String> = Vec::new();
    while let Some((word, _)) = worker.next() {
        reported.push(word);
    }
    assert_eq!(reported.pop().as_deref(), Some("lost"));
    let why = reported.pop().unwrap();
    assert!(why.contains("the database does not work"), "{why}");
    let sent = reported.iter().filter(|word| *word == "sent").count() as u64;
    assert!(sent > 0, "the disk was full from the start");
    let rest = use_up(&folder);
    assert!(sent + rest <= QUOTA);
    assert!(
        sent + rest >= QUOTA - BATCH_MAX,
        "a failed commit counts nothing"
    );
}

fn collect(mut worker: Worker) -> JoinHandle<Vec<u64>> {
    std::thread::spawn(move || {
        let reported = std::iter::from_fn(|| worker.next());
        reported
            .filter(|(word, _)| word == "sent")
            .map(|(_, at)| at)
            .collect()
    })
}

/// How many of these arrivals a provider with this limit per second rejects with 429.
pub(crate) fn limited_by_provider(limit: u64, mut arrivals: Vec<u64>) -> usize {
    arrivals.sort_unstable();
    let counting = Counting::Sliding {
        limit,
        window: secs(1),
    };
    let mut provider = Provider::new(vec![RuleSpec::from(counting)]);
    let mut arrive = |(id, at): (usize, u64)| {
        matches!(
            provider.arrive(CallId(id as u64), Micros(at), Cost::CALL),
            RuleDecision::Limited { .. }
        )
    };
    let limited = arrivals
        .into_iter()
        .enumerate()
        .filter(|arrival| arrive(*arrival));
    limited.count()
}

fn hammer_together(processes: usize, limit: u64) {
    let folder = TempFolder::unmade("ledger");
    let start = |_| {
        collect(Worker::start(
            "hammer",
            folder.path(),
            &format!("{limit} 3500 nowhere 1"),
        ))
    };
    let workers: Vec<_> = (0..processes).map(start).collect();
    let arrivals: Vec<u64> = workers
        .into_iter()
        .flat_map(|worker| worker.join().unwrap())
        .collect();
    assert!(arrivals.len() as u64 > limit, "nothing to judge");
    assert_eq!(limited_by_provider(limit, arrivals), 0);
}

#[test]
fn a13_two_processes_keep_one_limit_together() {
    hammer_together(2, 40);
}

#[test]
fn a13_four_processes_keep_one_limit_together() {
    hammer_together(4, 50);
}

#[test]
fn m13_one_call_a_second_is_kept_by_three_processes() {
    hammer_together(3, 1);
}

#[test]
fn a13_stopped_and_killed_processes_exceed_no_limit() {
    let (folder, limit) = (TempFolder::unmade("ledger"), 40);
    let start = || Worker::start("hammer", folder.path(), &format!("{limit} 3500 nowhere 1"));
    let steady = collect(start());
    let (mut stopped, mut killed) = (start(), start());
    let mut arrivals = Vec::new();
    let wait_for = |worker: &mut Worker, count: usize, arrivals: &mut Vec<u64>| {
        let reported = std::iter::from_fn(|| worker.next());
        arrivals.extend(
            reported
                .filter(|(word, _)| word == "sent")
                .take(count)
                .map(|(_, at)| at),
        );
    };
    wait_for(&mut stopped, 10, &mut arrivals);
    stopped.signal(Signal::STOP);
    wait_for(&mut killed, 40, &mut arrivals);
    let rest = killed.kill();
    arrivals.extend(
        rest.into_iter()
            .filter(|(word, _)| word == "sent")
            .map(|(_, at)| at),
    );
    arrivals.extend(steady.join().unwrap());
    stopped.signal(Signal::CONT);
    arrivals.extend(collect(stopped).join().unwrap());
    assert_eq!(limited_by_provider(limit, arrivals), 0);
}

/// A waiting process is woken by the other process, not by its watchdog: the event names the cell
/// of the returned permit.
#[tokio::test]
async fn a_process_is_woken_when_another_returns_a_permit() {
    let folder = TempFolder::unmade("ledger");
    let mut worker = Worker::start("hold", folder.path(), "slot");
    assert_eq!(worker.next().unwrap().0, "held");
    let rule = std::sync::Arc::new(Rule::in_flight(1).unwrap());
    let mut owner = Owner::of(&Ledger::sqlite(folder.path(), Clock::System).unwrap());
    let mut events = owner.ledger.events();
    assert!(owner.take(smallvec![term("slot", &rule)]).await.is_err());
    owner.ledger.settle(Settle::Open {
        scope: ScopeId::named(&["anything"]),
    });
    assert_eq!(worker.next().unwrap().0, "given back");
    loop {
        if let Some(Event::Freed(cells)) = events.next().await {
            assert_eq!(cells[..], [term("slot", &rule).cell]);
            if owner.take(smallvec![term("slot", &rule)]).await.is_ok() {
                return;
            }
        }
    }
}

#[test]
fn every_process_has_its_own_owner_id() {
    let folder = TempFolder::unmade("ledger");
    let open = || Ledger::sqlite(folder.path(), Clock::System).unwrap();
    let (one, two) = (open(), open());
    let (first, second) = (one.owner(), two.owner());
    drop((one, two));
    let third = open().owner();
    assert!(first != second && second != third && first != third);
}
