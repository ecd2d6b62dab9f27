//! Checks tollgate.yaml without the providers.
//!
//! Promises: all problems at once, with place and remedy. [`crate::load`] checks provider files.
//!
//! Never: shows a value in a problem.

use tollgate_core::ask::Priority;
use tollgate_core::ratio::Ppm;
use tollgate_core::time::Span;

use super::guard::guards;
use super::table::{ADMIN, ALERTS, CALLER, METRICS, WEBHOOK};
use super::{
    Admin, CacheSize, Caller, Config, ListenOn, Metrics, Network, Presets, Store, UnknownDomain,
    Webhook,
};
use crate::amount::Size;
use crate::check::{endpoint, or_default, secrets};
use crate::field::{At, Fields};
use crate::problem::{Level, Problems};
use crate::secret::{Environment, Secret};
use crate::setting::{Setting, open, read_text};

/// The most callers that a file may list.
const CALLERS_MAX: usize = 1_000;

/// Connections of callers: one is a task of some 20 KiB, so all are 80 MiB.
const CONNECTIONS_MAX: u64 = 4_096;

/// Memory for all bodies under way: a host that runs a gateway has it, and a thousand bodies of
/// 256 KiB fit into it.
const BODY_MEMORY: Size = Size(256 << 20);

/// The settings of tollgate.yaml, without the providers.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    pub(crate) presets: Presets,
}

/// Checks everything but the providers.
pub(crate) fn settings(
    fields: &Fields<'_>,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> Settings {
    let listen = fields
        .read("listen", problems)
        .unwrap_or_else(|| super::SocketAddr::from(([127, 0, 0, 1], 4290)));
    let state_dir = state_dir(environment);
    let unknown_domain = fields.read("unknown_domain", problems);
    let ledger_store = store(fields, "store", environment, problems)
        .unwrap_or_else(|| Store::Sqlite(state_dir.clone()));
    // One that all gateways of a ledger in Redis share.
    let of_ledger = Some(&ledger_store).filter(|store| matches!(store, Store::Redis(_)));
    let config = Config {
        listen,
        admin: admin(fields, environment, problems),
        resp: resp(fields, listen, problems),
        state_dir,
        postgres: or_default(fields, "postgres", problems),
        cache_store: store(fields, "cache_store", environment, problems)
            .or_else(|| redis_from_env(environment))
            .or_else(|| of_ledger.cloned()),
        store: ledger_store,
        cache_size: cache_size(fields, problems),
        guard_store: store(fields, "guard_store", environment, problems).unwrap_or(Store::Memory),
        nodes: nodes(fields, problems),
        connections_max: connections_max(fields, problems),
        body_memory: fields.read("body_memory", problems).unwrap_or(BODY_MEMORY),
        node_lease: node_lease(fields, problems),
        providers: Vec::new(),
        built_in: Vec::new(),
        intercept: or_default(fields, "intercept", problems),
        callers: callers(fields, environment, problems),
        env_prefix: env_prefix(fields, problems),
        // The default depends on every listen address, and those of providers are not known yet.
        unknown_domain: unknown_domain.unwrap_or(UnknownDomain::Refuse),
        limiting: or_default(fields, "limiting", problems),
        guards: guards(fields, problems),
        exempt_paths: paths(fields, problems),
        trusted_proxies: networks(fields, problems),
        scheduler: or_default(fields, "scheduler", problems),
        webhooks: webhooks(fields, environment, problems),
        log: or_default(fields, "log", problems),
        metrics: metrics(fields, environment, problems),
    };
    Settings {
        config,
        presets: or_default(fields, "presets", problems),
    }
}

/// The folder for everything that survives a restart: the one that the environment names, else the
/// usual state folder.
#[must_use]
pub fn state_dir(environment: &Environment<'_>) -> String {
    let env = |name: &str| (environment.env)(name).filter(|value| !value.is_empty());
    let in_state = || env("XDG_STATE_HOME").map(|folder| format!("{folder}/tollgate"));
    let in_home = || env("HOME").map(|folder| format!("{folder}/.local/state/tollgate"));
    env("TOLLGATE_STATE_DIR")
        .or_else(in_state)
        .or_else(in_home)
        .unwrap_or_else(|| "tollgate-state".to_owned())
}

/// Callers' connections; none at all would be a gateway for nobody.
fn connections_max(fields: &Fields<'_>, problems: &mut Problems) -> u64 {
    let max = fields.read("connections_max", problems);
    if max == Some(0)
        && let Some(at) = fields.get("connections_max")
    {
        problems.push(at.error("no caller could connect", "write at least 1"));
    }
    max.unwrap_or(CONNECTIONS_MAX)
}

fn cache_size(fields: &Fields<'_>, problems: &mut Problems) -> CacheSize {
    let sizes: CacheSize = or_default(fields, "cache_size", problems);
    let least = CacheSize::MIN;
    for (name, size) in [("memory", sizes.memory), ("disk", sizes.disk)] {
        if size < least
            && let Some(at) = fields.get("cache_size")
        {
            let what = format!("`{name}` is less than {least}, which would cache next to nothing");
            problems.push(at.error(
                &what,
                "write more, such as 64MiB; `cache: {ttl: 0s}` caches nothing",
            ));
        }
    }
    sizes
}

