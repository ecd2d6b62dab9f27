//! S5: how long a scope cools down after a 429, and which scopes do.

use smallvec::smallvec;

use super::{Cooldown, CooldownSettings, JitterOn, ProviderWait, settle};
use crate::ask::{Ask, Evidence, OwnerId, PermitId, Priority, ScopeId, Settle, Verdict};
use crate::backoff::{Dice, Jitter};
use crate::scope::ScopeView;
use crate::table::Table;
use crate::time::{Micros, Now, Span, Wall};
use crate::turn::turn;

const NOW: Micros = Micros(1_000_000_000);
const NONE: Dice = Dice(0);
const MOST: Dice = Dice(u64::MAX);

fn provider_wait(retry_after: Option<u64>, reset_after: Option<u64>) -> ProviderWait {
    ProviderWait {
        retry_after: retry_after.map(Span::from_secs),
        reset_after: reset_after.map(Span::from_secs),
    }
}

fn cooldown_for(settings: &CooldownSettings, stated: ProviderWait, dice: Dice) -> Span {
    Cooldown::default()
        .on_limited(settings, NOW, stated, dice, NOW)
        .unwrap()
}

/// S5: `Retry-After`, else the reset, else backoff.
#[test]
fn the_providers_wait_comes_first() {
    let settings = CooldownSettings::default();
    let length = |stated| cooldown_for(&settings, stated, NONE).0 / 1_000_000;
    assert_eq!(length(provider_wait(Some(7), Some(90))), 7);
    assert_eq!(length(provider_wait(None, Some(90))), 90);
    assert_eq!(length(provider_wait(None, None)), 1);
    assert_eq!(length(provider_wait(Some(0), Some(90))), 1, "the floor");
    assert_eq!(
        length(provider_wait(Some(32 * 86_400), Some(90))),
        90,
        "absent"
    );
    assert_eq!(
        length(provider_wait(None, Some(0))),
        1,
        "a reset in the past is of no use"
    );
}

/// S5: 1 s × 2ⁿ, n = 0 first, at most 300 s, plus 0–30 %; a success resets n.
#[test]
fn consecutive_429s_cool_down_longer() {
    let settings = CooldownSettings::default();
    let mut cooldown = Cooldown::default();
    let mut now = NOW;
    for secs in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
        let length = cooldown.on_limited(&settings, now, ProviderWait::default(), NONE, now);
        assert_eq!(length, Some(Span::from_secs(secs)));
        now += Span::from_secs(secs);
        assert_eq!(cooldown.remaining(now), None);
    }
    let length = cooldown.on_limited(&settings, now, ProviderWait::default(), MOST, now);
    assert_eq!(length, Some(Span::from_secs(390)));
    now += Span::from_secs(390);
    cooldown.on_success(now);
    let length = cooldown.on_limited(&settings, now, ProviderWait::default(), NONE, now);
    assert_eq!(length, Some(Span::from_secs(1)));
}

/// S5: by default only computed cool-downs get jitter; in profile S all three do.
#[test]
fn jitter_is_on_backoff_or_on_all() {
    let mut settings = CooldownSettings::default();
    assert_eq!(
        cooldown_for(&settings, provider_wait(Some(10), None), MOST),
        Span::from_secs(10)
    );
    assert_eq!(
        cooldown_for(&settings, provider_wait(None, Some(10)), MOST),
        Span::from_secs(10)
    );
    assert_eq!(
        cooldown_for(&settings, ProviderWait::default(), MOST),
        Span::from_millis(1_300)
    );
    settings.on = JitterOn::All;
    assert_eq!(
        cooldown_for(&settings, provider_wait(Some(10), None), MOST),
        Span::from_secs(13)
    );
    assert_eq!(
        cooldown_for(&settings, provider_wait(None, Some(10)), MOST),
        Span::from_secs(13)
    );
    assert_eq!(
        cooldown_for(&settings, ProviderWait::default(), MOST),
        Span::from_millis(1_300)
    );
}

/// S5: concurrent 429s count as one; a longer Retry-After among them applies.
#[test]
fn concurrent_429s_count_as_one() {
    let settings = CooldownSettings::default();
    let mut cooldown = Cooldown::default();
    let granted = NOW - Span::from_millis(50);
    let mut limited =
        |stated, at: Micros| cooldown.on_limited(&settings, granted, stated, NONE, at);
    assert_eq!(
        limited(ProviderWait::default(), NOW),
        Some(Span::from_secs(1))
    );
    let later = NOW + Span::from_millis(20);
    assert_eq!(limited(ProviderWait::default(), later), None);
    assert_eq!(
        limited(provider_wait(Some(1), None), NOW),
        None,
        "no longer than the current one"
    );
    assert_eq!(
        limited(provider_wait(Some(30), None), later),
        Some(Span::from_secs(30))
    );
    let next = later + Span::from_secs(30);
    let length = cooldown.on_limited(&settings, next, ProviderWait::default(), NONE, next);
    assert_eq!(
        length,
        Some(Span::from_secs(2)),
        "the second, not the fifth"
    );
}

