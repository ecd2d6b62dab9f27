//! Windows: how much of each limit remains, and until when.
//!
//! Promises: every window that a response describes is collected, whichever family of fields it
//! uses; a repeated field counts at its worst (fewest remaining, lowest limit, latest reset). The
//! order of headers with different names does not decide which window binds.
//!
//! Never: takes a malformed number for zero, or for anything but absent.

use super::classify::{ParsedResponse, printable};
use super::dialect::{BodyFields, Dialect, Fields};
use super::headers::{ITEMS_MAX, is_list, items};
use super::json::Json;
use super::number::{COUNT_MAX, Decimal};
use super::wait_time::{Clocks, TimeUnit};
use crate::time::Span;
use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};

/// What a window counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WindowUnit {
    /// Calls.
    #[default]
    Requests,
    /// Tokens of a language model.
    Tokens,
    /// Points, weight or query cost.
    Points,
    /// Bytes.
    Bytes,
    /// Calls at the same time.
    Concurrent,
}

impl WindowUnit {
    /// The unit that a window's name mentions; most mention none and count requests.
    pub(super) fn from_name(name: &str) -> WindowUnit {
        let has = |word: &str| name.contains(word);
        if has("token") {
            WindowUnit::Tokens
        } else if has("complexity") || has("point") || has("cost") || has("weight") {
            WindowUnit::Points
        } else if has("byte") || has("bandwidth") {
            WindowUnit::Bytes
        } else {
            WindowUnit::Requests
        }
    }
}

/// One limit as the provider describes it. A value that it does not send is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The provider's name for it.
    pub name: Option<String>,
    /// What it counts.
    pub unit: WindowUnit,
    /// The limit.
    pub limit: Option<u64>,
    /// The remaining count.
    pub remaining: Option<u64>,
    /// How long until it resets, from now.
    pub reset: Option<Span>,
    /// How long it is.
    pub period: Option<Span>,
}

impl Window {
    /// Whether nothing remains.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.remaining == Some(0)
    }

    /// Completes the window from the used count, and drops it if it has no value.
    pub(super) fn complete(mut self, used: Option<u64>) -> Option<Window> {
        match (self.limit, self.remaining, used) {
            (Some(limit), None, Some(used)) => self.remaining = Some(limit.saturating_sub(used)),
            (None, Some(remaining), Some(used)) => {
                self.limit =
                    Some(remaining.saturating_add(used)).filter(|limit| *limit <= COUNT_MAX);
            }
            (None, None, _) | (Some(_), Some(_), _) | (_, _, None) => {}
        }
        let says_something =
            self.limit.is_some() || self.remaining.is_some() || self.reset.is_some();
        says_something.then_some(self)
    }
}

/// Reads the windows of one header per number.
pub(super) fn from_headers(
    fields: &Fields,
    parsed: &ParsedResponse<'_>,
    dialect: &Dialect,
    clocks: Clocks,
    found: &mut Vec<Window>,
) {
    for star in wildcard_values(fields, parsed) {
        let lines = Lines::read(fields, &star, parsed, dialect.own.reset_unit, clocks);
        let name = printable(&star).or_else(|| fields.name.clone());
        let unit = fields
            .unit
            .unwrap_or_else(|| WindowUnit::from_name(name.as_deref().unwrap_or("")));
        let period = fields
            .period
            .iter()
            .find_map(|(header, unit)| clocks.wait(parsed.headers.first(header)?, *unit));
        let frame = Window {
            name,
            unit,
            period,
            ..Window::default()
        };
        lines.windows(&frame, dialect, clocks, fields.known_limit, found);
    }
}

/// What the `*` of the names matches in this response; one empty text if there is no `*`, and
/// nothing if none of the headers was sent.
fn wildcard_values(fields: &Fields, parsed: &ParsedResponse<'_>) -> Vec<String> {
    let mut names = fields.names();
    // Either all names of one window have a `*` or none has, so the first one decides.
    if !names.clone().next().is_some_and(|name| name.contains('*')) {
        let sent = names.any(|name| parsed.headers.first(name).is_some());
        return if sent {
            vec![String::new()]
        } else {
            Vec::new()
        };
    }
    let mut stars: Vec<String> = names
        .flat_map(|name| parsed.headers.wildcard_values(name))
        .collect();
    stars.sort_unstable();
    stars.dedup();
    stars.retain(|star| !fields.except.contains(star));
    stars.truncate(ITEMS_MAX);
    stars
}

