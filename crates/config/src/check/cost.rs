//! Units, costs and calls at a time.
//!
//! Promises: every unit of a limit or a cost is one that the ledger counts.
//!
//! Never: guesses a cost. An unknown cost is held as 1.

use tollgate_core::ask::CostUnit;
use tollgate_core::limit::Rule;

use super::table::{CONCURRENCY, COST};
use crate::field::Fields;
use crate::problem::Problems;
use crate::provider::{Concurrency, Cost};
use crate::setting::{Setting, open};

/// Units and what the ledger counts them as. Providers have their own names for points.
const UNITS: [(&str, CostUnit); 11] = [
    ("calls", CostUnit::Calls),
    ("requests", CostUnit::Calls),
    ("tokens", CostUnit::Tokens),
    ("input_tokens", CostUnit::Tokens),
    ("output_tokens", CostUnit::Tokens),
    ("points", CostUnit::Points),
    ("weight", CostUnit::Points),
    ("request_units", CostUnit::Points),
    ("orders", CostUnit::Points),
    ("bytes", CostUnit::Bytes),
    ("credits", CostUnit::Points),
];

impl Cost {
    /// Every unit that a cost may have.
    pub fn units() -> impl Iterator<Item = &'static str> {
        UNITS.iter().map(|(name, _)| *name)
    }

    /// The unit of this name; calls have one name only.
    #[must_use]
    pub fn unit_of(name: &str) -> Option<&'static str> {
        let (name, unit) = UNITS.iter().find(|(known, _)| *known == name)?;
        Some(if *unit == CostUnit::Calls {
            "calls"
        } else {
            name
        })
    }
}

/// The unit of a limit: the provider's name for it, and what the ledger counts.
pub(super) fn unit(fields: &Fields<'_>, problems: &mut Problems) -> Option<(String, CostUnit)> {
    let Some(at) = fields.get("unit") else {
        return Some(("calls".to_owned(), CostUnit::Calls));
    };
    let text = at.text(problems)?;
    let found = UNITS.iter().find(|(name, _)| *name == text);
    let Some((name, unit)) = found else {
        let names: Vec<&str> = Cost::units().collect();
        problems.push(crate::setting::not_a_word(&at, text, &names));
        return None;
    };
    let name = if *unit == CostUnit::Calls {
        "calls"
    } else {
        name
    };
    Some((name.to_owned(), *unit))
}

/// What calls cost in units other than calls.
pub(super) fn costs(fields: &Fields<'_>, problems: &mut Problems) -> Vec<Cost> {
    let Some(at) = fields.get("cost") else {
        return Vec::new();
    };
    let mut costs = Vec::new();
    for (unit, _, at) in at.entries(problems) {
        if !UNITS
            .iter()
            .any(|(name, counts)| *name == unit && *counts != CostUnit::Calls)
        {
            let names: Vec<&str> = UNITS
                .iter()
                .map(|(name, _)| *name)
                .filter(|name| *name != "calls")
                .collect();
            problems.push(crate::setting::not_a_word(&at, unit, &names));
            continue;
        }
        let fixed = at.node.text().is_some();
        let block = if fixed {
            None
        } else {
            open(&at, COST, problems)
        };
        let cost = Cost {
            unit: unit.to_owned(),
            before: block
                .as_ref()
                .and_then(|block| block.read("before", problems))
                .unwrap_or_default(),
            otherwise: match &block {
                Some(block) => block.read("else", problems).unwrap_or(1),
                None => u64::read(&at, problems).unwrap_or(1),
            },
            prompt: block
                .as_ref()
                .and_then(|block| block.read("prompt", problems))
                .unwrap_or_default(),
            after: block
                .as_ref()
                .and_then(|block| block.read("after", problems))
                .unwrap_or_default(),
        };
        costs.push(cost);
    }
    costs
}

/// `concurrency: 4`, or `{normal: 4, low: 2}`.
pub(super) fn concurrency(fields: &Fields<'_>, problems: &mut Problems) -> Option<Concurrency> {
    let at = fields.get("concurrency")?;
    let block = open(&at, CONCURRENCY, problems)?;
    let Some(place) = block.get("normal") else {
        problems.push(at.error(
            "`normal` is missing",
            "write `concurrency: 4`, or `{normal: 4, low: 2}`",
        ));
        return None;
    };
    let normal = Option::<u64>::read(&place, problems)??;
    let low = block.read("low", problems).unwrap_or(normal);
    if low > normal || low == 0 {
        problems.push(at.error(
            "`low` is not between 1 and `normal`",
            "lower `low` or raise `normal`",
        ));
    }
    let rule = Rule::in_flight(normal)
        .map_err(|error| problems.push(place.error_from(&error)))
        .ok()?;
    Some(Concurrency { rule, low })
}
