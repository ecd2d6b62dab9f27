//! tollgate.yaml: every field, its default, and what is wrong with it.

use tollgate_config::config::{CONFIG, GuardKey, ListenOn, LogFormat, PostgresMode};
use tollgate_config::settings::OnStoreLoss;
use tollgate_config::{Config, Flag, Sources, shape};
use tollgate_core::ask::Priority;
use tollgate_core::ratio::Ppm;
use tollgate_core::time::Span;

use crate::test_host::TestHost;

const WHOLE: &str = include_str!("tollgate.yaml");

fn whole() -> Config {
    let machine = TestHost::new()
        .file("tollgate.yaml", WHOLE)
        .env("TOLLGATE_ADMIN_TOKEN", "t0")
        .env("BF", "t1")
        .env("HOOK_SECRET", "t2");
    machine.loaded(&Sources::default()).config
}

fn secs(secs: u64) -> Span {
    Span::from_secs(secs)
}

/// Every field stands in the file of this test, so every field is read.
#[test]
fn the_whole_file_has_every_field() {
    for field in CONFIG {
        assert!(
            WHOLE.contains(&format!("\n{}:", field.name)),
            "{}",
            field.name
        );
    }
    for name in shape::names(shape::find(CONFIG, "log").unwrap().shape.fields().unwrap()) {
        assert!(WHOLE.contains(name), "{name}");
    }
}

#[test]
fn addresses_stores_and_nodes_are_read() {
    let is = whole();
    assert_eq!((is.listen.port(), is.admin.listen.port()), (4290, 4291));
    assert_eq!(is.admin.token.unwrap().expose(), "t0");
    let resp = ListenOn::Unix("/run/tollgate/resp.sock".to_owned());
    assert_eq!(is.resp, Some(resp));
    assert_eq!(is.store.redacted(), "sqlite:/var/lib/tollgate");
    assert_eq!(
        (is.postgres.mode, is.postgres.every),
        (PostgresMode::Snapshot, secs(20))
    );
    assert_eq!(is.cache_store.unwrap().redacted(), "sqlite:/var/cache/t");
    assert_eq!(is.guard_store.redacted(), "memory:");
    assert_eq!((is.nodes, is.node_lease), (4, secs(6)));
    assert_eq!((is.connections_max, is.body_memory.0), (100, 64 << 20));
    assert_eq!(
        (
            is.intercept.word(),
            is.limiting.word(),
            is.unknown_domain.word()
        ),
        ("off", "shadow", "refuse")
    );
    assert_eq!(is.env_prefix, "MINE_");
    assert_eq!(is.providers.len(), 1);
    assert!(is.built_in.is_empty());
}