/// The name with `star` in place of its `*`.
fn fill_wildcard<'n>(name: &'n str, star: &str) -> Cow<'n, str> {
    if star.is_empty() {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(name.replacen('*', star, 1))
    }
}

/// The lines of each column of one window.
struct Lines<'a> {
    limit: Vec<&'a str>,
    remaining: Vec<&'a str>,
    used: Vec<&'a str>,
    reset: Vec<&'a str>,
    reset_after: Vec<&'a str>,
}

impl<'a> Lines<'a> {
    fn read(
        fields: &Fields,
        star: &str,
        parsed: &ParsedResponse<'a>,
        unit: TimeUnit,
        clocks: Clocks,
    ) -> Lines<'a> {
        // The first readable header of a column counts; the others are aliases.
        let column = |names: &[String], readable: &dyn Fn(&str) -> bool| {
            let mut lines = names.iter().map(|name| {
                let name = fill_wildcard(name, star);
                parsed
                    .headers
                    .all(&name)
                    .take(ITEMS_MAX)
                    .collect::<Vec<_>>()
            });
            lines
                .find(|lines| lines.iter().any(|line| readable(line)))
                .unwrap_or_default()
        };
        let number = |line: &str| is_list(line) || first_count(line).is_some();
        let time = |line: &str| is_list(line) || clocks.wait(line, unit).is_some();
        Lines {
            limit: column(&fields.limit, &number),
            remaining: column(&fields.remaining, &number),
            used: column(&fields.used, &number),
            reset: column(&fields.reset, &time),
            reset_after: column(&fields.reset_after, &time),
        }
    }

    fn windows(
        &self,
        frame: &Window,
        dialect: &Dialect,
        clocks: Clocks,
        known_limit: Option<u64>,
        found: &mut Vec<Window>,
    ) {
        let unit = dialect.own.reset_unit;
        let listed = dialect.own.parallel_lists && self.remaining.len() + self.limit.len() > 2;
        if listed || self.remaining.iter().any(|line| is_list(line)) {
            return self.parallel(frame, unit, clocks, found);
        }
        let after = self
            .reset_after
            .iter()
            .filter_map(|line| clocks.wait(line, TimeUnit::Seconds));
        let at = self.reset.iter().filter_map(|line| clocks.wait(line, unit));
        let limit = self.limit.iter().filter_map(|line| first_count(line)).min();
        let window = Window {
            limit: limit.or(known_limit.filter(|_| !self.used.is_empty())),
            remaining: self.remaining.iter().filter_map(|line| count(line)).min(),
            reset: after.max().or_else(|| at.max()),
            ..frame.clone()
        };
        let used = self.used.iter().filter_map(|line| count(line)).max();
        // A documented limit alone makes no window: the response must send a count.
        let known_only = limit.is_none() && window.remaining.is_none() && used.is_none();
        if !(known_only && window.reset.is_none()) {
            found.extend(window.complete(used));
        }
    }

    /// One entry per window in each column. A column with a single entry applies to all of them:
    /// then it was one window, sent twice, and a proxy joined the lines.
    fn parallel(&self, frame: &Window, unit: TimeUnit, clocks: Clocks, found: &mut Vec<Window>) {
        let split = |lines: &[&'a str]| -> Vec<&'a str> {
            lines
                .iter()
                .flat_map(|line| items(line))
                .take(ITEMS_MAX)
                .collect()
        };
        let (limits, remaining) = (split(&self.limit), split(&self.remaining));
        let resets = match self.reset.as_slice() {
            // A date has a comma of its own.
            [one] if clocks.wait(one, unit).is_some() => vec![*one],
            lines => split(lines),
        };
        let entry = |column: &[&'a str], index: usize| match column {
            [one] => Some(*one),
            many => many.get(index).copied(),
        };
        for index in 0..limits.len().max(remaining.len()) {
            let window = Window {
                limit: entry(&limits, index).and_then(first_count),
                remaining: entry(&remaining, index).and_then(count),
                reset: entry(&resets, index).and_then(|text| clocks.wait(text, unit)),
                ..frame.clone()
            };
            found.extend(window.complete(None));
        }
    }
}

