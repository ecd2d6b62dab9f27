//! From written to obeyed: a file, the preset under it, and every problem at once.
//!
//! Promises: what is written in the file wins over the tier, the tier over the preset. A file that
//! names no preset but whose domain is known gets that preset's way of attaching the key and its
//! dialect, never its limits. Either a provider comes out or at least one error does.
//!
//! Never: stops at the first problem. Never shows a value in a problem.

mod auth;
mod cost;
mod entity;
mod layers;
mod limits;
mod place;
mod plan;
mod secrets;
pub(crate) mod table;
pub use table::{FIELDS, PROVIDER};

use tollgate_core::alert::AlertSettings;
use tollgate_core::cooldown::CooldownSettings;
use tollgate_core::degrade::DegradeSettings;
use tollgate_core::domain::Domain;
use tollgate_core::retry::RetrySettings;
use tollgate_core::time::Span;

use crate::field::{At, Fields};
use crate::preset::Preset;
use crate::problem::{Level, Problems};
use crate::provider::{Auth, Limit, Provider, Style};
use crate::raw::{self, Entry, Node, Value};
use crate::secret::World;
use crate::setting::Setting;
use crate::settings::{Degrade, Health, Timeout};

/// Names that the gateway and the API use themselves.
const RESERVED: [&str; 5] = ["health", "ready", "metrics", "v1", "api"];

/// First words of settings: `TOLLGATE_SLEEP_MIN` could be read as `min` of a provider `sleep`.
const FIRST_WORDS: [&str; 27] = [
    "mode",
    "window",
    "min",
    "confirm",
    "p",
    "n",
    "s",
    "throttle",
    "sleep",
    "cooldown",
    "retry",
    "probe",
    "ramp",
    "auto",
    "cache",
    "when",
    "failure",
    "reset",
    "success",
    "rate",
    "bucket",
    "concurrency",
    "config",
    "store",
    "admin",
    "state",
    "limiting",
];

/// How long a call that was given up may still arrive, at least.
const LATE_ARRIVAL: Span = Span::from_secs(5);

/// Connections to one upstream, if nothing else is said: what browsers and proxies allow at most.
const CONNECTIONS: u64 = 32;

/// A provider file that was read but not yet checked.
#[derive(Clone, Debug)]
pub struct Draft {
    file: String,
    tree: Node,
}

/// What came of a check.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The provider, if there was no error.
    pub provider: Option<Provider>,
    /// Every error, warning and note.
    pub problems: Problems,
}

impl Draft {
    /// Reads a file. `file` is its name as the user gave it.
    pub fn read(file: &str, text: &str) -> Result<Draft, Problems> {
        let tree = raw::read(file, text).map_err(|problem| {
            let mut problems = Problems::default();
            problems.push(problem);
            problems
        })?;
        Ok(Draft {
            file: file.to_owned(),
            tree,
        })
    }

    /// Sets one field over what is written, as `--set` and the environment do: `origin` names who
    /// said so, `path` is `health.sleep_max`.
    pub fn set(&mut self, path: &str, value: &str, origin: &str) -> Result<(), Problems> {
        let mut node = Draft::read(origin, value)?.tree;
        for name in path.rsplit('.') {
            let entry = Entry {
                name: name.to_owned(),
                place: node.place.clone(),
                node,
            };
            node = Node {
                place: entry.place.clone(),
                value: Value::Map(vec![entry]),
            };
        }
        layers::spell_out(&mut self.tree);
        layers::spell_out(&mut node);
        self.tree.lay_over(node);
        Ok(())
    }

    /// Checks everything.
    #[must_use]
    pub fn check(&self, world: &World<'_>) -> Checked {
        let mut problems = Problems::default();
        let root = At {
            node: &self.tree,
            path: String::new(),
        };
        Fields::open(&root, FIELDS, &mut problems);
        let (tree, preset) = layers::with_preset(&root, &mut problems);
        let fields = Fields {
            at: At {
                node: &tree,
                path: String::new(),
            },
        };
        let provider = provider(&fields, &self.stem(), preset, world, &mut problems);
        problems.sort();
        Checked {
            provider: (!problems.has_errors()).then_some(provider),
            problems,
        }
    }

    /// The name of the file without folder and ending.
    fn stem(&self) -> String {
        let name = self.file.rsplit(['/', '\\']).next().unwrap_or_default();
        name.split('.')
            .next()
            .unwrap_or_default()
            .to_ascii_lowercase()
    }
}

/// A field, or its default.
fn or_default<T: Setting + Default>(fields: &Fields<'_>, name: &str, problems: &mut Problems) -> T {
    fields.read(name, problems).unwrap_or_default()
}

