//! Explicit waits: fields in which a provider states how long to wait.
//!
//! Promises: of several instructions the longest counts. If another source gives the same
//! instruction in finer units (65 seconds beside 64.57), the finer one counts.
//!
//! Never: derives a wait from a remaining count; `window` does that.

use super::classify::ParsedResponse;
use super::dialect::{Dialect, FieldPlace, WaitRule};
use super::headers::{ITEMS_MAX, is_list};
use super::json::Json;
use super::number::Decimal;
use super::wait_time::{Clocks, TimeUnit, within_horizon};
use crate::time::Span;

/// How far below the longest instruction a finer one may lie and still be the same: providers round
/// it up to whole seconds. A larger difference is a contradiction, and the longer one counts.
const ROUNDING: Span = Span::from_secs(1);

/// The wait that one source states. If it states several, the longest counts; it sorts greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StatedWait {
    wait: Span,
    /// The unit can express fractions of a second.
    fine: bool,
}

/// The explicit wait of a response, if it has one.
pub(super) fn explicit(
    dialect: &Dialect,
    parsed: &ParsedResponse<'_>,
    clocks: Clocks,
) -> Option<Span> {
    let source = |rule: &WaitRule| match rule {
        WaitRule::Field { place, unit } => wait_at(place, *unit, parsed, clocks),
        WaitRule::AfterWords { place, words } => {
            let sentences = parsed.values(place);
            let stated = sentences
                .iter()
                .filter_map(|text| wait_after_words(text, words, clocks));
            stated.max()
        }
        WaitRule::Refill {
            cost,
            available,
            per_second,
        } => {
            let wait = refill_wait(parsed.json.as_ref(), [cost, available, per_second]);
            wait.map(|wait| StatedWait { wait, fine: true })
        }
    };
    choose_wait(&dialect.waits().filter_map(source).collect::<Vec<_>>())
}

fn choose_wait(stated: &[StatedWait]) -> Option<Span> {
    let longest = stated.iter().map(|stated| stated.wait).max()?;
    let finer = stated
        .iter()
        .filter(|stated| stated.fine && stated.wait + ROUNDING >= longest);
    Some(finer.map(|stated| stated.wait).max().unwrap_or(longest))
}

fn wait_at(
    place: &FieldPlace,
    unit: TimeUnit,
    parsed: &ParsedResponse<'_>,
    clocks: Clocks,
) -> Option<StatedWait> {
    match place {
        FieldPlace::Header(name) if name.contains('*') => {
            let stars = parsed.headers.wildcard_values(name).into_iter();
            let names = stars.map(|star| FieldPlace::Header(name.replacen('*', &star, 1)));
            names
                .filter_map(|name| wait_at(&name, unit, parsed, clocks))
                .max()
        }
        FieldPlace::Header(name) => {
            let lines = parsed.headers.all(name).take(ITEMS_MAX);
            let texts = lines.flat_map(split_instructions).take(ITEMS_MAX);
            texts
                .filter_map(|text| parse_wait(&text, unit, clocks))
                .max()
        }
        FieldPlace::Body(path) => {
            let found = parsed.json.iter().flat_map(|json| json.at(path));
            found
                .filter_map(|json| match json {
                    Json::Number(number) => Some(StatedWait {
                        wait: clocks.wait_number((*number)?, unit)?,
                        fine: unit.has_subseconds() || number.is_some_and(Decimal::is_fractional),
                    }),
                    Json::Text(text) => parse_wait(text, unit, clocks),
                    Json::Nothing | Json::Bool(_) | Json::List(_) | Json::Object(_) => None,
                })
                .max()
        }
        FieldPlace::Tag(_) | FieldPlace::Text => {
            let texts = parsed.values(place);
            let stated = texts
                .iter()
                .filter_map(|text| parse_wait(text, unit, clocks));
            stated.max()
        }
    }
}

/// The wait that a text states. It is fine if its unit is, or if it is more precise than a second:
/// a fraction, milliseconds, or an epoch in milliseconds (twelve digits and more).
fn parse_wait(text: &str, unit: TimeUnit, clocks: Clocks) -> Option<StatedWait> {
    let epoch = is_digits(text) && text.len() >= 12;
    Some(StatedWait {
        wait: clocks.wait(text, unit)?,
        fine: unit.has_subseconds() || text.contains('.') || text.contains("ms") || epoch,
    })
}

fn is_digits(text: &str) -> bool {
    super::number::digits(text).is_some()
}

/// The instructions of one line: a proxy may have joined several (`60, 10`), and an HTTP-date has
/// a comma of its own.
fn split_instructions(line: &str) -> Vec<String> {
    if !is_list(line) {
        return vec![line.to_owned()];
    }
    let mut found: Vec<String> = Vec::new();
    let mut weekday: Option<&str> = None;
    for item in line.split(',').map(str::trim).take(ITEMS_MAX) {
        match weekday.take() {
            Some(day) => found.push(format!("{day}, {item}")),
            None if is_word(item) => weekday = Some(item),
            None => found.push(item.to_owned()),
        }
    }
    found
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic())
}

/// The time that follows `words` in a sentence: the next word, without punctuation.
fn wait_after_words(sentence: &str, words: &str, clocks: Clocks) -> Option<StatedWait> {
    // Lower-casing ASCII moves no byte.
    let at = sentence
        .to_ascii_lowercase()
        .find(&words.to_ascii_lowercase())?
        + words.len();
    let time = sentence.get(at..)?.split_whitespace().next()?;
    let time = time.trim_end_matches(['.', ',', ';', '!', ')']);
    parse_wait(time, TimeUnit::BySize, clocks)
}

/// (cost - available) / rate, rounded up to the microsecond.
fn refill_wait(json: Option<&Json>, paths: [&String; 3]) -> Option<Span> {
    let number = |path: &str| {
        let value = json?.at(path).into_iter().next()?.number()?;
        Some(Decimal::in_millionths(value))
    };
    let [cost, available, per_second] = paths.map(|path| number(path));
    let missing = cost?.saturating_sub(available?);
    let micros = missing
        .checked_mul(1_000_000)?
        .div_ceil(per_second.filter(|rate| *rate > 0)?);
    within_horizon(Span(u64::try_from(micros).ok()?))
}
