//! The text form of faults, as given on the command line and to the running provider.
//!
//! ```text
//! outage WHEN [STATUS]     5xx instead of a response, 503 unless given
//! reset-before WHEN        connection reset, request unread and not counted
//! reset-after WHEN         request counted, then connection reset
//! hang WHEN                request counted, no response
//! drip WHEN [GAP]          body byte by byte, 100ms apart unless given
//! endless WHEN             body without an end
//! huge-headers WHEN        64 KiB of headers
//! truncate WHEN            body ends in the middle
//! skew WHEN +90s|-2h       Date and other times wrong
//! limit RULE to N WHEN     enforce N instead;  limit RULE halve WHEN
//! tell RULE as N WHEN      only the headers say N
//!
//! WHEN = 8s..11s | 8s.. | at 8s | now | next 3 (requests; not for limit and tell)
//! ```
//!
//! Promises: the text that [`Display`](std::fmt::Display) writes parses back to the same fault; an
//! error names the word, its position and the fix.
//!
//! Never: guesses. A number without a unit, or a word too many, is an error.

use std::fmt;
use std::str::FromStr;

use tollgate_core::time::Span;

use super::words::{FaultParseError, WordError, Words, parse_span, span};
use super::{Amount, Fault, PlannedFault, When};
use crate::rule::Length;

/// Every kind of fault, in the order of the help text.
pub const KINDS: [&str; 11] = [
    "outage",
    "reset-before",
    "reset-after",
    "hang",
    "drip",
    "endless",
    "huge-headers",
    "truncate",
    "skew",
    "limit",
    "tell",
];

/// Default of `outage`: the status that load balancers return for a dead backend.
const OUTAGE_STATUS: u16 = 503;

/// Default of `drip`: slow enough that idle timeouts of a second do not fire, total ones do.
const DRIP_GAP: Span = Span::from_millis(100);

impl FromStr for PlannedFault {
    type Err = FaultParseError;

    fn from_str(line: &str) -> Result<PlannedFault, FaultParseError> {
        let mut words = Words::of(line);
        let planned = match words.next() {
            None => return Err(words.missing("a fault", "write one such as `outage 8s..11s 503`")),
            // Here the time comes last.
            Some("limit") => {
                let (rule, to) = words.number("to")?;
                let fault = Fault::Limit { rule, to };
                PlannedFault {
                    fault,
                    when: words.time()?,
                }
            }
            Some("tell") => {
                let (rule, to) = words.number("as")?;
                let fault = Fault::ReportLimit { rule, to };
                PlannedFault {
                    fault,
                    when: words.time()?,
                }
            }
            Some(kind) if KINDS.contains(&kind) => {
                let when = words.when()?;
                PlannedFault {
                    fault: fault(kind, &mut words)?,
                    when,
                }
            }
            Some(other) => return Err(unknown(&words, other)),
        };
        words.end()?;
        Ok(planned)
    }
}

/// A fault whose time has already been parsed.
fn fault(kind: &str, words: &mut Words<'_>) -> Result<Fault, FaultParseError> {
    Ok(match kind {
        "outage" => Fault::Outage {
            status: words.optional(status)?.unwrap_or(OUTAGE_STATUS),
        },
        "drip" => Fault::Drip {
            gap: words.optional(span)?.unwrap_or(DRIP_GAP),
        },
        "skew" => Fault::Skew {
            secs: words.required(skew)?,
        },
        "reset-before" => Fault::ResetBefore,
        "reset-after" => Fault::ResetAfter,
        "hang" => Fault::Hang,
        "endless" => Fault::Endless,
        "huge-headers" => Fault::HugeHeaders,
        "truncate" => Fault::Truncate,
        other => return Err(unknown(words, other)),
    })
}

fn unknown(words: &Words<'_>, kind: &str) -> FaultParseError {
    let problem = format!("there is no fault `{kind}`");
    words.error(problem, format!("known are {}", KINDS.join(", ")))
}

