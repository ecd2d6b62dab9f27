//! The power goes at any time: what was not synced is gone, whatever was handed out.
//!
//! Two stores on one folder are driven by hand, a commit and a sync at a time. The log is only
//! appended to here, so a disk that has lost what was not synced is a log that was cut off: anywhere
//! between the last sync and its end. A provider counts what was handed out, before the loss and
//! after the next boot, each algorithm in its own way.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use rusqlite::Connection;
use smallvec::smallvec;
use tollgate_core::ask::{
    Ask, Evidence, Outcome, PermitId, Priority, Scopes, Settle, Term, Verdict,
};
use tollgate_core::limit::{Calendar, CalendarPeriod, Rule};
use tollgate_core::time::{Now, Wall};

use super::*;
use crate::ManualClock;
use crate::shared::Shared;

const CELL: CellId = CellId(7);
const HOUR: Span = Span::from_secs(3_600);
const N: u64 = 300;
/// 1 % of it.
const RESERVED: u64 = 3;
/// Two hours after a midnight in UTC.
const START: Now = Now {
    at: Micros(500_000_000_000),
    wall: Wall(1_772_323_200_000_000 + 7_200_000_000),
};

static FOLDERS: AtomicU64 = AtomicU64::new(0);

/// How the provider counts, and the limit that keeps it.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Sliding,
    Paced,
    Fixed,
    Bucket,
    Calendar,
}

const KINDS: [Kind; 5] = [
    Kind::Sliding,
    Kind::Paced,
    Kind::Fixed,
    Kind::Bucket,
    Kind::Calendar,
];

impl Kind {
    fn rule(self, limit: u64) -> Arc<Rule> {
        let rule = match self {
            Kind::Sliding => Rule::sliding(limit, HOUR),
            Kind::Paced => Rule::paced(limit, HOUR),
            Kind::Fixed => Rule::fixed(limit, HOUR),
            Kind::Bucket => Rule::bucket(limit, HOUR, limit),
            Kind::Calendar => Rule::calendar(
                limit,
                Calendar::new(CalendarPeriod::Hour, jiff::tz::TimeZone::UTC),
            ),
        };
        Arc::new(rule.unwrap())
    }

    /// The most that the provider counted in any of its windows, or the emptiest its bucket was.
    fn most_counted(self, arrivals: &[(Wall, u64)], limit: u64) -> u64 {
        let within = |from: Wall, until: Wall| {
            let inside = arrivals.iter().filter(|(at, _)| from <= *at && *at < until);
            inside.map(|(_, cost)| cost).sum::<u64>()
        };
        let starts = arrivals.iter().map(|(at, _)| *at);
        match self {
            Kind::Sliding | Kind::Paced => starts.map(|at| within(at, at + HOUR)).max(),
            Kind::Calendar => starts
                .map(|at| Wall(at.0 / HOUR.0 * HOUR.0))
                .map(|start| within(start, start + HOUR))
                .max(),
            Kind::Fixed => {
                let (mut end, mut most) = (Wall(0), None);
                for at in starts {
                    if at >= end {
                        end = at + HOUR;
                        most = most.max(Some(within(at, end)));
                    }
                }
                most
            }
            Kind::Bucket => {
                let (mut debt, mut last, mut most) = (0_u128, Wall(0), 0);
                for &(at, cost) in arrivals {
                    let refilled = u128::from(at.since(last).0) * u128::from(limit);
                    debt = debt.saturating_sub(refilled) + u128::from(cost) * u128::from(HOUR.0);
                    (last, most) = (at, most.max(debt));
                }
                u64::try_from(most.div_ceil(u128::from(HOUR.0))).ok()
            }
        }
        .unwrap_or(0)
    }
}