fn provider(
    fields: &Fields<'_>,
    stem: &str,
    preset: Option<&'static Preset>,
    world: &World<'_>,
    problems: &mut Problems,
) -> Provider {
    let name = place::name(fields, stem, problems);
    let domains = place::domains(fields, problems);
    let keys = secrets::keys(fields, world, problems);
    let auth = auth::auth(fields, world, problems);
    warn_if_unattached(fields, &auth, problems);
    let limits = limits::limits(fields, problems);
    let degrade = degrade(fields, &limits, problems);
    let found = entity::entities(fields, &limits, problems);
    let health = or_default::<Health>(fields, "health", problems).0;
    let learn: bool = or_default(fields, "learn", problems);
    warn_if_idle(fields, &domains, limits.is_empty() && !learn, problems);
    Provider {
        // Without a name there is an error, so nobody sees this provider.
        name: name.unwrap_or_default(),
        preset: preset.map(|preset| preset.name),
        dialect: fields
            .read("dialect", problems)
            .unwrap_or_else(|| "generic".to_owned()),
        domains,
        listen: place::listen(fields, problems),
        upstream: place::upstream(fields, "upstream", problems),
        enabled: fields.read("enabled", problems).unwrap_or(true),
        learn,
        keys,
        headers: secrets::headers(fields, world, problems),
        auth,
        limits,
        costs: cost::costs(fields, problems),
        concurrency: cost::concurrency(fields, problems),
        connections: fields.read("connections", problems).unwrap_or(CONNECTIONS),
        late_arrival: fields
            .read("late_arrival", problems)
            .unwrap_or(LATE_ARRIVAL),
        free_status: place::statuses(fields, problems),
        entities: found.entities,
        entity_ttl: found.ttl,
        entity_dedup: found.dedup,
        cache: or_default(fields, "cache", problems),
        dedup: or_default(fields, "dedup", problems),
        merge: or_default(fields, "merge", problems),
        queue: or_default(fields, "queue", problems),
        off_peak: place::off_peak(fields, problems),
        retry: retry(fields, health.retry_after_floor, problems),
        cooldown: cooldown(fields, health.retry_after_floor, problems),
        degrade,
        alerts: alerts(fields, problems),
        timeouts: or_default::<Timeout>(fields, "timeout", problems).0,
        rewrite_links: fields.read("rewrite_links", problems).unwrap_or(true),
        guards: or_default(fields, "guards", problems),
        on_store_loss: or_default(fields, "on_store_loss", problems),
        health,
    }
}

/// H1: a key that goes nowhere is told.
fn warn_if_unattached(fields: &Fields<'_>, auth: &Auth, problems: &mut Problems) {
    if let Some(at) = fields.get("api_key").or_else(|| fields.get("api_keys"))
        && matches!(auth.style, Style::Nothing)
    {
        problems.push(at.problem(
            Level::Warning,
            "the key is not attached to calls, because it is not known how",
            "add `auth: {query: NAME}`, `auth: {header: NAME}` or `auth: {bearer: true}`",
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
    let smallest = calls.map(|limit| limit.rule.most()).min();
    let settings = degrade.settings(smallest);
    at.found(&settings.check(smallest.unwrap_or(u64::MAX)), problems);
    Some(settings)
}

/// How a failed call is tried again. What a `Retry-After` of 0 means is said once, under `health`.
fn retry(fields: &Fields<'_>, floor: Span, problems: &mut Problems) -> RetrySettings {
    let mut settings: RetrySettings = or_default(fields, "retry", problems);
    settings.retry_after_floor = floor;
    if let Some(at) = fields.get("retry") {
        at.found(&settings.check(), problems);
    }
    settings
}

/// How long a scope rests after a refusal.
fn cooldown(fields: &Fields<'_>, floor: Span, problems: &mut Problems) -> CooldownSettings {
    let mut settings: CooldownSettings = or_default(fields, "cooldown", problems);
    settings.retry_after_floor = floor;
    if let Some(at) = fields.get("cooldown") {
        at.found(&settings.check(), problems);
    }
    settings
}

/// When to raise an alert.
fn alerts(fields: &Fields<'_>, problems: &mut Problems) -> AlertSettings {
    let settings: AlertSettings = or_default(fields, "alerts", problems);
    if let Some(at) = fields.get("alerts") {
        at.found(&settings.check(), problems);
    }
    settings
}

fn warn_if_idle(fields: &Fields<'_>, domains: &[Domain], unlimited: bool, problems: &mut Problems) {
    let acquire_only = or_default::<bool>(fields, "acquire_only", problems);
    if domains.is_empty() && fields.get("upstream").is_none() && !acquire_only {
        problems.push(fields.at.problem(
            Level::Warning,
            "there is no domain, so only calls that name this provider are governed",
            "add `domain: api.example.org`, or `acquire_only: true` if that is meant",
        ));
    }
    if unlimited && fields.get("concurrency").is_none() {
        problems.push(fields.at.problem(
            Level::Warning,
            "there is no limit, so calls are only slowed down when the provider refuses",
            "add `limit:` and `period:`, or `learn: true` if that is meant",
        ));
    }
}
