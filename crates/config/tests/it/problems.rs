//! Problems: all at once, each with place, field and remedy.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::{check, errors};

/// Every problem of a file is reported at once, in the order of its lines.
#[test]
fn every_problem_is_reported_at_once() {
    let found = errors(
        "name: api
domian: a.example.org
limit: many
period: 10
health: { p_throtle: 0.3, confirm: x }
limits:
  - { limit: 5, period: 1s, burst: 9 }
queue: { order: lifo }
upstream: ftp://x
",
    );
    let expected = [
        "test.yaml:1:7: name: `api` is a name that the gateway uses itself (health, ready, metrics, v1, api); choose another with `name:`",
        "test.yaml:2:1: `domian` is not a field; did you mean `domain`?",
        "test.yaml:3:8: limit: `limit` and `limits` are two forms of one setting; keep one of them",
        "test.yaml:5:11: health: `p_throtle` is not a field; did you mean `p_throttle`?",
        "test.yaml:5:36: health.confirm: is not a whole number; write digits, such as `40`",
        "test.yaml:8:17: queue.order: is none of `priority`, `fifo`; did you mean `fifo`?",
        "test.yaml:9:11: upstream: is not an http or https address; write `https://host/path`, without a user name, `?` or `#`",
    ];
    assert_eq!(found, expected);
}

