//! The behaviour of every guard backend: one suite for all of them.
//!
//! A backend implements [`Guards`], has this module as `behaviour` and calls `guard_behaviours!`; each behaviour becomes its own
//! test. Time is virtual: the suite passes it to the backend.

use std::num::NonZeroU32;
use std::time::Duration;

use tollgate_guard::Limit;

/// A guard backend.
pub(crate) trait Guards {
    /// Its smallest step of time: waits may be longer than exact by less than this.
    const GRAIN: Duration;

    /// Decides `asks` as one, at `at` after the start.
    fn take(&mut self, asks: &[Ask<'_>], at: Duration) -> Decision;

    /// Millionths of a token in each bucket of a key, taking nothing.
    fn peek(&mut self, who: &str, limits: &[Limit], at: Duration) -> Vec<u64>;
}

/// `cost` tokens of all `limits` for `who` (`class:name`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) who: &'a str,
    pub(crate) limits: &'a [Limit],
    pub(crate) cost: i64,
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Granted {
        remaining: u32,
    },
    Rejected {
        retry_in: Duration,
        ask: usize,
        limit: usize,
    },
    Never {
        ask: usize,
    },
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

pub(crate) const fn limit(limit: u32, period: Duration, burst: u32) -> Limit {
    let (Some(limit), Some(burst)) = (NonZeroU32::new(limit), NonZeroU32::new(burst)) else {
        panic!("limits of tests are above zero")
    };
    Limit::new(limit, period).with_burst(burst)
}

/// C3's classes.
pub(crate) const IP: [Limit; 1] = [limit(10, MINUTE, 5)];
pub(crate) const API: [Limit; 1] = [limit(100, MINUTE, 20)];
pub(crate) const USER: [Limit; 1] = [limit(20, MINUTE, 10)];
pub(crate) const TASK: [Limit; 1] = [limit(50, MINUTE, 15)];

/// Everything of the suite as tests against `$new()`.
macro_rules! guard_behaviours {
    ($new:expr; $($name:ident),* $(,)?) => {
        $(#[test] fn $name() { behaviour::$name(&mut $new()); })*
    };
}
pub(crate) use guard_behaviours;

fn one<G: Guards>(guards: &mut G, who: &str, limits: &[Limit], at: Duration) -> Decision {
    guards.take(
        &[Ask {
            who,
            limits,
            cost: 1,
        }],
        at,
    )
}

fn granted(decision: Decision) -> bool {
    matches!(decision, Decision::Granted { .. })
}

fn wait_of(decision: Decision) -> Duration {
    match decision {
        Decision::Rejected { retry_in, .. } => retry_in,
        Decision::Granted { .. } | Decision::Never { .. } => {
            panic!("expected a rejection, got {decision:?}")
        }
    }
}

/// C3: each class grants its burst at once, counts down, then rejects for one token's time.
pub(crate) fn c3_a_class_gives_its_burst_and_then_its_rate<G: Guards>(guards: &mut G) {
    for (who, limits) in [
        ("ip:a", &IP),
        ("api:global", &API),
        ("user:a", &USER),
        ("task:t", &TASK),
    ] {
        let [class] = *limits;
        for left in (0..class.burst.get()).rev() {
            let decision = one(guards, who, limits, SECOND);
            assert_eq!(decision, Decision::Granted { remaining: left }, "{who}");
        }
        let token = class.period / class.limit.get();
        let retry_in = wait_of(one(guards, who, limits, SECOND));
        assert!(
            retry_in >= token && retry_in < token + G::GRAIN,
            "{who}: {retry_in:?}"
        );
    }
}

/// C1: asking every 7 ms for ten minutes gets what a patient caller gets, to the token.
pub(crate) fn c1_polling_often_loses_no_fraction<G: Guards>(guards: &mut G) {
    let limits = [limit(7, SECOND, 1)];
    let polls = 600_000 / 7;
    let got = (0..polls)
        .filter(|poll| {
            granted(one(
                guards,
                "ip:a",
                &limits,
                Duration::from_millis(poll * 7),
            ))
        })
        .count();
    // A token takes 142.86 ms; the first poll at or after it is at most 7 ms late, never earlier.
    assert_eq!(got, 600_000 / 147 + 1);
}

/// C1: at moments that are no multiple of anything, thirds and sevenths of tokens add up exactly.
pub(crate) fn c1_fractions_add_up_exactly<G: Guards>(guards: &mut G) {
    let limits = [limit(3, SECOND, 3)];
    let mut at = Duration::ZERO;
    for _ in 0..3 {
        assert!(granted(one(guards, "ip:a", &limits, at)));
    }
    for _ in 0..1_000 {
        at += SECOND;
        let now = (0..4)
            .filter(|_| granted(one(guards, "ip:a", &limits, at)))
            .count();
        assert_eq!(now, 3);
    }
}

/// C1: a slow bucket stays empty however long nobody asks (the document's expiry refilled it).
pub(crate) fn c1_a_slow_bucket_is_not_refilled_by_forgetting<G: Guards>(guards: &mut G) {
    let limits = [limit(1, DAY, 1)];
    assert!(granted(one(guards, "ip:a", &limits, Duration::ZERO)));
    assert!(!granted(one(guards, "ip:a", &limits, DAY - SECOND)));
    assert!(granted(one(guards, "ip:a", &limits, DAY)));
}

/// C2: a peek takes nothing and shows fractions.
pub(crate) fn c2_looking_takes_nothing_and_shows_fractions<G: Guards>(guards: &mut G) {
    assert_eq!(guards.peek("ip:a", &IP, Duration::ZERO), [5_000_000]);
    for _ in 0..5 {
        one(guards, "ip:a", &IP, Duration::ZERO);
    }
    for _ in 0..3 {
        assert_eq!(
            guards.peek("ip:a", &IP, Duration::from_millis(1_500)),
            [250_000]
        );
    }
    assert_eq!(guards.peek("ip:a", &IP, MINUTE), [5_000_000]);
}

/// C11: when the global guard rejects, the address and the user keep their tokens.
pub(crate) fn c11_a_rejection_spends_nothing_anywhere<G: Guards>(guards: &mut G) {
    let at = SECOND;
    let global = Ask {
        who: "api:global",
        limits: &API,
        cost: 20,
    };
    assert!(granted(guards.take(&[global], at)));
    let asks = [
        Ask {
            who: "ip:a",
            limits: &IP,
            cost: 1,
        },
        Ask {
            who: "user:a",
            limits: &USER,
            cost: 1,
        },
        Ask {
            who: "api:global",
            limits: &API,
            cost: 1,
        },
    ];
    match guards.take(&asks, at) {
        Decision::Rejected {
            ask: 2, limit: 0, ..
        } => {}
        other => panic!("the third ask must refuse, got {other:?}"),
    }
    assert_eq!(guards.peek("ip:a", &IP, at), [5_000_000]);
    assert_eq!(guards.peek("user:a", &USER, at), [10_000_000]);
}

/// C11: a grant spends everywhere, and `remaining` is that of the emptiest bucket.
pub(crate) fn c11_a_grant_spends_everywhere<G: Guards>(guards: &mut G) {
    let asks = [
        Ask {
            who: "ip:a",
            limits: &IP,
            cost: 1,
        },
        Ask {
            who: "user:a",
            limits: &USER,
            cost: 2,
        },
        Ask {
            who: "api:global",
            limits: &API,
            cost: 1,
        },
    ];
    assert_eq!(
        guards.take(&asks, SECOND),
        Decision::Granted { remaining: 4 }
    );
    assert_eq!(guards.peek("ip:a", &IP, SECOND), [4_000_000]);
    assert_eq!(guards.peek("user:a", &USER, SECOND), [8_000_000]);
    assert_eq!(guards.peek("api:global", &API, SECOND), [19_000_000]);
}

/// C11: the same key twice in one decision pays twice or not at all.
pub(crate) fn c11_a_key_named_twice_pays_twice<G: Guards>(guards: &mut G) {
    let ask = Ask {
        who: "ip:a",
        limits: &IP,
        cost: 3,
    };
    assert_eq!(guards.take(&[ask, ask], SECOND), Decision::Never { ask: 1 });
    assert_eq!(guards.peek("ip:a", &IP, SECOND), [5_000_000]);
    let ask = Ask { cost: 2, ..ask };
    assert_eq!(
        guards.take(&[ask, ask], SECOND),
        Decision::Granted { remaining: 1 }
    );
}

/// All limits of one key agree or none is charged; the rejection names the longest wait.
pub(crate) fn limits_of_one_key_are_decided_together<G: Guards>(guards: &mut G) {
    let limits = [limit(10, SECOND, 10), limit(12, MINUTE, 12)];
    let ask = |cost| {
        [Ask {
            who: "ip:a",
            limits: &limits,
            cost,
        }]
    };
    assert!(granted(guards.take(&ask(10), Duration::ZERO)));
    assert!(granted(guards.take(&ask(2), SECOND)));
    match guards.take(&ask(8), SECOND) {
        Decision::Rejected {
            ask: 0, limit: 1, ..
        } => {}
        other => panic!("the minute must refuse, got {other:?}"),
    }
    assert_eq!(guards.peek("ip:a", &limits, SECOND)[0], 8_000_000);
}

/// A rejection's time is exact: rejected one grain before it, granted at it, never zero.
pub(crate) fn the_retry_time_of_a_rejection_is_exact<G: Guards>(guards: &mut G) {
    let limits = [limit(35, SECOND, 35), limit(1_000, DAY, 100)];
    let mut at = Duration::ZERO;
    for round in 0..200_u32 {
        let ask = [Ask {
            who: "ip:a",
            limits: &limits,
            cost: i64::from(round % 35) + 1,
        }];
        if let Decision::Rejected { retry_in, .. } = guards.take(&ask, at) {
            assert!(retry_in > Duration::ZERO);
            let early = retry_in.saturating_sub(G::GRAIN);
            assert!(!granted(guards.take(&ask, at + early)), "round {round}");
            at += retry_in;
            assert!(granted(guards.take(&ask, at)), "round {round}");
        }
    }
}

/// More than the burst at once can never be granted, and the rejection costs nothing.
pub(crate) fn a_cost_above_the_burst_is_never_granted<G: Guards>(guards: &mut G) {
    let ask = [Ask {
        who: "ip:a",
        limits: &IP,
        cost: 6,
    }];
    assert_eq!(guards.take(&ask, SECOND), Decision::Never { ask: 0 });
    assert_eq!(guards.peek("ip:a", &IP, SECOND), [5_000_000]);
}

/// Cost 0 only peeks, also at an empty bucket; a negative cost puts back, never above full.
pub(crate) fn cost_zero_looks_and_a_negative_cost_puts_back<G: Guards>(guards: &mut G) {
    let ask = |cost| {
        [Ask {
            who: "ip:a",
            limits: &IP,
            cost,
        }]
    };
    assert_eq!(
        guards.take(&ask(5), SECOND),
        Decision::Granted { remaining: 0 }
    );
    assert_eq!(
        guards.take(&ask(0), SECOND),
        Decision::Granted { remaining: 0 }
    );
    assert_eq!(
        guards.take(&ask(-2), SECOND),
        Decision::Granted { remaining: 2 }
    );
    assert_eq!(
        guards.take(&ask(-9), SECOND),
        Decision::Granted { remaining: 5 }
    );
    assert_eq!(
        guards.take(&ask(i64::MIN), SECOND),
        Decision::Granted { remaining: 5 }
    );
    assert_eq!(
        guards.take(&ask(5), SECOND),
        Decision::Granted { remaining: 0 }
    );
}

/// A clock that goes back grants nothing and takes nothing permanently.
pub(crate) fn a_clock_that_goes_back_frees_nothing<G: Guards>(guards: &mut G) {
    let at = 10 * MINUTE;
    for _ in 0..5 {
        assert!(granted(one(guards, "ip:a", &IP, at)));
    }
    for back in 1..=50 {
        assert!(
            !granted(one(guards, "ip:a", &IP, at - SECOND * back)),
            "{back} s back"
        );
    }
    assert!(!granted(one(guards, "ip:a", &IP, at)));
    assert!(granted(one(
        guards,
        "ip:a",
        &IP,
        at + Duration::from_secs(6)
    )));
    assert!(!granted(one(
        guards,
        "ip:a",
        &IP,
        at + Duration::from_secs(6)
    )));
}

/// A clock that permanently stepped back blocks a key no longer than its bucket takes to fill.
pub(crate) fn a_clock_that_stepped_back_blocks_for_a_bounded_time<G: Guards>(guards: &mut G) {
    for _ in 0..5 {
        assert!(granted(one(guards, "ip:a", &IP, DAY)));
    }
    let retry_in = wait_of(one(guards, "ip:a", &IP, MINUTE));
    assert!(retry_in <= MINUTE, "{retry_in:?}");
    assert!(granted(one(guards, "ip:a", &IP, MINUTE + retry_in)));
}

/// Different callers, and the same name in different classes, have separate buckets.
pub(crate) fn callers_and_classes_are_apart<G: Guards>(guards: &mut G) {
    let ask = |who| {
        [Ask {
            who,
            limits: &IP,
            cost: 5,
        }]
    };
    for who in ["ip:a", "ip:b", "user:a", "ip:", "ip:aa", "ip:a\0"] {
        assert!(granted(guards.take(&ask(who), SECOND)), "{who}");
    }
}

/// A change of limits is neither a reset nor a burst: the current tokens stay.
pub(crate) fn a_change_of_limits_keeps_the_tokens_at_hand<G: Guards>(guards: &mut G) {
    let (small, large) = (IP, [limit(1_000, MINUTE, 50)]);
    let spent = [Ask {
        who: "ip:a",
        limits: &small,
        cost: 4,
    }];
    assert!(granted(guards.take(&spent, SECOND)));
    assert_eq!(guards.peek("ip:a", &large, SECOND), [1_000_000]);
    let full = [Ask {
        who: "ip:b",
        limits: &large,
        cost: 1,
    }];
    assert!(granted(guards.take(&full, SECOND)));
    assert_eq!(guards.peek("ip:b", &small, SECOND), [5_000_000]);
}

/// Going back and forth between two sets of limits gives no more than the faster one alone.
pub(crate) fn switching_limits_back_and_forth_gives_nothing<G: Guards>(guards: &mut G) {
    let sets = [IP, [limit(30, MINUTE, 5)]];
    let got = (0..2_000_u32)
        .filter(|step| {
            let limits = &sets[*step as usize % 2];
            granted(one(
                guards,
                "ip:a",
                limits,
                Duration::from_millis(30) * *step,
            ))
        })
        .count();
    assert!(got <= 5 + 30, "{got} in a minute");
}
