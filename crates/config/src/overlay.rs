//! Overlays: settings of the environment, flags and commands over a file (A14).
//!
//! Promises: every threshold has one name everywhere, `health.sleep_max` as `SLEEP_MAX`; a bare
//! number is seconds where a duration is expected. An unknown name is a problem that suggests the
//! nearest known one.
//!
//! Never: accepts a key on a command line, where other users of the machine can read it (H3).

use std::sync::LazyLock;

use crate::amount;
use crate::check::{PROVIDER, layers};
use crate::origin::{Origin, may_be_secret};
use crate::problem::{Level, Place, Problem, Problems, nearest};
use crate::raw::{self, Entry, Node, Value};
use crate::secret::Environment;
use crate::shape::{self, Field, Shape};

/// Blocks whose fields can be set by environment: numbers that people tune.
const BLOCKS: [&str; 6] = ["retry", "cooldown", "degrade", "alerts", "queue", "timeout"];

/// A setting with a name in the environment.
#[derive(Clone, Debug)]
pub struct SettingKey {
    /// Its name in the environment, without prefix: `SLEEP_MAX`.
    pub name: String,
    /// The field: `health.sleep_max`.
    pub path: String,
    /// What it is for.
    pub doc: &'static str,
    target: Target,
    shape: Shape,
}

/// What an overlay changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Field,
    /// `limit` of the first token bucket.
    RateBase,
    /// `burst` of the first token bucket.
    BucketCap,
}

static KEYS: LazyLock<Vec<SettingKey>> = LazyLock::new(|| {
    let special = |name: &str, path: &str, doc, target| SettingKey {
        name: name.to_owned(),
        path: path.to_owned(),
        doc,
        target,
        shape: Shape::Integer,
    };
    let mut keys = vec![
        special(
            "RATE_BASE",
            "limits",
            "the first token bucket's limit",
            Target::RateBase,
        ),
        special(
            "BUCKET_CAP",
            "limits",
            "the first token bucket's burst",
            Target::BucketCap,
        ),
        special(
            "CONCURRENCY",
            "concurrency.normal",
            "how many calls may run at a time",
            Target::Field,
        ),
    ];
    flatten("health", "", &mut keys);
    for block in BLOCKS {
        flatten(block, block, &mut keys);
    }
    keys
});

fn flatten(path: &str, prefix: &str, keys: &mut Vec<SettingKey>) {
    let fields = shape::find(PROVIDER, path).and_then(|field| field.shape.fields());
    for field in fields.unwrap_or_default() {
        let path = format!("{path}.{}", field.name);
        let name = match prefix {
            "" => field.name.to_owned(),
            prefix => format!("{prefix}_{}", field.name),
        };
        let is_block = matches!(field.shape, Shape::Block(_));
        if is_block {
            flatten(&path, &name, keys);
            continue;
        }
        let name = match path.as_str() {
            // COOLDOWN_FACTOR is a setting of `health`, by its document.
            "cooldown.factor" => "COOLDOWN_BACKOFF_FACTOR".to_owned(),
            _ => name.to_ascii_uppercase(),
        };
        keys.push(SettingKey {
            name,
            path,
            doc: field.meaning(),
            target: Target::Field,
            shape: field.shape,
        });
    }
}

/// Every setting that has a name in the environment.
#[must_use]
pub fn keys() -> &'static [SettingKey] {
    &KEYS
}

/// First words of settings and of the program's own variables. A provider of such a name would be
/// ambiguous (`TOLLGATE_SLEEP_MIN` as `MIN` of a provider `sleep`).
pub(crate) fn first_words() -> &'static [String] {
    static WORDS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let own = ["config", "store", "admin", "state", "limiting"];
        let first = |name: &str| {
            name.split('_')
                .next()
                .unwrap_or_default()
                .to_ascii_lowercase()
        };
        let mut words: Vec<String> = keys().iter().map(|key| first(&key.name)).collect();
        words.extend(own.map(str::to_owned));
        words.sort();
        words.dedup();
        words
    });
    &WORDS
}

/// One value that overrides a file.
#[derive(Clone)]
pub(crate) struct Overlay {
    target: Target,
    path: String,
    node: Node,
}