/// Reads the windows of JSON members.
pub(super) fn from_body(fields: &BodyFields, json: &Json, clocks: Clocks, found: &mut Vec<Window>) {
    for object in json.at(&fields.root) {
        let number = |path: &Option<String>| {
            let value = object.at(path.as_deref()?).into_iter().next()?;
            value.number().and_then(Decimal::count)
        };
        let written = |path: &String| object.at(path).first().and_then(|json| json.text());
        let name = fields
            .name_at
            .as_ref()
            .and_then(written)
            .and_then(|name| printable(&name));
        let window = Window {
            unit: fields.unit.unwrap_or_default(),
            limit: number(&fields.limit),
            remaining: number(&fields.remaining),
            reset: fields.reset.iter().find_map(|(path, unit)| {
                object
                    .at(path)
                    .first()
                    .and_then(|json| wait_of(json, *unit, clocks))
            }),
            name: name.or_else(|| fields.name.clone()),
            period: None,
        };
        if let Some(mut window) = window.clone().complete(number(&fields.used)) {
            window.remaining = window.remaining.or(fields.is_exhausted.then_some(0));
            found.push(window);
        } else if fields.is_exhausted && window.name.is_some() {
            found.push(Window {
                remaining: Some(0),
                ..window
            });
        }
    }
}

/// The wait that a JSON value states.
pub(super) fn wait_of(json: &Json, unit: TimeUnit, clocks: Clocks) -> Option<Span> {
    match json {
        Json::Number(number) => clocks.wait_number((*number)?, unit),
        Json::Text(text) => clocks.wait(text, unit),
        Json::Nothing | Json::Bool(_) | Json::List(_) | Json::Object(_) => None,
    }
}

/// A count in a field of its own.
pub(super) fn count(text: &str) -> Option<u64> {
    Decimal::parse(text).and_then(Decimal::count)
}

/// The first item of a limit field without its parameters: drafts up to 03 list the active limit
/// first and the policies after it (`10, 10;w=1, 50;w=60`).
fn first_count(text: &str) -> Option<u64> {
    let item = items(text).next()?;
    count(item.split(';').next()?.trim_end_matches([' ', '\t']))
}

/// The window that binds: an exhausted one with the latest reset; else the fewest requests
/// remaining; else the smallest remaining ratio of another unit; of equals the first. A value that
/// it lacks may come from a duplicate: the same window in another family of fields.
pub(super) fn binding(windows: &[Window]) -> Option<Window> {
    let mut window = windows.iter().min_by(|a, b| order(a, b))?.clone();
    if window.remaining.is_none() {
        return Some(window);
    }
    let duplicates = windows.iter().filter(|duplicate| {
        let same_name =
            duplicate.name == window.name || duplicate.name.is_none() || window.name.is_none();
        same_name && duplicate.unit == window.unit && duplicate.remaining == window.remaining
    });
    let duplicates: Vec<&Window> = duplicates.collect();
    let limit = || {
        duplicates
            .iter()
            .filter_map(|duplicate| duplicate.limit)
            .min()
    };
    let reset = || {
        duplicates
            .iter()
            .filter_map(|duplicate| duplicate.reset)
            .max()
    };
    window.limit = window.limit.or_else(limit);
    window.reset = window.reset.or_else(reset);
    // Only a duplicate that agrees in all numbers may lend its name.
    let same =
        |duplicate: &&&Window| (duplicate.limit, duplicate.reset) == (window.limit, window.reset);
    let name = || {
        duplicates
            .iter()
            .filter(same)
            .find_map(|duplicate| duplicate.name.clone())
    };
    window.name = window.name.clone().or_else(name);
    Some(window)
}

/// The window that binds sorts first. Equal windows stay in the order of the tables and lists.
fn order(a: &Window, b: &Window) -> Ordering {
    let class = |window: &Window| match (window.remaining, window.unit) {
        (Some(0), _) => 0,
        (Some(_), WindowUnit::Requests) => 1,
        (Some(_), _) => 2,
        (None, WindowUnit::Requests) => 3,
        (None, _) => 4,
    };
    let by_rule = class(a).cmp(&class(b)).then_with(|| match class(a) {
        1 => a.remaining.cmp(&b.remaining),
        2 => by_remaining_ratio(a, b),
        _ => Ordering::Equal,
    });
    by_rule
        .then_with(|| Reverse(a.reset).cmp(&Reverse(b.reset)))
        .then_with(|| a.unit.cmp(&b.unit))
}

/// Compares remaining/limit without dividing; an unknown limit comes last.
fn by_remaining_ratio(a: &Window, b: &Window) -> Ordering {
    match (a.limit, b.limit) {
        (Some(limit_a), Some(limit_b)) => {
            let remaining = |window: &Window| u128::from(window.remaining.unwrap_or(0));
            (remaining(a) * u128::from(limit_b)).cmp(&(remaining(b) * u128::from(limit_a)))
        }
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.remaining.cmp(&b.remaining),
    }
}
