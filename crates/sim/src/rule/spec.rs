//! Rules as short text: `sliding 40/10s`, `bucket 50/1s burst 50 tick 100ms`, `in-flight 4`.
//!
//! Promises: the text that `Display` writes, `FromStr` parses back to the same rule; an error names
//! the wrong word and the correct form.
//!
//! Never: panics on any text, or accepts a rule that cannot be applied (a period of zero).

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use tollgate_core::time::Span;

use super::{Counting, RuleSpec, Unit};

/// Why a text is not a rule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// The first word is not a way of counting.
    #[error(
        "`{0}` is not a way of counting; write sliding, two-counter, binned, fixed, first-use, bucket or in-flight"
    )]
    Counting(String),
    /// The amount is missing or malformed.
    #[error("`{0}` is not a limit; write `40/10s`, or `4` for in-flight")]
    Limit(String),
    /// A length of time is missing or malformed.
    #[error(
        "`{0}` is not a length of time above zero; write `100ms`, `10s`, `1m30s`, `1h` or `1d`"
    )]
    Length(String),
    /// A number is missing or malformed.
    #[error("`{0}` is not a whole number above zero")]
    Number(String),
    /// The option is unknown, or does not belong to this way of counting.
    #[error("`{option}` is not an option of {counting}; {known}")]
    Option {
        /// The word found.
        option: String,
        /// The way of counting.
        counting: &'static str,
        /// The valid options.
        known: &'static str,
    },
    /// The unit is unknown.
    #[error("`{0}` is not a unit; write calls, tokens, points or bytes")]
    Unit(String),
}

impl RuleSpec {
    /// Several rules, separated by commas: `sliding 40/10s, in-flight 4`.
    ///
    /// # Errors
    /// The first rule that cannot be parsed.
    pub fn parse_all(text: &str) -> Result<Vec<RuleSpec>, SpecError> {
        text.split(',').map(str::parse).collect()
    }
}

impl FromStr for RuleSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<RuleSpec, SpecError> {
        let mut words = text.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let counting = counting(kind, words.next().unwrap_or_default())?;
        let mut spec = RuleSpec::from(counting);
        while let Some(option) = words.next() {
            match option {
                "counts-refused" => spec.counts_refused = true,
                "unit" => spec.unit = words.next().unwrap_or_default().parse()?,
                _ => set(&mut spec.counting, option, words.next().unwrap_or_default())?,
            }
        }
        Ok(spec)
    }
}

impl FromStr for Unit {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Unit, SpecError> {
        match text {
            "calls" => Ok(Unit::Calls),
            "tokens" => Ok(Unit::Tokens),
            "points" => Ok(Unit::Points),
            "bytes" => Ok(Unit::Bytes),
            _ => Err(SpecError::Unit(text.to_owned())),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::Calls => "calls",
            Unit::Tokens => "tokens",
            Unit::Points => "points",
            Unit::Bytes => "bytes",
        })
    }
}

impl fmt::Display for RuleSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.counting.name(), self.counting.limit())?;
        if let Some(window) = self.counting.window() {
            write!(f, "/{}", Length(window))?;
        }
        match self.counting {
            Counting::Sliding { .. } | Counting::FirstUse { .. } => {}
            Counting::TwoCounter { phase, .. } | Counting::Fixed { phase, .. } => {
                option(f, "phase", phase)?;
            }
            Counting::Binned { bins, .. } => write!(f, " bins {bins}")?,
            Counting::Bucket { burst, tick, .. } => {
                write!(f, " burst {burst}")?;
                option(f, "tick", tick.unwrap_or(Span::ZERO))?;
            }
            Counting::InFlight { lag, .. } => option(f, "lag", lag)?,
        }
        if self.unit != Unit::Calls {
            write!(f, " unit {}", self.unit)?;
        }
        if self.counts_refused {
            f.write_str(" counts-refused")?;
        }
        Ok(())
    }
}

impl Counting {
    const fn name(&self) -> &'static str {
        match self {
            Counting::Sliding { .. } => "sliding",
            Counting::TwoCounter { .. } => "two-counter",
            Counting::Binned { .. } => "binned",
            Counting::Fixed { .. } => "fixed",
            Counting::FirstUse { .. } => "first-use",
            Counting::Bucket { .. } => "bucket",
            Counting::InFlight { .. } => "in-flight",
        }
    }

    const fn options(&self) -> &'static str {
        match self {
            Counting::Sliding { .. } | Counting::FirstUse { .. } => "it takes unit, counts-refused",
            Counting::TwoCounter { .. } | Counting::Fixed { .. } => {
                "it takes phase, unit, counts-refused"
            }
            Counting::Binned { .. } => "it takes bins, unit, counts-refused",
            Counting::Bucket { .. } => "it takes burst, tick, unit, counts-refused",
            Counting::InFlight { .. } => "it takes lag, unit",
        }
    }
}

/// A length in the largest unit that divides it.
pub(crate) struct Length(pub(crate) Span);

/// Units of length, largest first.
const LENGTHS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, micros) = LENGTHS
            .into_iter()
            .find(|(_, micros)| self.0.0.is_multiple_of(*micros))
            .unwrap_or(("us", 1));
        write!(f, "{}{name}", self.0.0 / micros)
    }
}

/// Writes a time option unless it is zero, the default.
fn option(f: &mut fmt::Formatter<'_>, name: &str, value: Span) -> fmt::Result {
    if value == Span::ZERO {
        Ok(())
    } else {
        write!(f, " {name} {}", Length(value))
    }
}

