//! Checks a provider file with its preset, and reports every problem at once.
//!
//! Promises: the file takes precedence over the tier, the tier over the preset. A file that names
//! no preset but a known domain gets that preset's auth method and dialect, never its limits. The
//! result is either a provider or at least one error.
//!
//! Never: stops at the first problem. Never shows a value in a problem.

mod auth;
mod cost;
mod entity;
mod cache;
pub(crate) mod layers;
mod limits;
mod connections;
pub(crate) mod endpoint;
mod rule_spec;
pub(crate) mod secrets;
pub(crate) mod table;
pub use table::{FIELDS, PROVIDER};

use tollgate_core::alert::AlertSettings;
use tollgate_core::cooldown::CooldownSettings;
use tollgate_core::degrade::DegradeSettings;
use tollgate_core::domain::Domain;
use tollgate_core::retry::RetrySettings;
use tollgate_core::time::Span;

use crate::expand;
use crate::field::{At, Fields};
use crate::origin::{EffectiveValue, Origin, effective_values};
use crate::overlay::{self, Overlay};
use crate::preset::Preset;
use crate::problem::{Level, Place, Problems, nearest};
use crate::provider::{Auth, AuthStyle, DIALECTS, Limit, Provider, learned_limits};
use crate::raw::{self, Node};
use crate::secret::{Environment, Secret};
use crate::setting::Setting;
use crate::settings::{Degrade, Health, Timeout};

/// Names that the gateway and the API use themselves.
const RESERVED: [&str; 5] = ["health", "ready", "metrics", "v1", "api"];

/// How long an abandoned call may still arrive, at least.
const LATE_ARRIVAL: Span = Span::from_secs(5);

/// How long a request takes from its last byte to the provider's limiter, at least: several
/// retransmissions on the slowest of usual networks.
const ARRIVE_WITHIN: Span = Span::from_secs(2);

/// A provider file that was read but not yet checked.
#[derive(Clone, Debug)]
pub struct ProviderFile {
    stem: String,
    tree: Node,
    env_prefix: Option<String>,
    overlays: Vec<Overlay>,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The provider, if there was no error.
    pub provider: Option<Provider>,
    /// Every error, warning and note.
    pub problems: Problems,
    /// Every effective value, and who set it.
    pub values: Vec<EffectiveValue>,
    pub(crate) places: Places,
}

/// The places of fields that are compared with those of other providers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    pub(crate) name: Option<Place>,
    pub(crate) domains: Vec<Place>,
    pub(crate) listen: Option<Place>,
    pub(crate) on_store_loss: Option<Place>,
}

impl Checked {
    /// The result for a file that could not be read.
    #[must_use]
    pub fn rejected(problems: Problems) -> Checked {
        Checked {
            provider: None,
            problems,
            values: Vec::new(),
            places: Places::default(),
        }
    }
}

impl ProviderFile {
    /// Reads a file. `file` is its name as the user gave it.
    pub fn read(file: &str, text: &str) -> Result<ProviderFile, Problems> {
        let tree = raw::read(file, text).map_err(Problems::from)?;
        // The name of the file without folder and ending.
        let name = file.rsplit(['/', '\\']).next().unwrap_or_default();
        let stem = name.split('.').next().unwrap_or_default();
        Ok(ProviderFile::inline(&stem.to_ascii_lowercase(), tree))
    }

    /// A provider inside another file.
    pub(crate) fn inline(stem: &str, tree: Node) -> ProviderFile {
        ProviderFile {
            stem: stem.to_owned(),
            tree,
            env_prefix: None,
            overlays: Vec::new(),
        }
    }

    /// Overrides one field, as `--set` does: `key` is `health.sleep_max` or `SLEEP_MAX`, `origin`
    /// names who set it.
    pub fn set(&mut self, key: &str, value: &str, origin: &str) -> Result<(), Problems> {
        let overlay = overlay::resolve(key, value, &Place::whole(origin))?;
        self.overlays.push(overlay);
        Ok(())
    }

    /// Lets environment variables of this prefix override the file.
    #[must_use]
    pub fn with_environment(mut self, prefix: &str) -> ProviderFile {
        self.env_prefix = Some(prefix.to_owned());
        self
    }

    pub(crate) fn tree(&self) -> &Node {
        &self.tree
    }