/// A host, its processes, and the provider that they call.
struct Host {
    folder: PathBuf,
    clock: Arc<ManualClock>,
    processes: Vec<Process>,
    /// The log after each commit since the last that is on disk, that one first.
    logs: VecDeque<u64>,
    /// Commits before those.
    commits: u64,
    kind: Kind,
    rule: Arc<Rule>,
    limit: u64,
    arrivals: Vec<(Wall, u64)>,
    seq: u64,
}

struct Process {
    store: SqliteStore,
    /// Its last commit.
    commit: u64,
    /// Granted and not to be used before a sync.
    waiting: Vec<u64>,
}

impl Host {
    fn new(kind: Kind, limit: u64) -> Host {
        let mut host = Host {
            folder: Host::unused_folder(),
            clock: ManualClock::new(START),
            processes: Vec::new(),
            logs: VecDeque::new(),
            commits: 0,
            kind,
            rule: kind.rule(limit),
            limit,
            arrivals: Vec::new(),
            seq: 0,
        };
        host.open();
        host
    }

    fn unused_folder() -> PathBuf {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-power-{}-{number}", std::process::id());
        std::env::temp_dir().join(name)
    }

    fn open(&mut self) {
        let open = || {
            let shared = Shared::new(Clock::Manual(self.clock.clone()));
            let sink = EventSink::new(shared.hub.clone());
            let clock = Clock::Manual(self.clock.clone());
            let store = SqliteStore::open(&self.folder, clock, sink).unwrap();
            Process {
                store,
                commit: 0,
                waiting: Vec::new(),
            }
        };
        self.processes = vec![open(), open()];
        self.logs = [self.log_bytes()].into();
        self.commits = 0;
    }

    fn log_bytes(&self) -> u64 {
        std::fs::metadata(self.folder.join("ledger.db-wal"))
            .unwrap()
            .len()
    }

    fn wall(&self) -> Wall {
        Clock::Manual(self.clock.clone()).now().wall
    }

    /// Asks once; `Some(true)` if the permit may be used at once.
    fn take(&mut self, process: usize, cost: u64, is_settled: bool) -> Option<bool> {
        self.seq += 1;
        let owner = self.processes[process].store.owner();
        let ask = Ask {
            id: PermitId {
                owner,
                seq: self.seq,
            },
            terms: smallvec![Term {
                cell: CELL,
                rule: self.rule.clone(),
                cost,
                reserve: 0,
            }],
            scopes: Scopes::new(),
            priority: Priority::Normal,
            max_wait: Span::ZERO,
            evidence: Evidence::None {
                use_within: Span::from_secs(1),
            },
        };
        let settle = Settle::Permit {
            id: ask.id,
            terms: ask.terms.clone(),
            scopes: Scopes::new(),
            outcome: Outcome::Arrived {
                age: Span::ZERO,
                limited: false,
                readings: Vec::new(),
            },
        };
        let decision = self.commit(process, &[], &[ask]);
        if !matches!(decision.verdicts[0], Verdict::Go { .. }) {
            return None;
        }
        let is_covered = decision.sync_ahead.unwrap().waiting.is_empty();
        if is_covered {
            self.arrivals.push((self.wall(), cost));
            if is_settled {
                self.commit(process, &[settle], &[]);
            }
        } else {
            self.processes[process].waiting.push(cost);
        }
        Some(is_covered)
    }

    fn commit(&mut self, process: usize, settles: &[Settle], asks: &[Ask]) -> BatchResult {
        let store = &self.processes[process].store;
        let batch = Batch::now(store.owner(), settles, asks);
        let decision = store.commit(&batch).unwrap();
        self.logs.push_back(self.log_bytes());
        self.processes[process].commit = self.commits + self.logs.len() as u64 - 1;
        decision
    }

    /// What this process has committed is on disk, whoever has synced it.
    fn sync(&mut self, process: usize) {
        let wall = self.wall();
        let process = &mut self.processes[process];
        process.store.sync().unwrap();
        let waiting = process.waiting.drain(..);
        self.arrivals.extend(waiting.map(|cost| (wall, cost)));
        while self.commits < process.commit {
            self.commits += 1;
            self.logs.pop_front();
        }
    }

