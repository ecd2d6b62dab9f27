//! Several processes on one folder, killed and stopped, judged by a provider's own rule.

use std::thread::JoinHandle;

use rustix::process::Signal;
use smallvec::smallvec;
use tollgate_core::ask::{ScopeId, Settle};
use tollgate_core::limit::Rule;
use tollgate_core::time::Micros;
use tollgate_ledger::{Clock, Event, Ledger};
use tollgate_sim::rule::{CallId, Cost, Counting, Decision, Provider, RuleSpec};

use crate::backend::{Owner, secs, term};
use crate::child::Worker;
use crate::sqlite::Folder;

/// W7's quota.
pub(crate) const QUOTA: u64 = 200;

/// What one transaction grants of it at most.
pub(crate) const BATCH_MAX: u64 = 2;

/// Uses up what is left and says how much that was.
pub(crate) fn use_up(folder: &Folder) -> u64 {
    let mut worker = Worker::start("quota", folder.path(), &format!("{QUOTA} nowhere 1"));
    let mut sent = 0;
    while let Some((word, _)) = worker.next() {
        match word.as_str() {
            "sent" => sent += 1,
            "refused" => return sent,
            other => panic!("{other}"),
        }
    }
    panic!("ended before the quota did")
}

/// Kills one process after the other at this place, then uses up the rest.
fn kill_at(place: &str, kills: u32) {
    let folder = Folder::new();
    let mut sent = 0;
    for kill in 0..kills {
        let words = format!("{QUOTA} {place} {}", kill % 3 + 1);
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
    // One transaction may be between commit and hand-out, another in the sender's hand.
    let wasted = QUOTA - sent;
    let in_hand = if place == "after-handing-out" { 2 } else { 1 };
    assert!(
        wasted <= u64::from(kills) * BATCH_MAX * in_hand,
        "{wasted} wasted by {kills} kills"
    );
}

#[test]
fn h9_a_kill_before_the_commit_counts_nothing() {
    let folder = Folder::new();
    for _ in 0..8 {
        let words = format!("{QUOTA} before-commit 1");
        let mut worker = Worker::start("quota", folder.path(), &words);
        assert_eq!(worker.next().unwrap().0, "at");
        assert!(worker.kill().is_empty());
    }
    assert_eq!(use_up(&folder), QUOTA);
}

/// Found by W7: a kill while the folder was opened kept everybody out of it afterwards.
#[test]
fn h9_a_kill_while_opening_the_folder_does_not_block_the_next_process() {
    let folder = Folder::new();
    for place in ["opening", "opened", "opening"] {
        let words = format!("{QUOTA} {place} 1");
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

/// R-A4: a full disk costs permits that are not had, never permits that are had twice.
#[test]
fn a_full_disk_loses_the_store_but_keeps_the_count() {
    let folder = Folder::new();
    let words = format!("{QUOTA} nowhere 1");
    let mut worker = Worker::start_on_a_full_disk("quota", folder.path(), &words);
    let mut said: Vec<String> = Vec::new();
    while let Some((word, _)) = worker.next() {
        said.push(word);
    }
    assert_eq!(said.pop().as_deref(), Some("lost"));
    let why = said.pop().unwrap();
    assert!(why.contains("the database does not work"), "{why}");
    let sent = said.iter().filter(|word| *word == "sent").count() as u64;
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
        let said = std::iter::from_fn(|| worker.next());
        said.filter(|(word, _)| word == "sent")
            .map(|(_, at)| at)
            .collect()
    })
}

/// What a provider with this limit per second refuses of these arrivals.
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
            Decision::Limited { .. }
        )
    };
    let refusals = arrivals
        .into_iter()
        .enumerate()
        .filter(|arrival| arrive(*arrival));
    refusals.count()
}

fn hammer_together(processes: usize, limit: u64) {
    let folder = Folder::new();
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
    let (folder, limit) = (Folder::new(), 40);
    let start = || Worker::start("hammer", folder.path(), &format!("{limit} 3500 nowhere 1"));
    let steady = collect(start());
    let (mut stopped, mut killed) = (start(), start());
    let mut arrivals = Vec::new();
    let wait_for = |worker: &mut Worker, count: usize, arrivals: &mut Vec<u64>| {
        let said = std::iter::from_fn(|| worker.next());
        arrivals.extend(
            said.filter(|(word, _)| word == "sent")
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

/// A process that waits for a signal gets it from the other one, not from its watchdog: the permit
/// comes back by an event that names the cell.
#[tokio::test]
async fn a_process_is_woken_when_another_returns_a_permit() {
    let folder = Folder::new();
    let mut worker = Worker::start("hold", folder.path(), "place");
    assert_eq!(worker.next().unwrap().0, "held");
    let rule = std::sync::Arc::new(Rule::in_flight(1).unwrap());
    let mut owner = Owner::of(Ledger::sqlite(folder.path(), Clock::System).unwrap());
    let mut events = owner.ledger.events();
    assert!(owner.take(smallvec![term("place", &rule)]).await.is_err());
    owner.ledger.settle(Settle::Open {
        scope: ScopeId::named(&["anything"]),
    });
    assert_eq!(worker.next().unwrap().0, "given back");
    loop {
        if let Some(Event::Freed(cells)) = events.next().await {
            assert_eq!(cells[..], [term("place", &rule).cell]);
            if owner.take(smallvec![term("place", &rule)]).await.is_ok() {
                return;
            }
        }
    }
}

#[test]
fn every_process_has_its_own_owner_id() {
    let folder = Folder::new();
    let open = || Ledger::sqlite(folder.path(), Clock::System).unwrap();
    let (one, two) = (open(), open());
    let (first, second) = (one.owner(), two.owner());
    drop((one, two));
    let third = open().owner();
    assert!(first != second && second != third && first != third);
}
