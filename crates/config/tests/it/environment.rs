//! A14: every threshold by file, environment and `--set`; the order of settings, and who set what.

use tollgate_config::check::PROVIDER;
use tollgate_config::overlay::{SettingKey, keys};
use tollgate_config::shape::{Shape, find};
use tollgate_config::{Flag, Loaded, LoadedProvider, Origin, ProviderSetting, Sources};
use tollgate_core::health::{HealthMode, HealthSettings};
use tollgate_core::limit::{HoldUntil, Rule};
use tollgate_core::ratio::Ppm;
use tollgate_core::time::Span;

use crate::test_host::{TestHost, files};

const TMDB: &str = "preset: tmdb\nhealth: { sleep_max: 200s }\n";

fn tmdb() -> TestHost {
    TestHost::new().file("tmdb.yaml", TMDB)
}

fn health(loaded: &Loaded, name: &str) -> HealthSettings {
    let provider = loaded.config.provider(name);
    provider.expect("a provider of this name").health
}

fn value<'a>(governed: &'a LoadedProvider, path: &str) -> (&'a str, String) {
    let found = governed.values.iter().find(|value| value.path == path);
    let found = found.unwrap_or_else(|| panic!("{path}"));
    (
        found.text.as_deref().unwrap_or("hidden"),
        found.origin.to_string(),
    )
}

fn set(text: &str) -> ProviderSetting {
    ProviderSetting::parse(text)
}

/// A14: set/PATCH > flag > environment for one > environment for all > file > preset > default, and
/// each value says who set it.
#[test]
fn a14_settings_have_an_order_and_report_their_origin() {
    let mut sources = files(&["tmdb.yaml"]);
    let mut machine = tmdb();
    let expect = |machine: &TestHost, sources: &Sources, secs: u64, text: &str, origin: &str| {
        let loaded = machine.loaded(sources);
        assert_eq!(health(&loaded, "tmdb").sleep_max, Span::from_secs(secs));
        let governed = loaded.provider("tmdb").unwrap();
        assert_eq!(
            value(governed, "health.sleep_max"),
            (text, origin.to_owned())
        );
    };
    let silent = TestHost::new().file("tmdb.yaml", "preset: tmdb\n");
    expect(&silent, &sources, 300, "5m", "default");
    expect(&machine, &sources, 200, "200s", "tmdb.yaml:2:22");
    machine = machine.env("TOLLGATE_SLEEP_MAX", "190");
    expect(
        &machine,
        &sources,
        190,
        "190s",
        "environment TOLLGATE_SLEEP_MAX",
    );
    machine = machine.env("TOLLGATE_TMDB_SLEEP_MAX", "180.0");
    expect(
        &machine,
        &sources,
        180,
        "180.0s",
        "environment TOLLGATE_TMDB_SLEEP_MAX",
    );
    sources.set.push(set("tmdb.sleep-max=170"));
    expect(&machine, &sources, 170, "170s", "--set");
    sources.patched.push(set("tmdb.health.sleep_max=2m"));
    expect(&machine, &sources, 120, "2m", "set");
    let loaded = machine.loaded(&sources);
    let governed = loaded.provider("tmdb").unwrap();
    assert_eq!(
        value(governed, "limits[0].limit"),
        ("35", "preset tmdb".to_owned())
    );
    assert_eq!(
        value(governed, "cache.ttl"),
        ("24h..48h", "preset tmdb".to_owned())
    );
    assert_eq!(value(governed, "queue.max"), ("1000", "default".to_owned()));
}

