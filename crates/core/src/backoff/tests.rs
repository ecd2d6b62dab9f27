//! The formula (M7), its jitter (A10) and what a `Retry-After` is worth (M8, A9).

use super::{Backoff, BackoffNames, Dice, Jitter, RETRY_AFTER_FLOOR, effective_retry_after};
use crate::problem::Problems;
use crate::ratio::Ppm;
use crate::time::Span;

/// Throws that are uniform enough for statistics, from a fixed seed (splitmix64).
pub(crate) fn throws(seed: u64) -> impl Iterator<Item = Dice> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Dice(z ^ (z >> 31))
    })
}

/// The document's backoff (M7): 1 s × 2ⁿ up to 30 s, exactly.
fn media() -> Backoff {
    Backoff {
        base: Span::from_secs(1),
        jitter: Jitter::None,
        ..Backoff::default()
    }
}

/// M7: 1, 2, 4, 8, 16, 30, 30 s …
#[test]
fn the_wait_doubles_up_to_its_maximum() {
    let waits = (0..8).map(|n| media().wait(n, Dice(99)).0 / 1_000_000);
    assert_eq!(waits.collect::<Vec<_>>(), [1, 2, 4, 8, 16, 30, 30, 30]);
    assert_eq!(media().ceiling(u32::MAX), Span::from_secs(30));
}

/// A10 (and A18, scenario 2): uniform(0, min(30 s, 1.5 s × 2ⁿ⁻¹)): mean, deviation, ends and evenness.
#[test]
fn full_jitter_is_uniform() {
    let backoff = Backoff::default();
    for (n, ceiling_ms) in [
        (1, 1_500),
        (2, 3_000),
        (3, 6_000),
        (4, 12_000),
        (5, 24_000),
        (6, 30_000),
    ] {
        let ceiling = Span::from_millis(ceiling_ms);
        assert_eq!(backoff.ceiling(n - 1), ceiling, "retry {n}");
        let waits: Vec<u64> = throws(u64::from(n))
            .take(20_000)
            .map(|dice| backoff.wait(n - 1, dice).0)
            .collect();
        let count = waits.len() as u64;
        let mean = waits.iter().sum::<u64>() / count;
        assert!(
            mean.abs_diff(ceiling.0 / 2) < ceiling.0 / 100,
            "mean {mean}"
        );
        let squares = waits
            .iter()
            .map(|&wait| u128::from(wait.abs_diff(mean)).pow(2));
        let variance = squares.sum::<u128>() / u128::from(count);
        let expected = u128::from(ceiling.0).pow(2) / 12;
        assert!(
            variance.abs_diff(expected) < expected / 25,
            "variance {variance}"
        );
        for tenth in 0..10 {
            let bounds = ceiling.0 * tenth / 10..=ceiling.0 * (tenth + 1) / 10;
            let inside = waits.iter().filter(|wait| bounds.contains(wait)).count();
            assert!(inside.abs_diff(2_000) < 200, "tenth {tenth}: {inside}");
        }
    }
}

/// A10: both ends can be thrown, nothing beyond them.
#[test]
fn dice_reach_both_ends_and_no_further() {
    let most = Span::from_secs(30);
    assert_eq!(Dice(0).within(most), Span::ZERO);
    assert_eq!(Dice(u64::MAX).within(most), most);
    assert_eq!(Dice(u64::MAX).within(Span(u64::MAX)), Span(u64::MAX));
    assert_eq!(Dice(u64::MAX).within(Span::ZERO), Span::ZERO);
}

/// S5: additive jitter lies on top, also of the maximum.
#[test]
fn additive_jitter_only_adds() {
    let jitter = Jitter::Additive(Ppm::percent(30));
    let wait = Span::from_secs(300);
    assert_eq!(jitter.spread(wait, Dice(0)), wait);
    assert_eq!(jitter.spread(wait, Dice(u64::MAX)), Span::from_secs(390));
}

/// A9: 0 and the past are 1 s; up to 31 days as given; longer or absent = absent.
#[test]
fn retry_after_has_a_floor_and_a_maximum() {
    let day = |days: u64| Some(Span::from_secs(days * 86_400));
    let effective = |wait| effective_retry_after(wait, RETRY_AFTER_FLOOR);
    assert_eq!(effective(Some(Span::ZERO)), Some(Span::from_secs(1)));
    assert_eq!(
        effective(Some(Span::from_millis(400))),
        Some(Span::from_secs(1))
    );
    assert_eq!(
        effective(Some(Span::from_secs(2))),
        Some(Span::from_secs(2))
    );
    assert_eq!(effective(day(31)), day(31));
    assert_eq!(effective(day(32)), None);
    assert_eq!(effective(None), None);
}

#[test]
fn every_invalid_backoff_setting_is_reported() {
    let backoff = Backoff {
        base: Span::from_secs(60),
        factor: Ppm::percent(50),
        max: Span::from_secs(30),
        jitter: Jitter::Additive(Ppm(2_000_000)),
    };
    let mut problems = Problems::default();
    backoff.check(&BackoffNames::COOLDOWN, &mut problems);
    let found = problems.found();
    let named: Vec<&str> = found.iter().map(|problem| problem.setting).collect();
    assert_eq!(
        named,
        ["cooldown.base", "cooldown.factor", "cooldown.jitter"]
    );
}
