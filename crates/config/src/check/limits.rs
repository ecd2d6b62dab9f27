//! Limits, costs and concurrency: from text and blocks to rules of `core`.
//!
//! Promises: every limit that comes out is a rule; names are unique, because errors and metrics use
//! them. `limit` and `period` alone are a sliding window, the safest choice when nothing is known.
//!
//! Never: rounds a limit up.

use jiff::tz::TimeZone;
use tollgate_core::limit::{Rule, RuleError};
use tollgate_core::time::Span;

use super::cost::unit;
use super::rule_spec::{Period, RuleSpec, RuleSpecError, SharedSettings};
use super::table::LIMIT;
use crate::amount::{self, Part};
use crate::field::{At, Fields};
use crate::problem::{Level, Problems};
use crate::provider::{Limit, Per};
use crate::setting::{Setting, open};
use crate::settings::Algorithm;

/// Every limit of a provider.
pub(super) fn limits(fields: &Fields<'_>, problems: &mut Problems) -> Vec<Limit> {
    let shared = SharedSettings {
        hold: super::or_default(fields, "hold_until", problems),
        counter_lag: fields.read("counter_lag", problems).unwrap_or(Span::ZERO),
        edge_margin: fields.read("edge_margin", problems),
    };
    let mut limits = Vec::new();
    let short = ["limit", "period", "algorithm"]
        .iter()
        .find_map(|name| fields.get(name));
    match (short, fields.get("limits")) {
        (Some(at), Some(_)) => problems.push(at.error(
            "`limit` and `limits` are two forms of one setting",
            "keep one of them",
        )),
        (Some(_), None) => limits.extend(limit_block(&fields.at, fields, &shared, problems)),
        (None, Some(at)) => match at.list() {
            Some(items) => {
                for item in items {
                    limits.extend(limit_item(&item, &shared, problems));
                }
            }
            None => problems.push(at.error("must be a list", "begin each limit with `- `")),
        },
        (None, None) => {}
    }
    make_names_unique(fields, &mut limits, problems);
    limits
}

/// `- 35/1s`, or a block.
fn limit_item(at: &At<'_>, shared: &SharedSettings, problems: &mut Problems) -> Option<Limit> {
    let Some(text) = at.node.text() else {
        let fields = open(at, LIMIT, problems)?;
        return limit_block(at, &fields, shared, problems);
    };
    let parts = text.split_once('/').and_then(|(limit, period)| {
        Some((
            amount::number(limit.trim())?,
            Period::of_limit(period.trim())?,
        ))
    });
    let Some((limit, period)) = parts else {
        problems.push(at.error(
            "is not a limit",
            "write `35/1s`, or a block with `limit:` and `period:`",
        ));
        return None;
    };
    let plan = RuleSpec {
        limit,
        period,
        algorithm: None,
        burst: None,
        zone: TimeZone::UTC,
    };
    let rule = plan
        .rule(shared)
        .map_err(|error| problems.push(at.error_from(&error)))
        .ok()?;
    Some(Limit {
        name: text.trim().to_owned(),
        rule,
        per: Per::Provider,
        reserve: 0,
        unit: "calls".to_owned(),
    })
}

/// A block with `limit` and `period`: an item of `limits`, or the short form at the top.
fn limit_block(
    at: &At<'_>,
    fields: &Fields<'_>,
    shared: &SharedSettings,
    problems: &mut Problems,
) -> Option<Limit> {
    require_both(at, fields, problems);
    let top = at.path.is_empty();
    let limit: Option<u64> = fields.read("limit", problems);
    let period: Option<Period> = fields.read("period", problems);
    let algorithm: Option<Algorithm> = fields.read("algorithm", problems);
    let (burst, zone) = if top {
        (None, Some(TimeZone::UTC))
    } else {
        burst_and_zone(fields, algorithm, problems)
    };
    let plan = RuleSpec {
        limit: limit?,
        period: period?,
        algorithm,
        burst,
        zone: zone?,
    };
    let rule = plan.rule(shared).map_err(|error| {
        let place = match error {
            RuleSpecError::Rule(RuleError::Limit) => "limit",
            RuleSpecError::Rule(RuleError::Burst) => "burst",
            RuleSpecError::Rule(_) | RuleSpecError::Window | RuleSpecError::CalendarOnly => {
                "period"
            }
        };
        let at = fields.get(place).unwrap_or_else(|| at.clone());
        problems.push(at.error_from(&error));
    });
    let written = fields
        .get("period")
        .and_then(|at| at.node.text())
        .unwrap_or_default();
    let name = format!("{}/{}", plan.limit, written.trim());
    note_window_edges(at, fields, algorithm, problems);
    if top {
        let rule = rule.ok()?;
        return Some(Limit {
            name,
            rule,
            per: Per::Provider,
            reserve: 0,
            unit: "calls".to_owned(),
        });
    }
    finish(fields, rule.ok()?, name, problems)
}

