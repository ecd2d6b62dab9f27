//! `CL.THROTTLE` against redis-cell: its own test cases, and its arithmetic as an oracle.
//!
//! Both are from redis-cell 0.5.0 (MIT, github.com/brandur/redis-cell), `src/cell/mod.rs`:
//! `it_rate_limits` and `RateLimiter::rate_limit`.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn throttle() -> Throttle {
    let ledger = Ledger::memory(tollgate_ledger::Clock::System);
    let guards = super::super::tests::guards("guards: {}").0;
    Throttle::new(ledger, &guards)
}

/// An arbitrary time, so that nothing begins at zero.
fn at(nanos: u64) -> Tick {
    Tick::from_nanos(1_000 * SECOND + nanos)
}

/// (time in ms, quantity, remaining, reset in ms, retry in ms, limited): the cases of redis-cell.
const CASES: [(u64, i64, u64, u64, Option<u64>, bool); 15] = [
    (0, 6, 5, 0, None, true),
    (0, 1, 4, 1_000, None, false),
    (0, 1, 3, 2_000, None, false),
    (0, 1, 2, 3_000, None, false),
    (0, 1, 1, 4_000, None, false),
    (0, 1, 0, 5_000, None, false),
    (0, 1, 0, 5_000, Some(1_000), true),
    (3_000, 1, 2, 3_000, None, false),
    (3_100, 1, 1, 3_900, None, false),
    (4_000, 1, 1, 4_000, None, false),
    (8_000, 1, 4, 1_000, None, false),
    (9_500, 1, 4, 1_000, None, false),
    (9_500, 0, 4, 1_000, None, false),
    (9_500, 2, 2, 3_000, None, false),
    (9_500, 5, 2, 3_000, Some(3_000), true),
];

#[test]
fn the_cases_of_redis_cell() {
    let throttle = throttle();
    let limit = ThrottleLimit::new(4, 1, 1).unwrap();
    for (number, (ms, quantity, remaining, reset, retry, is_limited)) in
        CASES.into_iter().enumerate()
    {
        let now = at(ms * 1_000_000);
        let found = throttle.take(b"foo", &limit, quantity, Limiting::On, now);
        let expected = Throttled {
            is_limited,
            limit: 5,
            remaining,
            retry_in: retry.map(Duration::from_millis),
            reset_in: Duration::from_millis(reset),
        };
        assert_eq!(found, expected, "case {number}");
    }
}

/// redis-cell's rule on whole nanoseconds, for rates that divide evenly.
struct Oracle {
    arrival: Option<u64>,
}

impl Oracle {
    fn take(&mut self, step: u64, burst: u64, quantity: i64, now: u64) -> Throttled {
        let tolerance = i128::from(step * burst);
        let (now, increment) = (i128::from(now), i128::from(step) * i128::from(quantity));
        let arrival = self.arrival.map_or(now, i128::from).max(now);
        let next = arrival + increment;
        let missing = next - tolerance - now;
        let is_limited = missing > 0;
        let mut ahead = arrival - now;
        if !is_limited {
            // More than full is full: redis-cell counts on, and forgets it at once.
            ahead = (next - now).max(0);
            self.arrival = u64::try_from(now + ahead).ok();
        }
        let nanos = |value: i128| Duration::from_nanos(u64::try_from(value).unwrap());
        Throttled {
            is_limited,
            limit: u32::try_from(burst).unwrap(),
            remaining: u64::try_from((tolerance - ahead) / i128::from(step)).unwrap(),
            retry_in: (is_limited && increment <= tolerance).then(|| nanos(missing)),
            reset_in: nanos(ahead),
        }
    }
}

/// 40 requests to one key, with all kinds of quantities and pauses, and the same again for 200 limits.
#[test]
fn every_reply_is_that_of_redis_cell() {
    let mut dice = fastrand::Rng::with_seed(13);
    let throttle = throttle();
    let mut limited = 0;
    for round in 0..200_u64 {
        // Counts that divide a second.
        let count = [1, 2, 4, 5, 8, 10, 20, 25, 50, 100][dice.usize(..10)];
        let (period, burst) = (dice.i64(1..100), dice.i64(0..40));
        let step = u64::try_from(period).unwrap() * SECOND / u64::try_from(count).unwrap();
        let limit = ThrottleLimit::new(burst, count, period).unwrap();
        let key = round.to_le_bytes();
        let mut oracle = Oracle { arrival: None };
        let mut now = 0;
        for _ in 0..40 {
            now += dice.u64(0..2 * step);
            let quantity = dice.i64(-3..burst + 4);
            let capacity = u64::try_from(burst + 1).unwrap();
            let expected = oracle.take(step, capacity, quantity, now);
            let found = throttle.take(&key, &limit, quantity, Limiting::On, at(now));
            assert_eq!(found, expected, "{count}/{period}s +{burst}, {quantity}");
            limited += u64::from(found.is_limited);
        }
    }
    assert!((500..7_500).contains(&limited), "{limited} of 8,000");
}

