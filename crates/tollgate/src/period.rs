//! Periods as text.
//!
//! Promises: as a file writes them, so that a limit is found again.
//!
//! Never: rounds; what is below a millisecond is left out.

use tollgate_core::time::Span;

/// A period as a file writes it: `1d`, `1m30s`, `500ms`.
#[must_use]
pub fn period_text(period: Span) -> String {
    const UNITS: [(u64, &str); 5] = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
    ];
    let mut rest = period.0;
    let mut text = String::new();
    for (unit, name) in UNITS {
        if rest >= unit {
            text.push_str(itoa::Buffer::new().format(rest / unit));
            text.push_str(name);
            rest %= unit;
        }
    }
    if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_written_as_in_a_file() {
        for (micros, text) in [
            (86_400_000_000, "1d"),
            (90_000_000, "1m30s"),
            (10_000_000, "10s"),
            (1_500_000, "1s500ms"),
            (0, "0s"),
        ] {
            assert_eq!(period_text(Span(micros)), text);
        }
    }
}
