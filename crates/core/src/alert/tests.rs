//! S10: which conditions alert, with which message, and only once.

use super::{
    ALERTS_MAX, Alert, AlertInput, AlertKind, AlertSettings, AlertStage, AlertTracker, Level,
    Notice, QUIET_FOR, QuotaLeft, Recent429s,
};
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

const NOW: Micros = Micros(1_000_000_000);

const fn left(remaining: u64) -> QuotaLeft {
    QuotaLeft {
        remaining,
        limit: Some(3_000),
    }
}

fn healthy() -> AlertInput<'static> {
    AlertInput {
        quotas: const { &[left(2_500)] },
        limited_last_minute: 0,
        cache_hits: 50,
        cache_misses: 50,
    }
}

fn evaluate(input: &AlertInput<'_>) -> Vec<Alert> {
    AlertSettings::documented().evaluate("fixtures", input)
}

fn messages(input: &AlertInput<'_>) -> Vec<String> {
    evaluate(input).iter().map(Alert::to_string).collect()
}

/// S9, S10: the document's messages; below 200 only the critical alert.
#[test]
fn alerts_use_the_documented_messages() {
    let remaining = |remaining: Option<u64>| {
        messages(&AlertInput {
            quotas: remaining.map(left).as_slice(),
            ..healthy()
        })
    };
    assert_eq!(remaining(Some(500)), [""; 0]);
    assert_eq!(remaining(None), [""; 0]);
    assert_eq!(
        remaining(Some(250)),
        ["Warning: fixtures has 250 requests remaining"]
    );
    assert_eq!(
        remaining(Some(200)),
        ["Warning: fixtures has 200 requests remaining"]
    );
    assert_eq!(
        remaining(Some(199)),
        ["Critical: fixtures has 199 requests remaining"]
    );
    let all = AlertInput {
        quotas: &[left(0)],
        limited_last_minute: 12,
        cache_hits: 42,
        cache_misses: 58,
    };
    let expected = [
        "Critical: fixtures has 0 requests remaining",
        "Warning: fixtures had 12 429 errors in the last minute",
        "Warning: fixtures cache hit rate is 42%",
    ];
    assert_eq!(messages(&all), expected);
    let kinds: Vec<&str> = evaluate(&all)
        .iter()
        .map(|alert| alert.kind.as_str())
        .collect();
    assert_eq!(kinds, ["remaining", "rate_429", "cache_hit_rate"]);
    assert_eq!(evaluate(&all)[0].level.as_str(), "critical");
}

/// S10: 40 per 10 s next to 20,000 per day raised "Critical: 26 remaining" while 18,735 of the day were left.
#[test]
fn a_limit_below_the_threshold_does_not_alert() {
    let quota = |remaining, limit| QuotaLeft { remaining, limit };
    let alerts = |quotas: &[QuotaLeft]| {
        messages(&AlertInput {
            quotas,
            ..healthy()
        })
    };
    let (burst, day) = (quota(26, Some(40)), quota(18_735, Some(20_000)));
    assert_eq!(alerts(&[burst, day]), [""; 0]);
    assert_eq!(
        alerts(&[burst, quota(150, Some(20_000))]),
        ["Critical: fixtures has 150 requests remaining"]
    );
    assert_eq!(
        alerts(&[quota(150, Some(300))]),
        ["Critical: fixtures has 150 requests remaining"]
    );
    assert_eq!(
        alerts(&[quota(250, Some(300))]),
        [""; 0],
        "always below 500"
    );
    assert_eq!(
        alerts(&[quota(250, None)]),
        ["Warning: fixtures has 250 requests remaining"]
    );
}

/// S10: more than ten 429s in a minute, not ten.
#[test]
fn ten_429s_in_a_minute_do_not_exceed_ten() {
    let limited = |limited_last_minute| {
        let input = AlertInput {
            limited_last_minute,
            ..healthy()
        };
        messages(&input).len()
    };
    assert_eq!((limited(10), limited(11)), (0, 1));
}

/// S10: a hit rate under 50 %, from twenty lookups on.
#[test]
fn a_hit_rate_needs_twenty_lookups() {
    let alerts = |cache_hits, cache_misses| {
        let input = AlertInput {
            cache_hits,
            cache_misses,
            ..healthy()
        };
        messages(&input)
    };
    assert_eq!(alerts(0, 19), [""; 0]);
    assert_eq!(alerts(0, 20), ["Warning: fixtures cache hit rate is 0%"]);
    assert_eq!(alerts(500, 500), [""; 0]);
    assert_eq!(
        alerts(499, 501),
        ["Warning: fixtures cache hit rate is 49%"]
    );
}

