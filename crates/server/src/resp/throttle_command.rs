//! `CL.THROTTLE key max_burst count period [quantity]`, as redis-cell has it.
//!
//! The reply: 0 or 1 (limited), the capacity, what remains, the seconds to wait (-1 if it was granted,
//! or never will be), the seconds until the bucket is full.
//!
//! Promises: whole seconds are rounded up, so that nobody comes back too early; 0 never stands beside
//! a denial. Each caller with a token has keys of its own, at most a quarter of the table's, for limits
//! that fill within a day; the operator's are those of nobody else.
//!
//! Never: counts a request that it cannot read.

use std::borrow::Cow;
use std::time::Duration;

use tollgate_config::config::Limiting;
use tollgate_guard::Tick;

use super::commands::Action;
use super::parse::Command;
use super::reply::ReplyWriter;
use super::session::Session;
use crate::guards::{ThrottleLimit, Throttled};

const USAGE: &str = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";

/// The longest time that a bucket of a caller may take to fill. A key takes its place in the table for that
/// long, so a caller could otherwise hold its share of the places for years.
const FILL_MAX: Duration = Duration::from_secs(24 * 3_600);

const TOO_SLOW: &str = "ERR max_burst takes more than a day to fill; use a smaller max_burst or a shorter period, or ask with the admin token";

pub(super) fn throttle(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    let protocol = session.protocol;
    let asked = match read(session, command) {
        Ok(asked) => asked,
        Err(error) => {
            ReplyWriter::new(out, protocol).error(&error);
            return Action::Replied;
        }
    };
    let ThrottleAsk {
        key,
        limit,
        quantity,
        limiting,
        now,
    } = asked;
    let throttle = session.context.daemon.decisions().throttle();
    if !throttle.is_shared() {
        let caller = session.identity.caller();
        let throttled = throttle.take_for(caller, &key, &limit, quantity, limiting, now);
        ReplyWriter::new(out, protocol).five(five(&throttled));
        return Action::Replied;
    }
    let (decisions, key) = (session.context.decisions().clone(), key.into_owned());
    Action::Later(Box::pin(async move {
        let throttle = decisions.throttle();
        let taken = throttle.take_shared(&key, &limit, quantity, limiting, now);
        let throttled = taken.await;
        let mut out = Vec::with_capacity(64);
        ReplyWriter::new(&mut out, protocol).five(five(&throttled));
        out
    }))
}

/// What a command asks.
struct ThrottleAsk<'a> {
    key: Cow<'a, [u8]>,
    limit: ThrottleLimit,
    quantity: i64,
    limiting: Limiting,
    now: Tick,
}

fn read<'a>(session: &mut Session, command: &Command<'a>) -> Result<ThrottleAsk<'a>, String> {
    if !(5..=6).contains(&command.len()) {
        return Err(format!("ERR {USAGE}"));
    }
    let key = command.get(1).unwrap_or_default();
    let own_key = session.identity.caller().map(|caller| {
        // The keys of a caller are its own: it cannot empty a bucket of another. Its name has no NUL.
        [caller.as_bytes(), b"\0", key].concat()
    });
    let key = own_key.map_or(Cow::Borrowed(key), Cow::Owned);
    let number = |at: usize, what: &str| {
        let read = command.get(at).and_then(integer);
        read.ok_or_else(|| format!("ERR {what} is not an integer; {USAGE}"))
    };
    let limits = [
        number(2, "max_burst")?,
        number(3, "count per period")?,
        number(4, "period")?,
    ];
    let quantity = match command.len() {
        6 => number(5, "quantity")?,
        _ => 1,
    };
    let now = session.now();
    let decisions = session.context.daemon.decisions();
    let limiting = &mut session.limiting;
    let limiting = *limiting.get_or_insert_with(|| decisions.guards().limiting());
    let [max_burst, count, period] = limits;
    let limit = ThrottleLimit::new(max_burst, count, period);
    let limit = limit.map_err(|error| format!("ERR {error}"))?;
    if session.identity.caller().is_some() && limit.fill_time() > FILL_MAX {
        return Err(TOO_SLOW.to_owned());
    }
    Ok(ThrottleAsk {
        key,
        limit,
        quantity,
        limiting,
        now,
    })
}

fn five(throttled: &Throttled) -> [i64; 5] {
    [
        i64::from(throttled.is_limited),
        i64::from(throttled.limit),
        i64::try_from(throttled.remaining).unwrap_or(i64::MAX),
        throttled.retry_in.map_or(-1, seconds_up),
        seconds_up(throttled.reset_in),
    ]
}

fn seconds_up(time: Duration) -> i64 {
    let started = u64::from(time.subsec_nanos() > 0);
    i64::try_from(time.as_secs().saturating_add(started)).unwrap_or(i64::MAX)
}

/// A whole number, without spaces or signs other than a minus.
pub(super) fn integer(bytes: &[u8]) -> Option<i64> {
    let (digits, is_negative) = match bytes.strip_prefix(b"-") {
        Some(digits) => (digits, true),
        None => (bytes, false),
    };
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut value = 0_i64;
    for digit in digits {
        let digit = i64::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
        let shifted = value.checked_mul(10)?;
        // Downwards there is room for one more.
        value = if is_negative {
            shifted.checked_sub(digit)?
        } else {
            shifted.checked_add(digit)?
        };
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_to_their_last_digit() {
        for (text, value) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("99999999999999999999", None),
            ("", None),
            ("-", None),
            ("+1", None),
            ("1.0", None),
            (" 1", None),
            ("1e3", None),
        ] {
            assert_eq!(integer(text.as_bytes()), value, "{text}");
        }
    }

    #[test]
    fn a_started_second_counts() {
        for (nanos, seconds) in [(0, 0), (1, 1), (999_999_999, 1), (1_000_000_000, 1)] {
            assert_eq!(seconds_up(Duration::from_nanos(nanos)), seconds);
        }
    }
}
