//! Time per decision, allocations, memory, snapshot: the rows with one number each.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::guard::{Ask, GuardTable};

use crate::measure::{Contender, Dice, Timing, compare, cpu_ns, median};
use crate::report::{Goal, Report};
use crate::subjects::{Name, Ours, PLENTY, crab, governor_direct, governor_keyed, ours};
use crate::{Effort, heap};

/// Keys of the rows that speak of a million.
const MILLION: u64 = 1_000_000;

/// A row of the table from timings in which the first is the peer and the second is ours.
fn row(measure: &str, timings: &[Timing], floor: Option<&Timing>, bar: f64) -> Goal {
    let show = |timing: &Timing| format!("{:.1} ns", timing.ns);
    Goal {
        measure: measure.to_owned(),
        peer: show(&timings[0]),
        floor: floor.map_or("–".to_owned(), show),
        ours: show(&timings[1]),
        value: timings[1].ratio,
        bar,
        unit: "x",
    }
}

/// One compare-and-set and one reading of the clock: what any shared limiter must at least do.
#[inline]
fn floor(cell: &AtomicU64, now: u64) {
    let step = |old: u64| Some(old.max(now) + 1);
    black_box(
        cell.fetch_update(Ordering::AcqRel, Ordering::Relaxed, step)
            .is_ok(),
    );
}

/// One key that every thread wants.
pub fn hot(effort: Effort, report: &mut Report) {
    let guard = ours(MILLION);
    let (one, three) = (guard.keys.number(1), guard.keys.number(2));
    let govern = [governor_direct(), governor_direct(), governor_direct()];
    let cell = AtomicU64::new(0);
    let leaky = leaky_bucket::RateLimiter::builder()
        .max(1 << 40)
        .initial(1 << 40)
        .refill(1 << 30)
        .interval(Duration::from_secs(1))
        .build();
    let rate = ratelimit::Ratelimiter::builder(u64::from(PLENTY.get()))
        .max_tokens(u64::from(PLENTY.get()))
        .initial_available(u64::from(PLENTY.get()))
        .build()
        .expect("valid");
    let crab = crab(MILLION);
    let Ours { table, clock, .. } = &guard;
    let contenders = [
        Contender {
            name: "governor",
            work: &|_, n| {
                (0..n).for_each(|_| {
                    black_box(govern[0].check().is_ok());
                })
            },
        },
        Contender {
            name: "Tollgate",
            work: &|_, n| {
                (0..n).for_each(|_| {
                    black_box(table.take(one, &guard.one, clock.now()).is_granted());
                })
            },
        },
        Contender {
            name: "floor",
            work: &|_, n| (0..n).for_each(|_| floor(&cell, guard.clock.now().nanos())),
        },
        Contender {
            name: "ratelimit",
            work: &|_, n| {
                (0..n).for_each(|_| {
                    black_box(rate.try_wait().is_ok());
                })
            },
        },
        Contender {
            name: "leaky-bucket",
            work: &|_, n| {
                (0..n).for_each(|_| {
                    black_box(leaky.try_acquire(1));
                })
            },
        },
        Contender {
            name: "throttlecrab",
            work: &|_, n| {
                (0..n).for_each(|_| {
                    black_box(crab.text("hot"));
                })
            },
        },
    ];
    let triple = [
        Contender {
            name: "three governors",
            work: &|_, n| {
                (0..n).for_each(|_| {
                    for one in &govern {
                        black_box(one.check().is_ok());
                    }
                })
            },
        },
        Contender {
            name: "Tollgate",
            work: &|_, n| {
                (0..n).for_each(|_| {
                    black_box(table.take(three, &guard.three, clock.now()).is_granted());
                })
            },
        },
    ];
    let mut others = String::from("| one hot key | 1 thread | 2 threads |\n|---|---|---|\n");
    let timings = [1, 2].map(|threads| compare(threads, effort.rounds, effort.hot, &contenders));
    for (threads, (timings, bar)) in timings.iter().zip([1.05, 1.0]).enumerate() {
        let measure = format!("one hot key, {} thread(s)", threads + 1);
        report.goal(row(&measure, timings, Some(&timings[2]), bar));
    }
    for (single, double) in timings[0].iter().zip(&timings[1]) {
        others += &format!(
            "| {} | {:.1} ns | {:.1} ns |\n",
            single.name, single.ns, double.ns
        );
    }
    for (threads, bar) in [(1, 0.4), (2, 0.2)] {
        let timings = compare(threads, effort.rounds, effort.hot, &triple);
        let measure = format!("three limits of one key vs three governors, {threads} thread(s)");
        report.goal(row(&measure, &timings, None, bar));
    }
    report.section("All peers on one key", others);
}

