//! The whole grammar of a provider file: every field, and what it means.

use tollgate_config::amount::Lifetime;
use tollgate_config::provider::{AuthStyle, Per};
use tollgate_config::settings::{CacheMode, Confined, Dedup, Merge, OnStoreLoss, Order};
use tollgate_config::{Environment, ProviderFile};
use tollgate_config::{check, shape};
use tollgate_core::ask::CostUnit;
use tollgate_core::backoff::Jitter;
use tollgate_core::cooldown::JitterOn;
use tollgate_core::entity::{EntitySource, OnAmbiguity};
use tollgate_core::health::{
    HealthCount, HealthMode, HealthScope, HealthSettings, RampAfter, Rate, WhenBlocked,
};
use tollgate_core::limit::{Algorithm, HoldUntil, Rule};
use tollgate_core::ratio::Ppm;
use tollgate_core::time::Span;

use crate::{check_in, provider};

const WHOLE: &str = include_str!("whole.yaml");

fn whole() -> tollgate_config::Provider {
    let env = |name: &str| Some(format!("value of {name}"));
    let environment = Environment {
        env: &env,
        ..Environment::empty()
    };
    let checked = check_in(WHOLE, &environment);
    assert!(checked.problems.is_empty(), "{}", checked.problems);
    checked.provider.expect("no problems, so a provider")
}

fn secs(secs: u64) -> Span {
    Span::from_secs(secs)
}

/// Every field of the documentation is accepted and lands where it belongs.
#[test]
fn the_whole_grammar_is_read() {
    let is = whole();
    assert_eq!(
        (is.name.as_str(), is.preset, is.enabled),
        ("mine", Some("tmdb"), true)
    );
    assert_eq!(is.domains[0].to_string(), "api.themoviedb.org");
    assert_eq!(is.listen.unwrap().port(), 4301);
    let upstream = is.upstream.unwrap();
    assert_eq!(
        (upstream.tls, upstream.port, upstream.base.as_str()),
        (true, 8443, "/base")
    );
    assert_eq!(is.keys[0].expose(), "value of TMDB_API_KEY");
    assert_eq!(is.headers[0].0, "user-agent");
    assert!(matches!(is.auth.style, AuthStyle::Query { .. }) && !is.auth.replace);
    assert_eq!(is.auth.also[0].0, "client_key");
    assert_eq!(
        (is.connections, is.free_status.as_slice()),
        (16, &[304][..])
    );
    assert_eq!((is.arrive_within, is.late_arrival), (secs(3), secs(7)));
    assert_eq!(
        (is.dedup, is.merge, is.rewrite_links),
        (Dedup::On, Merge::TmdbAppend, false)
    );
    assert_eq!(is.guards, ["ip", "user"]);
    assert_eq!(is.on_store_loss, OnStoreLoss::LocalShare);
    assert_eq!(is.costs[0].before, ["max_completion_tokens", "max_tokens"]);
    assert_eq!(is.costs[0].otherwise, 1_000);
    assert_eq!(is.costs[0].after, ["usage.total_tokens"]);
    let concurrency = is.concurrency.unwrap();
    assert_eq!((concurrency.rule.limit(), concurrency.low), (4, 2));
}

/// The limits of the documentation, each as a rule of `core`.
#[test]
fn every_form_of_a_limit_is_a_rule() {
    let limits = whole().limits;
    let names: Vec<&str> = limits.iter().map(|limit| limit.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "35/1s",
            "35/1s (2)",
            "1000/1d",
            "tpm",
            "15000/1d",
            "3000/1h",
            "100/month"
        ]
    );
    let plain = |limit: usize| limits[limit].rule.clone();
    assert_eq!(
        plain(0),
        Rule::sliding(35, secs(1)).unwrap().counter_lag(secs(1))
    );
    assert_eq!(
        plain(1),
        Rule::bucket(35, secs(1), 35).unwrap().counter_lag(secs(1))
    );
    assert!(matches!(plain(2).algorithm(), Algorithm::Calendar(_)));
    assert_eq!((limits[2].per, limits[2].reserve), (Per::ApiKey, 50));
    assert_eq!(
        (limits[3].per, plain(3).cost_unit(), plain(3).is_shadow()),
        (Per::Entity, CostUnit::Tokens, true)
    );
    assert_eq!(plain(4).limit(), 12_000);
    assert_eq!((limits[5].per, limits[5].reserve), (Per::Entity, 150));
    assert_eq!(plain(6).to_string(), "100/month");
}

