//! The conformance suite with every owner in a process of its own.
//!
//! All processes run the same behaviour, step by step. What an owner does is done by its process
//! alone, which says what came of it; the others do nothing and take its word. So nothing but words
//! goes between them, and the ledger's folder is all that they share.
//!
//! Promises: a step begins when all have heard of the one before. Time passes for all at once.
//!
//! Never: a handle of the folder in the test's own process.

use std::fmt::Write;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tollgate_core::ask::{By, CellId, Mark, On, ScopeId, Verdict, Why};
use tollgate_core::limit::{Rung, View};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, Event, Ledger, ManualClock};

use crate::bench::{Bench, Owner};
use crate::child::{Worker, say};
use crate::conformance::conformance;
use crate::sqlite::{Folder, START};

/// What a process that has nothing to tell says.
const DONE: &str = "done";

/// Processes that run one behaviour together.
#[derive(Clone)]
pub(crate) struct Company(Arc<Part>);

struct Part {
    clock: Arc<ManualClock>,
    of: usize,
    role: Role,
}

enum Role {
    /// Starts the others, hears everything and passes it on.
    Director {
        workers: Mutex<Vec<Worker>>,
        folder: Folder,
    },
    /// Has the folder open from the first step to the last, whoever's turn it is.
    Player { me: usize, ledger: Ledger },
}

impl Company {
    fn of(processes: usize, behaviour: &str) -> Company {
        let folder = Folder::new();
        let start = |me| {
            let words = format!("{behaviour} {me} {processes}");
            Worker::start("conform", folder.path(), &words)
        };
        let workers = (0..processes).map(start).collect();
        let workers = Mutex::new(workers);
        let role = Role::Director { workers, folder };
        Company::new(processes, ManualClock::new(START), role)
    }

    /// In a child.
    pub(crate) fn player(folder: &str, me: usize, of: usize) -> Company {
        let clock = ManualClock::new(START);
        let ledger = Ledger::sqlite(Path::new(folder), Clock::Manual(clock.clone())).unwrap();
        Company::new(of, clock, Role::Player { me, ledger })
    }

    fn new(of: usize, clock: Arc<ManualClock>, role: Role) -> Company {
        Company(Arc::new(Part { clock, of, role }))
    }

    /// What this process said of its step; everybody else hears it.
    fn hear(&self, process: usize) -> String {
        match &self.0.role {
            Role::Player { .. } => line(),
            Role::Director { workers, .. } => {
                let mut workers = workers.lock();
                let (word, _) = workers[process].next().expect("it goes on to the end");
                for (index, worker) in workers.iter_mut().enumerate() {
                    if index != process {
                        worker.tell(&word);
                    }
                }
                word
            }
        }
    }

    /// Everybody is here.
    fn meet(&self) {
        match &self.0.role {
            Role::Player { .. } => {
                say(DONE, 0);
                line();
            }
            Role::Director { workers, .. } => {
                let mut workers = workers.lock();
                for worker in workers.iter_mut() {
                    assert_eq!(worker.hear(DONE), 0);
                }
                for worker in workers.iter_mut() {
                    worker.tell(DONE);
                }
            }
        }
    }

    /// A handle for an owner of this process; the others hold one that nobody uses.
    fn handle(&self, process: usize) -> Ledger {
        match &self.0.role {
            Role::Player { me, ledger } if *me == process => ledger.clone(),
            Role::Player { .. } | Role::Director { .. } => {
                Ledger::memory(Clock::Manual(self.0.clock.clone()))
            }
        }
    }
}

impl Drop for Part {
    /// The folder goes last.
    fn drop(&mut self) {
        if let Role::Director { workers, folder } = &self.role {
            workers.lock().clear();
            drop(std::fs::remove_dir_all(folder.path()));
        }
    }
}

impl Bench for Company {
    fn ledger(&self) -> Ledger {
        unreachable!("owners of a company have handles in their own processes")
    }

    fn owner(&self, number: u32) -> Owner {
        let process = (number as usize + self.0.of - 1) % self.0.of;
        let ledger = self.handle(process);
        let seat = Seat {
            company: self.clone(),
            process,
        };
        // Nobody goes on before its folder is open.
        seat.tells(|| ());
        Owner::seated(ledger, number, seat)
    }

    fn pass(&self, span: Span) {
        self.0.clock.pass(span);
        self.meet();
    }
}

/// An owner's place in a company.
#[derive(Clone)]
pub(crate) struct Seat {
    company: Company,
    process: usize,
}

impl Seat {
    fn is_here(&self) -> bool {
        matches!(self.company.0.role, Role::Player { me, .. } if me == self.process)
    }

    /// Does something in the owner's process and knows in all what came of it.
    pub(crate) async fn does<T: Word>(&self, here: impl Future<Output = T>) -> T {
        if self.is_here() {
            let done = here.await;
            say(&done.write(), 0);
            return done;
        }
        let word = self.company.hear(self.process);
        T::read(&mut word.split(' '))
    }