/// S10: thresholds are configurable; those on the remaining count are off unless configured.
#[test]
fn thresholds_are_configurable() {
    let low = AlertInput {
        quotas: &[left(1)],
        ..healthy()
    };
    assert_eq!(AlertSettings::default().evaluate("omdb", &low), []);
    let settings = AlertSettings {
        critical: Some(1),
        warning: Some(2),
        rate_429_per_minute: None,
        cache_hit_rate: None,
    };
    let worst = AlertInput {
        limited_last_minute: 1_000,
        cache_hits: 0,
        cache_misses: 1_000,
        ..low
    };
    assert_eq!(settings.evaluate("omdb", &worst).len(), 1);
    assert_eq!(AlertSettings::documented().check(), []);
    let wrong = AlertSettings {
        critical: Some(600),
        cache_hit_rate: Some(Ppm(2_000_000)),
        ..AlertSettings::documented()
    };
    let named: Vec<&str> = wrong
        .check()
        .iter()
        .map(|problem| problem.setting)
        .collect();
    assert_eq!(named, ["alerts.critical", "alerts.cache_hit_rate"]);
}

/// `Firing Warning`, `Resolved Warning`, …
fn describe(notices: &[Notice]) -> Vec<String> {
    let line = |notice: &Notice| format!("{:?} {:?}", notice.stage, notice.alert.level);
    notices.iter().map(line).collect()
}

fn with_remaining(tracker: &mut AlertTracker, remaining: u64, secs: u64) -> Vec<String> {
    let input = AlertInput {
        quotas: &[left(remaining)],
        ..healthy()
    };
    describe(&tracker.update("fixtures", evaluate(&input), NOW + Span::from_secs(secs)))
}

/// S10: reported once when it begins, once when its level changes, once when it ends.
#[test]
fn an_alert_is_reported_once() {
    let mut tracker = AlertTracker::default();
    assert_eq!(with_remaining(&mut tracker, 450, 0), ["Firing Warning"]);
    assert_eq!(with_remaining(&mut tracker, 449, 1), [""; 0]);
    assert_eq!(with_remaining(&mut tracker, 150, 2), ["Firing Critical"]);
    assert_eq!(with_remaining(&mut tracker, 10, 3), [""; 0]);
    assert_eq!(tracker.firing().count(), 1);
    assert_eq!(
        with_remaining(&mut tracker, 3_000, 10),
        [""; 0],
        "quiet, not over"
    );
    assert_eq!(tracker.next_tick(), Some(NOW + Span::from_secs(70)));
    assert_eq!(with_remaining(&mut tracker, 3_000, 69), [""; 0]);
    assert_eq!(
        with_remaining(&mut tracker, 3_000, 70),
        ["Resolved Critical"]
    );
    assert_eq!((tracker.firing().count(), tracker.next_tick()), (0, None));
}

/// S10: a value that fluctuates around its threshold alerts once.
#[test]
fn a_fluctuating_value_alerts_once() {
    let mut tracker = AlertTracker::default();
    let mut notices = Vec::new();
    for secs in 0..600 {
        let remaining = if secs % 30 < 15 { 499 } else { 501 };
        notices.extend(with_remaining(&mut tracker, remaining, secs));
    }
    assert_eq!(notices, ["Firing Warning"]);
}

/// S10: names that callers invent cannot fill the memory.
#[test]
fn the_tracker_is_bounded() {
    let mut tracker = AlertTracker::default();
    let alert = |name: String| Alert {
        level: Level::Warning,
        kind: AlertKind::Rate429,
        name,
        value: 11,
        threshold: 10,
    };
    let mut reported = 0;
    for n in 0..ALERTS_MAX + 50 {
        let name = format!("entity-{n}");
        reported += tracker.update(&name, vec![alert(name.clone())], NOW).len();
    }
    assert_eq!(
        (reported, tracker.firing().count()),
        (ALERTS_MAX, ALERTS_MAX)
    );
    tracker.update("entity-0", vec![], NOW);
    let notices = tracker.update("entity-0", vec![], NOW + QUIET_FOR);
    assert_eq!(notices[0].stage, AlertStage::Resolved);
}

/// S9: `recent_429_rate` counts the last 60 s and drops older 429s.
#[test]
fn the_429_count_covers_exactly_sixty_seconds() {
    let mut recent = Recent429s::default();
    for secs in 0..90 {
        recent.record(NOW + Span::from_secs(secs));
    }
    assert_eq!(recent.count(NOW + Span::from_secs(89)), 60);
    assert_eq!(recent.count(NOW + Span::from_secs(119)), 30);
    assert_eq!(recent.count(NOW + Span::from_secs(149)), 0);
    assert_eq!(recent.count(NOW + Span::from_secs(86_400)), 0);
    recent.record(NOW);
    assert_eq!(
        recent.count(NOW + Span::from_secs(89)),
        61,
        "a clock that stepped back is now"
    );
}