    /// The provider's name, as far as it is known before the check.
    pub(crate) fn name(&self) -> &str {
        let written = self.tree.get("name").and_then(Node::text);
        written.map_or(self.stem.as_str(), str::trim)
    }

    /// Checks everything.
    #[must_use]
    pub fn check(&self, environment: &Environment<'_>) -> Checked {
        let mut problems = Problems::default();
        let mut own = self.tree.clone();
        expand::expand_variables(&mut own, PROVIDER, environment, &mut problems);
        let root = At {
            node: &own,
            path: String::new(),
        };
        Fields::open(&root, FIELDS, &mut problems);
        let (mut tree, preset) = layers::with_preset(&root, &mut problems);
        self.apply_overlays(&mut tree, environment, &mut problems);
        let fields = Fields {
            at: At {
                node: &tree,
                path: String::new(),
            },
        };
        let provider = provider(&fields, &self.stem, preset, environment, &mut problems);
        problems.sort();
        Checked {
            provider: (!problems.has_errors()).then_some(provider),
            problems,
            values: effective_values(&tree, PROVIDER),
            places: places(&fields),
        }
    }

    /// Applies the environment for all, then for this provider, then other overrides.
    fn apply_overlays(
        &self,
        tree: &mut Node,
        environment: &Environment<'_>,
        problems: &mut Problems,
    ) {
        if let Some(prefix) = &self.env_prefix {
            let mode = tree.get("health").and_then(|health| health.get("mode"));
            let mode = mode.and_then(Node::text).unwrap_or("adaptive").to_owned();
            for overlay in overlay::from_environment(prefix, None, &mode, environment) {
                // A rate for all providers does not apply to one without a token bucket.
                let _changed = overlay.apply(tree);
            }
            for overlay in overlay::from_environment(prefix, Some(self.name()), &mode, environment)
            {
                if !overlay.apply(tree) {
                    overlay::warn_unused(&overlay, problems);
                }
            }
        }
        for overlay in &self.overlays {
            if !overlay.apply(tree) {
                overlay::warn_unused(overlay, problems);
            }
        }
    }
}

fn places(fields: &Fields<'_>) -> Places {
    let of = |name: &str| fields.get(name).map(|at| at.node.place.clone());
    let hosts = ["domain", "domains"]
        .into_iter()
        .filter_map(|name| fields.get(name));
    let each = hosts.flat_map(|at| at.list().unwrap_or_else(|| vec![at]));
    Places {
        name: of("name"),
        domains: each.map(|at| at.node.place.clone()).collect(),
        listen: of("listen"),
        on_store_loss: of("on_store_loss"),
    }
}

/// A field, or its default.
pub(crate) fn or_default<T: Setting + Default>(
    fields: &Fields<'_>,
    name: &str,
    problems: &mut Problems,
) -> T {
    fields.read(name, problems).unwrap_or_default()
}