    /// The same for what is done at once and answers nothing.
    pub(crate) fn tells(&self, here: impl FnOnce()) {
        if self.is_here() {
            here();
            say(DONE, 0);
        } else {
            assert_eq!(self.company.hear(self.process), DONE);
        }
    }
}

fn line() -> String {
    let line = std::io::stdin().lines().next();
    line.expect("the test goes on to the end").unwrap()
}

/// What one process says to the others.
pub(crate) trait Word {
    fn write(&self) -> String;
    fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> Self;
}

/// The next number; `-` is none.
fn number<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<u128> {
    words.next().unwrap().parse().ok()
}

fn small<'a>(words: &mut impl Iterator<Item = &'a str>) -> u64 {
    number(words).unwrap().try_into().unwrap()
}

fn span<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Span> {
    number(words).map(|micros| Span(micros.try_into().unwrap()))
}

fn written(span: Option<Span>) -> String {
    span.map_or("-".to_owned(), |span| span.0.to_string())
}

impl Word for Vec<Verdict> {
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
                            left,
                        } = mark;
                        write!(text, " {granted} {settled} {used} {left}").unwrap();
                    }
                }
                Verdict::Wait { after, on, by } => {
                    let on = match on {
                        On::Time => "time",
                        On::Event => "event",
                    };
                    let (by, index) = match by {
                        By::Term(index) => ("term", index),
                        By::Scope(index) => ("scope", index),
                    };
                    write!(text, " wait {} {on} {by} {index}", after.0).unwrap();
                }
                Verdict::Never(Why::TooCostly { term, most }) => {
                    write!(text, " never {term} {most}").unwrap();
                }
            }
        }
        text
    }

    fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> Vec<Verdict> {
        (0..small(words)).map(|_| verdict(words)).collect()
    }
}

fn verdict<'a>(words: &mut impl Iterator<Item = &'a str>) -> Verdict {
    let index = |number: u64| usize::try_from(number).unwrap();
    match words.next() {
        Some("go") => {
            let count = small(words);
            let marks: SmallVec<[Mark; 4]> = (0..count)
                .map(|_| Mark {
                    granted: small(words),
                    settled: small(words),
                    used: small(words),
                    left: small(words),
                })
                .collect();
            Verdict::Go { marks }
        }
        Some("wait") => Verdict::Wait {
            after: span(words).unwrap(),
            on: match words.next() {
                Some("time") => On::Time,
                _ => On::Event,
            },
            by: match words.next() {
                Some("term") => By::Term(index(small(words))),
                _ => By::Scope(index(small(words))),
            },
        },
        Some("never") => Verdict::Never(Why::TooCostly {
            term: index(small(words)),
            most: small(words),
        }),
        other => panic!("no verdict: {other:?}"),
    }
}

impl Word for View {
    fn write(&self) -> String {
        let (age, reset) = (written(self.window_age), written(self.reset_after));
        format!(
            "{} {} {} {age} {reset}",
            self.limit, self.used, self.remaining
        )
    }

    fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> View {
        View {
            limit: small(words),
            used: small(words),
            remaining: small(words),
            window_age: span(words),
            reset_after: span(words),
            // No behaviour asks for it.
            rung: Rung::default(),
        }
    }
}

impl Word for ScopeView {
    fn write(&self) -> String {
        match self {
            ScopeView::Open => "open".to_owned(),
            ScopeView::Probing => "probing".to_owned(),
            ScopeView::Closed { left } => format!("closed {}", written(*left)),
            ScopeView::CacheOnly { left } => format!("cache-only {}", written(*left)),
        }
    }

    fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> ScopeView {
        match words.next() {
            Some("open") => ScopeView::Open,
            Some("probing") => ScopeView::Probing,
            Some("closed") => ScopeView::Closed { left: span(words) },
            _ => ScopeView::CacheOnly { left: span(words) },
        }
    }
}

impl Word for Option<Event> {
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
            Some(Event::Back) => "back".to_owned(),
            Some(Event::Anything) => "anything".to_owned(),
        }
    }

    fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Event> {
        let word = words.next();
        let ids = words.map(|id| id.parse::<u128>().unwrap());
        match word {
            Some("freed") => Some(Event::Freed(ids.map(CellId).collect())),
            Some("scopes") => Some(Event::Scopes(ids.map(ScopeId).collect())),
            Some("lost") => Some(Event::Lost),
            Some("back") => Some(Event::Back),
            Some("anything") => Some(Event::Anything),
            _ => None,
        }
    }
}

mod two {
    use super::*;
    conformance!(each named, |name| Company::of(2, name));
}

mod four {
    use super::*;
    conformance!(each named, |name| Company::of(4, name));
}
