//! The conformance suite with every owner in its own process.
//!
//! All processes run the same behaviour, step by step. Only the owner's process executes a step and
//! sends the result to the others, which use it instead of executing the step. The processes share
//! nothing but these messages and the ledger's folder.
//!
//! Promises: a step begins when every process has the result of the step before. The clock advances
//! in all processes at once.
//!
//! Never: opens the folder in the test's own process.

use std::fmt::Write;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tollgate_core::ask::{BlockedBy, CellId, Mark, NeverReason, ScopeId, Verdict, WakeOn};
use tollgate_core::limit::{CellView, Strictness};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, Event, Ledger, ManualClock};
use tollgate_sim::test_host::TempFolder;

use crate::backend::{Backend, Owner, TAG};
use crate::child::{Worker, report};
use crate::conformance::conformance;
use crate::sqlite::START;

/// The message of a step without a result.
const DONE: &str = "done";

/// Processes that run one behaviour together.
#[derive(Clone)]
pub(crate) struct ProcessGroup(Arc<GroupState>);

struct GroupState {
    clock: Arc<ManualClock>,
    processes: usize,
    role: GroupRole,
}

enum GroupRole {
    /// Starts the members and forwards every message to the other members.
    Coordinator {
        workers: Mutex<Vec<Worker>>,
        folder: TempFolder,
    },
    /// Has the folder open from the first step to the last.
    Member { me: usize, ledger: Ledger },
}

impl ProcessGroup {
    fn start(processes: usize, behaviour: &str) -> ProcessGroup {
        let folder = TempFolder::unmade("ledger");
        let start = |me| {
            let words = format!("{behaviour} {me} {processes}");
            Worker::start("conform", folder.path(), &words)
        };
        let workers = (0..processes).map(start).collect();
        let workers = Mutex::new(workers);
        let role = GroupRole::Coordinator { workers, folder };
        ProcessGroup::new(processes, ManualClock::new(START), role)
    }

    /// The group as a child process sees it.
    pub(crate) fn member(folder: &str, me: usize, of: usize) -> ProcessGroup {
        let clock = ManualClock::new(START);
        let ledger = Ledger::sqlite(Path::new(folder), Clock::Manual(clock.clone())).unwrap();
        ProcessGroup::new(of, clock, GroupRole::Member { me, ledger })
    }

    fn new(of: usize, clock: Arc<ManualClock>, role: GroupRole) -> ProcessGroup {
        ProcessGroup(Arc::new(GroupState {
            clock,
            processes: of,
            role,
        }))
    }

    /// The result that this process reports; the coordinator forwards it to the other members.
    fn receive(&self, process: usize) -> String {
        match &self.0.role {
            GroupRole::Member { .. } => read_line(),
            GroupRole::Coordinator { workers, .. } => {
                let mut workers = workers.lock();
                let (word, _) = workers[process]
                    .next()
                    .expect("a member runs until the last step");
                for (index, worker) in workers.iter_mut().enumerate() {
                    if index != process {
                        worker.send_line(&word);
                    }
                }
                word
            }
        }
    }

    /// Waits until every process has reached this step.
    fn barrier(&self) {
        match &self.0.role {
            GroupRole::Member { .. } => {
                report(DONE, 0);
                read_line();
            }
            GroupRole::Coordinator { workers, .. } => {
                let mut workers = workers.lock();
                for worker in workers.iter_mut() {
                    assert_eq!(worker.wait_for(DONE), 0);
                }
                for worker in workers.iter_mut() {
                    worker.send_line(DONE);
                }
            }
        }
    }

    /// The handle of an owner: the real one in its own process, an unused one in the others.
    fn handle(&self, process: usize) -> Ledger {
        match &self.0.role {
            GroupRole::Member { me, ledger } if *me == process => ledger.clone(),
            GroupRole::Member { .. } | GroupRole::Coordinator { .. } => {
                Ledger::memory(Clock::Manual(self.0.clock.clone()))
            }
        }
    }
}

impl Drop for GroupState {
    /// Ends the members before it removes the folder.
    fn drop(&mut self) {
        if let GroupRole::Coordinator { workers, folder } = &self.role {
            workers.lock().clear();
            drop(std::fs::remove_dir_all(folder.path()));
        }
    }
}

