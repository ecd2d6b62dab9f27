//! Every field of a file is used by some crate, or listed as not used yet.

use std::fs;
use std::path::{Path, PathBuf};

use tollgate_config::check::PROVIDER;
use tollgate_config::config::CONFIG;
use tollgate_config::load::{CONFIG_NOT_USED_YET, PROVIDER_NOT_USED_YET};
use tollgate_config::shape::{Field, Shape};

/// The crates that may use a field.
const CRATES: [&str; 5] = ["core", "ledger", "tollgate", "server", "cli"];

/// Fields whose value has another name once it is checked, and where it is read.
const READ_AS: [(&str, &str); 46] = [
    ("alerts.warning", "self.warning"),
    ("alerts.rate_429_per_minute", "self.rate_429_per_minute"),
    ("alerts.webhooks[].url", "webhook.url"),
    ("alerts.webhooks[].secret", "webhook.secret"),
    ("methods", "provider.allows_method"),
    ("upload.spool", "settings.spool"),
    ("upload.min_rate", "settings.min_rate"),
    ("callers.NAME.priority", "caller.priority"),
    ("callers.NAME.at_least", "caller.at_least"),
    ("callers.NAME.at_most", "caller.at_most"),
    ("callers.NAME.token", "caller.token"),
    ("callers.NAME.guards", "caller.guards"),
    ("api_key", "provider.keys"),
    ("api_keys", "provider.keys"),
    ("auth.query", "Style::Query"),
    ("auth.header", "Style::Header"),
    ("auth.prefix", "Style::Header{name:own,prefix}"),
    ("auth.bearer", "Style::Bearer"),
    ("auth.basic", "Style::Basic"),
    ("cost.NAME.else", "cost.otherwise"),
    ("limits[].per", "limit.per"),
    ("limits[].reserve", "limit.reserve"),
    ("limits[].unit", "limit.unit"),
    ("concurrency.normal", "concurrency.rule"),
    ("entities.ttl", "provider.entity_ttl"),
    ("entities.dedup", "provider.entity_dedup"),
    ("off_peak.hours", "from_minute"),
    ("off_peak.timezone", ".zone"),
    ("off_peak.applies_to", ".applies_to"),
    ("cooldown.on", "matchself.on"),
    ("timeout.connect", "timeouts.connect"),
    ("log.file", "&log.file"),
    ("guards.NAME.limit", "guard.limit"),
    ("guards.NAME.max_pending", "task.max_pending"),
    ("guards.NAME.retry_delay", "rules.retry_delay"),
    ("guards.NAME.wait", "guard.task.wait"),
    ("guards.NAME.retries", "rules.retries"),
    ("guards.NAME.factor", "factor:rules.factor"),
    ("guards.NAME.period", "guard.period"),
    ("guards.NAME.burst", "guard.burst"),
    ("guards.NAME.by", "guard.by"),
    ("guards.NAME.shadow", "guard.shadow"),
    ("guards.NAME.key_prefix", "self.guard.key_prefix"),
    ("guards.NAME.on_store_loss", "self.guard.on_store_loss"),
    ("guards.NAME.match.path", "guard.matches.path"),
    ("guards.NAME.match.descriptor", "guard.matches.descriptor"),
];

/// Fields that end inside the configuration: they choose what is read, or are parts of a rule of
/// `core`, which counts by it.
const ENDS_IN_CONFIG: [&str; 25] = [
    "presets",
    "env_prefix",
    "preset",
    "tier",
    "acquire_only",
    "limit",
    "period",
    "algorithm",
    "limits[].name",
    "limits[].limit",
    "limits[].period",
    "limits[].algorithm",
    "limits[].burst",
    "limits[].timezone",
    "limits[].shadow",
    "limits[].headroom",
    "hold_until",
    "edge_margin",
    "counter_lag",
    "entities.strip",
    "entities.from",
    "entities.rules",
    "retry.jitter.additive",
    "cooldown.jitter.additive",
    "domain",
];

/// Paths of all fields without fields below.
fn leaves(fields: &[Field], above: &str, found: &mut Vec<String>) {
    for field in fields {
        let path = format!("{above}{}", field.name);
        let (below, under) = match &field.shape {
            // Their own table: it is looked at by itself.
            Shape::Either(_) if path == "providers" => (None, String::new()),
            Shape::Map(inner) => (inner.fields(), format!("{path}.NAME.")),
            Shape::List(inner) => (inner.fields(), format!("{path}[].")),
            shape => (shape.fields(), format!("{path}.")),
        };
        match below {
            Some(below) => leaves(below, &under, found),
            None => found.push(path),
        }
    }
}

fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path: PathBuf = entry.expect("an entry").path();
        let name = path.to_string_lossy().into_owned();
        if path.is_dir() {
            sources(&path, text);
        } else if name.ends_with(".rs") && !name.contains("test") {
            let whole = fs::read_to_string(&path).expect("a source");
            let lines = whole.lines().filter(|line| !line.trim().starts_with("//"));
            text.extend(lines.flat_map(|line| line.chars().filter(|one| !one.is_whitespace())));
        }
    }
}

fn unread(fields: &[Field], holder: &str, not_yet: &[&str], text: &str) -> Vec<String> {
    let mut paths = Vec::new();
    leaves(fields, "", &mut paths);
    let is_read = |path: &String| {
        let waits = |one: &&str| path == one || path.starts_with(&format!("{one}."));
        if not_yet.iter().any(waits) || ENDS_IN_CONFIG.contains(&path.as_str()) {
            return true;
        }
        let plain = path.replace("[]", "").replace(".NAME", "");
        let mut words = plain.rsplit('.');
        let last = words.next().unwrap_or_default();
        let needles = match (READ_AS.iter().find(|one| one.0 == path), words.next()) {
            (Some((_, needle)), _) => vec![(*needle).to_owned()],
            (None, Some(block)) => vec![format!("{block}.{last}"), format!("settings.{last}")],
            (None, None) => vec![format!("{holder}.{last}"), format!("plan.{last}")],
        };
        needles.iter().any(|needle| text.contains(needle))
    };
    paths.retain(|path| !is_read(path));
    paths
}

/// A field that is accepted and ignored is worse than one that is rejected: its user relies on it.
#[test]
fn every_field_is_used_or_listed_as_not_used_yet() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut text = String::new();
    for name in CRATES {
        sources(&crates.join(name).join("src"), &mut text);
    }
    let none: Vec<String> = Vec::new();
    assert_eq!(unread(CONFIG, "config", CONFIG_NOT_USED_YET, &text), none);
    assert_eq!(
        unread(PROVIDER, "provider", PROVIDER_NOT_USED_YET, &text),
        none
    );
}