impl fmt::Display for PlannedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = self.when;
        match self.fault {
            Fault::Outage { status } => write!(f, "outage {when} {status}"),
            Fault::ResetBefore => write!(f, "reset-before {when}"),
            Fault::ResetAfter => write!(f, "reset-after {when}"),
            Fault::Hang => write!(f, "hang {when}"),
            Fault::Drip { gap } => write!(f, "drip {when} {}", Length(gap)),
            Fault::Endless => write!(f, "endless {when}"),
            Fault::HugeHeaders => write!(f, "huge-headers {when}"),
            Fault::Truncate => write!(f, "truncate {when}"),
            Fault::Skew { secs } => write!(f, "skew {when} {secs:+}s"),
            Fault::Limit {
                rule,
                to: Amount::Exactly(n),
            } => write!(f, "limit {rule} to {n} {when}"),
            Fault::Limit {
                rule,
                to: Amount::Half,
            } => write!(f, "limit {rule} halve {when}"),
            Fault::ReportLimit {
                rule,
                to: Amount::Exactly(n),
            } => write!(f, "tell {rule} as {n} {when}"),
            Fault::ReportLimit {
                rule,
                to: Amount::Half,
            } => write!(f, "tell {rule} halve {when}"),
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            When::Now => f.write_str("now"),
            When::Between { from, to: None } => write!(f, "{}..", Length(from)),
            When::Between { from, to: Some(to) } => write!(f, "{}..{}", Length(from), Length(to)),
            When::Next { requests } => write!(f, "next {requests}"),
        }
    }
}

fn status(word: &str) -> Result<u16, WordError> {
    word.parse()
        .ok()
        .filter(|status| (200..=599).contains(status))
        .ok_or_else(|| {
            let remedy = "write one between 200 and 599, for instance `503`".to_owned();
            (format!("`{word}` is not a status"), remedy)
        })
}

fn skew(word: &str) -> Result<i64, WordError> {
    let remedy = "write `+90s` for a clock that is ahead, `-2h` for one that is behind";
    let bad = || (format!("`{word}` is not a skew"), remedy.to_owned());
    let (sign, rest) = match (word.strip_prefix('+'), word.strip_prefix('-')) {
        (Some(rest), _) => (1, rest),
        (None, Some(rest)) => (-1, rest),
        (None, None) => return Err(bad()),
    };
    let secs = parse_span(rest).ok_or_else(bad)?.0 / 1_000_000;
    i64::try_from(secs)
        .map(|secs| sign * secs)
        .map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_survives_writing_and_reading() {
        let lines = [
            "outage 8s..11s 503",
            "reset-before now",
            "reset-after next 3",
            "hang 1500ms..",
            "drip now 20ms",
            "endless 1s..1500ms",
            "huge-headers now",
            "truncate next 1",
            "skew now -7200s",
            "limit 0 to 20 15s..",
            "limit 1 halve now",
            "tell 0 as 20 now",
            "tell 2 halve now",
        ];
        for line in lines {
            let planned: PlannedFault = line.parse().expect(line);
            assert_eq!(planned.to_string(), line);
        }
    }

    #[test]
    fn defaults_are_a_503_and_a_tenth_of_a_second() {
        let outage: PlannedFault = "outage now".parse().expect("a fault");
        assert_eq!(outage.fault, Fault::Outage { status: 503 });
        let drip: PlannedFault = "drip at 2m".parse().expect("a fault");
        assert_eq!(
            drip.fault,
            Fault::Drip {
                gap: Span::from_millis(100)
            }
        );
        assert_eq!(
            drip.when,
            When::Between {
                from: Span::from_secs(120),
                to: None
            }
        );
    }

    #[test]
    fn errors_name_the_word_the_place_and_the_remedy() {
        let cases = [
            (
                "outage 8..11s",
                "word 2: `8` is not a length of time; write a number with a unit",
            ),
            (
                "outage 11s..8s",
                "word 2: it ends before it starts; write the earlier time first",
            ),
            (
                "outage now 99",
                "word 3: `99` is not a status; write one between 200 and 599",
            ),
            (
                "outrage now",
                "word 1: there is no fault `outrage`; known are outage",
            ),
            ("", "word 1: a fault is missing; write one such as"),
            ("hang", "word 2: the time is missing; write `8s..11s`"),
            ("hang soon", "word 2: `soon` is not a time; write"),
            (
                "hang now please",
                "word 3: `please` is one word too many; leave it out",
            ),
            ("hang next 0", "word 3: no request at all; write at least 1"),
            (
                "limit x to 3 now",
                "word 2: `x` is not a whole number; write digits",
            ),
            (
                "limit 0 3 now",
                "word 3: expected `to` or `halve`; write for instance `0 to 20",
            ),
            (
                "limit 0 to 3 next 1",
                "word 6: a number does not change by request; write `at 15s`",
            ),
            ("skew now 90s", "word 3: `90s` is not a skew; write `+90s`"),
            (
                "hang 99999999999999999999s..",
                "word 2: `99999999999999999999s` is not a length",
            ),
        ];
        for (line, expected) in cases {
            let error = line.parse::<PlannedFault>().expect_err(line).to_string();
            assert!(error.contains(expected), "{line}: {error}");
            assert!(error.starts_with(&format!("fault `{line}`")), "{error}");
        }
    }
}