impl Backend for ProcessGroup {
    fn ledger(&self) -> Ledger {
        unreachable!("owners of a process group have handles in their own processes")
    }

    fn owner(&self, number: u32) -> Owner {
        let process = (number as usize + self.0.processes - 1) % self.0.processes;
        let ledger = self.handle(process).provider(TAG);
        let remote = RemoteOwner {
            group: self.clone(),
            process,
        };
        // Waits until the owner's process has opened the folder.
        remote.run_sync(|| ());
        Owner::in_process(ledger, number, remote)
    }

    fn pass(&self, span: Span) {
        self.0.clock.pass(span);
        self.barrier();
    }
}

/// An owner whose steps run in one process of a group.
#[derive(Clone)]
pub(crate) struct RemoteOwner {
    group: ProcessGroup,
    process: usize,
}

impl RemoteOwner {
    fn is_here(&self) -> bool {
        matches!(self.group.0.role, GroupRole::Member { me, .. } if me == self.process)
    }

    /// Runs a step in the owner's process and returns its result in every process.
    pub(crate) async fn run<T: WireMessage>(&self, here: impl Future<Output = T>) -> T {
        if self.is_here() {
            let done = here.await;
            report(&done.write(), 0);
            return done;
        }
        let word = self.group.receive(self.process);
        T::read(&mut word.split(' '))
    }

    /// As [`RemoteOwner::run`], for a synchronous step without a result.
    pub(crate) fn run_sync(&self, here: impl FnOnce()) {
        if self.is_here() {
            here();
            report(DONE, 0);
        } else {
            assert_eq!(self.group.receive(self.process), DONE);
        }
    }
}

fn read_line() -> String {
    let line = std::io::stdin().lines().next();
    line.expect("the coordinator runs until the last step")
        .unwrap()
}

/// A result that one process sends to the others.
pub(crate) trait WireMessage {
    fn write(&self) -> String;
    fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> Self;
}

/// The next number; `None` for `-`.
fn read_number<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<u128> {
    words.next().unwrap().parse().ok()
}

fn read_u64<'a>(words: &mut impl Iterator<Item = &'a str>) -> u64 {
    read_number(words).unwrap().try_into().unwrap()
}

fn read_span<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Span> {
    read_number(words).map(|micros| Span(micros.try_into().unwrap()))
}

fn span_text(span: Option<Span>) -> String {
    span.map_or("-".to_owned(), |span| span.0.to_string())
}

impl WireMessage for Vec<Verdict> {
    fn write(&self) -> String {
        let mut text = self.len().to_string();
        for verdict in self {
            match verdict {
                Verdict::Go { marks } => {
                    write!(text, " go {}", marks.len()).unwrap();
                    for mark in marks {
                        let Mark {
                            granted,
                            settled,
                            used,
                            remaining: left,
                        } = mark;
                        write!(text, " {granted} {settled} {used} {left}").unwrap();
                    }
                }
                Verdict::Wait { after, on, by } => {
                    let on = match on {
                        WakeOn::Time => "time",
                        WakeOn::Event => "event",
                        WakeOn::Release => "release",
                    };
                    let (by, index) = match by {
                        BlockedBy::Term(index) => ("term", index),
                        BlockedBy::Scope(index) => ("scope", index),
                    };
                    write!(text, " wait {} {on} {by} {index}", after.0).unwrap();
                }
                Verdict::Never(NeverReason::TooCostly {
                    term,
                    max_cost: most,
                }) => {
                    write!(text, " never {term} {most}").unwrap();
                }
            }
        }
        text
    }

    fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> Vec<Verdict> {
        (0..read_u64(words)).map(|_| read_verdict(words)).collect()
    }
}