/// A14: every threshold of the health machine can be reached by the environment, for all and for
/// one, and by `--set`.
#[test]
fn a14_every_threshold_can_be_set_by_variable_and_flag() {
    let health_of = |loaded: &Loaded| health(loaded, "tmdb");
    let of_health: Vec<_> = fields_below("health")
        .iter()
        .map(|path| key_of(path))
        .collect();
    // 33 settings, of which `ramp` is three.
    assert_eq!(of_health.len(), 35);
    let plain = health_of(&tmdb().loaded(&files(&["tmdb.yaml"])));
    for key in &of_health {
        let value = match key.name.as_str() {
            "MODE" => "off",
            "SCOPE" => "provider",
            "COUNT" => "attempt",
            "WHEN_BLOCKED" => "reject",
            "RAMP_AFTER" => "any",
            "P_THROTTLE" | "P_RECOVER" | "P_PROBE" | "THROTTLE_FACTOR" => "0.15",
            "P_SLEEP" => "0.7",
            "COOLDOWN_FACTOR" | "RAMP_FACTOR" => "1.5",
            "WINDOW_RESULTS" => "70",
            _ => "7",
        };
        let all = format!("TOLLGATE_{}", key.name);
        let one = format!("TOLLGATE_TMDB_{}", key.name);
        let by_all = tmdb().env(&all, value).loaded(&files(&["tmdb.yaml"]));
        let by_one = tmdb().env(&one, value).loaded(&files(&["tmdb.yaml"]));
        let mut sources = files(&["tmdb.yaml"]);
        sources
            .set
            .push(set(&format!("tmdb.{}={value}", key.name.to_lowercase())));
        let by_set = tmdb().loaded(&sources);
        for loaded in [&by_all, &by_one, &by_set] {
            assert_ne!(health_of(loaded), plain, "{}", key.name);
        }
    }
}

/// The fields of a block, with those of the blocks in it.
fn fields_below(path: &str) -> Vec<String> {
    let fields = find(PROVIDER, path).and_then(|field| field.shape.fields());
    let mut found = Vec::new();
    for field in fields.unwrap_or_default() {
        let path = format!("{path}.{}", field.name);
        match field.shape {
            Shape::Block(_) => found.extend(fields_below(&path)),
            _ => found.push(path),
        }
    }
    found
}

fn key_of(path: &str) -> &'static SettingKey {
    let key = keys().iter().find(|key| key.path == path);
    key.unwrap_or_else(|| panic!("{path} has no name in the environment"))
}

/// A14: by the tables of fields, not by the list of names: a field whose name is taken would be on
/// no list.
#[test]
fn a14_every_tunable_field_has_a_unique_variable_name() {
    let blocks = [
        "health", "retry", "cooldown", "degrade", "alerts", "queue", "timeout",
    ];
    let names: Vec<&str> = blocks
        .iter()
        .flat_map(|block| fields_below(block))
        .map(|path| key_of(&path).name.as_str())
        .collect();
    let once: std::collections::BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(once.len(), names.len(), "{names:?}");
}

/// The two factors with nearly the same name are set apart.
#[test]
fn a14_the_cooldown_factors_of_cooldown_and_health_are_separate() {
    let machine = tmdb()
        .env("TOLLGATE_COOLDOWN_BACKOFF_FACTOR", "3")
        .env("TOLLGATE_TMDB_COOLDOWN_FACTOR", "4");
    let loaded = machine.loaded(&files(&["tmdb.yaml"]));
    let is = loaded.config.provider("tmdb").unwrap();
    assert_eq!(is.cooldown.backoff.factor, Ppm(3_000_000));
    assert_eq!(is.health.cooldown_factor, Ppm(4_000_000));
}

/// A14, A12: the resilient-CLI document's variables under its own prefix.
#[test]
fn a14_variables_work_under_a_configured_prefix() {
    let machine = TestHost::new()
        .file(
            "tollgate.yaml",
            "env_prefix: ANIVAULT_\nproviders: { tmdb: { preset: tmdb } }\n",
        )
        .env("ANIVAULT_RATE_BASE", "20.0")
        .env("ANIVAULT_BUCKET_CAP", "25")
        .env("ANIVAULT_CONCURRENCY", "3")
        .env("ANIVAULT_P_THROTTLE", "0.25")
        .env("ANIVAULT_N_CACHEONLY", "6")
        .env("ANIVAULT_SLEEP_MIN", "2.5")
        .env("ANIVAULT_COOLDOWN_FACTOR", "3.0")
        .env("TOLLGATE_N_THROTTLE", "9");
    let loaded = machine.loaded(&Sources::default());
    let is = loaded.config.provider("tmdb").unwrap();
    let bucket = Rule::bucket(20, Span::from_secs(1), 25)
        .unwrap()
        .hold_until(HoldUntil::Arrived);
    assert_eq!(is.limits[0].rule, bucket);
    assert_eq!(is.concurrency.as_ref().unwrap().rule.limit(), 3);
    assert_eq!(
        (is.health.p_throttle, is.health.n_cacheonly),
        (Ppm(250_000), 6)
    );
    assert_eq!(is.health.sleep_min, Span::from_millis(2_500));
    assert_eq!(
        (is.health.cooldown_factor, is.health.n_throttle),
        (Ppm(3_000_000), 3)
    );
}

