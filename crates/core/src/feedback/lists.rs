//! Windows packed into one header, each in a vendor's own format.
//!
//! Promises: an entry that does not follow its grammar is dropped; the other entries stay.
//!
//! Never: reads more than [`ITEMS_MAX`] entries of one header.

use super::classify::{ParsedResponse, printable};
use super::headers::{ITEMS_MAX, items};
use super::json::Json;
use super::number::Decimal;
use super::wait_time::{Clocks, TimeUnit};
use super::window::{Window, WindowUnit, count, wait_of};
use crate::time::Span;

/// Shopify's `32/40`, Salesforce's `api-usage=25/15000;per-app-api-usage=17/250(appName=x)`.
pub(super) fn used_of_limit(header: &str, parsed: &ParsedResponse<'_>, found: &mut Vec<Window>) {
    let lines = parsed.headers.all(header).take(ITEMS_MAX);
    for entry in lines
        .flat_map(|line| line.split([';', ',']))
        .take(ITEMS_MAX)
    {
        let (name, numbers) = match entry.split_once('=') {
            Some((name, numbers)) => (Some(name), numbers),
            None => (None, entry),
        };
        let Some((used, limit)) = numbers.split_once('/') else {
            continue;
        };
        let limit = limit.split('(').next().unwrap_or(limit);
        let (used, limit) = (count(used.trim()), count(limit.trim()));
        let name = name.and_then(printable);
        let window = Window {
            name,
            limit,
            ..Window::default()
        };
        if limit.is_some() && used.is_some() {
            found.extend(window.complete(used));
        }
    }
}

/// Riot's `20:1,100:120` (limits) beside `3:1,37:120` (counts), joined by their period.
pub(super) fn per_period(
    headers: (&str, &str),
    name: &str,
    parsed: &ParsedResponse<'_>,
    found: &mut Vec<Window>,
) {
    let pairs = |header: &str| -> Vec<(u64, Span)> {
        let list = parsed.headers.joined(header).unwrap_or_default();
        let pair = |item: &str| {
            let (number, seconds) = item.split_once(':')?;
            let period = Decimal::parse(seconds.trim())?.seconds()?;
            Some((count(number.trim())?, period))
        };
        items(&list).filter_map(pair).collect()
    };
    let counts = pairs(headers.1);
    for (limit, period) in pairs(headers.0) {
        let used = counts
            .iter()
            .filter(|count| count.1 == period)
            .map(|count| count.0)
            .max();
        let name = Some(name.to_owned());
        let window = Window {
            name,
            limit: Some(limit),
            period: Some(period),
            ..Window::default()
        };
        found.extend(window.complete(used));
    }
}

/// Azure's `Microsoft.Compute/HighCostGet3Min;119,Microsoft.Compute/HighCostGet30Min;839`.
pub(super) fn named_counts(header: &str, parsed: &ParsedResponse<'_>, found: &mut Vec<Window>) {
    let list = parsed.headers.joined(header).unwrap_or_default();
    for (name, remaining) in items(&list).filter_map(|item| item.rsplit_once(';')) {
        let name = printable(name);
        let window = Window {
            name,
            remaining: count(remaining.trim()),
            ..Window::default()
        };
        found.extend(window.complete(None));
    }
}

/// Zendesk's `zendesk-ratelimit-tickets-index: total=100; remaining=99; resets=41`.
pub(super) fn pairs(
    header: &str,
    parsed: &ParsedResponse<'_>,
    clocks: Clocks,
    found: &mut Vec<Window>,
) {
    for star in parsed.headers.wildcard_values(header) {
        let name = header.replacen('*', &star, 1);
        for line in parsed.headers.all(&name).take(ITEMS_MAX) {
            let mut window = Window {
                name: printable(&star),
                ..Window::default()
            };
            for (key, value) in line
                .split([';', ','])
                .filter_map(|pair| pair.split_once('='))
            {
                let value = value.trim();
                match key.trim().to_ascii_lowercase().as_str() {
                    "total" | "limit" => window.limit = count(value),
                    "remaining" => window.remaining = count(value),
                    "resets" | "reset" => window.reset = clocks.wait(value, TimeUnit::BySize),
                    _ => {}
                }
            }
            found.extend(window.complete(None));
        }
    }
}

/// Trakt's `{"name":…,"period":300,"limit":500,"remaining":321,"until":"2026-11-15T12:04:00Z"}`.
pub(super) fn json_header(
    header: &str,
    parsed: &ParsedResponse<'_>,
    clocks: Clocks,
    found: &mut Vec<Window>,
) {
    let wanted = ["limit", "name", "period", "remaining", "until"].map(str::to_owned);
    for line in parsed.headers.all(header).take(ITEMS_MAX) {
        let Some(json) = Json::read(line.as_bytes(), &wanted) else {
            continue;
        };
        let number = |name| json.at(name).first().and_then(|json| json.number());
        let wait = |name, unit| {
            json.at(name)
                .first()
                .and_then(|json| wait_of(json, unit, clocks))
        };
        let name = json
            .at("name")
            .first()
            .and_then(|json| json.text())
            .and_then(|name| printable(&name));
        let window = Window {
            unit: WindowUnit::Requests,
            limit: number("limit").and_then(Decimal::count),
            remaining: number("remaining").and_then(Decimal::count),
            reset: wait("until", TimeUnit::BySize),
            period: wait("period", TimeUnit::Seconds),
            name,
        };
        found.extend(window.complete(None));
    }
}