/// What is wrong, and the line that answers it.
const MISTAKES: &[(&str, &str)] = &[
    (
        "limit: 5",
        "test.yaml:1:8: limit: `period` is missing; write `period:` in addition to `limit:`, such as `limit: 40` and `period: 10s`",
    ),
    (
        "limit: 0\nperiod: 1s",
        "test.yaml:1:8: limit: the limit must be between 1 and 2^53; write the number of calls per period",
    ),
    (
        "limit: 5\nperiod: 10",
        "test.yaml:2:9: period: is not a duration or has no unit; write `10s`, `1m`, `1h`, `1d`, or `month` for the calendar's",
    ),
    (
        "limit: 5\nperiod: 500d",
        "test.yaml:2:9: period: the period must be between 1 microsecond and 400 days; write `10s`, `1m`, `1h` or `1d`",
    ),
    (
        "limits: [5 per second]",
        "test.yaml:1:10: limits[0]: is not a limit; write `35/1s`, or a block with `limit:` and `period:`",
    ),
    (
        "limits: [{limit: 5, period: 1s, burst: 3}]",
        "test.yaml:1:40: limits[0].burst: only a token bucket has a burst; add `algorithm: token-bucket`, or use `reserve`",
    ),
    (
        "limits: [{limit: 5, period: 1s, timezone: UTC}]",
        "test.yaml:1:43: limits[0].timezone: only a calendar limit has a time zone; add `algorithm: calendar`",
    ),
    (
        "limits: [{limit: 5, period: 1d, algorithm: calendar, timezone: Mars/Base}]",
        "test.yaml:1:64: limits[0].timezone: is not a time zone; write `UTC` or a name such as `Europe/Berlin`",
    ),
    (
        "limits: [{limit: 5, period: 2h, algorithm: calendar}]",
        "test.yaml:1:29: limits[0].period: the calendar has no windows of this length; write `1m`, `1h`, `1d`, `week` or `month`",
    ),
    (
        "limits: [{limit: 5, period: 1s, algorithm: tokenbucket}]",
        "test.yaml:1:44: limits[0].algorithm: is none of `sliding-window`, `token-bucket`, `fixed-window`, `calendar`, `paced`; did you mean `token-bucket`?",
    ),
    (
        "limits: [{limit: 5, period: 1s, reserve: 5}]",
        "test.yaml:1:42: limits[0].reserve: takes the whole limit, so only high-priority calls would ever go; leave at least 1 to others",
    ),
    (
        "limits: [{limit: 5, period: 1s, headroom: 100%}]",
        "test.yaml:1:43: limits[0].headroom: the headroom takes the whole limit; leave at least 1",
    ),
    (
        "limits: [{limit: 5, period: 1s, unit: token}]",
        "test.yaml:1:39: limits[0].unit: is none of",
    ),
    (
        "limits: [{name: a, limit: 5, period: 1s}, {name: a, limit: 9, period: 1m}]",
        "test.yaml:1:50: limits[1].name: two limits have this name; give each its own",
    ),
    (
        "limits: {limit: 5, period: 1s}",
        "test.yaml:1:9: limits: must be a list; begin each limit with `- `",
    ),
    (
        "limits: [5/1s]\ndegrade: {below: 5}",
        "test.yaml:2:18: degrade.below: must be below the smallest limit it applies to, or nothing is ever called; change it",
    ),
    (
        "concurrency: {low: 2}",
        "test.yaml:1:14: concurrency: `normal` is missing; write `concurrency: 4`, or `{normal: 4, low: 2}`",
    ),
    (
        "health: {confirm: 99999999999}",
        "health.confirm: is too large; write 4294967295 or less",
    ),
    ("concurrency: 0", "the limit must be between 1 and 2^53"),
    (
        "domain: https://a.example.org",
        "test.yaml:1:9: domain: the host carries a user name or a path; write the bare name, such as `api.example.org`",
    ),
    (
        "domains: [a.example.org, A.example.org.]",
        "test.yaml:1:26: domains[1]: this domain is listed twice; remove one",
    ),
    (
        "preset: tmbd",
        "test.yaml:1:9: preset: there is no preset of this name; did you mean `tmdb`?",
    ),
    (
        "preset: omdb\ntier: paidd",
        "test.yaml:2:7: tier: the preset has no tier of this name; did you mean `paid`?",
    ),
    (
        "tier: paid",
        "test.yaml:1:7: tier: a tier needs a preset; add `preset: NAME`, or remove this line",
    ),
    (
        "auth: {query: a, bearer: true}",
        "test.yaml:1:26: auth.bearer: a key is attached in one way only; keep one of query, header, bearer, basic, oauth2, login",
    ),
    (
        "auth: {header: x-key, also: {\"bad name\": k}}",
        "auth.also.bad name: has a name that no header can have; write letters, digits and `-` only",
    ),
    (
        "auth: {bearer: true, also: {\"x:y\": k}}",
        "has a name that no header can have",
    ),
    (
        "auth: {header: x-key, prefix: \"a\\nb\"}",
        "auth.prefix: has a character that no header can carry; write printable ASCII such as `Token `",
    ),
    (
        "auth: {login: {url: https://a.example.org/login}}",
        "auth.login: `body` is missing; add `body:`",
    ),
    (
        "health: {p_recover: 0.5}",
        "test.yaml:1:21: health.p_recover: must not be above `p_throttle`, or the state flaps; write half of it",
    ),
    (
        "health: adaptiv",
        "test.yaml:1:9: health.mode: is none of `adaptive`, `breaker`, `off`; did you mean `adaptive`?",
    ),
    (
        "entities: {from: cookie}",
        "test.yaml:1:18: entities.from: is not a place where an entity can be read; write `path`, `host`, `model`, `query:NAME`, `header:NAME` or `body:FIELD`",
    ),
    (
        "entities: {rules: {\"a*b*\": x}}",
        "the pattern has more than one `*` in a segment",
    ),
    (
        "off_peak: {hours: \"25:00-26:00\"}",
        "test.yaml:1:19: off_peak.hours: is not a part of the day; write `\"01:00-06:00\"`, from and to",
    ),
    (
        "cache: {ttl: 10m..5m}",
        "test.yaml:1:14: cache.ttl: is not a lifetime; write `24h`, `5m..10m` (shortest first), `forever`, or `0s` for none",
    ),
    (
        "free_status: [304, 9]",
        "test.yaml:1:20: free_status[1]: is not a status; write a number such as `304`",
    ),
    ("cost: {calls: 5}", "cost.calls: is none of"),
    (
        "headers: {content-length: 5}",
        "test.yaml:1:11: headers: a header has a name that cannot be set here",
    ),
    ("name: sleep", "is the first word of a setting"),
    (
        "name: Ünï",
        "test.yaml:1:7: name: is not a name; write `name:` with lower-case letters",
    ),
    (
        "api_key: a\napi_keys: [b]",
        "test.yaml:1:10: api_key: `api_key` and `api_keys` are two forms of one setting; keep one of them",
    ),
    (
        "queue: 5",
        "test.yaml:1:8: queue: must be a block; write lines such as `max:`, `timeout:`, `order:`",
    ),
    ("title: x", "test.yaml:1:1: `title` is not a field"),
];

#[test]
fn each_mistake_has_its_place_and_remedy() {
    for (text, expected) in MISTAKES {
        let found = errors(text);
        let is_found = found.iter().any(|line| line.contains(expected));
        assert!(is_found, "{text}\n{found:#?}\nwanted {expected}");
    }
}

