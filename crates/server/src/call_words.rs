//! The words that callers use for the options of a call, for every endpoint alike.
//!
//! Promises: one meaning per word, whether it comes in a header, in JSON, in a query or in a command.
//!
//! Never: writes an error; each endpoint names its own header or field.

use tollgate::path::Target;
pub(crate) use tollgate::path::is_caller_name as is_caller;
use tollgate_config::provider::Cost;
use tollgate_core::ask::Priority;

/// The largest cost: the largest number that JSON readers have exactly.
pub(crate) const COST_MAX: u64 = 1 << 53;

/// Every unit of a cost.
pub(crate) const UNITS: &str = "calls, requests, tokens, input_tokens, output_tokens, points, weight, \
                                request_units, orders, credits and bytes";

/// Every word for a priority.
pub(crate) const PRIORITIES: [&str; 8] = [
    "high",
    "normal",
    "low",
    "user",
    "webhook",
    "ui",
    "manual",
    "background",
];

/// Why costs cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CostsError {
    /// Not a known unit with a number from 1.
    Invalid,
    /// A unit is named twice.
    Repeated,
}

/// What the name of an entity must be.
pub(crate) const ENTITY_FORM: &str = "1 to 128 printable characters of ASCII without spaces";

/// What the name of a caller must be.
pub(crate) const CALLER_FORM: &str = "1 to 64 characters out of letters, digits and `-_.:`";

/// A name of an entity that is safe in a log and in a label.
pub(crate) fn is_entity(name: &str) -> bool {
    let is_graphic = |byte: u8| byte.is_ascii_graphic();
    (1..=128).contains(&name.len()) && name.bytes().all(is_graphic)
}

/// A priority by its name or an alias.
pub(crate) fn priority(word: &str) -> Option<Priority> {
    match word.to_ascii_lowercase().as_str() {
        "high" | "user" | "webhook" | "ui" | "manual" => Some(Priority::High),
        "normal" => Some(Priority::Normal),
        "low" | "background" => Some(Priority::Low),
        _ => None,
    }
}

/// `tokens=1200, points=3`; a bare number is calls.
pub(crate) fn costs(text: &str) -> Result<Vec<(String, u64)>, CostsError> {
    costs_by(text, cost)
}

/// As [`costs`], with other bounds of an amount.
pub(crate) fn costs_by(
    text: &str,
    cost: fn(&str, u64) -> Option<(String, u64)>,
) -> Result<Vec<(String, u64)>, CostsError> {
    let one = |part: &str| {
        let (unit, amount) = part.split_once('=').unwrap_or(("calls", part));
        let amount = amount.trim().parse().ok()?;
        cost(unit.trim(), amount)
    };
    let costs: Option<Vec<(String, u64)>> = text.split(',').map(|part| one(part.trim())).collect();
    distinct(costs.ok_or(CostsError::Invalid)?)
}

/// An amount of a unit, at least one.
pub(crate) fn cost(unit: &str, amount: u64) -> Option<(String, u64)> {
    real_cost(unit, amount).filter(|(_, amount)| *amount > 0)
}

/// A unit that is none, among those of these costs; without control characters, at most 64 letters.
pub(crate) fn unknown_unit<'a>(mut units: impl Iterator<Item = &'a str>) -> Option<String> {
    let unknown = units.find(|unit| real_cost(unit, 1).is_none())?;
    let shown = unknown.chars().filter(|letter| !letter.is_control());
    Some(shown.take(64).collect())
}

/// As [`unknown_unit`], of costs that are written as a text.
pub(crate) fn unknown_unit_in(text: &str) -> Option<String> {
    let named = text.split(',').filter_map(|part| part.split_once('='));
    unknown_unit(named.map(|(unit, _)| unit.trim()))
}

/// What a call has really cost: perhaps nothing.
pub(crate) fn real_cost(unit: &str, amount: u64) -> Option<(String, u64)> {
    let unit = Cost::unit_of(&unit.to_ascii_lowercase())?;
    (amount <= COST_MAX).then(|| (unit.to_owned(), amount))
}

/// An absolute URL of `http` or `https`.
pub(crate) fn url(url: &str) -> Option<Target> {
    Target::from_url(&url.parse().ok()?)
}

/// Each unit once: two names of one unit would count as either.
pub(crate) fn distinct(costs: Vec<(String, u64)>) -> Result<Vec<(String, u64)>, CostsError> {
    let mut seen = costs.iter().enumerate();
    let is_repeated = seen.any(|(at, (unit, _))| {
        let mut before = costs.iter().take(at);
        before.any(|(other, _)| other == unit)
    });
    if is_repeated {
        return Err(CostsError::Repeated);
    }
    Ok(costs)
}