fn admin(fields: &Fields<'_>, environment: &Environment<'_>, problems: &mut Problems) -> Admin {
    let block = fields
        .get("admin")
        .and_then(|at| open(&at, ADMIN, problems));
    let listen = block
        .as_ref()
        .and_then(|block| block.read("listen", problems));
    let token = block
        .as_ref()
        .and_then(|block| block.get("token"))
        .and_then(|at| secrets::secret(&at, environment, problems));
    let listen = listen.unwrap_or_else(|| super::SocketAddr::from(([127, 0, 0, 1], 4291)));
    if token.is_none() && !listen.ip().is_loopback() {
        let at = block.map_or_else(|| fields.at.clone(), |block| block.at);
        problems.push(at.problem(
            Level::Note,
            "the admin address is open to other hosts and has no token, so one will be generated, stored with mode 0600 and printed once",
            "set `token: ${TOLLGATE_ADMIN_TOKEN}`",
        ));
    }
    Admin { listen, token }
}

fn resp(
    fields: &Fields<'_>,
    gateway: super::SocketAddr,
    problems: &mut Problems,
) -> Option<ListenOn> {
    let resp = fields.read::<Option<ListenOn>>("resp", problems).flatten();
    if resp == Some(ListenOn::Address(gateway))
        && gateway.port() != 0
        && let Some(at) = fields.get("resp")
    {
        let remedy = "choose another port, such as 127.0.0.1:6380";
        problems.push(at.error("the gateway listens here too", remedy));
    }
    resp
}

fn store(
    fields: &Fields<'_>,
    name: &str,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> Option<Store> {
    let at = fields.get(name)?;
    let text = at.text(problems)?.trim();
    let text = if text.starts_with("file:") {
        secrets::secret(&at, environment, problems)?
    } else {
        Secret::new(text.to_owned())
    };
    let store = Store::parse(text.expose())
        .map_err(|error| problems.push(at.error_from(&error)))
        .ok()?;
    let fits = match name {
        "guard_store" => matches!(store, Store::Memory | Store::Redis(_)),
        "cache_store" => !matches!(store, Store::Postgres(_)),
        _ => true,
    };
    if !fits {
        let remedy = match name {
            "guard_store" => "write `memory:` or `redis://…`",
            _ => "write `memory:` or `redis://…`",
        };
        problems.push(at.error("cannot be used for this", remedy));
    }
    Some(store)
}

/// S12: the document's REDIS_HOST, REDIS_PORT and REDIS_PASSWORD.
fn redis_from_env(environment: &Environment<'_>) -> Option<Store> {
    let env = |name: &str| (environment.env)(name).filter(|value| !value.is_empty());
    let host = env("REDIS_HOST")?;
    let port = env("REDIS_PORT").unwrap_or_else(|| "6379".to_owned());
    let password = env("REDIS_PASSWORD").map(|password| format!(":{}@", url_encode(&password)));
    let url = format!("redis://{}{host}:{port}", password.unwrap_or_default());
    Some(Store::Redis(Secret::new(url)))
}

/// A password with the escapes that a URL needs.
fn url_encode(text: &str) -> String {
    let mut whole = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            whole.push(char::from(byte));
        } else {
            whole.push_str(&format!("%{byte:02X}"));
        }
    }
    whole
}

/// A shorter lease lapses between two heartbeats of a busy machine, and its node counts as dead.
const NODE_LEASE_MIN: Span = Span::from_secs(1);

fn node_lease(fields: &Fields<'_>, problems: &mut Problems) -> Span {
    let lease = fields.read("node_lease", problems);
    let lease: Span = lease.unwrap_or(Span::from_secs(5));
    if lease < NODE_LEASE_MIN
        && let Some(at) = fields.get("node_lease")
    {
        problems.push(at.error(
            "is shorter than 1s",
            "write `1s` or longer: a node that is busy for a moment must not count as dead",
        ));
    }
    lease.max(NODE_LEASE_MIN)
}

fn nodes(fields: &Fields<'_>, problems: &mut Problems) -> u32 {
    let nodes: u32 = fields.read("nodes", problems).unwrap_or(1);
    if let (0, Some(at)) = (nodes, fields.get("nodes")) {
        problems.push(at.error(
            "must be 1 or more",
            "write the number of nodes that share the limits",
        ));
    }
    nodes.max(1)
}

fn env_prefix(fields: &Fields<'_>, problems: &mut Problems) -> String {
    let Some(at) = fields.get("env_prefix") else {
        return "TOLLGATE_".to_owned();
    };
    let read = |text: &str| {
        let plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        let fits = text.len() > 1 && text.len() <= 64 && text.ends_with('_');
        (fits && text.bytes().all(plain)).then(|| text.to_owned())
    };
    let what = "is not a prefix of variables";
    let remedy = "write capital letters with `_` at the end, such as `MYAPP_`";
    read_text(&at, problems, read, what, remedy).unwrap_or_default()
}

