//! Other processes: this test binary, started again with a role.
//!
//! A child works on the folder it is given and writes what it does to its standard output, a word
//! and a number per line. At a failpoint it says so and stands still, so that the parent kills it
//! exactly there. Children are ended by their own id, also when a test fails.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use smallvec::smallvec;
use tollgate_core::ask::{Outcome, Verdict};
use tollgate_core::limit::Rule;
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, Event, Ledger, failpoint};

use crate::bench::{Owner, Permit, arrived, secs, term};

/// The role of a child: `quota`, `hammer` or `hold`, with the words it needs.
const ROLE: &str = "TOLLGATE_LEDGER_CHILD";

/// Asks per offer.
const BATCH: usize = 8;

/// The sender's own rule: a permit that was asked for longer ago is not used.
const TOO_OLD: Span = Span::from_millis(500);

/// A process at work.
pub(crate) struct Worker {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Worker {
    pub(crate) fn start(role: &str, folder: &Path, words: &str) -> Worker {
        let command = Command::new(std::env::current_exe().unwrap());
        Worker::spawn(command, role, folder, words)
    }

    /// Starts one for which no file may grow beyond so many half KiB: its disk is full.
    pub(crate) fn start_on_a_full_disk(role: &str, folder: &Path, words: &str) -> Worker {
        let mut command = Command::new("sh");
        command
            .args(["-c", "trap '' XFSZ; ulimit -f 600; exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap());
        Worker::spawn(command, role, folder, words)
    }

    fn spawn(mut command: Command, role: &str, folder: &Path, words: &str) -> Worker {
        let mut child = command
            .args(["child::plays_its_role", "--exact", "--nocapture"])
            .env(ROLE, format!("{role} {} {words}", folder.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Worker { child, lines }
    }

    /// The next word and number it says; `None` when it has ended.
    pub(crate) fn next(&mut self) -> Option<(String, u64)> {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            if let Some(said) = line.strip_prefix('@') {
                let (word, number) = said.trim().rsplit_once(' ').unwrap();
                return Some((word.to_owned(), number.parse().unwrap()));
            }
            line.clear();
        }
        None
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Kills it as `kill -9` does, and returns what it had said until then.
    pub(crate) fn kill(mut self) -> Vec<(String, u64)> {
        self.signal(Signal::KILL);
        std::iter::from_fn(|| self.next()).collect()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Not a behaviour: the entry of every child. Without a role there is nothing to play.
#[test]
fn plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words: Vec<&str> = role.split(' ').collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    match words[..] {
        ["quota", folder, limit, place, times] => {
            stand_still_at(place, times.parse().unwrap());
            runtime.block_on(quota(folder, limit.parse().unwrap()));
        }
        ["hammer", folder, limit, millis] => {
            let span = Span::from_millis(millis.parse().unwrap());
            runtime.block_on(hammer(folder, limit.parse().unwrap(), span));
        }
        ["hold", folder, cell] => runtime.block_on(hold(folder, cell)),
        ref other => panic!("no such role: {other:?}"),
    }
}

fn say(word: &str, number: u64) {
    // Past the test harness, which captures only what is printed by macros.
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{word} {number}").unwrap();
    out.flush().unwrap();
}

fn stand_still_at(place: &str, times: u32) {
    let (place, seen) = (place.replace('-', " "), AtomicU32::new(0));
    failpoint::set(Box::new(move |reached| {
        if reached == place && seen.fetch_add(1, Ordering::SeqCst) + 1 == times {
            say("at", u64::from(times));
            loop {
                std::thread::park();
            }
        }
    }));
}

async fn quota(folder: &str, limit: u64) {
    let rule = Arc::new(Rule::sliding(limit, secs(86_400)).unwrap());
    let mut owner = Owner::of(Ledger::sqlite(folder, Clock::System).unwrap());
    loop {
        let asks: Vec<_> = (0..BATCH)
            .map(|_| owner.ask(smallvec![term("day", &rule)]))
            .collect();
        let Ok(verdicts) = owner.ledger.offer(asks.clone()).await else {
            say(&owner.ledger.trouble().unwrap_or_default(), 0);
            say("lost", 0);
            return;
        };
        for (ask, (_, verdict)) in asks.into_iter().zip(verdicts) {
            if let Verdict::Go { marks } = verdict {
                say("sent", ask.id.seq);
                owner.settle(&Permit { ask, marks }, arrived());
            } else if let Verdict::Wait { after, .. } = verdict
                && after > secs(60)
            {
                say("refused", 0);
                return;
            }
        }
    }
}

/// Sends as much as it may for a while, with a way to the provider that varies.
async fn hammer(folder: &str, limit: u64, span: Span) {
    let rule = Arc::new(Rule::sliding(limit, secs(1)).unwrap());
    let mut owner = Owner::of(Ledger::sqlite(folder, Clock::System).unwrap());
    let mut events = owner.ledger.events();
    let mut dice = u64::from(std::process::id());
    let started = owner.ledger.now().at;
    say("started", started.0);
    while owner.ledger.now().at.since(started) < span {
        let asked = owner.ledger.now().at;
        let asks: Vec<_> = (0..BATCH)
            .map(|_| owner.ask(smallvec![term("second", &rule)]))
            .collect();
        let Ok(verdicts) = owner.ledger.offer(asks.clone()).await else {
            pause(Span::from_millis(20)).await;
            continue;
        };
        let mut wait = None;
        let mut granted = Vec::new();
        for (ask, (_, verdict)) in asks.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Go { marks } => granted.push(Permit { ask, marks }),
                Verdict::Wait { after, .. } => wait = Some(wait.unwrap_or(after).max(after)),
                Verdict::Never(why) => panic!("{why:?}"),
            }
        }
        for permit in granted {
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            if dice >> 62 == 0 {
                pause(Span(dice >> 53)).await;
            }
            let now = owner.ledger.now().at;
            if now.since(asked) > TOO_OLD {
                owner.settle(&permit, Outcome::Unsent);
            } else {
                say("sent", now.0);
                owner.settle(&permit, arrived());
            }
        }
        if let Some(after) = wait {
            let pause = Duration::from(after).min(Duration::from_secs(1));
            drop(tokio::time::timeout(pause, events.next()).await);
        }
    }
}

/// Takes the one place there is, says so, and gives it back when it hears of a scope.
async fn hold(folder: &str, cell: &str) {
    let rule = Arc::new(Rule::in_flight(1).unwrap());
    let mut owner = Owner::of(Ledger::sqlite(folder, Clock::System).unwrap());
    let mut events = owner.ledger.events();
    let permit = owner.take(smallvec![term(cell, &rule)]).await.unwrap();
    say("held", 1);
    while !matches!(events.next().await, None | Some(Event::Scopes(_))) {}
    owner.settle(&permit, Outcome::Unsent);
    owner.settled().await;
    say("given back", 1);
}

async fn pause(span: Span) {
    drop(tokio::time::timeout(span.into(), std::future::pending::<()>()).await);
}
