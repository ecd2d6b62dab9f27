//! Interleaved rounds, medians, CPU time of pinned threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// A function that makes this many decisions.
pub type Work<'a> = &'a (dyn Fn(u64) + Sync);

/// One contender: its name and what it does.
pub struct Contender<'a> {
    pub name: &'static str,
    pub work: Work<'a>,
}

/// Contenders whose waiters sleep: they use no CPU while they wait, which is no disturbance.
const SLEEPERS: [&str; 2] = ["throttlecrab", "leaky-bucket"];

/// The times of a contender.
#[derive(Clone)]
pub struct Timing {
    pub name: &'static str,
    /// Median CPU nanoseconds per decision and thread.
    pub ns: f64,
    /// Median over rounds of its time divided by the first contender's in the same round.
    pub ratio: f64,
}

/// How often a disturbed batch is repeated before the round is left out.
const REPEATS: usize = 20;

/// Fewest rounds for a figure; with fewer, disturbed batches are counted too.
const ROUNDS_MIN: usize = 5;

/// Lets every contender make decisions on `threads` threads, in turn, `rounds` times.
///
/// Batches are short (about a millisecond), so that many fit between two interrupts by the
/// scheduler. A batch in which a thread lost its core is repeated.
pub fn compare(threads: u64, rounds: usize, count: u64, all: &[Contender<'_>]) -> Vec<Timing> {
    let mut undisturbed_rounds = Vec::with_capacity(rounds);
    let mut disturbed = Vec::new();
    for _ in 0..rounds {
        let batch = |contender: &Contender<'_>| {
            let mut last = 0.0;
            let repeats = if SLEEPERS.contains(&contender.name) {
                1
            } else {
                REPEATS
            };
            let quiet = (0..repeats).find_map(|_| {
                once(threads, count, contender.work)
                    .map_err(|ns| last = ns)
                    .ok()
            });
            quiet
                .or_else(|| SLEEPERS.contains(&contender.name).then_some(last))
                .ok_or(last)
        };
        let round: Vec<Result<f64, f64>> = all.iter().map(batch).collect();
        let values = round
            .iter()
            .map(|batch| batch.unwrap_or_else(|ns| ns))
            .collect();
        let quiet = round.iter().all(Result::is_ok);
        if quiet {
            undisturbed_rounds.push(values)
        } else {
            disturbed.push(values)
        }
    }
    if undisturbed_rounds.len() < ROUNDS_MIN {
        eprintln!(
            "the machine is busy: {} of {rounds} rounds were undisturbed",
            undisturbed_rounds.len()
        );
        undisturbed_rounds.append(&mut disturbed);
    }
    let column = |at: usize| {
        undisturbed_rounds
            .iter()
            .map(move |round: &Vec<f64>| round[at])
    };
    let timing = |(at, contender): (usize, &Contender<'_>)| Timing {
        name: contender.name,
        ns: median(column(at).collect()),
        ratio: median(
            column(at)
                .zip(column(0))
                .map(|(own, first)| own / first)
                .collect(),
        ),
    };
    all.iter().enumerate().map(timing).collect()
}

/// The time that one thread spent on its batch.
struct Spent {
    cpu_ns: u64,
    began: Instant,
    ended: Instant,
}

/// CPU nanoseconds per decision, the mean of all threads, each on a core of its own; an error if
/// one of them had to share its core or they did not run at the same time.
fn once(threads: u64, count: u64, work: Work<'_>) -> Result<f64, f64> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let (start, cores) = (&AtomicU64::new(0), &cores);
    let spent: Vec<Spent> = thread::scope(|scope| {
        let run = |thread: u64| {
            move || {
                let own = usize::try_from(thread).expect("few threads") % cores.len().max(1);
                if let Some(core) = cores.get(own) {
                    core_affinity::set_for_current(*core);
                }
                // Spinning, not sleeping: all begin within a fraction of a microsecond.
                start.fetch_add(1, Ordering::AcqRel);
                while start.load(Ordering::Acquire) < threads {
                    std::hint::spin_loop();
                }
                let (cpu, began) = (cpu_ns(), Instant::now());
                work(count);
                let ended = Instant::now();
                Spent {
                    cpu_ns: cpu_ns() - cpu,
                    began,
                    ended,
                }
            }
        };
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(run(thread)))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("a contender panicked"))
            .collect()
    });
    let total: u64 = spent.iter().map(|spent| spent.cpu_ns).sum();
    let each = total as f64 / (threads * count) as f64;
    if undisturbed(&spent) {
        Ok(each)
    } else {
        Err(each)
    }
}

/// Whether no thread shared its core and all ran at the same time, for nine tenths of the batch.
fn undisturbed(spent: &[Spent]) -> bool {
    let began = spent.iter().map(|spent| spent.began);
    let ended = spent.iter().map(|spent| spent.ended);
    let (Some(first), Some(last_began)) = (began.clone().min(), began.max()) else {
        return true;
    };
    let (Some(first_ended), Some(last)) = (ended.clone().min(), ended.max()) else {
        return true;
    };
    let whole = (last - first).as_nanos();
    let common = first_ended.saturating_duration_since(last_began).as_nanos();
    let used = spent
        .iter()
        .map(|spent| u128::from(spent.cpu_ns))
        .min()
        .unwrap_or(0);
    common * 10 >= whole * 9 && used * 10 >= whole * 9
}

/// One compare-and-set with a time: the least that any shared limiter must do.
#[inline]
pub fn floor(cell: &AtomicU64, now: u64) -> bool {
    let step = |old: u64| Some(old.max(now) + 1);
    cell.fetch_update(Ordering::AcqRel, Ordering::Relaxed, step)
        .is_ok()
}

/// CPU time that the calling thread has used.
pub fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).expect("positive") * 1_000_000_000
        + u64::try_from(time.tv_nsec).expect("positive")
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A cheap sequence of key numbers, different for each thread and each batch: a batch that asks
/// for the keys of the one before would find them in the cache.
pub struct Dice(u64);

static BATCHES: AtomicU64 = AtomicU64::new(1);

impl Dice {
    pub fn new() -> Dice {
        let batch = BATCHES.fetch_add(1, Ordering::Relaxed);
        Dice(batch.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A number below `bound`.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }
}
