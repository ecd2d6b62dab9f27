//! The worst decision while another thread sweeps a million stale keys.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tollgate_guard::{Tick, TickClock};

use crate::Effort;
use crate::measure::median;
use crate::report::{Goal, Report};
use crate::subjects::{governor_keyed, ours};

/// Keys swept.
const STALE: u64 = 1_000_000;

/// Decisions slower than this are checked for having lost their core to another program.
const SUSPECT: Duration = Duration::from_micros(20);

pub fn run(effort: Effort, report: &mut Report) {
    let rounds = effort.rounds.min(9);
    let (mut peer, mut own) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        peer.push(governor());
        own.push(guard());
    }
    let ratio = median(
        own.iter()
            .zip(&peer)
            .map(|(own, peer)| own / peer)
            .collect(),
    );
    report.goal(Goal {
        measure: "worst decision during a sweep of 1 M stale keys".into(),
        unit: "µs".into(),
        peer: Some(median(peer)),
        floor: None,
        ours: median(own),
        value: ratio,
        bar: 0.1,
        bar_unit: "x".into(),
    });
}

fn governor() -> f64 {
    let govern = governor_keyed::<u64>();
    for name in 0..STALE {
        assert!(govern.check_key(&name).is_ok());
    }
    worst(
        |name| govern.check_key(&(STALE + name)).is_ok(),
        // Without `shrink_to_fit`, which would stall it more: our table frees memory while it
        // sweeps.
        || govern.retain_recent(),
    )
}

fn guard() -> f64 {
    let guard = ours(2 * STALE);
    for name in 0..STALE {
        assert!(guard.number(name));
    }
    worst(
        |name| guard.number(STALE + name),
        || {
            let later = Tick::from_nanos(guard.clock.now().nanos() + 1);
            guard.table.sweep(later, usize::MAX);
        },
    )
}

/// Microseconds of the slowest decision between the start and the end of `sweep`.
fn worst(decide: impl Fn(u64) -> bool + Sync, sweep: impl FnOnce() + Send) -> f64 {
    let clock = TickClock::new();
    let (started, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let pin = |at: usize| {
        if let Some(core) = cores.get(at) {
            core_affinity::set_for_current(*core);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            while !started.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            sweep();
            done.store(true, Ordering::Release);
        });
        let deciding = scope.spawn(|| {
            pin(0);
            // Keys that exist before the sweep begins: the row measures a decision, not an insert.
            (0..1_000).for_each(|name| assert!(decide(name)));
            let mut lost = cores_lost();
            let mut worst = 0;
            started.store(true, Ordering::Release);
            let mut name = 0;
            while !done.load(Ordering::Acquire) {
                let before = clock.now().nanos();
                assert!(decide(name % 1_000));
                let took = clock.now().nanos() - before;
                name += 1;
                if u128::from(took) > SUSPECT.as_nanos() {
                    let now_lost = cores_lost();
                    if now_lost != lost {
                        lost = now_lost;
                        continue;
                    }
                }
                worst = worst.max(took);
            }
            worst as f64 / 1_000.0
        });
        deciding.join().expect("decisions do not panic")
    })
}

/// How often the scheduler took the core from this thread: such a decision was slow because of
/// another program. (A thread that waits for a lock yields its core, which is counted.)
fn cores_lost() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}
