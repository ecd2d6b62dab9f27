//! The IETF's `RateLimit` and `RateLimit-Policy` fields.
//!
//! Promises: both grammars in use are read: the structured list of draft-08 and later
//! (`"burst";r=50;t=30`) and the dictionary of draft-07 (`limit=100, remaining=50, reset=30`). A
//! field that is no structured field is ignored completely; of a valid field only the items that
//! break the rules are ignored.
//!
//! Never: makes a window of a policy alone; a policy does not say how much remains.

use super::classify::{ParsedResponse, printable};
use super::headers::ITEMS_MAX;
use super::wait_time::within_horizon;
use super::window::{Window, WindowUnit};
use crate::time::Span;
use sfv::{BareItem, Dictionary, Item, List, ListEntry, Parser};

/// A policy, which completes the item of the same name.
struct Policy {
    name: String,
    unit: WindowUnit,
    quota: u64,
    window: Option<Span>,
}

/// Reads both fields and joins them by name.
pub(super) fn windows(
    rate: &str,
    policy: &str,
    parsed: &ParsedResponse<'_>,
    found: &mut Vec<Window>,
) {
    let Some(field) = parsed.headers.joined(rate) else {
        return;
    };
    let list: Option<List> = Parser::new(&field).parse().ok();
    let Some(list) = list else {
        found.extend(dictionary(&field));
        return;
    };
    let policies = policies(policy, parsed);
    for item in list.iter().take(ITEMS_MAX).filter_map(entry_item) {
        let Some(name) = identifier(&item.bare_item) else {
            continue;
        };
        let (Some(Some(remaining)), Ok(reset)) =
            (integer_param(item, "r").ok(), integer_param(item, "t"))
        else {
            continue;
        };
        let policy = policies.iter().find(|policy| policy.name == name);
        found.push(Window {
            name: printable(&name),
            unit: policy.map(|policy| policy.unit).unwrap_or_default(),
            limit: policy.map(|policy| policy.quota),
            remaining: Some(remaining),
            reset: reset.and_then(|seconds| within_horizon(Span::from_secs(seconds))),
            period: policy.and_then(|policy| policy.window),
        });
    }
}

fn policies(header: &str, parsed: &ParsedResponse<'_>) -> Vec<Policy> {
    let field = parsed.headers.joined(header).unwrap_or_default();
    let list: List = Parser::new(&field).parse().unwrap_or_default();
    let policy = |item: &Item| {
        let unit = match item.params.get("qu").map(identifier) {
            None => WindowUnit::Requests,
            Some(name) => match name?.as_str() {
                "requests" => WindowUnit::Requests,
                "content-bytes" => WindowUnit::Bytes,
                "concurrent-requests" => WindowUnit::Concurrent,
                other => WindowUnit::from_name(other),
            },
        };
        Some(Policy {
            name: identifier(&item.bare_item)?,
            unit,
            quota: integer_param(item, "q").ok()??,
            window: integer_param(item, "w").ok()?.map(Span::from_secs),
        })
    };
    list.iter()
        .take(ITEMS_MAX)
        .filter_map(entry_item)
        .filter_map(policy)
        .collect()
}

/// Draft-07: `limit=100, remaining=50, reset=30`.
fn dictionary(field: &str) -> Option<Window> {
    let members: Dictionary = Parser::new(field).parse().ok()?;
    let number = |name: &str| {
        members
            .get(name)
            .and_then(entry_item)
            .and_then(|item| u64::try_from(i64::from(item.bare_item.as_integer()?)).ok())
    };
    let window = Window {
        limit: number("limit"),
        remaining: number("remaining"),
        reset: number("reset").and_then(|seconds| within_horizon(Span::from_secs(seconds))),
        ..Window::default()
    };
    window.complete(None)
}

fn entry_item(entry: &ListEntry) -> Option<&Item> {
    match entry {
        ListEntry::Item(item) => Some(item),
        ListEntry::InnerList(_) => None,
    }
}

/// The name of a policy: a string, or a token as some drafts allow.
fn identifier(item: &BareItem) -> Option<String> {
    let token = || item.as_token().map(|token| token.as_str().to_owned());
    item.as_string()
        .map(|name| name.as_str().to_owned())
        .or_else(token)
}

/// A parameter that, if present, must be a non-negative integer.
fn integer_param(item: &Item, name: &str) -> Result<Option<u64>, Malformed> {
    let Some(value) = item.params.get(name) else {
        return Ok(None);
    };
    let integer = value.as_integer().map(i64::from);
    integer
        .and_then(|number| u64::try_from(number).ok())
        .map(Some)
        .ok_or(Malformed)
}

/// A parameter that breaks the draft's rules; its item is ignored.
struct Malformed;