/// A14: settings for all apply to adaptive providers; breakers take only breaker settings.
#[test]
fn a14_settings_for_all_apply_to_adaptive_providers() {
    let machine = TestHost::new()
        .file("a.yaml", "preset: tmdb\n")
        .file("b.yaml", "preset: omdb\nhealth: breaker\n")
        .env("TOLLGATE_N_THROTTLE", "9")
        .env("TOLLGATE_RESET_TIMEOUT", "60")
        .env("TOLLGATE_RATE_BASE", "12");
    let loaded = machine.loaded(&files(&["a.yaml", "b.yaml"]));
    let (a, b) = (health(&loaded, "a"), health(&loaded, "b"));
    assert_eq!((a.mode, a.n_throttle), (HealthMode::Adaptive, 9));
    assert_eq!(
        (b.mode, b.n_throttle, b.reset_timeout),
        (HealthMode::Breaker, 3, Span::from_secs(60))
    );
    assert_eq!(
        loaded.config.provider("a").unwrap().limits[0].rule.limit(),
        12
    );
    assert_eq!(
        loaded.config.provider("b").unwrap().limits[0].rule.limit(),
        1_000,
        "no token bucket"
    );
    assert_eq!(
        value(loaded.provider("b").unwrap(), "health.when_blocked").0,
        "reject"
    );
}

/// A14: wrong values name the variable or the flag, and mistyped names the nearest.
#[test]
fn a14_invalid_values_name_their_variable_or_flag() {
    let machine = tmdb()
        .env("TOLLGATE_TMDB_SLEEP_MAX", "soon")
        .env("TOLLGATE_P_THROTTLE", "1.5");
    let mut sources = files(&["tmdb.yaml"]);
    sources.set = vec![
        set("CANARY"),
        set("tmdb.slep_max=5"),
        set("tmbd.sleep_max=5"),
        set("tmdb.api_key=CANARY"),
        set("tmdb.queue.order=lifo"),
    ];
    let problems_text = machine.load_errors(&sources);
    for line in [
        "environment TOLLGATE_TMDB_SLEEP_MAX: health.sleep_max: is not a duration",
        "environment TOLLGATE_P_THROTTLE: health.p_throttle: must be above 0 and not above 1",
        "--set: is not a setting; write PROVIDER.KEY=VALUE, such as tmdb.sleep_max=60",
        "--set: there is no setting of this name; did you mean `sleep_max`?",
        "--set: there is no provider of this name; did you mean `tmdb`?",
        "--set: a key does not belong on a command line, where others can read it; write `${VARIABLE}` or `file:/path`",
        "--set: queue.order: is none of `priority`, `fifo`; did you mean `fifo`?",
    ] {
        assert!(
            problems_text.contains(line),
            "{problems_text}\nwanted {line}"
        );
    }
    assert!(!problems_text.contains("CANARY"), "{problems_text}");
}

/// A14: a variable that looks like a setting but is none is a warning with the nearest name.
#[test]
fn a14_mistyped_variables_are_reported() {
    let machine = tmdb()
        .env("TOLLGATE_SLEPP_MAX", "1")
        .env("TOLLGATE_TMDB_N_THROTLE", "1")
        .env("TOLLGATE_ADMIN_TOKEN", "1")
        .env("TOLLGATE_MY_OWN_KEY_FOR_SOMETHING", "1");
    let problems_text = machine.loaded(&files(&["tmdb.yaml"])).problems.to_string();
    assert!(problems_text.contains("environment TOLLGATE_SLEPP_MAX: warning: there is no setting of this name, so nothing is changed; did you mean TOLLGATE_SLEEP_MAX?"), "{problems_text}");
    assert!(
        problems_text.contains("did you mean TOLLGATE_TMDB_N_THROTTLE?"),
        "{problems_text}"
    );
    assert!(
        !problems_text.contains("TOKEN") && !problems_text.contains("MY_OWN"),
        "{problems_text}"
    );
}