impl std::fmt::Debug for Overlay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} = {:?}", self.path, self.node)
    }
}

impl SettingKey {
    /// This key with a value.
    pub(crate) fn overlay(&self, text: &str, place: &Place) -> Overlay {
        Overlay {
            target: self.target,
            path: self.path.clone(),
            node: Node {
                place: place.clone(),
                value: Value::Text(normalize(text.trim(), &self.shape)),
            },
        }
    }

    /// Whether it applies in this health mode: health settings apply to adaptive providers only,
    /// those of the breaker to breakers too.
    pub(crate) fn fits(&self, mode: &str) -> bool {
        const OF_BREAKERS: [&str; 3] = ["FAILURE_THRESHOLD", "RESET_TIMEOUT", "SUCCESS_THRESHOLD"];
        match mode {
            "adaptive" => true,
            "breaker" => {
                !self.path.starts_with("health.") || OF_BREAKERS.contains(&self.name.as_str())
            }
            _ => !self.path.starts_with("health."),
        }
    }
}

/// The overlays of variables with this prefix, for all providers or for one.
pub(crate) fn from_environment(
    prefix: &str,
    provider: Option<&str>,
    mode: &str,
    environment: &Environment<'_>,
) -> Vec<Overlay> {
    let prefix = match provider {
        Some(provider) => format!("{prefix}{}_", env_name(provider)),
        None => prefix.to_owned(),
    };
    let fitting = keys()
        .iter()
        .filter(|key| provider.is_some() || key.fits(mode));
    let set = fitting.filter_map(|key| {
        let name = format!("{prefix}{}", key.name);
        let text = (environment.env)(&name).filter(|text| !text.trim().is_empty())?;
        Some(key.overlay(&text, &Origin::environment(&name)))
    });
    set.collect()
}

/// A provider's name as part of a variable.
pub(crate) fn env_name(provider: &str) -> String {
    provider.to_ascii_uppercase().replace('-', "_")
}

/// The setting of a `KEY`, whatever its spelling: `SLEEP_MAX`, `sleep-max` and `health.sleep_max`
/// are the same. An unknown name is a problem that suggests the nearest one.
pub fn canonical_key(key: &str) -> Result<String, Problem> {
    let found = find(key, &Origin::set())?;
    Ok(match found {
        Found::Key(key) => match key.target {
            Target::Field => key.path.clone(),
            // Both are in `limits`, and each is a separate setting.
            Target::RateBase | Target::BucketCap => key.name.to_ascii_lowercase(),
        },
        Found::Field(_, path) => path,
    })
}