    /// Those who waited got theirs too late.
    fn pass(&mut self, span: Span) {
        self.clock.pass(span);
        self.processes
            .iter_mut()
            .for_each(|process| process.waiting.clear());
    }

    /// The power goes, and the host is up again `off` later with so much of the log.
    fn lose_power(&mut self, kept: prop::sample::Index, off: Span) {
        let left = self.logs[kept.index(self.logs.len())];
        self.lose_to(left, off);
    }

    fn lose_to(&mut self, left: u64, off: Span) {
        let disk = Host::unused_folder();
        std::fs::create_dir(&disk).unwrap();
        for name in ["ledger.db", "ledger.db-wal"] {
            std::fs::copy(self.folder.join(name), disk.join(name)).unwrap();
        }
        // The note is not synced either, and of what is one boot here.
        std::fs::write(disk.join("ledger.lock"), generation::MARK).unwrap();
        let log = std::fs::File::options()
            .write(true)
            .open(disk.join("ledger.db-wal"))
            .unwrap();
        log.set_len(left).unwrap();
        let wall = self.wall() + off;
        self.processes
            .drain(..)
            .for_each(|process| process.store.close());
        std::fs::remove_dir_all(&self.folder).unwrap();
        self.folder = disk;
        Connection::open(self.folder.join("ledger.db"))
            .unwrap()
            .execute("UPDATE meta SET boot = 'another'", [])
            .unwrap();
        self.clock = ManualClock::new(Now {
            at: Micros(20_000_000),
            wall,
        });
        self.open();
    }

    /// Takes what there is, and syncs.
    fn use_up(&mut self) {
        let _enough = (0..self.limit * 2).find(|_| {
            if self.kind.is_spaced() {
                self.pass(Span::from_secs(13));
            }
            self.take(0, 1, true).is_none()
        });
        self.sync(0);
    }

    fn sent(&self) -> u64 {
        self.arrivals.iter().map(|(_, cost)| cost).sum()
    }
}