fn callers(
    fields: &Fields<'_>,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> Vec<Caller> {
    let Some(at) = fields.get("callers") else {
        return Vec::new();
    };
    let mut callers: Vec<Caller> = Vec::new();
    let entries = at.entries(problems);
    if entries.len() > CALLERS_MAX {
        problems.push(at.error("has more than 1000 callers", "join some"));
    }
    for (name, _, at) in entries.into_iter().take(CALLERS_MAX) {
        callers.extend(caller(name, &at, environment, problems));
    }
    let least = callers.iter().filter_map(|caller| caller.at_least);
    if least.map(|share| u64::from(share.0)).sum::<u64>() > u64::from(Ppm::ONE.0) {
        problems.push(at.error(
            "the shares of `at_least` are more than 100 % together",
            "lower some",
        ));
    }
    callers
}

fn caller(
    name: &str,
    at: &At<'_>,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> Option<Caller> {
    let fields = open(at, CALLER, problems)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
        problems.push(at.error(
            "a caller has a name that cannot be used",
            "use letters, digits, `-`, `_` and `.`, 64 at most",
        ));
    }
    let mut share = |name: &str| {
        let share: Ppm = fields.read(name, problems)?;
        if let (true, Some(at)) = (share == Ppm::ZERO || share > Ppm::ONE, fields.get(name)) {
            problems.push(at.error("is not between 0 and 1", "write `50%`"));
        }
        Some(share)
    };
    let (at_least, at_most) = (share("at_least"), share("at_most"));
    if at_least
        .zip(at_most)
        .is_some_and(|(least, most)| least > most)
    {
        problems.push(at.error("`at_least` is above `at_most`", "lower it"));
    }
    Some(Caller {
        name: name.to_owned(),
        priority: fields
            .read("priority", problems)
            .unwrap_or(Priority::Normal),
        at_least,
        at_most,
        token: fields
            .get("token")
            .and_then(|at| secrets::secret(&at, environment, problems)),
        guards: fields.read("guards", problems),
    })
}

fn paths(fields: &Fields<'_>, problems: &mut Problems) -> Vec<String> {
    let Some(at) = fields.get("exempt_paths") else {
        return vec!["/health".to_owned()];
    };
    let paths = Vec::<String>::read(&at, problems).unwrap_or_default();
    if paths.iter().any(|path| !path.starts_with('/')) {
        problems.push(at.error("a path does not begin with `/`", "write `/health`"));
    }
    paths
}

fn networks(fields: &Fields<'_>, problems: &mut Problems) -> Vec<Network> {
    let Some(at) = fields.get("trusted_proxies") else {
        return Vec::new();
    };
    let items = at.list().unwrap_or_else(|| vec![at]);
    let mut read = |at: &At<'_>| {
        let remedy = "write `10.0.0.0/8` or one address";
        read_text(at, problems, Network::parse, "is not a network", remedy)
    };
    items.iter().filter_map(&mut read).collect()
}

fn webhooks(
    fields: &Fields<'_>,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> Vec<Webhook> {
    let block = fields
        .get("alerts")
        .and_then(|at| open(&at, ALERTS, problems));
    let Some(list) = block.and_then(|block| block.get("webhooks")) else {
        return Vec::new();
    };
    let mut webhooks = Vec::new();
    for at in list.list().unwrap_or_else(|| vec![list]) {
        let Some(fields) = open(&at, WEBHOOK, problems) else {
            continue;
        };
        let secret = fields
            .get("secret")
            .and_then(|at| secrets::secret(&at, environment, problems));
        match fields.get("url") {
            Some(at) => {
                webhooks.extend(endpoint::url(&at, problems).map(|url| Webhook { url, secret }));
            }
            None => problems.push(at.error("`url` is missing", "write `url: https://…`")),
        }
    }
    webhooks
}

fn metrics(fields: &Fields<'_>, environment: &Environment<'_>, problems: &mut Problems) -> Metrics {
    let mut metrics = Metrics {
        prefix: "tollgate_".to_owned(),
        ndjson: None,
        every: Span::from_secs(10),
        token: None,
    };
    let block = fields
        .get("metrics")
        .and_then(|at| open(&at, METRICS, problems));
    let Some(block) = block else {
        return metrics;
    };
    if let Some(at) = block.get("prefix") {
        let read = |text: &str| {
            let plain =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            let begins = text
                .bytes()
                .next()
                .is_some_and(|byte| byte.is_ascii_lowercase());
            (begins && text.bytes().all(plain)).then(|| text.to_owned())
        };
        let remedy = "write lower-case letters, digits and `_`, such as `tollgate_`";
        let what = "is not a prefix of metric names";
        metrics.prefix = read_text(&at, problems, read, what, remedy).unwrap_or_default();
    }
    metrics.ndjson = block.read::<Option<String>>("ndjson", problems).flatten();
    metrics.every = block.read("every", problems).unwrap_or(metrics.every);
    metrics.token = block
        .get("token")
        .and_then(|at| secrets::secret(&at, environment, problems));
    metrics
}