/// A rate for one provider without a token bucket has no effect, and a warning says so.
#[test]
fn a_rate_override_without_a_token_bucket_is_reported() {
    let machine = TestHost::new().file("a.yaml", "domain: a.example.org\nlimits: [5/1s]\n");
    let problems_text = machine
        .env("TOLLGATE_A_RATE_BASE", "3")
        .loaded(&files(&["a.yaml"]))
        .problems
        .to_string();
    assert!(problems_text.contains("environment TOLLGATE_A_RATE_BASE: warning: limits: has no effect, because the provider has no token bucket"), "{problems_text}");
    let short = TestHost::new().file(
        "a.yaml",
        "domain: a.example.org\nlimit: 5\nperiod: 1s\nalgorithm: token-bucket\n",
    );
    let loaded = short
        .env("TOLLGATE_A_BUCKET_CAP", "3")
        .loaded(&files(&["a.yaml"]));
    let bucket = Rule::bucket(5, Span::from_secs(1), 3)
        .unwrap()
        .hold_until(HoldUntil::Arrived);
    assert_eq!(loaded.config.providers[0].limits[0].rule, bucket);
}

/// A14: the file of `--env-file` wins over the process, for thresholds and for keys.
#[test]
fn a14_an_env_file_wins_over_the_process() {
    let machine = TestHost::new()
        .file("tmdb.yaml", "preset: tmdb\napi_key: ${TMDB_KEY}\n")
        .open_file("my.env", "TMDB_KEY='CANARY'\nTOLLGATE_SLEEP_MAX=60\n")
        .env("TOLLGATE_SLEEP_MAX", "70");
    let mut sources = files(&["tmdb.yaml"]);
    sources.env_file = Some("my.env".to_owned());
    let loaded = machine.loaded(&sources);
    assert_eq!(health(&loaded, "tmdb").sleep_max, Span::from_secs(60));
    assert_eq!(loaded.config.providers[0].keys[0].expose(), "CANARY");
    let problems_text = loaded.problems.to_string();
    assert!(
        problems_text.contains(
            "my.env: warning: others can read this file of variables; run `chmod 600` on it"
        ),
        "{problems_text}"
    );
    assert!(loaded.watched.contains(&"my.env".to_owned()));
    let shown = format!("{loaded:?} {:?} {problems_text}", loaded.providers);
    assert!(!shown.contains("CANARY"), "{shown}");
}

/// The program's own variables and flags stand over tollgate.yaml.
#[test]
fn flags_win_over_variables_and_variables_over_the_file() {
    let machine = TestHost::new()
        .file(
            "tollgate.yaml",
            "store: \"memory:\"\nadmin: { listen: 127.0.0.1:1 }\nlimiting: shadow\n",
        )
        .env("TOLLGATE_STORE", "sqlite:there")
        .env("TOLLGATE_ADMIN", "127.0.0.1:2")
        .env("TOLLGATE_ADMIN_TOKEN", "CANARY");
    let loaded = machine.loaded(&Sources::default());
    assert_eq!(loaded.config.store.redacted(), "sqlite:there");
    assert_eq!(loaded.config.admin.listen.port(), 2);
    assert_eq!(
        loaded.config.admin.token.as_ref().unwrap().expose(),
        "CANARY"
    );
    let flag = |name, path, value: &str| Flag {
        name,
        path,
        value: value.to_owned(),
    };
    let sources = Sources {
        flags: vec![
            flag("--store", "store", "sqlite:here"),
            flag("--admin", "admin.listen", "127.0.0.1:3"),
        ],
        ..Sources::default()
    };
    let loaded = machine.loaded(&sources);
    assert_eq!(
        (
            loaded.config.store.redacted().as_str(),
            loaded.config.admin.listen.port()
        ),
        ("sqlite:here", 3)
    );
    let value = loaded
        .values
        .iter()
        .find(|value| value.path == "store")
        .unwrap();
    assert_eq!(value.origin, Origin::Flag("--store".to_owned()));
    assert!(!format!("{:?} {:?} {sources:?}", loaded.values, loaded.config).contains("CANARY"));
}

/// A setting for all that is invalid for a built-in provider is a warning, not an error.
#[test]
fn a_setting_for_all_does_not_break_built_in_providers() {
    let loaded = tmdb()
        .env("TOLLGATE_DEGRADE_BELOW", "20")
        .loaded(&files(&["tmdb.yaml"]));
    assert!(loaded.config.provider("musicbrainz").is_some());
    assert!(
        loaded
            .problems
            .to_string()
            .contains("environment TOLLGATE_DEGRADE_BELOW: warning: degrade.below")
    );
    assert!(loaded.config.provider("tmdb").unwrap().degrade.is_some());
}