fn require_both(at: &At<'_>, fields: &Fields<'_>, problems: &mut Problems) {
    for (needed, other) in [("limit", "period"), ("period", "limit")] {
        if fields.get(needed).is_none() {
            let what = format!("`{needed}` is missing");
            let remedy = format!(
                "write `{needed}:` in addition to `{other}:`, such as `limit: 40` and `period: 10s`"
            );
            problems.push(
                fields
                    .get(other)
                    .unwrap_or_else(|| at.clone())
                    .error(&what, &remedy),
            );
        }
    }
}

fn burst_and_zone(
    fields: &Fields<'_>,
    algorithm: Option<Algorithm>,
    problems: &mut Problems,
) -> (Option<u64>, Option<TimeZone>) {
    let burst = fields.read("burst", problems);
    if let (Some(at), true) = (fields.get("burst"), algorithm != Some(Algorithm::Bucket)) {
        problems.push(at.error(
            "only a token bucket has a burst",
            "add `algorithm: token-bucket`, or use `reserve`",
        ));
    }
    let Some(at) = fields.get("timezone") else {
        return (burst, Some(TimeZone::UTC));
    };
    if algorithm != Some(Algorithm::Calendar) {
        problems.push(at.error(
            "only a calendar limit has a time zone",
            "add `algorithm: calendar`",
        ));
    }
    (burst, super::endpoint::zone(&at, problems))
}

/// The rest of a block: unit, headroom, reserve, name.
fn finish(fields: &Fields<'_>, rule: Rule, name: String, problems: &mut Problems) -> Option<Limit> {
    let (unit, counts) = unit(fields, problems)?;
    let whole = rule.limit();
    let mut rule = rule
        .unit(counts)
        .shadow(super::or_default(fields, "shadow", problems));
    if let Some(at) = fields.get("headroom") {
        let headroom = Part::read(&at, problems)?;
        rule = rule
            .headroom(headroom.of(whole))
            .map_err(|error| problems.push(at.error_from(&error)))
            .ok()?;
    }
    let mut reserve = 0;
    if let Some(at) = fields.get("reserve") {
        reserve = Part::read(&at, problems)?.of(whole);
        if reserve >= rule.max_cost() {
            problems.push(at.error(
                "takes the whole limit, so only high-priority calls would ever go",
                "leave at least 1 to others",
            ));
        }
    }
    Some(Limit {
        name: fields.read("name", problems).unwrap_or(name),
        rule,
        per: super::or_default(fields, "per", problems),
        reserve,
        unit,
    })
}

/// Notes what a fixed window guarantees, where a user chose it; presets choose it only for
/// providers that count this way themselves.
fn note_window_edges(
    at: &At<'_>,
    fields: &Fields<'_>,
    algorithm: Option<Algorithm>,
    problems: &mut Problems,
) {
    let built_in = at.node.place.file.starts_with("preset ");
    let place = fields.get("algorithm").unwrap_or_else(|| at.clone());
    if algorithm == Some(Algorithm::Fixed)
        && !built_in
        && !place.node.place.file.starts_with("preset ")
    {
        problems.push(place.problem(
            Level::Note,
            "a fixed window is exact only where the provider's window opens with the first call; elsewhere it allows up to twice the limit around an edge",
            "use `sliding-window` if that is not known",
        ));
    }
}

/// Errors and metrics name a limit, so no two may have one name.
fn make_names_unique(fields: &Fields<'_>, limits: &mut [Limit], problems: &mut Problems) {
    for at in 1..limits.len() {
        let (before, rest) = limits.split_at_mut(at);
        let Some(limit) = rest.first_mut() else {
            return;
        };
        let is_taken = |name: &str| before.iter().any(|other| other.name == name);
        if !is_taken(&limit.name) {
            continue;
        }
        let explicit = fields
            .get("limits")
            .and_then(|list| list.list()?.get(at)?.node.get("name").cloned());
        if let Some(node) = explicit {
            let at = At {
                node: &node,
                path: format!("limits[{at}].name"),
            };
            problems.push(at.error("two limits have this name", "give each its own"));
            continue;
        }
        let plain = limit.name.clone();
        let apart = (2..)
            .map(|count| format!("{plain} ({count})"))
            .find(|name| !is_taken(name));
        limit.name = apart.unwrap_or(plain);
    }
}
