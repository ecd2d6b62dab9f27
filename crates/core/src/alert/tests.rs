//! S10: what rings, in which words, once.

use super::{
    ALERTS_MAX, Alert, AlertInput, AlertKind, AlertSettings, AlertStage, AlertTracker, Level,
    Notice, QUIET_FOR, Recent429s,
};
use crate::ratio::Ppm;
use crate::time::{Micros, Span};

const NOW: Micros = Micros(1_000_000_000);

fn healthy() -> AlertInput {
    AlertInput {
        remaining: Some(2_500),
        limited_last_minute: 0,
        cache_hits: 50,
        cache_misses: 50,
    }
}

fn evaluate(facts: &AlertInput) -> Vec<Alert> {
    AlertSettings::documented().evaluate("fixtures", facts)
}

fn messages(facts: &AlertInput) -> Vec<String> {
    evaluate(facts).iter().map(Alert::to_string).collect()
}

/// S9, S10: the document's words; below 200 only the critical alert.
#[test]
fn alerts_use_the_documented_messages() {
    let left = |remaining| {
        messages(&AlertInput {
            remaining,
            ..healthy()
        })
    };
    assert_eq!(left(Some(500)), [""; 0]);
    assert_eq!(left(None), [""; 0]);
    assert_eq!(
        left(Some(250)),
        ["Warning: fixtures has 250 requests remaining"]
    );
    assert_eq!(
        left(Some(200)),
        ["Warning: fixtures has 200 requests remaining"]
    );
    assert_eq!(
        left(Some(199)),
        ["Critical: fixtures has 199 requests remaining"]
    );
    let all = AlertInput {
        remaining: Some(0),
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

/// S10: more than ten 429s in a minute, not ten.
#[test]
fn ten_429s_in_a_minute_do_not_exceed_ten() {
    let refused = |refused_last_minute| {
        let facts = AlertInput {
            limited_last_minute: refused_last_minute,
            ..healthy()
        };
        messages(&facts).len()
    };
    assert_eq!((refused(10), refused(11)), (0, 1));
}

/// S10: a hit rate under 50 %, from twenty look-ups on.
#[test]
fn a_hit_rate_needs_twenty_lookups() {
    let alerts = |cache_hits, cache_misses| {
        let facts = AlertInput {
            cache_hits,
            cache_misses,
            ..healthy()
        };
        messages(&facts)
    };
    assert_eq!(alerts(0, 19), [""; 0]);
    assert_eq!(alerts(0, 20), ["Warning: fixtures cache hit rate is 0%"]);
    assert_eq!(alerts(500, 500), [""; 0]);
    assert_eq!(
        alerts(499, 501),
        ["Warning: fixtures cache hit rate is 49%"]
    );
}

/// S10: thresholds are configurable; on what is left they are off unless configured.
#[test]
fn thresholds_are_configurable() {
    let low = AlertInput {
        remaining: Some(1),
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

fn with_remaining(board: &mut AlertTracker, remaining: u64, secs: u64) -> Vec<String> {
    let facts = AlertInput {
        remaining: Some(remaining),
        ..healthy()
    };
    describe(&board.update("fixtures", evaluate(&facts), NOW + Span::from_secs(secs)))
}

/// S10: told once when it begins, once when it gets worse or better, once when it is over.
#[test]
fn an_alert_is_reported_once() {
    let mut board = AlertTracker::default();
    assert_eq!(with_remaining(&mut board, 450, 0), ["Firing Warning"]);
    assert_eq!(with_remaining(&mut board, 449, 1), [""; 0]);
    assert_eq!(with_remaining(&mut board, 150, 2), ["Firing Critical"]);
    assert_eq!(with_remaining(&mut board, 10, 3), [""; 0]);
    assert_eq!(board.firing().count(), 1);
    assert_eq!(
        with_remaining(&mut board, 3_000, 10),
        [""; 0],
        "quiet, not over"
    );
    assert_eq!(board.next_tick(), Some(NOW + Span::from_secs(70)));
    assert_eq!(with_remaining(&mut board, 3_000, 69), [""; 0]);
    assert_eq!(with_remaining(&mut board, 3_000, 70), ["Resolved Critical"]);
    assert_eq!((board.firing().count(), board.next_tick()), (0, None));
}

/// S10: a value that trembles around its threshold rings once.
#[test]
fn a_fluctuating_value_alerts_once() {
    let mut board = AlertTracker::default();
    let mut notices = Vec::new();
    for secs in 0..600 {
        let remaining = if secs % 30 < 15 { 499 } else { 501 };
        notices.extend(with_remaining(&mut board, remaining, secs));
    }
    assert_eq!(notices, ["Firing Warning"]);
}

/// S10: names that callers invent cannot fill the memory.
#[test]
fn the_tracker_is_bounded() {
    let mut board = AlertTracker::default();
    let alert = |name: String| Alert {
        level: Level::Warning,
        kind: AlertKind::Rate429,
        name,
        value: 11,
        threshold: 10,
    };
    let mut told = 0;
    for n in 0..ALERTS_MAX + 50 {
        let name = format!("entity-{n}");
        told += board.update(&name, vec![alert(name.clone())], NOW).len();
    }
    assert_eq!((told, board.firing().count()), (ALERTS_MAX, ALERTS_MAX));
    board.update("entity-0", vec![], NOW);
    let notices = board.update("entity-0", vec![], NOW + QUIET_FOR);
    assert_eq!(notices[0].stage, AlertStage::Resolved);
}

/// S9: `recent_429_rate` counts the last 60 s and forgets what is older.
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