/// The setting that a name resolves to.
enum Found {
    Key(&'static SettingKey),
    Field(&'static Field, String),
}

fn find(key: &str, place: &Place) -> Result<Found, Problem> {
    let plain = key.trim().to_ascii_lowercase().replace('-', "_");
    if let Some(key) = keys()
        .iter()
        .find(|key| key.name.eq_ignore_ascii_case(&plain))
    {
        return Ok(Found::Key(key));
    }
    if let Some(field) = shape::find(PROVIDER, &plain) {
        return Ok(Found::Field(field, plain));
    }
    let short: Vec<String> = keys()
        .iter()
        .map(|key| key.name.to_ascii_lowercase())
        .collect();
    let all: Vec<&str> = keys()
        .iter()
        .map(|key| key.path.as_str())
        .chain(short.iter().map(String::as_str))
        .chain(PROVIDER.iter().map(|field| field.name))
        .collect();
    let remedy = match nearest(&plain, &all) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "write a field such as `queue.max`, or a threshold such as `sleep_max`".to_owned(),
    };
    Err(problem_at(
        "there is no setting of this name",
        &remedy,
        place,
    ))
}

fn problem_at(what: &str, remedy: &str, place: &Place) -> Problem {
    Problem {
        level: Level::Error,
        place: place.clone(),
        path: String::new(),
        what: what.to_owned(),
        remedy: remedy.to_owned(),
    }
}

/// `KEY` of `--set`, `tollgate set` and the API: a name as in the environment, or a field's path.
pub(crate) fn resolve(key: &str, text: &str, place: &Place) -> Result<Overlay, Problem> {
    let (field, path) = match find(key, place)? {
        Found::Key(key) => return Ok(key.overlay(text, place)),
        Found::Field(field, path) => (field, path),
    };
    let elsewhere = text.starts_with("file:") || (text.starts_with("${") && text.ends_with('}'));
    if may_be_secret(&field.shape) && !elsewhere {
        return Err(problem_at(
            "a key does not belong on a command line, where others can read it",
            "write `${VARIABLE}` or `file:/path`",
            place,
        ));
    }
    parse_value(field, &path, text, place)
}

fn parse_value(field: &Field, path: &str, text: &str, place: &Place) -> Result<Overlay, Problem> {
    let text = normalize(text.trim(), &field.shape);
    let mut node = raw::read(&place.file, &text)?;
    set_place(&mut node, place);
    Ok(Overlay {
        target: Target::Field,
        path: path.to_owned(),
        node,
    })
}

/// Sets the place of a node and of everything below it.
fn set_place(node: &mut Node, place: &Place) {
    node.place = place.clone();
    match &mut node.value {
        Value::Null | Value::Text(_) => {}
        Value::List(items) => items.iter_mut().for_each(|item| set_place(item, place)),
        Value::Map(entries) => {
            for entry in entries {
                entry.place = place.clone();
                set_place(&mut entry.node, place);
            }
        }
    }
}

/// Normalises a value: a bare number is seconds, `35.0` is a whole number, words are lower case.
fn normalize(text: &str, shape: &Shape) -> String {
    match shape {
        Shape::Duration | Shape::Minutes if amount::millionths(text).is_some() => {
            format!("{text}s")
        }
        Shape::Integer => match text.split_once('.') {
            Some((whole, part)) if part.bytes().all(|digit| digit == b'0') => whole.to_owned(),
            _ => text.to_owned(),
        },
        Shape::OrOff(inner) => normalize(text, inner),
        Shape::Either(shapes) => shapes
            .iter()
            .fold(text.to_owned(), |text, shape| normalize(&text, shape)),
        Shape::Words(words) => {
            let lower = text.to_ascii_lowercase();
            if words.contains(&lower.as_str()) {
                lower
            } else {
                text.to_owned()
            }
        }
        _ => text.to_owned(),
    }
}

impl Overlay {
    /// Applies it to a tree that includes the preset. `false` if there is nothing to change: only a
    /// provider with a token bucket has a rate to set.
    #[must_use]
    pub(crate) fn apply(&self, tree: &mut Node) -> bool {
        match self.target {
            Target::Field => {
                layers::set_path(tree, &self.path, self.node.clone());
                true
            }
            Target::RateBase => self.set_bucket_field(tree, "limit"),
            Target::BucketCap => self.set_bucket_field(tree, "burst"),
        }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.node.place
    }

    fn set_bucket_field(&self, tree: &mut Node, name: &str) -> bool {
        layers::expand_short_limit(tree);
        let Value::Map(entries) = &mut tree.value else {
            return false;
        };
        let limits = entries.iter_mut().find(|entry| entry.name == "limits");
        let Some(Value::List(items)) = limits.map(|entry| &mut entry.node.value) else {
            return false;
        };
        let is_bucket =
            |node: &&mut Node| node.get("algorithm").and_then(Node::text) == Some("token-bucket");
        let Some(item) = items.iter_mut().find(is_bucket) else {
            return false;
        };
        let entry = Entry {
            name: name.to_owned(),
            place: self.node.place.clone(),
            node: self.node.clone(),
        };
        item.merge(Node {
            place: item.place.clone(),
            value: Value::Map(vec![entry]),
        });
        true
    }
}

/// Warns that an overlay had no effect.
pub(crate) fn warn_unused(overlay: &Overlay, problems: &mut Problems) {
    problems.push(Problem {
        level: Level::Warning,
        place: overlay.place().clone(),
        path: overlay.path.clone(),
        what: "has no effect, because the provider has no token bucket".to_owned(),
        remedy: "set `limits` in its file".to_owned(),
    });
}