/// A million keys named by numbers: ours with three limits, governor with one.
pub fn numbers(effort: Effort, report: &mut Report) {
    let guard = ours(MILLION);
    let govern = governor_keyed::<u64>();
    let cells: Vec<AtomicU64> = (0..MILLION).map(AtomicU64::new).collect();
    for name in 0..MILLION {
        assert!(guard.number(name) && govern.check_key(&name).is_ok());
    }
    let contenders = [
        Contender {
            name: "governor",
            work: &|_, n| {
                let mut dice = Dice::new();
                (0..n).for_each(|_| {
                    black_box(govern.check_key(&dice.below(MILLION)).is_ok());
                });
            },
        },
        Contender {
            name: "Tollgate",
            work: &|_, n| {
                let mut dice = Dice::new();
                (0..n).for_each(|_| {
                    black_box(guard.number(dice.below(MILLION)));
                });
            },
        },
        Contender {
            name: "floor",
            work: &|_, n| {
                let mut dice = Dice::new();
                (0..n).for_each(|_| {
                    let cell = &cells[usize::try_from(dice.below(MILLION)).expect("fits")];
                    floor(cell, guard.clock.now().nanos());
                });
            },
        },
    ];
    for (threads, bar) in [(1, 0.65), (2, 0.45)] {
        let timings = compare(threads, effort.rounds, effort.cold, &contenders);
        let measure = format!("1 M keys, three limits vs one, {threads} thread(s)");
        report.goal(row(&measure, &timings, Some(&timings[2]), bar));
    }
    allocations(&guard, report);
}

/// Allocations of a million decisions on known keys.
fn allocations(guard: &Ours, report: &mut Report) {
    let mut dice = Dice::new();
    let before = heap::calls();
    for _ in 0..MILLION {
        black_box(guard.number(dice.below(MILLION)));
    }
    let each = (heap::calls() - before) as f64 / MILLION as f64;
    report.goal(Goal {
        measure: "allocations per decision".into(),
        peer: "0".into(),
        floor: "0".into(),
        ours: format!("{each}"),
        value: each,
        bar: 0.0,
        unit: "",
    });
}

/// A million keys named by text, and what each costs in memory.
pub fn strings(effort: Effort, report: &mut Report) {
    let memory = |fill: &dyn Fn(&String)| {
        let before = heap::live();
        let mut name = Name::new();
        (0..MILLION).for_each(|number| fill(name.of(number)));
        (heap::live() - before) as f64 / MILLION as f64
    };
    let govern = governor_keyed::<String>();
    let governor_bytes = memory(&|name| {
        black_box(govern.check_key(&name.to_owned()).is_ok());
    });
    let guard = ours(MILLION);
    let own_bytes = memory(&|name| {
        black_box(guard.text(name));
    });
    let crab = crab(MILLION);
    memory(&|name| {
        black_box(crab.text(name));
    });
    let contenders = [
        Contender {
            name: "governor",
            work: &|_, n| {
                let (mut dice, mut name) = (Dice::new(), Name::new());
                (0..n).for_each(|_| {
                    black_box(govern.check_key(name.of(dice.below(MILLION))).is_ok());
                });
            },
        },
        Contender {
            name: "Tollgate",
            work: &|_, n| {
                let (mut dice, mut name) = (Dice::new(), Name::new());
                (0..n).for_each(|_| {
                    black_box(guard.text(name.of(dice.below(MILLION))));
                });
            },
        },
        Contender {
            name: "throttlecrab",
            work: &|_, n| {
                let (mut dice, mut name) = (Dice::new(), Name::new());
                (0..n).for_each(|_| {
                    black_box(crab.text(name.of(dice.below(MILLION))));
                });
            },
        },
    ];
    let mut others =
        String::from("| 1 M keys of 32 characters | 1 thread | 2 threads |\n|---|---|---|\n");
    let timings = [1, 2].map(|threads| compare(threads, effort.rounds, effort.cold, &contenders));
    for (threads, timings) in timings.iter().enumerate() {
        let measure = format!(
            "1 M string keys, three limits vs one, {} thread(s)",
            threads + 1
        );
        report.goal(row(&measure, timings, None, 0.6));
    }
    for (single, double) in timings[0].iter().zip(&timings[1]) {
        others += &format!(
            "| {} | {:.0} ns | {:.0} ns |\n",
            single.name, single.ns, double.ns
        );
    }
    report.goal(Goal {
        measure: "memory per string key at 1 M, three limits vs one".into(),
        peer: format!("{governor_bytes:.1} B"),
        floor: "–".into(),
        ours: format!("{own_bytes:.1} B"),
        value: own_bytes / governor_bytes,
        bar: 0.95,
        unit: "x",
    });
    report.section("All peers on a million string keys", others);
}