/// C3, C5: guards with their classes and what they mean for tasks.
#[test]
fn c3_guards_and_callers_are_read() {
    let is = whole();
    let shown: Vec<_> = is
        .guards
        .iter()
        .map(|guard| {
            (
                guard.name.as_str(),
                guard.limit,
                guard.burst,
                guard.by.clone(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("ip", 10, 5, GuardKey::Ip),
            ("user", 20, 10, GuardKey::Header("x-user-id".to_owned())),
            ("api", 100, 20, GuardKey::Global),
            ("task", 50, 15, GuardKey::Name),
        ]
    );
    assert_eq!(is.guards[0].key_prefix, "ratelimit:ip:");
    assert_eq!(
        (is.guards[0].on_store_loss, is.guards[1].on_store_loss),
        (OnStoreLoss::LocalShare, OnStoreLoss::Open)
    );
    assert_eq!(is.guards[1].matches.path.as_deref(), Some("/v1"));
    assert_eq!(
        is.guards[1].matches.descriptor,
        [("plan".to_owned(), "free".to_owned())]
    );
    let task = is.guards[3].task;
    assert_eq!(
        (
            task.max_pending,
            task.retry_delay,
            task.wait,
            task.retries,
            task.factor
        ),
        (Some(50), secs(60), secs(300), 3, Ppm(2_000_000))
    );
}

#[test]
fn callers_are_read() {
    let is = whole();
    let callers: Vec<_> = is
        .callers
        .iter()
        .map(|caller| {
            (
                caller.name.as_str(),
                caller.priority,
                caller.at_least,
                caller.at_most,
            )
        })
        .collect();
    assert_eq!(
        callers,
        [
            ("web", Priority::High, Some(Ppm(500_000)), None),
            ("backfill", Priority::Low, None, Some(Ppm(300_000)))
        ]
    );
    assert_eq!(is.callers[1].token.as_ref().unwrap().expose(), "t1");
}

#[test]
fn log_metrics_and_the_rest_are_read() {
    let is = whole();
    assert_eq!(
        (
            is.log.format,
            is.log.file.as_deref(),
            is.log.max_size.0,
            is.log.keep
        ),
        (LogFormat::Json, Some("/var/log/t.log"), 10 << 20, 3)
    );
    assert_eq!(
        (
            is.metrics.prefix.as_str(),
            is.metrics.ndjson.as_deref(),
            is.metrics.every
        ),
        ("tg_", Some("-"), secs(5))
    );
    assert_eq!((is.scheduler.cycle, is.scheduler.workers), (secs(2), 8));
    assert_eq!(is.exempt_paths, ["/health", "/ping"]);
    assert!(is.trusted_proxies[0].contains("10.1.2.3".parse().unwrap()));
    assert_eq!(is.webhooks[0].url.host.as_str(), "hooks.example.org");
    assert_eq!(is.webhooks[0].secret.as_ref().unwrap().expose(), "t2");
}

/// Defaults where nothing is written at all.
#[test]
fn everything_has_a_default() {
    let machine = TestHost::new().env("HOME", "/me");
    let is = machine.loaded(&Sources::default()).config;
    assert_eq!(
        (
            is.listen.to_string().as_str(),
            is.admin.listen.to_string().as_str()
        ),
        ("127.0.0.1:4290", "127.0.0.1:4291")
    );
    assert_eq!(is.store.redacted(), "sqlite:/me/.local/state/tollgate");
    assert_eq!(
        (
            is.unknown_domain.word(),
            is.limiting.word(),
            is.intercept.word()
        ),
        ("allow", "on", "configured")
    );
    assert!(is.providers.is_empty() && is.built_in.len() > 50);
    assert_eq!(
        (is.metrics.prefix.as_str(), is.log.keep, is.nodes),
        ("tollgate_", 5, 1)
    );
    assert_eq!(
        (is.exempt_paths, is.cache_store),
        (vec!["/health".to_owned()], None)
    );
    let state = machine
        .env("TOLLGATE_STATE_DIR", "/s")
        .loaded(&Sources::default())
        .config;
    assert_eq!(
        (state.state_dir.as_str(), state.store.redacted().as_str()),
        ("/s", "sqlite:/s")
    );
    let open = TestHost::new()
        .file("tollgate.yaml", "listen: 0.0.0.0:80\n")
        .loaded(&Sources::default());
    assert_eq!(open.config.unknown_domain.word(), "refuse");
}

/// H4: one address that other hosts reach is enough, be it a provider's own.
#[test]
fn h4_unknown_domains_are_rejected_if_any_address_is_open_to_other_hosts() {
    let of = |listen: &str, more: &str| {
        let text = format!(
            "presets: off\n{more}providers: {{ x: {{ domain: x.example, limits: [1/1s], listen: \"{listen}\" }} }}\n"
        );
        let machine = TestHost::new().file("tollgate.yaml", &text);
        let is = machine.loaded(&Sources::default()).config;
        is.unknown_domain.word()
    };
    assert_eq!(of("127.0.0.1:81", ""), "allow");
    assert_eq!(of("0.0.0.0:81", ""), "refuse");
    assert_eq!(of("0.0.0.0:81", "unknown_domain: allow\n"), "allow");
}

/// S12: a cache in Redis by REDIS_HOST, REDIS_PORT and REDIS_PASSWORD.
#[test]
fn s12_redis_variables_select_the_shared_cache() {
    let machine = TestHost::new()
        .env("REDIS_HOST", "cache")
        .env("REDIS_PASSWORD", "p@ss/CANARY");
    let is = machine.loaded(&Sources::default()).config;
    assert_eq!(
        is.cache_store.as_ref().unwrap().redacted(),
        "redis://cache:6379"
    );
    assert!(!format!("{is:?}").contains("CANARY"));
    let other = machine
        .env("REDIS_PORT", "7000")
        .file("tollgate.yaml", "cache_store: sqlite:/mine\n");
    assert_eq!(
        other
            .loaded(&Sources::default())
            .config
            .cache_store
            .unwrap()
            .redacted(),
        "sqlite:/mine"
    );
}

/// How much is kept, by file, variable and flag, each over the one before.
#[test]
fn the_size_of_the_cache_is_set_by_file_variable_and_flag() {
    let size = |machine: &TestHost, sources: &Sources| {
        let is = machine.loaded(sources).config.cache_size;
        (is.memory.0 >> 20, is.disk.0 >> 20)
    };
    let machine = TestHost::new();
    assert_eq!(size(&machine, &Sources::default()), (64, 1_024));
    let text = "cache_size: { memory: 8MiB, disk: 20MiB }\n";
    let machine = machine.file("tollgate.yaml", text);
    assert_eq!(size(&machine, &Sources::default()), (8, 20));
    let machine = machine.env("TOLLGATE_CACHE_DISK", "30MiB");
    assert_eq!(size(&machine, &Sources::default()), (8, 30));
    let flag = |name, path, value: &str| Flag {
        name,
        path,
        value: value.to_owned(),
    };
    let flags = Sources {
        flags: vec![
            flag("--cache-memory", "cache_size.memory", "9MiB"),
            flag("--cache-disk", "cache_size.disk", "40MiB"),
        ],
        ..Sources::default()
    };
    assert_eq!(size(&machine, &flags), (9, 40));
    let machine = machine.env("TOLLGATE_CACHE_MEMORY", "10kB");
    assert!(
        machine.load(&Sources::default()).is_err(),
        "next to nothing"
    );
}

/// C12: the inbound document's settings, by variables with its defaults.
#[test]
fn c12_values_may_come_from_variables_with_defaults() {
    let text = "guards:\n  ip: { limit: ${IP_REQUESTS_PER_MINUTE:-10}, period: 1m, burst: ${IP_BURST_SIZE:-5}, by: ip }\n  task: { limit: 50, period: 1m, by: name, max_pending: ${QUEUE_MAX_DEPTH:-50}, retry_delay: ${QUEUE_RETRY_DELAY_SECONDS:-60}s, retries: ${RATE_LIMIT_RETRY_MAX_ATTEMPTS:-3}, factor: ${RATE_LIMIT_RETRY_BACKOFF_MULTIPLIER:-2.0} }\n";
    let machine = TestHost::new().file("tollgate.yaml", text);
    let is = machine.loaded(&Sources::default()).config.guards;
    assert_eq!(
        (
            is[0].limit,
            is[0].burst,
            is[1].task.max_pending,
            is[1].task.retry_delay
        ),
        (10, 5, Some(50), secs(60))
    );
    let machine = machine
        .env("IP_REQUESTS_PER_MINUTE", "30")
        .env("QUEUE_MAX_DEPTH", "7")
        .env("QUEUE_RETRY_DELAY_SECONDS", "5")
        .env("RATE_LIMIT_RETRY_BACKOFF_MULTIPLIER", "3.5");
    let is = machine.loaded(&Sources::default()).config.guards;
    assert_eq!(
        (is[0].limit, is[1].task.max_pending, is[1].task.retry_delay),
        (30, Some(7), secs(5))
    );
    assert_eq!(is[1].task.factor, Ppm(3_500_000));
    let missing = TestHost::new()
        .file("tollgate.yaml", "env_prefix: ${NODES}\n")
        .load_errors(&Sources::default());
    assert_eq!(
        missing,
        "tollgate.yaml:1:13: env_prefix: the environment variable `NODES` is not set; export it, or write `${NAME:-default}`"
    );
}

/// A share of a limit needs to know among how many, where hosts share a store.
#[test]
fn a_local_share_needs_the_number_of_nodes() {
    const NODES: &str = "tollgate.yaml:2:48: on_store_loss: `local-share` needs the number of nodes that share the limits; add `nodes: 4` to tollgate.yaml";
    let text = "store: redis://h\nproviders: { a: { preset: tmdb, on_store_loss: local-share } }\n";
    let machine = |text: &str| TestHost::new().file("tollgate.yaml", text);
    let errors = machine(text).load_errors(&Sources::default());
    assert!(errors.contains(NODES), "{errors}");
    let is = machine(&format!("{text}nodes: 4\n")).loaded(&Sources::default());
    assert_eq!(is.config.nodes, 4);
}

/// S12: a cache in Redis by its address, or because the ledger is there.
#[test]
fn s12_the_cache_is_in_redis_by_its_address_or_with_the_ledger() {
    let cache = |text: &str| {
        let machine = TestHost::new().file("tollgate.yaml", text);
        let config = machine.loaded(&Sources::default()).config;
        config.cache_store.map(|store| store.redacted())
    };
    let redis = |host: &str| Some(format!("redis://{host}"));
    assert_eq!(cache("cache_store: redis://h\n"), redis("h"));
    assert_eq!(cache("store: redis://l\n"), redis("l"));
    assert_eq!(
        cache("store: redis://l\ncache_store: redis://h\n"),
        redis("h")
    );
    let memory = cache("store: redis://l\ncache_store: 'memory:'\n");
    assert_eq!(memory.as_deref(), Some("memory:"));
    assert_eq!(cache("store: postgres://h/d\n"), None);
}

/// A port without an address opens nothing to other machines.
#[test]
fn a_port_alone_and_localhost_are_loopback() {
    let is = TestHost::new()
        .file(
            "tollgate.yaml",
            "listen: :4390\nadmin: { listen: localhost:4391 }\n",
        )
        .loaded(&Sources::default())
        .config;
    assert_eq!(is.listen.to_string(), "127.0.0.1:4390");
    assert_eq!(is.admin.listen.to_string(), "127.0.0.1:4391");
    for wrong in [
        ":",
        ":x",
        ":65536",
        ":+80",
        "localhost",
        "host:80",
        "localhost:",
    ] {
        let text = format!("listen: \"{wrong}\"\n");
        let errors = TestHost::new()
            .file("tollgate.yaml", &text)
            .load_errors(&Sources::default());
        assert!(
            errors.contains("listen: is not an address with a port"),
            "{wrong}: {errors}"
        );
    }
}

/// H3: a password in the address of a store is warned about like a key.
#[test]
fn h3_a_password_that_others_can_read_is_warned_about() {
    for address in ["redis://me:CANARY@h", "postgres://me@h/d?password=CANARY"] {
        let file = format!("store: {address}\n");
        let open = TestHost::new().open_file("tollgate.yaml", &file);
        let problems_text = open.loaded(&Sources::default()).problems.to_string();
        let warning = "tollgate.yaml:1:8: warning: store: a password is written out here";
        assert!(problems_text.contains(warning), "{problems_text}");
        assert!(!problems_text.contains("CANARY"));
    }
}

/// What is wrong, and the line that answers it.
const MISTAKES: &[(&str, &str)] = &[
    (
        "listen: 4290",
        "tollgate.yaml:1:9: listen: is not an address with a port",
    ),
    (
        "admin: { tokn: x }",
        "tollgate.yaml:1:10: admin: `tokn` is not a field; did you mean `token`?",
    ),
    (
        "store: mysql://h",
        "store: is not a store; write `sqlite:DIR`",
    ),
    (
        "guard_store: postgres://h",
        "guard_store: cannot be used for this; write `memory:` or `redis://…`",
    ),
    ("nodes: 0", "nodes: must be 1 or more"),
    ("node_lease: 40ms", "node_lease: is shorter than 1s"),
    (
        "env_prefix: my",
        "env_prefix: is not a prefix of variables; write capital letters with `_` at the end",
    ),
    (
        "callers: { web: { at_least: 60% }, api: { at_least: 50% } }",
        "callers: the shares of `at_least` are more than 100 % together",
    ),
    (
        "callers: { web: { priority: urgent } }",
        "callers.web.priority: is none of `high`, `normal`, `low`",
    ),
    (
        "callers: { web: { at_least: 60%, at_most: 10% } }",
        "callers.web: `at_least` is above `at_most`; lower it",
    ),
    (
        "guards: { ip: { limit: 5 } }",
        "guards.ip: `period` is missing",
    ),
    (
        "guards: { ip: { limit: 0, period: 1m } }",
        "guards.ip.limit: must be 1 or more",
    ),
    (
        "guards: { ip: { limit: 1, period: 2d } }",
        "guards.ip.period: must be above 0s and at most 1d",
    ),
    (
        "guards: { ip: { limit: 1, period: 1d, burst: 4000000000 } }",
        "guards.ip.burst: takes more than a year to fill",
    ),
    (
        "guards: { a: {limit: 1, period: 1m}, b: {limit: 1, period: 1m}, c: {limit: 1, period: 1m}, d: {limit: 1, period: 1m}, e: {limit: 1, period: 1m}, f: {limit: 1, period: 1m}, g: {limit: 1, period: 1m}, h: {limit: 1, period: 1m}, i: {limit: 1, period: 1m} }",
        "guards: more than 8 guards could apply to one request",
    ),
    (
        "guards: { provider: { limit: 1, period: 1m } }",
        "guards.provider: `provider` is no name for a guard: metrics call the limits of providers so",
    ),
    (
        "guards: { ip: { limit: 1, period: 1m, by: cookie } }",
        "guards.ip.by: is not something to count by",
    ),
    (
        "guards: { a: {limit: 1, period: 1m, key_prefix: 'x:'}, b: {limit: 1, period: 1m, key_prefix: 'x:'} }",
        "guards.b.key_prefix: is that of `a` too, so both would share their buckets in Redis",
    ),
    (
        "guards: { a: {limit: 1, period: 1m, key_prefix: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa} }",
        "guards.a.key_prefix: has more than 128 characters",
    ),
    (
        "guards: { ip: { limit: 1, period: 1m, by: 'header:a b' } }",
        "guards.ip.by: is not something to count by",
    ),
    (
        "guards: { ip: { limit: 1, period: 1m, match: { path: login } } }",
        "guards.ip.match.path: does not begin with `/`",
    ),
    (
        "guards: { task: { limit: 1, period: 1m, by: name, factor: 0 } }",
        "guards.task.factor: must be above 0",
    ),
    (
        "exempt_paths: [health]",
        "exempt_paths: a path does not begin with `/`",
    ),
    (
        "trusted_proxies: [10.0.0.0/99]",
        "trusted_proxies[0]: is not a network",
    ),
    (
        "alerts: { webhooks: [{ secret: x }] }",
        "alerts.webhooks[0]: `url` is missing",
    ),
    (
        "log: { format: xml }",
        "log.format: is none of `logfmt`, `json`, `pretty`",
    ),
    (
        "metrics: { prefix: 9x }",
        "metrics.prefix: is not a prefix of metric names",
    ),
    (
        "providers: [[a]]",
        "tollgate.yaml:1:13: must be the name of a file",
    ),
    ("presets: maybe", "presets: is none of `auto`, `off`"),
    // C6: it was accepted, and limited nothing.
    (
        "guards: { mail: { limit: 5, period: 1m, by: ip, max_pending: 5 } }",
        "guards.mail.max_pending: limits nothing: tasks wait in queues, and the guard of a queue counts by its name; write `by: name` too",
    ),
];

#[test]
fn each_mistake_has_its_place_and_remedy() {
    for (text, expected) in MISTAKES {
        let problems_text = TestHost::new()
            .file("tollgate.yaml", text)
            .load_errors(&Sources::default());
        assert!(
            problems_text.contains(expected),
            "{text}\n{problems_text}\nwanted {expected}"
        );
    }
}

/// A field that is checked but not used yet is reported as such.
#[test]
fn fields_not_used_yet_are_reported() {
    let machine = TestHost::new().file(
        "tollgate.yaml",
        "intercept: off
providers: { tmdb: { preset: tmdb } }
",
    );
    let problems_text = machine.loaded(&Sources::default()).problems.to_string();
    assert!(
        problems_text.contains("tollgate.yaml:1:12: note: intercept: is checked but not used yet"),
        "{problems_text}"
    );
    assert!(
        !problems_text.contains("note: cache"),
        "a preset's own fields are not the user's: {problems_text}"
    );
}