/// Blocks that only set values.
#[test]
fn every_block_of_settings_is_read() {
    let is = whole();
    assert_eq!(
        (is.cache.mode, is.cache.ttl),
        (CacheMode::Ttl, Lifetime::For(secs(86_400)))
    );
    assert_eq!(
        (is.cache.stale, is.cache.adaptive, is.cache.vary),
        (secs(7 * 86_400), true, vec!["accept-language".to_owned()])
    );
    assert_eq!(
        (is.queue.max, is.queue.timeout, is.queue.order),
        (500, secs(30), Order::Fifo)
    );
    let off_peak = is.off_peak.unwrap();
    assert_eq!(
        (
            off_peak.from_minute,
            off_peak.to_minute,
            off_peak.applies_to
        ),
        (60, 360, Confined::Low)
    );
    assert_eq!(
        (
            is.retry.backoff.base,
            is.retry.backoff.max,
            is.retry.backoff.jitter
        ),
        (secs(1), secs(30), Jitter::None)
    );
    assert_eq!(
        (
            is.retry.retries.high,
            is.retry.retries.normal,
            is.retry.retries.low
        ),
        (2, 3, 5)
    );
    assert_eq!(
        (is.retry.budget.ratio, is.retry.budget.min_per_second),
        (Ppm(200_000), 10)
    );
    assert_eq!(
        (is.cooldown.backoff.jitter, is.cooldown.on),
        (Jitter::Additive(Ppm(300_000)), JitterOn::All)
    );
}

/// Health, alerts and the rest of the blocks.
#[test]
fn every_block_of_thresholds_is_read() {
    let is = whole();
    let degrade = is.degrade.unwrap();
    assert_eq!((degrade.below, degrade.recover), (20, 30));
    assert_eq!(
        (is.alerts.critical, is.alerts.warning),
        (Some(200), Some(500))
    );
    assert_eq!(
        (is.alerts.rate_429_per_minute, is.alerts.cache_hit_rate),
        (Some(10), None)
    );
    assert_eq!(
        (
            is.timeouts.connect,
            is.timeouts.first_byte,
            is.timeouts.idle
        ),
        (secs(5), secs(90), secs(60))
    );
    let health = is.health;
    assert_eq!(
        (health.mode, health.sleep_max, health.failure_threshold),
        (HealthMode::Adaptive, secs(600), None)
    );
    assert_eq!(
        (health.ramp.after, health.ramp.every),
        (RampAfter::Any, secs(300))
    );
    assert_eq!(health.auto_recover, Some(secs(900)));
}

/// S1, S8: entities, their rules and lifetimes.
#[test]
fn s8_entities_have_rules_and_lifetimes() {
    let is = whole();
    assert_eq!(
        (is.entities.source, is.entities.on_ambiguity),
        (EntitySource::Path, OnAmbiguity::Reject)
    );
    let ttl: Vec<String> = is
        .entity_ttl
        .iter()
        .map(|(name, ttl)| format!("{name} {ttl}"))
        .collect();
    assert_eq!(
        ttl,
        [
            "teams 24h",
            "standings 5m..10m",
            "fixtures 3m",
            "livescores 4s"
        ]
    );
    assert_eq!(is.entity_dedup[0].1, Dedup::On);
}

