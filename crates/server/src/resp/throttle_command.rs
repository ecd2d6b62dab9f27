//! `CL.THROTTLE key max_burst count period [quantity]`, as redis-cell has it.
//!
//! The reply: 0 or 1 (limited), the capacity, what remains, the seconds to wait (-1 if it was granted,
//! or never will be), the seconds until the bucket is full.
//!
//! Promises: whole seconds are rounded up, so that nobody comes back too early; 0 never stands beside
//! a denial. Each caller with a token has keys of its own; the operator's are those of nobody else.
//!
//! Never: counts a request that it cannot read.

use std::time::Duration;

use super::parse::Command;
use super::reply::ReplyWriter;
use super::session::Session;
use crate::guards::{ThrottleLimit, Throttled};

const USAGE: &str = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";

pub(super) fn throttle(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) {
    let protocol = session.protocol;
    match decide(session, command) {
        Ok(throttled) => ReplyWriter::new(out, protocol).five(five(&throttled)),
        Err(error) => ReplyWriter::new(out, protocol).error(&error),
    }
}

fn decide(session: &mut Session, command: &Command<'_>) -> Result<Throttled, String> {
    if !(5..=6).contains(&command.len()) {
        return Err(format!("ERR {USAGE}"));
    }
    let key = command.get(1).unwrap_or_default();
    let own_key = session.identity.caller().map(|caller| {
        // The keys of a caller are its own: it cannot empty a bucket of another. Its name has no NUL.
        [caller.as_bytes(), b"\0", key].concat()
    });
    let key = own_key.as_deref().unwrap_or(key);
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
    let throttle = decisions.throttle();
    let limiting = &mut session.limiting;
    let limiting = *limiting.get_or_insert_with(|| decisions.guards().limiting());
    let [max_burst, count, period] = limits;
    let limit = ThrottleLimit::new(max_burst, count, period);
    let limit = limit.map_err(|error| format!("ERR {error}"))?;
    Ok(throttle.take(key, &limit, quantity, limiting, now))
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