/// S5: every call of the entity waits until the cool-down is over, then all go; other entities
/// continue.
#[test]
fn one_entity_cools_down_and_the_others_continue() {
    let fixtures = ScopeId::named(&["sports", "cooldown", "fixtures"]);
    let odds = ScopeId::named(&["sports", "cooldown", "odds"]);
    let ask = |seq, scope| Ask {
        id: PermitId {
            owner: OwnerId(1),
            seq,
        },
        terms: smallvec![],
        scopes: smallvec![scope],
        priority: Priority::High,
        max_wait: Span::ZERO,
        evidence: Evidence::None {
            use_within: Span::from_secs(1),
        },
    };
    let mut ledger = Table::default();
    let at = |secs| Now {
        at: NOW + Span::from_secs(secs),
        wall: Wall(0),
    };
    let asks = [ask(1, fixtures), ask(2, odds), ask(3, fixtures)];
    let close = settle(fixtures, Span::from_secs(9), Span::ZERO);
    let verdicts = turn(&mut ledger, at(0), &[close], &asks).verdicts;
    let has_wait = |verdict: &Verdict| matches!(verdict, Verdict::Wait { after, .. } if *after == Span::from_secs(9));
    assert!(has_wait(&verdicts[0]) && has_wait(&verdicts[2]));
    assert!(matches!(verdicts[1], Verdict::Go { .. }));
    let verdicts = turn(&mut ledger, at(9), &[], &asks).verdicts;
    let goes = verdicts.iter().map(|v| matches!(v, Verdict::Go { .. }));
    assert_eq!(
        goes.collect::<Vec<_>>(),
        [true, true, false],
        "one goes first"
    );
}

/// S5, M8: jitter never shortens the provider's wait.
#[test]
fn jitter_never_shortens_the_providers_wait() {
    let mut settings = CooldownSettings {
        on: JitterOn::All,
        ..CooldownSettings::default()
    };
    settings.backoff.jitter = Jitter::Full;
    for dice in [NONE, MOST] {
        assert_eq!(
            cooldown_for(&settings, provider_wait(Some(10), None), dice),
            Span::from_secs(10)
        );
    }
}

/// A4, S5: calls in flight when the scope closed are outdated, calls granted later are not.
#[test]
fn calls_in_flight_when_the_scope_closed_are_outdated() {
    let mut cooldown = Cooldown::default();
    assert!(!cooldown.is_outdated(NOW));
    let granted = NOW - Span::from_millis(50);
    cooldown.on_limited(
        &CooldownSettings::default(),
        granted,
        ProviderWait::default(),
        NONE,
        NOW,
    );
    assert!(cooldown.is_outdated(granted));
    assert!(!cooldown.is_outdated(NOW + Span::from_secs(1)));
}

/// S5: a restarted process resumes the cool-down, follows its end by another process, and an
/// operator ends it.
#[test]
fn a_cooldown_is_restored_followed_and_ended() {
    let mut cooldown = Cooldown::default();
    let remaining = Some(Span::from_secs(9));
    cooldown.on_scope_view(ScopeView::Closed { remaining }, NOW);
    assert_eq!(cooldown.remaining(NOW), remaining);
    cooldown.on_scope_view(ScopeView::Open, NOW);
    assert_eq!(cooldown.remaining(NOW), None);
    let scope = ScopeId(4);
    assert_eq!(cooldown.reset(scope, NOW), None);
    let settings = CooldownSettings::default();
    let mut limited = |at| cooldown.on_limited(&settings, at, ProviderWait::default(), NONE, at);
    limited(NOW);
    limited(NOW + Span::from_secs(1));
    let now = NOW + Span::from_secs(2);
    assert_eq!(cooldown.reset(scope, now), Some(Settle::Open { scope }));
    assert_eq!(cooldown.remaining(now), None);
    let length = cooldown.on_limited(&settings, now, ProviderWait::default(), NONE, now);
    assert_eq!(length, Some(Span::from_secs(1)), "a first one again");
}

#[test]
fn every_invalid_cooldown_setting_is_reported() {
    let mut settings = CooldownSettings::default();
    assert_eq!(settings.check(), []);
    settings.backoff.max = Span::from_secs(32 * 86_400);
    assert_eq!(settings.check()[0].setting, "cooldown.max");
}