/// A1–A8, M9: every health setting has its name and default; a word is a whole block.
#[test]
fn a1_health_has_every_name_and_default() {
    let default = provider("limits: [1/1s]\ndomain: a.example.org").health;
    assert_eq!(default, HealthSettings::default());
    let table = shape::find(check::PROVIDER, "health").unwrap();
    assert_eq!(table.shape.fields().unwrap().len(), 33);
    let is = default;
    assert_eq!(
        (is.window, is.window_results, is.min_results, is.confirm),
        (secs(30), 300, 10, 2)
    );
    assert_eq!(
        (is.p_throttle.0, is.n_throttle, is.throttle_factor.0),
        (200_000, 3, 500_000)
    );
    assert_eq!(
        (is.throttle_min_rate, is.throttle_min_concurrency),
        (Rate::per_second(5), 1)
    );
    assert_eq!(
        (is.p_recover.0, is.s_recover, is.n_cacheonly),
        (100_000, 10, 5)
    );
    assert_eq!((is.p_sleep.0, is.p_sleep_for), (600_000, secs(300)));
    assert_eq!(
        (is.sleep_min, is.sleep_max, is.sleep_first),
        (secs(2), secs(300), secs(2))
    );
    assert_eq!(
        (is.cooldown_factor.0, is.retry_after_floor),
        (1_200_000, secs(1))
    );
    assert_eq!(
        (
            is.probe_success,
            is.probe_rate,
            is.probe_concurrency,
            is.p_probe.0
        ),
        (5, Rate::per_second(3), 1, 100_000)
    );
    assert_eq!(
        (is.ramp.factor.0, is.ramp.every, is.ramp.after),
        (1_100_000, secs(300), RampAfter::Limited)
    );
    assert_eq!(
        (is.auto_recover, is.cache_only_after, is.when_blocked),
        (None, None, WhenBlocked::Wait)
    );
    assert_eq!(
        (is.failure_threshold, is.reset_timeout, is.success_threshold),
        (Some(5), secs(300), 2)
    );
    let breaker = provider("limits: [1/1s]\ndomain: a.example.org\nhealth: breaker").health;
    assert_eq!(
        (breaker.mode, breaker.when_blocked),
        (HealthMode::Breaker, WhenBlocked::Reject)
    );
    let document = (HealthScope::Provider, HealthCount::Attempt);
    assert_eq!((is.scope, is.count), (HealthScope::Path, HealthCount::Call));
    assert_eq!((breaker.scope, breaker.count), document);
    let health = "health: {mode: breaker, scope: path, count: call}";
    let breaker = provider(&format!("limits: [1/1s]\ndomain: a.example.org\n{health}")).health;
    assert_eq!(
        (breaker.scope, breaker.count),
        (HealthScope::Path, HealthCount::Call)
    );
}

/// Defaults where a file is silent.
#[test]
fn omitted_fields_have_the_documented_defaults() {
    let is = provider("domain: a.example.org\nlimit: 40\nperiod: 10s");
    assert_eq!(
        (is.cache.ttl, is.degrade, is.dedup, is.merge),
        (Lifetime::Off, None, Dedup::Cacheable, Merge::Off)
    );
    assert_eq!((is.alerts.critical, is.alerts.warning), (None, None));
    assert_eq!((is.queue.max, is.queue.timeout), (1_000, secs(60)));
    assert_eq!(
        (is.retry.backoff.base, is.retry.backoff.jitter),
        (Span::from_millis(1_500), Jitter::Full)
    );
    assert_eq!(
        (is.cooldown.backoff.max, is.cooldown.on),
        (secs(300), JitterOn::Backoff)
    );
    assert_eq!(
        (
            is.timeouts.connect,
            is.timeouts.first_byte,
            is.timeouts.idle
        ),
        (secs(5), secs(30), secs(60))
    );
    assert_eq!(
        (is.on_store_loss, is.late_arrival, is.rewrite_links),
        (OnStoreLoss::Closed, secs(5), true)
    );
    assert_eq!(
        (is.dialect.as_str(), is.entities.on_ambiguity),
        ("generic", OnAmbiguity::NoEntity)
    );
}

