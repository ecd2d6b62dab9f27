//! What `tollgate status` prints.

use super::*;

/// Rows of several entities looked alike: only the limit was named, and it is the same for all.
#[test]
fn a_row_of_an_entity_names_the_entity() {
    let limit = |used: u64| json!({ "name": "3000/1h", "used": used, "remaining": 3_000 - used });
    let status = json!({
        "limits": [{ "name": "35/1s", "used": 1, "remaining": 34 }],
        "entities": {
            "fixtures": { "limits": [limit(500)] },
            "odds": { "limits": [limit(7)] },
        },
    });
    let mut out = Vec::new();
    print_limits(&mut out, &status).expect("a vector");
    assert_eq!(
        String::from_utf8_lossy(&out),
        "  35/1s            1 used, 34 remaining\n  \
         fixtures 3000/1h 500 used, 2500 remaining\n  \
         odds 3000/1h     7 used, 2993 remaining\n"
    );
}

/// Rows of several keys looked alike, and nothing told why one of them was not used.
#[test]
fn keys_are_told_apart_and_budgets_are_shown_per_caller() {
    let limit = |key: u64| json!({ "name": "tokens", "unit": "tokens", "key": key, "used": key, "remaining": 9 });
    let budget = json!({ "name": "day", "unit": "tokens", "per": "caller", "used": 5, "remaining": 1, "reset_at": 45_605.0 });
    let status = json!({
        "entities": { "gpt": { "limits": [limit(1), limit(2)] } },
        "budgets": { "web": [budget] },
        "keys": [
            { "key": 1, "set_aside_until": null, "reason": null },
            { "key": 2, "set_aside_until": 45_605.0, "reason": "out of quota or credit (429)" },
        ],
    });
    let mut out = Vec::new();
    print_holds(&mut out, &status).expect("a vector");
    print_limits(&mut out, &status).expect("a vector");
    assert_eq!(
        String::from_utf8_lossy(&out),
        "  key 2: set aside until 12:40:05 UTC (out of quota or credit (429))\n  \
         gpt tokens, key 1 1 used, 9 remaining tokens\n  \
         gpt tokens, key 2 2 used, 9 remaining tokens\n  \
         web day           5 used, 1 remaining tokens, resets 12:40:05 UTC\n"
    );
}

/// What a 429 has taught is shown with its rate, and before there is one.
#[test]
fn an_estimated_limit_is_shown_with_its_rate() {
    let status = json!({ "estimated_limits": [
        { "of": "odds", "rate": 4.256 }, { "of": null, "rate": null },
    ] });
    let mut out = Vec::new();
    print_holds(&mut out, &status).expect("a vector");
    assert_eq!(
        String::from_utf8_lossy(&out),
        "  odds: estimated limit 4.26 calls a second, learned from 429s; configure `limits` if you know them\n  \
         other paths: after a 429, calls go as the provider accepts them\n"
    );
}

#[test]
fn a_learned_limit_is_shown_with_value_and_time() {
    let learned = json!({ "limit": 500, "period": 60, "since": 0, "seen": 9 });
    assert!(learned_text(&learned).starts_with("; 500 in 60 s, learned "));
    assert_eq!(learned_text(&Value::Null), "");
}

#[test]
fn the_end_of_the_queue_is_shown_for_all_and_for_each_caller() {
    let queue = json!({ "high": 0, "normal": 5, "low": 1, "eta": 12.5,
                        "callers": { "web": { "waiting": 2, "eta": 4.0 } } });
    let mut out = Vec::new();
    print_eta(&mut out, &queue).expect("a vector");
    assert_eq!(
        String::from_utf8_lossy(&out),
        "    the last of them is sent in about 13 s\n    web: 2 waiting, the last is sent in about 4 s\n"
    );
    let starved = json!({ "high": 0, "normal": 1, "low": 0, "eta": null, "starved": 1,
                          "callers": { "web": { "waiting": 3, "eta": 4.0, "starved": 2 } } });
    let mut out = Vec::new();
    print_eta(&mut out, &starved).expect("a vector");
    assert_eq!(
        String::from_utf8_lossy(&out),
        "    none is sent while calls of higher priority take everything\n    web: 3 waiting, the last is sent in about 4 s; 2 are not sent while calls of higher priority take everything\n"
    );
}