/// Mistakes of YAML itself, in our words and with their place.
#[test]
fn broken_yaml_is_reported_with_its_place() {
    for (text, expected) in [
        (
            "limit: 5\nlimit: 6\n",
            "test.yaml:2:1: the same name is used twice in one block; keep one of the two lines",
        ),
        (
            "a: [1\nb: 2\n",
            "test.yaml:2:2: this is not valid YAML; check indentation",
        ),
        (
            "a: *x\n",
            "test.yaml:1:4: an alias (`*name`) has no anchor (`&name`); quote the value",
        ),
        (
            "a: 1\n---\nb: 2\n",
            "the file holds more than one document (`---`); write one provider per file",
        ),
        ("- 1\n", "test.yaml:1:1: must be a block"),
    ] {
        let found = errors(text);
        assert!(found[0].contains(expected), "{text}\n{found:#?}");
    }
}

/// R-E: alias bombs, deep nesting and huge files are rejected before they cost anything.
#[test]
fn alias_bombs_and_huge_files_are_rejected() {
    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, of) in [("b", "a"), ("c", "b"), ("d", "c"), ("e", "d"), ("f", "e")] {
        let uses = vec![format!("*{of}"); 9].join(", ");
        bomb.push_str(&format!("{name}: &{name} [{uses}]\n"));
    }
    for text in [
        bomb,
        format!("a: {}", "[".repeat(100)),
        "a: b\n".repeat(60_000),
        "x: \u{f8f0}".to_owned(),
    ] {
        let found = errors(&text);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].starts_with("test.yaml"), "{found:#?}");
    }
}

/// A file with only warnings and notes is valid.
#[test]
fn a_fixed_window_comes_with_a_note_about_its_edges() {
    let checked = check("domain: a.example.org\nlimit: 5\nperiod: 1m\nalgorithm: fixed-window\n");
    assert!(checked.provider.is_some());
    let text = checked.problems.to_string();
    assert!(
        text.contains("test.yaml:4:12: note: algorithm: a fixed window is exact only where"),
        "{text}"
    );
    assert!(check("preset: sportmonks").problems.is_empty());
}

/// A setting without effect causes a warning, not an error.
#[test]
fn a_prefix_that_changes_nothing_is_warned_of() {
    let says = |text: &str| {
        let checked = check(&format!("{text}\nlimits: [1/1s]\n"));
        assert!(checked.provider.is_some(), "{}", checked.problems);
        checked.problems.to_string()
    };
    let home = "domain: a.example.org\napi_key: k";
    let said = says(&format!("{home}\nauth: {{bearer: true, prefix: 'Token '}}"));
    assert!(said.contains("auth.prefix: has no effect"), "{said}");
    assert_eq!(
        says(&format!("{home}\nauth: {{header: x, prefix: 'Token '}}")),
        ""
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..ProptestConfig::default() })]

    /// No file panics, and whatever is not obeyed has an error.
    #[test]
    fn any_text_gives_a_provider_or_an_error(text in "[a-z_:{}\\[\\], \\-\n0-9\"'*&!%$./]{0,120}") {
        let checked = check(&text);
        prop_assert_ne!(checked.provider.is_some(), checked.problems.has_errors());
    }

    /// The same for files made of real field names with odd values.
    #[test]
    fn any_value_of_any_field_gives_a_provider_or_an_error(
        field in prop::sample::select(tollgate_config::check::FIELDS),
        value in prop::sample::select(&["", "0", "-1", "x", "10s", "true", "[]", "{}", "[[a]]", "{a: {b: c}}", "99999999999999999999", "1e9", "~", "\"\"", "{limit: 5}", "[5/1s, {}]", "${X}", "file:/x", "*.com", "é"][..]),
    ) {
        let checked = check(&format!("{field}: {value}\n"));
        prop_assert_ne!(checked.provider.is_some(), checked.problems.has_errors());
    }
}

/// S8: cache settings that have no effect are reported, each at its place.
#[test]
fn s8_ineffective_cache_settings_are_warned_about() {
    for (cache, field) in [
        ("{ttl: 1h, max_object: 9MiB}", Some("cache.max_object")),
        ("{ttl: 1h, adaptive: true}", Some("cache.adaptive")),
        ("{mode: rfc9111, negative: 5s}", Some("cache.negative")),
        ("{mode: rfc9111, ttl: 1h}", Some("cache.ttl")),
        ("{mode: rfc9111, adaptive: true}", Some("cache.adaptive")),
        ("{ttl: 1h..2h, adaptive: true, negative: 5s}", None),
        ("{mode: rfc9111, ttl: 0s}", None),
    ] {
        let text = format!("domain: a.example.org\nlimits: [5/1s]\ncache: {cache}");
        let checked = check(&text);
        let problems_text: Vec<String> = checked.problems.iter().map(ToString::to_string).collect();
        match field {
            Some(field) => assert!(
                problems_text.len() == 1 && problems_text[0].contains(field),
                "{problems_text:?}"
            ),
            None => assert_eq!(problems_text, Vec::<String>::new(), "{cache}"),
        }
    }
}
