//! One rule of envoyproxy/ratelimit as a guard.
//!
//! | there | here |
//! |---|---|
//! | `requests_per_unit`, `unit` | `limit`, `period`; a week, month or year is a bucket that fills by the day |
//! | a key without a value, `text*` | `*`, `text*`: each value counts by itself; with `share_threshold` all together |
//! | `shadow_mode` | `shadow` |
//! | `unlimited`, or no limit at all | a guard in shadow: the most specific guard applies, and this one never rejects |
//! | `requests_per_unit: 0` | 1 per day, with a warning: a guard grants at least one |
//!
//! Promises: what differs is a warning with its place.
//!
//! Never: writes a text unquoted.

use tollgate_config::raw::Node;
use tollgate_config::{Level, Problems};

use super::envoy_ratelimit::{flag, problem, text};
use super::yaml_text::quoted;

/// The guard of the queues of tasks; a rule of this name would change what they do.
const RESERVED: &str = "task";

/// The longest name of a guard.
const NAME_MAX: usize = 64;

/// The limit of a guard that only exempts. It is in shadow, so the number does not matter.
const UNLIMITED: u32 = 1_000_000;

/// A node of the tree.
pub(super) struct RuleSource<'a> {
    pub(super) node: &'a Node,
    pub(super) limit: Option<&'a Node>,
    /// Keys and values from the top.
    pub(super) path: &'a [(String, String)],
}

/// A rule.
#[derive(Debug)]
pub(super) struct EnvoyRule {
    /// As the file names it.
    name: Option<String>,
    limit: u32,
    period: &'static str,
    /// If it is not the limit.
    burst: Option<u32>,
    is_shared: bool,
    is_shadow: bool,
    descriptor: Vec<(String, String)>,
}

/// Limit, period and burst.
type Rate = (u32, &'static str, Option<u32>);

impl EnvoyRule {
    /// The rule, if it can be represented, and what differs.
    pub(super) fn read(source: &RuleSource<'_>) -> (Option<EnvoyRule>, Problems) {
        let mut problems = Problems::default();
        let mut tell = |level: Level, what: &str, remedy: &str| {
            problems.push(problem(level, &source.node.place, what, remedy));
        };
        source.tell_what_differs(&mut tell);
        let can_be_matched = source.can_be_matched(&mut tell);
        let rate = source.rate(&mut tell);
        let is_unlimited = source.is_unlimited();
        let rule = rate.filter(|_| can_be_matched).map(|rate| EnvoyRule {
            name: source
                .limit
                .and_then(|limit| text(limit, "name"))
                .map(str::to_owned),
            limit: rate.0,
            period: rate.1,
            burst: rate.2,
            is_shared: source.has("share_threshold"),
            is_shadow: is_unlimited || source.has("shadow_mode"),
            descriptor: source.path.to_vec(),
        });
        (rule, problems)
    }

    /// Its own name, or that of its keys and values, as guards may be named.
    pub(super) fn name(&self) -> String {
        let parts = self.descriptor.iter().flat_map(|(key, value)| {
            let value = value.trim_end_matches('*');
            [key.as_str(), value]
        });
        let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
        let whole = self.name.clone().unwrap_or_else(|| parts.join("-"));
        let plain = whole.chars().map(|letter| match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' => letter,
            _ => '_',
        });
        // Room for a number behind it.
        let name: String = plain.take(NAME_MAX - 6).collect();
        match name.as_str() {
            "" => "rule".to_owned(),
            RESERVED => format!("envoy-{RESERVED}"),
            _ => name,
        }
    }

    /// The guard in one line.
    pub(super) fn to_yaml(&self) -> String {
        let mut text = format!("{{ limit: {}, period: {}", self.limit, self.period);
        if let Some(burst) = self.burst {
            text.push_str(&format!(", burst: {burst}"));
        }
        text.push_str(if self.is_shared {
            ", by: global"
        } else {
            ", by: name"
        });
        if self.is_shadow {
            text.push_str(", shadow: true");
        }
        let entry = |(key, value): &(String, String)| format!("{}: {}", quoted(key), quoted(value));
        let entries: Vec<String> = self.descriptor.iter().map(entry).collect();
        text.push_str(&format!(
            ", match: {{ descriptor: {{ {} }} }} }}",
            entries.join(", ")
        ));
        text
    }

    pub(super) fn has_same_match(&self, other: &EnvoyRule) -> bool {
        let sorted = |rule: &EnvoyRule| {
            let mut entries = rule.descriptor.clone();
            entries.sort();
            entries
        };
        sorted(self) == sorted(other)
    }
}