#[test]
fn limits_that_make_no_sense_are_rejected() {
    for (burst, count, period, error) in [
        (-1, 1, 1, ThrottleError::Burst),
        (i64::MAX, 1, 1, ThrottleError::Burst),
        (4_294_967_295, 1, 1, ThrottleError::Burst),
        (0, 0, 1, ThrottleError::Count),
        (0, -1, 1, ThrottleError::Count),
        (0, 1, 0, ThrottleError::Period),
        (0, 1, -60, ThrottleError::Period),
        (0, 1, i64::MAX, ThrottleError::TooSlow),
        (4_294_967_294, 1, 1, ThrottleError::TooSlow),
    ] {
        let found = ThrottleLimit::new(burst, count, period).err();
        assert_eq!(found, Some(error), "{burst} {count} {period}");
    }
    assert!(ThrottleLimit::new(4_294_967_294, 4_294_967_295, 1).is_ok());
}

/// `limiting: off` and `shadow` are for guards of every kind.
#[test]
fn shadow_takes_and_denies_nothing_and_off_only_looks() {
    let throttle = throttle();
    let limit = ThrottleLimit::new(0, 1, 60).unwrap();
    let ask = |limiting| throttle.take(b"k", &limit, 1, limiting, at(0));
    assert_eq!(ask(Limiting::Off).remaining, 1);
    assert_eq!(ask(Limiting::Shadow).remaining, 0);
    let shadow = ask(Limiting::Shadow);
    assert!(!shadow.is_limited && shadow.retry_in.is_none());
    assert!(ask(Limiting::On).is_limited);
}

/// Other limits on the same key neither fill the bucket nor empty it.
#[test]
fn a_key_with_other_limits_keeps_its_tokens() {
    let throttle = throttle();
    let (narrow, wide) = (ThrottleLimit::new(4, 1, 1), ThrottleLimit::new(99, 1, 1));
    let (narrow, wide) = (narrow.unwrap(), wide.unwrap());
    let take = |limit, quantity| throttle.take(b"k", limit, quantity, Limiting::On, at(0));
    assert_eq!(take(&narrow, 3).remaining, 2);
    assert_eq!(take(&wide, 0).remaining, 2);
    assert_eq!(take(&narrow, 0).remaining, 2);
}

/// Whoever looked at a key with 65,536 different limits took `CL.THROTTLE` from everybody.
#[test]
fn any_number_of_limits_is_in_use_and_looking_leaves_nothing() {
    let throttle = throttle();
    for burst in 0..70_000 {
        let limit = ThrottleLimit::new(burst, 1, 1).unwrap();
        let seen = throttle.take(b"k", &limit, 0, Limiting::On, at(0));
        assert!(!seen.is_limited);
    }
    assert_eq!(throttle.keys(), 0);
    for burst in 0..70_000_u32 {
        let limit = ThrottleLimit::new(burst.into(), 1, 1).unwrap();
        let all = i64::from(burst) + 1;
        let take =
            |quantity| throttle.take(&burst.to_le_bytes(), &limit, quantity, Limiting::On, at(0));
        assert!(!take(all).is_limited && take(1).is_limited, "{burst}");
    }
    assert_eq!(throttle.keys(), 70_000);
}

/// Keys whose buckets are full again are forgotten, in time.
#[test]
fn full_buckets_are_swept() {
    let throttle = throttle();
    let limit = ThrottleLimit::new(0, 1, 1).unwrap();
    let take = |key: u32, now| throttle.take(&key.to_le_bytes(), &limit, 1, Limiting::On, now);
    for key in 0..10_000 {
        assert!(!take(key, at(0)).is_limited);
    }
    assert_eq!(throttle.keys(), 10_000);
    let rounds = u32::try_from(SWEEP_EVERY).unwrap() * u32::try_from(SHARDS).unwrap();
    for _ in 0..rounds {
        take(0, at(SECOND));
    }
    assert_eq!(throttle.keys(), 1);
}

/// One caller filled the table, and first requests of all others shared buckets.
#[test]
fn no_caller_takes_the_keys_of_others() {
    let throttle = throttle();
    let limit = ThrottleLimit::new(0, 1, 3_600).unwrap();
    let take = |caller, key: u32| {
        let key = key.to_le_bytes();
        throttle.take_for(caller, &key, &limit, 1, Limiting::On, at(0))
    };
    let quarter = u32::try_from(KEYS_MAX / 4).unwrap();
    for key in 0..quarter {
        assert!(!take(Some("a"), key).is_limited);
    }
    // Beyond its share its keys have common buckets, 64 at most in each part of the table.
    for key in quarter..quarter + 100_000 {
        take(Some("a"), key);
    }
    let most = KEYS_MAX / 4 + SHARDS * usize::try_from(SHARED).unwrap();
    assert!(throttle.keys() <= most, "{}", throttle.keys());
    let limited = |caller: Option<&'static str>| {
        let keys = (quarter * 2..quarter * 2 + 2_000).filter(|key| take(caller, *key).is_limited);
        keys.count()
    };
    assert_eq!((limited(Some("b")), limited(None)), (0, 0));
    assert!(limited(Some("a")) > 0, "its own requests are");
}

/// A clock that steps back neither fills a bucket nor blocks it for ever.
#[test]
fn a_clock_that_was_set_back_leaves_an_empty_bucket() {
    let throttle = throttle();
    let limit = ThrottleLimit::new(4, 1, 1).unwrap();
    let take = |now| throttle.take(b"k", &limit, 1, Limiting::On, now);
    for _ in 0..5 {
        assert!(!take(at(900 * SECOND)).is_limited);
    }
    let denied = take(at(0));
    assert!(denied.is_limited && denied.remaining == 0);
    assert_eq!(denied.retry_in, Some(Duration::from_secs(1)));
}