/// The list showed a provider that cools down as `Flowing`, and one that an operator paused as
/// `Sleeping`.
#[test]
fn the_list_says_what_stops_the_calls_of_a_provider() {
    let row = |state: &str, hold: Value, cooldowns: Value| {
        json!({ "name": "x", "source": "x.yaml", "state": state, "hold": hold, "store": "up",
                "waiting": 2, "cooldowns": cooldowns })
    };
    let cooling = |of: &str| json!([{ "of": of, "until": 45_605.0, "reason": "429" }]);
    let none = || json!([]);
    for (provider, expected) in [
        (row("normal", Value::Null, none()), "Flowing"),
        (
            row("sleep", json!("paused"), none()),
            "Paused by an operator",
        ),
        (
            row("sleep", json!("offline"), none()),
            "Set offline by an operator",
        ),
        (
            row("normal", Value::Null, cooling("provider")),
            "Cooling down until 12:40:05 UTC",
        ),
        (row("sleep", Value::Null, cooling("provider")), "Sleeping"),
    ] {
        let mut out = Vec::new();
        print_all(&mut out, &json!({ "providers": [provider] })).expect("a vector");
        let line = String::from_utf8_lossy(&out).into_owned();
        let expected = format!("x                {expected:<12} 2 waiting  x.yaml\n");
        assert_eq!(line, expected);
    }
    let mut out = Vec::new();
    let of_key = row("normal", Value::Null, cooling("key 2"));
    print_all(&mut out, &json!({ "providers": [of_key] })).expect("a vector");
    let text = String::from_utf8_lossy(&out);
    assert!(
        text.ends_with("\n  key 2: cooling down until 12:40:05 UTC (429)\n"),
        "{text}"
    );
}

/// Calls to an entity got 504 `degraded`, and the status said nothing about it.
#[test]
fn degrade_mode_of_an_entity_is_shown() {
    let status = json!({
        "degraded": false,
        "entities": { "odds": { "degraded": true }, "teams": { "degraded": false } },
    });
    let mut out = Vec::new();
    print_holds(&mut out, &status).expect("a vector");
    assert_eq!(
        String::from_utf8_lossy(&out),
        "  odds: degrade mode: little of the quota remains, so only the cache is used\n"
    );
}

/// All of `status NAME`: the reset of a limit was shown for budgets of callers only, and "Slowed" had no rate.
#[test]
fn the_whole_status_of_a_provider() {
    let limit = |name: &str, period: f64, remaining: u64| json!({ "name": name, "limit": 1_000, "period": period, "per": "provider", "unit": "calls", "used": 1_000 - remaining, "remaining": remaining, "reset_at": 45_605.0 });
    let status = json!({
        "name": "odds",
        "health": { "state": "throttle", "hold": null, "rate": 17.0, "count_2xx": 90, "count_429": 3, "count_5xx": 7, "net_errors": 1, "paths": [] },
        "queue": { "high": 0, "normal": 5, "low": 0, "eta": 12.5, "starved": 0, "callers": { "web": { "waiting": 5, "starved": 0, "eta": 12.5 } }, "waiting_for": { "limit": 5 } },
        "limits": [limit("35/1s", 1.0, 10), limit("1000/1d", 86_400.0, 400), limit("9000/30d", 2_592_000.0, 1_000)],
        "saved": { "hits": 7, "stale": 1, "shared": 2, "merged": 0 },
        "cooldowns": [], "keys": [], "estimated_limits": [], "entities": {}, "budgets": {}, "degraded": false, "problems": [],
    });
    let mut out = Vec::new();
    print_one(&mut out, &status).expect("a vector");
    insta::assert_snapshot!(String::from_utf8_lossy(&out));
}