fn counting(kind: &str, amount: &str) -> Result<Counting, SpecError> {
    let wrong = || SpecError::Limit(amount.to_owned());
    if kind == "in-flight" {
        let limit = amount.parse().map_err(|_| wrong())?;
        return Ok(Counting::InFlight {
            limit,
            lag: Span::ZERO,
        });
    }
    let per = || -> Result<(u64, Span), SpecError> {
        let (limit, window) = amount.split_once('/').ok_or_else(wrong)?;
        Ok((limit.parse().map_err(|_| wrong())?, length(window)?))
    };
    let phase = Span::ZERO;
    Ok(match kind {
        "sliding" => {
            let (limit, window) = per()?;
            Counting::Sliding { limit, window }
        }
        "two-counter" => {
            let (limit, window) = per()?;
            Counting::TwoCounter {
                limit,
                window,
                phase,
            }
        }
        "binned" => {
            let (limit, window) = per()?;
            Counting::Binned {
                limit,
                window,
                bins: 10,
            }
        }
        "fixed" => {
            let (limit, window) = per()?;
            Counting::Fixed {
                limit,
                window,
                phase,
            }
        }
        "first-use" => {
            let (limit, window) = per()?;
            Counting::FirstUse { limit, window }
        }
        "bucket" => {
            let (limit, window) = per()?;
            Counting::Bucket {
                limit,
                window,
                burst: limit,
                tick: None,
            }
        }
        _ => return Err(SpecError::Counting(kind.to_owned())),
    })
}

fn set(counting: &mut Counting, option: &str, value: &str) -> Result<(), SpecError> {
    match (&mut *counting, option) {
        (Counting::TwoCounter { phase, .. } | Counting::Fixed { phase, .. }, "phase") => {
            *phase = length(value)?;
        }
        (Counting::Binned { bins, .. }, "bins") => *bins = number(value)?,
        (Counting::Bucket { burst, .. }, "burst") => *burst = number(value)?,
        (Counting::Bucket { tick, .. }, "tick") => *tick = Some(length(value)?),
        (Counting::InFlight { lag, .. }, "lag") => *lag = length(value)?,
        (counting, _) => {
            let option = option.to_owned();
            let (counting, known) = (counting.name(), counting.options());
            return Err(SpecError::Option {
                option,
                counting,
                known,
            });
        }
    }
    Ok(())
}

fn number(text: &str) -> Result<u64, SpecError> {
    text.parse()
        .ok()
        .filter(|&n| n > 0)
        .ok_or_else(|| SpecError::Number(text.to_owned()))
}

/// Reads `100ms`, `10s`, `1m30s`.
fn length(text: &str) -> Result<Span, SpecError> {
    parse_length(text)
        .filter(|&span| span > Span::ZERO)
        .ok_or_else(|| SpecError::Length(text.to_owned()))
}

/// The length itself; zero for an empty text. `None` if it is malformed.
pub(crate) fn parse_length(text: &str) -> Option<Span> {
    let mut rest = text;
    let mut sum = 0_u64;
    while !rest.is_empty() {
        let letters = rest.find(|c: char| !c.is_ascii_digit())?;
        let (digits, tail) = rest.split_at(letters);
        let next = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (name, tail) = tail.split_at(next);
        let (_, micros) = LENGTHS.into_iter().find(|(known, _)| *known == name)?;
        sum = sum.checked_add(digits.parse::<u64>().ok()?.checked_mul(micros)?)?;
        rest = tail;
    }
    Some(Span(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_parses_back_from_its_text() {
        let texts = [
            "sliding 40/10s",
            "two-counter 50/1s",
            "two-counter 50/1s phase 300ms",
            "binned 50/1s bins 10",
            "fixed 50/1s phase 1us",
            "first-use 50/1m",
            "bucket 50/1s burst 50",
            "bucket 50/1s burst 5 tick 100ms unit tokens counts-refused",
            "in-flight 4",
            "in-flight 4 lag 2ms",
            "sliding 0/90s unit points",
        ];
        for text in texts {
            let spec: RuleSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
        }
    }

    #[test]
    fn a_bucket_without_a_burst_is_as_deep_as_its_limit() {
        assert_eq!(
            "bucket 50/1s".parse::<RuleSpec>(),
            "bucket 50/1s burst 50".parse()
        );
    }

    #[test]
    fn lengths_may_have_several_parts() {
        assert_eq!(length("1m30s"), Ok(Span::from_secs(90)));
        assert_eq!(length("1s1ms1us"), Ok(Span(1_001_001)));
    }

    #[test]
    fn several_rules_are_separated_by_commas() {
        let rules = RuleSpec::parse_all("sliding 40/10s, in-flight 4").unwrap();
        assert_eq!(rules.len(), 2);
        assert_eq!(rules[1].to_string(), "in-flight 4");
    }

    #[test]
    fn an_error_names_the_word_and_the_remedy() {
        let says = |text: &str| text.parse::<RuleSpec>().unwrap_err().to_string();
        assert!(says("slide 4/1s").contains("`slide` is not a way of counting; write sliding"));
        assert!(says("").contains("not a way of counting"));
        assert!(says("sliding").contains("write `40/10s`"));
        assert!(says("sliding 40").contains("`40` is not a limit"));
        assert!(says("sliding -1/1s").contains("not a limit"));
        assert!(says("sliding 40/0s").contains("`0s` is not a length of time above zero"));
        assert!(says("sliding 40/10").contains("`10` is not a length"));
        assert!(says("sliding 40/99999999999999999999d").contains("not a length"));
        assert!(says("sliding 40/10é").contains("not a length"));
        assert!(says("sliding 40/10s burst 3").contains("`burst` is not an option of sliding"));
        assert!(says("binned 4/1s bins 0").contains("`0` is not a whole number above zero"));
        assert!(says("sliding 4/1s unit pears").contains("write calls, tokens, points or bytes"));
    }
}