impl Kind {
    fn is_spaced(self) -> bool {
        matches!(self, Kind::Paced)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.processes
            .drain(..)
            .for_each(|process| process.store.close());
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize, u64, bool),
    Sync(usize),
    Pass(u64),
    Lose(prop::sample::Index, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let take =
        (0..2_usize, 1..4_u64, any::<bool>()).prop_map(|(p, cost, is)| Step::Take(p, cost, is));
    let sync = (0..2_usize).prop_map(Step::Sync);
    let pass = prop::sample::select(vec![1_u64, 13, 100, 1_700, 3_700]).prop_map(Step::Pass);
    let lose =
        (any::<prop::sample::Index>(), 1..4_000_u64).prop_map(|(at, off)| Step::Lose(at, off));
    prop::collection::vec(
        prop_oneof![12 => take, 3 => sync, 3 => pass, 1 => lose],
        10..60,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// H9: whatever was synced and whatever was not, the provider counts at most the quota.
    #[test]
    fn h9_no_loss_of_power_lets_a_quota_be_exceeded(
        kind in prop::sample::select(KINDS.to_vec()),
        limit in prop::sample::select(vec![5_u64, N]),
        steps in steps(),
        end in any::<prop::sample::Index>(),
    ) {
        let mut host = Host::new(kind, limit);
        // Nearly used up, so that every permit counts.
        if limit == N && !kind.is_spaced() {
            host.take(0, N - 9, true);
            host.sync(0);
        }
        for step in steps {
            match step {
                Step::Take(process, cost, is_settled) => {
                    host.take(process, cost.min(limit), is_settled);
                }
                Step::Sync(process) => host.sync(process),
                Step::Pass(secs) => host.pass(Span::from_secs(secs)),
                Step::Lose(kept, off) => host.lose_power(kept, Span::from_secs(off)),
            }
        }
        host.lose_power(end, Span::from_secs(1));
        if !kind.is_spaced() {
            host.use_up();
        }
        let most = kind.most_counted(&host.arrivals, limit);
        prop_assert!(most <= limit, "{most} of {limit}: {:?}", host.arrivals);
    }
}

/// For every algorithm: all that was covered is lost, and none of it; the quota holds, and no more
/// than the reservation is wasted.
#[test]
fn h9_what_may_have_been_lost_is_counted_once_and_no_more() {
    for kind in KINDS {
        for covered in [0, RESERVED] {
            let mut host = Host::new(kind, N);
            for cost in [1, N - 60] {
                host.pass(Span::from_secs(13));
                host.take(0, cost, true);
                host.sync(0);
                host.pass(if kind.is_spaced() { HOUR } else { Span(1) });
            }
            if kind.is_spaced() {
                host.arrivals.clear();
            }
            let before = host.sent();
            let left = host.logs[0];
            for _ in 0..covered {
                host.pass(if kind.is_spaced() {
                    Span::from_secs(13)
                } else {
                    Span(1)
                });
                assert_eq!(host.take(1, 1, true), Some(true), "{kind:?}");
            }
            assert_eq!(host.sent(), before + covered);
            host.lose_to(left, Span::from_secs(5));
            assert!(host.processes[0].waiting.is_empty());
            if kind.is_spaced() {
                continue;
            }
            // A bucket gets some back meanwhile.
            host.use_up();
            let wasted = N.saturating_sub(host.sent());
            let expected = RESERVED - covered;
            assert!(wasted <= expected, "{kind:?}: {wasted} wasted");
            assert!(kind.most_counted(&host.arrivals, N) <= N, "{kind:?}");
        }
    }
}

/// What is lost is charged when somebody uses the limit, also if another boot comes before.
#[test]
fn what_may_have_been_lost_is_counted_after_two_boots_too() {
    let mut host = Host::new(Kind::Sliding, N);
    host.take(0, N - 9, true);
    host.sync(0);
    for _ in 0..RESERVED {
        assert_eq!(host.take(0, 1, true), Some(true));
    }
    let left = host.logs[0];
    host.lose_to(left, Span::from_secs(5));
    let log = host.log_bytes();
    host.lose_to(log, Span::from_secs(5));
    host.use_up();
    assert_eq!(host.sent(), N);
}

/// Reservations are of the folder: what one process has synced covers the permits of the other, and
/// together they have one of them.
#[test]
fn two_processes_share_a_reservation() {
    let mut host = Host::new(Kind::Sliding, N);
    assert_eq!(host.take(0, 1, true), Some(false), "nothing is on disk");
    assert_eq!(host.take(1, 1, true), Some(false));
    host.sync(0);
    assert_eq!(
        host.take(1, 1, true),
        Some(true),
        "the other process has synced the row"
    );
    assert_eq!(host.take(0, 1, true), Some(true));
    assert_eq!(
        host.take(1, 1, true),
        Some(false),
        "three since the sync, with the first of this one"
    );
    host.sync(1);
    for process in [0, 1, 0] {
        assert_eq!(host.take(process, 1, true), Some(true));
    }
    assert_eq!(host.take(1, 1, true), Some(false));
}

/// 1 % of five is one: a permit at a time.
#[test]
fn a_tiny_limit_has_a_reservation_of_one() {
    let mut host = Host::new(Kind::Sliding, 5);
    assert_eq!(host.take(0, 1, true), Some(false));
    host.sync(0);
    assert_eq!(host.take(0, 1, true), Some(true));
    assert_eq!(host.take(0, 1, true), Some(false));
    host.sync(0);
    assert_eq!(host.take(0, 2, true), Some(false), "more than one at once");
    let left = host.logs[0];
    host.lose_to(left, Span::from_secs(5));
    // Three were handed out, one counts as used, one is left.
    host.use_up();
    assert_eq!(host.sent(), 4);
}