/// A preset with overrides: the file wins field by field, and fields of one meaning go together.
#[test]
fn a_file_wins_over_its_preset() {
    let is = provider(
        "preset: tmdb\nlimit: 20\nperiod: 1s\nconcurrency: { low: 1 }\ncache: { stale: 1d }\nauth: { bearer: true }",
    );
    assert_eq!(is.limits.len(), 1);
    assert_eq!(
        is.limits[0].rule,
        Rule::sliding(20, secs(1))
            .unwrap()
            .hold_until(HoldUntil::Arrived)
    );
    let concurrency = is.concurrency.unwrap();
    assert_eq!((concurrency.rule.limit(), concurrency.low), (4, 1));
    assert_eq!(
        (is.cache.ttl.to_string().as_str(), is.cache.stale),
        ("24h..48h", secs(86_400))
    );
    assert!(matches!(is.auth.style, AuthStyle::Bearer));
    assert_eq!((is.dialect.as_str(), is.domains.len()), ("tmdb", 1));
    let mirror = provider("preset: omdb\ndomain: mirror.example.org");
    assert!(mirror.upstream.is_none() && mirror.domains.len() == 1);
    let without = provider("preset: tmdb\nconcurrency: ~");
    assert!(without.concurrency.is_none());
}

/// A tier lies between the preset and the file.
#[test]
fn a_tier_wins_over_the_preset_and_the_file_over_the_tier() {
    assert_eq!(
        provider("preset: omdb\ntier: paid").limits[0].rule.limit(),
        100_000
    );
    let both = provider("preset: sportmonks\ntier: enterprise\ndegrade: { below: 100 }");
    assert_eq!(
        both.limits[0].rule,
        Rule::fixed(5_000, secs(3_600))
            .unwrap()
            .hold_until(HoldUntil::Arrived)
    );
    assert_eq!(both.degrade.unwrap().recover, 400);
}

/// S6: degrade mode without an end of its own ends at twice its beginning, as far as the limit goes.
#[test]
fn s6_degrade_ends_within_the_limit() {
    let recover = |below| {
        let text = format!("domain: a.example.org\nlimits: [50/1s]\ndegrade: {{ below: {below} }}");
        provider(&text).degrade.unwrap().recover
    };
    assert_eq!((recover(20), recover(30)), (40, 50));
}

/// A14: one field set from outside wins over the file.
#[test]
fn a14_an_override_wins_over_the_file() {
    let mut draft = ProviderFile::read("test.yaml", "preset: tmdb\nhealth: breaker\n").unwrap();
    draft.set("health.sleep_max", "600s", "--set").unwrap();
    draft.set("concurrency", "9", "--set").unwrap();
    let is = draft.check(&Environment::empty()).provider.unwrap();
    assert_eq!(
        (is.health.mode, is.health.sleep_max),
        (HealthMode::Breaker, secs(600))
    );
    assert_eq!(is.concurrency.unwrap().rule.limit(), 9);
    draft.set("health.sleep_max", "soon", "--set").unwrap();
    let problems = draft.check(&Environment::empty()).problems.to_string();
    assert!(
        problems.starts_with("--set: health.sleep_max: is not a duration"),
        "{problems}"
    );
}

/// A unit alone is one of it, in a limit written as text.
#[test]
fn a_limit_per_unit_is_a_limit_per_one_of_it() {
    let limits = |text: &str| {
        let is = provider(&format!("domain: a.example.org\nlimits: [{text}]\n"));
        let limit = &is.limits[0];
        (limit.name.clone(), limit.rule.clone())
    };
    for (short, long) in [("10/s", "10/1s"), ("600/m", "600/1m"), ("9/ d", "9/1d")] {
        let (name, rule) = limits(short);
        assert_eq!(name, short, "the text is its name");
        assert_eq!(rule, limits(long).1);
    }
}