fn provider(
    fields: &Fields<'_>,
    stem: &str,
    preset: Option<&'static Preset>,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> Provider {
    let name = endpoint::name(fields, stem, problems);
    let domains = endpoint::domains(fields, problems);
    let keys = secrets::keys(fields, environment, problems);
    let auth = auth::auth(fields, environment, problems);
    warn_if_unattached(fields, &auth, problems);
    warn_if_login_lacks_key(fields, (&auth, &keys), problems);
    let limits = limits::limits(fields, problems);
    let degrade = degrade(fields, &limits, problems);
    let found = entity::entities(fields, &limits, problems);
    let cache = cache::cache(fields, &found.ttl, problems);
    let health = or_default::<Health>(fields, "health", problems).0;
    let learn: bool = or_default(fields, "learn", problems);
    let timeouts = or_default::<Timeout>(fields, "timeout", problems).0;
    let (connections, connections_may_grow) =
        connections::connections(fields, &limits, timeouts.first_byte, problems);
    warn_without_domain(fields, preset, &domains, problems);
    let dialect = dialect(fields, problems);
    if !learn || learned_limits(&dialect).is_empty() {
        warn_if_unlimited(fields, preset, (&limits, learn), problems);
    }
    Provider {
        // Without a name there is an error, so this provider is never returned.
        name: name.unwrap_or_default(),
        preset: preset.map(|preset| preset.name),
        dialect,
        domains,
        own_domains: endpoint::own_domains(fields),
        listen: endpoint::listen(fields, problems),
        upstream: endpoint::upstream(fields, "upstream", problems),
        enabled: fields.read("enabled", problems).unwrap_or(true),
        learn,
        inject_usage: or_default(fields, "inject_usage", problems),
        keys,
        headers: secrets::headers(fields, environment, problems),
        auth,
        withholds_keys: secrets::are_withheld(fields),
        limits,
        costs: cost::costs(fields, problems),
        concurrency: cost::concurrency(fields, problems),
        connections,
        connections_may_grow,
        arrive_within: arrive_within(fields, problems),
        late_arrival: late_arrival(fields, problems),
        free_status: endpoint::statuses(fields, problems),
        entities: found.entities,
        entity_ttl: found.ttl,
        entity_dedup: found.dedup,
        cache,
        dedup: or_default(fields, "dedup", problems),
        merge: or_default(fields, "merge", problems),
        queue: or_default(fields, "queue", problems),
        off_peak: endpoint::off_peak(fields, problems),
        retry: retry(fields, health.retry_after_floor, problems),
        cooldown: cooldown(fields, health.retry_after_floor, problems),
        degrade,
        alerts: alerts(fields, problems),
        timeouts,
        cookies: or_default(fields, "cookies", problems),
        upload: or_default(fields, "upload", problems),
        methods: endpoint::methods(fields, problems),
        rewrite_links: fields.read("rewrite_links", problems).unwrap_or(true),
        guards: or_default(fields, "guards", problems),
        on_store_loss: or_default(fields, "on_store_loss", problems),
        health,
    }
}

/// Without any time a call would count as arrived before it has left.
fn arrive_within(fields: &Fields<'_>, problems: &mut Problems) -> Span {
    let written = fields.read("arrive_within", problems);
    if let (Some(Span::ZERO), Some(at)) = (written, fields.get("arrive_within")) {
        problems.push(at.error(
            "must be longer than nothing",
            "write `2s`, or `hold_until: send` for a limit that counts calls as they leave",
        ));
    }
    written.unwrap_or(ARRIVE_WITHIN)
}

fn late_arrival(fields: &Fields<'_>, problems: &mut Problems) -> Span {
    let written = fields.read("late_arrival", problems);
    written.unwrap_or(LATE_ARRIVAL)
}

/// How the provider reports limits: a dialect that `core` knows.
fn dialect(fields: &Fields<'_>, problems: &mut Problems) -> String {
    let Some(at) = fields.get("dialect") else {
        return "generic".to_owned();
    };
    let name = at.text(problems).unwrap_or_default().trim();
    if DIALECTS.get(name).is_none() {
        let names: Vec<&str> = DIALECTS.names().collect();
        let remedy = match nearest(name, &names) {
            Some(name) => format!("did you mean `{name}`?"),
            None => "remove the line, or write the name of a preset".to_owned(),
        };
        problems.push(at.error("there is no dialect of this name", &remedy));
    }
    name.to_owned()
}

/// H1: warns of a key that is not attached to calls.
fn warn_if_unattached(fields: &Fields<'_>, auth: &Auth, problems: &mut Problems) {
    if let Some(at) = fields.get("api_key").or_else(|| fields.get("api_keys"))
        && matches!(auth.style, AuthStyle::None)
    {
        problems.push(at.problem(
            Level::Warning,
            "the key is not attached to calls, because no way to attach it is known",
            "add `auth: {query: NAME}`, `auth: {header: NAME}` or `auth: {bearer: true}`",
        ));
    }
}

/// A login that posts a key and has none gets no token: calls without a token of their caller are rejected.
fn warn_if_login_lacks_key(
    fields: &Fields<'_>,
    (auth, keys): (&Auth, &[Secret]),
    problems: &mut Problems,
) {
    let AuthStyle::Login(login) = &auth.style else {
        return;
    };
    let Some(at) = fields.get("auth") else { return };
    // A preset without a key is for callers that bring tokens of their own.
    let is_preset = matches!(Origin::of(&at.node.place), Origin::Preset(_));
    if keys.is_empty() && !is_preset && login.body.expose().contains("{api_key}") {
        problems.push(at.problem(
            Level::Warning,
            "the login posts `{api_key}`, and there is no key: calls without a token of their caller are rejected",
            "add `api_key: \"${NAME}\"`",
        ));
    }
}