/// What has no goal but is good to know: keys decided together, refusals, new keys.
pub fn together(effort: Effort, report: &mut Report) {
    let guard = ours(MILLION);
    let govern = [
        governor_keyed::<u64>(),
        governor_keyed::<u64>(),
        governor_keyed::<u64>(),
    ];
    let keys = [1, 2, 3].map(|name| guard.keys.number(name));
    let asks = keys.map(|key| Ask {
        key,
        plan: &guard.one,
        cost: 1,
    });
    let empty = guard.table.plan(&[tollgate::guard::Limit::new(
        std::num::NonZeroU32::MIN,
        Duration::from_secs(86_400),
    )]);
    let empty = empty.expect("valid");
    let seven = std::num::NonZeroU32::new(7).expect("above zero");
    let parts = tollgate::guard::Limit::new(seven, Duration::from_secs(1)).with_burst(PLENTY);
    let parts = guard.table.plan(&[parts]).expect("valid");
    let sevenths = guard.keys.number(5);
    let refused = guard.keys.number(4);
    guard.table.take(refused, &empty, guard.clock.now());
    let contenders = [
        Contender {
            name: "three keyed governors, one after the other",
            work: &|_, n| {
                (0..n).for_each(|_| {
                    for (at, one) in govern.iter().enumerate() {
                        black_box(one.check_key(&(at as u64)).is_ok());
                    }
                })
            },
        },
        Contender {
            name: "Tollgate, three keys as one decision",
            work: &|_, n| {
                (0..n).for_each(|_| {
                    black_box(guard.table.take_all(&asks, guard.clock.now()).is_ok());
                })
            },
        },
        Contender {
            name: "Tollgate, a limit with parts (7 a second)",
            work: &|_, n| {
                (0..n).for_each(|_| {
                    black_box(
                        guard
                            .table
                            .take(sevenths, &parts, guard.clock.now())
                            .is_granted(),
                    );
                });
            },
        },
        Contender {
            name: "Tollgate, a refusal",
            work: &|_, n| {
                (0..n).for_each(|_| {
                    black_box(
                        guard
                            .table
                            .take(refused, &empty, guard.clock.now())
                            .is_granted(),
                    );
                })
            },
        },
    ];
    let mut text = String::from("| decision on hot keys | 1 thread | 2 threads |\n|---|---|---|\n");
    let one = compare(1, effort.rounds, effort.hot / 4, &contenders);
    let two = compare(2, effort.rounds, effort.hot / 4, &contenders);
    for (one, two) in one.iter().zip(&two) {
        text += &format!("| {} | {:.0} ns | {:.0} ns |\n", one.name, one.ns, two.ns);
    }
    report.section("Without a goal", text);
}

/// Snapshot and restore of a million keys with three limits.
pub fn snapshot(effort: Effort, report: &mut Report) {
    let guard = ours(MILLION);
    for name in 0..MILLION {
        guard.number(name);
    }
    // Some nanoseconds of debt would be gone before the snapshot begins: look from the past.
    let then = tollgate::guard::Tick::default();
    let mut times = Vec::new();
    let mut size = 0;
    for _ in 0..effort.rounds.min(9) {
        let start = cpu_ns();
        let mut bytes = Vec::new();
        guard.table.snapshot(then, &mut bytes);
        let back = GuardTable::restore(&bytes, 1_000_000, then, Duration::ZERO);
        times.push((cpu_ns() - start) as f64 / 1_000_000.0);
        assert_eq!(back.expect("its own bytes").len(), 1_000_000);
        size = bytes.len();
    }
    let millis = median(times);
    report.goal(Goal {
        measure: "snapshot + restore of 1 M keys, three limits".into(),
        peer: "none can".into(),
        floor: "–".into(),
        ours: format!("{millis:.0} ms, {} MB", size / 1_000_000),
        value: millis,
        bar: 100.0,
        unit: " ms",
    });
}