impl RuleSource<'_> {
    fn has(&self, field: &str) -> bool {
        flag(self.node, field) == Some(true)
    }

    fn is_unlimited(&self) -> bool {
        self.limit
            .is_none_or(|limit| flag(limit, "unlimited") == Some(true))
    }

    fn tell_what_differs(&self, tell: &mut impl FnMut(Level, &str, &str)) {
        if self
            .limit
            .is_some_and(|limit| limit.get("replaces").is_some())
        {
            tell(
                Level::Warning,
                "`replaces` is not imported: both limits apply",
                "let Envoy send one descriptor in place of two",
            );
        }
        if self.has("quota_mode") {
            tell(
                Level::Warning,
                "`quota_mode` is not imported: the limit rejects",
                "add `shadow: true` if it must not",
            );
        }
        let wildcards = self.path.iter().filter(|(_, value)| value.ends_with('*'));
        if self.has("share_threshold") && wildcards.count() > 1 {
            tell(
                Level::Warning,
                "`share_threshold` makes all values of all keys count together",
                "write `by: name` if each value of the other keys counts by itself",
            );
        }
    }

    /// A guard has each key once, and `${NAME}` would be a variable.
    fn can_be_matched(&self, tell: &mut impl FnMut(Level, &str, &str)) -> bool {
        let key = |at: usize| self.path.get(at).map(|(key, _)| key);
        let last = self.path.len().saturating_sub(1);
        let is_repeated = (0..last).any(|at| (at + 1..=last).any(|other| key(at) == key(other)));
        let is_variable = self
            .path
            .iter()
            .any(|(key, value)| key.contains("${") || value.contains("${"));
        if is_repeated {
            tell(
                Level::Warning,
                "left out: a key stands twice in its descriptors, and a guard has each key once",
                "give one of them another `descriptor_key` in Envoy",
            );
        }
        if is_variable {
            tell(
                Level::Warning,
                "left out: a key or value has `${`, which would be a variable here",
                "let Envoy send another text",
            );
        }
        !is_repeated && !is_variable
    }

    fn rate(&self, tell: &mut impl FnMut(Level, &str, &str)) -> Option<Rate> {
        let Some(limit) = self.limit.filter(|_| !self.is_unlimited()) else {
            return Some((UNLIMITED, "1s", None));
        };
        let requests = text(limit, "requests_per_unit").unwrap_or("0");
        let Ok(requests) = requests.parse::<u32>() else {
            tell(
                Level::Error,
                "`requests_per_unit` is no number",
                "write a number from 0",
            );
            return None;
        };
        let unit = text(limit, "unit").unwrap_or_default().to_ascii_lowercase();
        let days = match unit.as_str() {
            "second" => return Some(self.at_least_one(requests, "1s", tell)),
            "minute" => return Some(self.at_least_one(requests, "1m", tell)),
            "hour" => return Some(self.at_least_one(requests, "1h", tell)),
            "day" => return Some(self.at_least_one(requests, "1d", tell)),
            "week" => 7,
            "month" => 30,
            "year" => 365,
            _ => {
                tell(
                    Level::Error,
                    "`unit` is none of second, minute, hour, day, week, month, year",
                    "write one of them, or `unlimited: true`",
                );
                return None;
            }
        };
        per_day(requests, days, tell)
    }

    /// A guard grants at least one.
    fn at_least_one(
        &self,
        requests: u32,
        period: &'static str,
        tell: &mut impl FnMut(Level, &str, &str),
    ) -> Rate {
        if requests > 0 {
            return (requests, period, None);
        }
        tell(
            Level::Warning,
            "a limit of 0 becomes 1 per day",
            "block such requests in Envoy, with its RBAC filter or a route",
        );
        (1, "1d", None)
    }
}

/// A bucket for a long unit, which fills by the day.
fn per_day(requests: u32, days: u32, tell: &mut impl FnMut(Level, &str, &str)) -> Option<Rate> {
    if requests < days {
        tell(
            Level::Warning,
            "left out: less than one request per day, and the longest period of a guard is a day",
            "use a limit of a provider (`algorithm: calendar`)",
        );
        return None;
    }
    if !requests.is_multiple_of(days) {
        tell(
            Level::Warning,
            "a limit of a week, month or year fills by the day; the number per day is rounded down",
            "raise `limit` by one if it must not be less",
        );
    }
    Some((requests / days, "1d", Some(requests)))
}