/// Degrade mode that begins at or above a limit would never end.
fn degrade(
    fields: &Fields<'_>,
    limits: &[Limit],
    problems: &mut Problems,
) -> Option<DegradeSettings> {
    let at = fields.get("degrade")?;
    let degrade = Option::<Degrade>::read(&at, problems)??;
    let calls = limits.iter().filter(|limit| limit.unit == "calls");
    let smallest = calls.map(|limit| limit.rule.max_cost()).min();
    let settings = degrade.settings(smallest);
    at.add_core_problems(&settings.check(smallest.unwrap_or(u64::MAX)), problems);
    Some(settings)
}

/// How a failed call is retried. The meaning of a `Retry-After` of 0 is set once, under `health`.
fn retry(fields: &Fields<'_>, floor: Span, problems: &mut Problems) -> RetrySettings {
    let mut settings: RetrySettings = or_default(fields, "retry", problems);
    settings.retry_after_floor = floor;
    if let Some(at) = fields.get("retry") {
        at.add_core_problems(&settings.check(), problems);
    }
    settings
}

/// How long a scope cools down after a 429.
fn cooldown(fields: &Fields<'_>, floor: Span, problems: &mut Problems) -> CooldownSettings {
    let mut settings: CooldownSettings = or_default(fields, "cooldown", problems);
    settings.retry_after_floor = floor;
    if let Some(at) = fields.get("cooldown") {
        at.add_core_problems(&settings.check(), problems);
    }
    settings
}

/// When to raise an alert.
fn alerts(fields: &Fields<'_>, problems: &mut Problems) -> AlertSettings {
    let settings: AlertSettings = or_default(fields, "alerts", problems);
    if let Some(at) = fields.get("alerts") {
        at.add_core_problems(&settings.check(), problems);
    }
    settings
}

/// Whether the file names a preset. If that preset is unknown, its fields are not reported as
/// missing.
fn names_preset(fields: &Fields<'_>) -> bool {
    let named = fields.get("preset").and_then(|at| at.node.text());
    named.is_some_and(|name| name != "none")
}

fn warn_without_domain(
    fields: &Fields<'_>,
    preset: Option<&'static Preset>,
    domains: &[Domain],
    problems: &mut Problems,
) {
    if preset.is_none() && names_preset(fields) {
        return; // it names one that does not exist, which is reported
    }
    let acquire_only = or_default::<bool>(fields, "acquire_only", problems);
    if domains.is_empty() && fields.get("upstream").is_none() && !acquire_only {
        problems.push(fields.at.problem(
            Level::Warning,
            "there is no domain, so only calls that name this provider are governed",
            "add `domain: api.example.org`, or `acquire_only: true` if that is meant",
        ));
    }
}

/// A limit that could not be read is already an error; a limit that is learned from responses is one. A preset by itself is not warned of: a provider that uses it is.
fn warn_if_unlimited(
    fields: &Fields<'_>,
    preset: Option<&'static Preset>,
    (limits, learn): (&[Limit], bool),
    problems: &mut Problems,
) {
    if preset.is_none() && names_preset(fields) {
        return; // it names one that does not exist, which is reported
    }
    let is_set = |name: &&str| fields.get(name).is_some();
    let silent = !["limit", "period", "limits", "concurrency"]
        .iter()
        .any(is_set);
    let is_preset = matches!(Origin::of(&fields.at.node.place), Origin::Preset(_));
    if !silent || !limits.is_empty() || (learn && is_preset) {
        return;
    }
    let (what, remedy) = match (learn, preset) {
        (true, Some(preset)) => (
            "there is no limit: the provider reports its limits only in responses, and its dialect names none to learn, so calls slow down only after a 429",
            format!(
                "add the `limits:` of your plan; `tollgate provider show {}` shows how",
                preset.name
            ),
        ),
        (true, None) => (
            "there is no limit: the dialect names none to learn, so calls slow down only after a 429",
            "add the `limits:` of your plan, or the `dialect:` of a provider that states them"
                .to_owned(),
        ),
        (false, _) => (
            "there is no limit, so calls slow down only after a 429",
            "add `limit:` and `period:`".to_owned(),
        ),
    };
    problems.push(fields.at.problem(Level::Warning, what, &remedy));
}