fn read_verdict<'a>(words: &mut impl Iterator<Item = &'a str>) -> Verdict {
    let index = |number: u64| usize::try_from(number).unwrap();
    match words.next() {
        Some("go") => {
            let count = read_u64(words);
            let marks: SmallVec<[Mark; 4]> = (0..count)
                .map(|_| Mark {
                    granted: read_u64(words),
                    settled: read_u64(words),
                    used: read_u64(words),
                    remaining: read_u64(words),
                })
                .collect();
            Verdict::Go { marks }
        }
        Some("wait") => Verdict::Wait {
            after: read_span(words).unwrap(),
            on: match words.next() {
                Some("time") => WakeOn::Time,
                Some("release") => WakeOn::Release,
                _ => WakeOn::Event,
            },
            by: match words.next() {
                Some("term") => BlockedBy::Term(index(read_u64(words))),
                _ => BlockedBy::Scope(index(read_u64(words))),
            },
        },
        Some("never") => Verdict::Never(NeverReason::TooCostly {
            term: index(read_u64(words)),
            max_cost: read_u64(words),
        }),
        other => panic!("no verdict: {other:?}"),
    }
}

impl WireMessage for CellView {
    fn write(&self) -> String {
        let (age, reset) = (span_text(self.window_age), span_text(self.reset_after));
        format!(
            "{} {} {} {} {age} {reset}",
            self.limit, self.used, self.remaining, self.own_remaining
        )
    }

    fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> CellView {
        CellView {
            limit: read_u64(words),
            used: read_u64(words),
            remaining: read_u64(words),
            own_remaining: read_u64(words),
            in_flight: 0,
            window_age: read_span(words),
            reset_after: read_span(words),
            // No behaviour reads these.
            strictness: Strictness::default(),
            spreads_low: false,
            low_in: Span::ZERO,
            learned: None,
        }
    }
}

impl WireMessage for ScopeView {
    fn write(&self) -> String {
        match self {
            ScopeView::Open | ScopeView::Paced { .. } => "open".to_owned(),
            ScopeView::Probing => "probing".to_owned(),
            ScopeView::Closed { remaining: left } => format!("closed {}", span_text(*left)),
            ScopeView::CacheOnly { remaining: left } => format!("cache-only {}", span_text(*left)),
            ScopeView::Paused { remaining: left } => format!("paused {}", span_text(*left)),
        }
    }

    fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> ScopeView {
        match words.next() {
            Some("open") => ScopeView::Open,
            Some("probing") => ScopeView::Probing,
            Some("closed") => ScopeView::Closed {
                remaining: read_span(words),
            },
            _ => ScopeView::CacheOnly {
                remaining: read_span(words),
            },
        }
    }
}

impl WireMessage for Option<Event> {
    fn write(&self) -> String {
        let list = |ids: Vec<u128>| {
            let ids = ids.iter().map(|id| format!(" {id}"));
            ids.collect::<String>()
        };
        match self {
            None => "none".to_owned(),
            Some(Event::Freed(cells)) => {
                format!("freed{}", list(cells.iter().map(|cell| cell.0).collect()))
            }
            Some(Event::Scopes(scopes)) => {
                format!(
                    "scopes{}",
                    list(scopes.iter().map(|scope| scope.0).collect())
                )
            }
            Some(Event::Lost) => "lost".to_owned(),
            Some(Event::Recovered) => "back".to_owned(),
            Some(Event::Damaged { rows }) => format!("damaged {rows}"),
            Some(Event::LogHeld { bytes }) => format!("log-held {bytes}"),
            Some(Event::NotRemembered { why }) => format!("not_remembered {why}"),
            Some(Event::Resync) => "anything".to_owned(),
        }
    }

    fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Event> {
        let word = words.next();
        let mut ids = words.map(|id| id.parse::<u128>().unwrap());
        match word {
            Some("damaged") => Some(Event::Damaged {
                rows: u64::try_from(ids.next()?).unwrap(),
            }),
            Some("log-held") => Some(Event::LogHeld {
                bytes: u64::try_from(ids.next()?).unwrap(),
            }),
            Some("freed") => Some(Event::Freed(ids.map(CellId).collect())),
            Some("scopes") => Some(Event::Scopes(ids.map(ScopeId).collect())),
            Some("lost") => Some(Event::Lost),
            Some("back") => Some(Event::Recovered),
            Some("anything") => Some(Event::Resync),
            _ => None,
        }
    }
}

mod two {
    use super::*;
    conformance!(each named, |name| ProcessGroup::start(2, name));
}

mod four {
    use super::*;
    conformance!(each named, |name| ProcessGroup::start(4, name));
}
