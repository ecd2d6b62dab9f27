//! The text form of a relay's state, as typed into the running program.
//!
//! ```text
//! up delay 20ms jitter 5ms      added latency from client to server
//! down stall                    hold what the server sends;  also: drop, half-close, pass
//! both cut-after 1000           reset after 1000 more bytes
//! refuse | accept               new connections
//! cut                           reset every open connection now
//! clear                         everything passes again
//! ```
//!
//! Promises: each line replaces all faults of a direction, so the last line holds; errors name the
//! word and the fix, and change nothing.
//!
//! Never: has state of its own.

use super::{Flow, LinkFaults, ProxyFaults};
use crate::fault::parse_span;

/// An order that could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("order `{line}`: {problem}; {remedy}")]
pub struct BadOrder {
    /// The whole text.
    pub line: String,
    /// What is wrong.
    pub problem: String,
    /// What to write instead.
    pub remedy: &'static str,
}

const ORDERS: &str = "write `up …`, `down …`, `both …`, `refuse`, `accept`, `cut` or `clear`";
const LINK_OPTIONS: &str =
    "write `delay 20ms`, `jitter 5ms`, `cut-after 1000`, `pass`, `stall`, `drop` or `half-close`";

/// Applies one order to `faults`.
///
/// # Errors
/// [`BadOrder`] if it cannot be parsed; `faults` is unchanged then.
pub fn apply_order(line: &str, faults: &mut ProxyFaults) -> Result<(), BadOrder> {
    let bad = |(problem, remedy)| BadOrder {
        line: line.trim().to_owned(),
        problem,
        remedy,
    };
    let mut words = line.split_ascii_whitespace();
    let order = words.next().unwrap_or("");
    match order {
        "up" => faults.up = parse_link(words).map_err(bad)?,
        "down" => faults.down = parse_link(words).map_err(bad)?,
        "both" => {
            faults.up = parse_link(words).map_err(bad)?;
            faults.down = faults.up;
        }
        "refuse" => faults.refuse = true,
        "accept" => faults.refuse = false,
        "cut" => faults.cut(),
        "clear" => faults.clear(),
        _ => return Err(bad((format!("`{order}` is not an order"), ORDERS))),
    }
    Ok(())
}

fn parse_link<'a>(
    mut words: impl Iterator<Item = &'a str>,
) -> Result<LinkFaults, (String, &'static str)> {
    let mut link = LinkFaults::default();
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or("");
        match word {
            "pass" => link.flow = Flow::Pass,
            "stall" => link.flow = Flow::Stall,
            "drop" => link.flow = Flow::Drop,
            "half-close" => link.flow = Flow::HalfClose,
            "delay" => link.delay = span(value())?,
            "jitter" => link.jitter = span(value())?,
            "cut-after" => link.cut_after = Some(bytes(value())?),
            _ => {
                return Err((
                    format!("`{word}` is not a fault of a direction"),
                    LINK_OPTIONS,
                ));
            }
        }
    }
    Ok(link)
}

fn span(word: &str) -> Result<tollgate_core::time::Span, (String, &'static str)> {
    let remedy = "write a number with a unit: `20ms`, `1s`";
    parse_span(word).ok_or_else(|| (format!("`{word}` is not a length of time"), remedy))
}

fn bytes(word: &str) -> Result<u64, (String, &'static str)> {
    word.parse()
        .map_err(|_| (format!("`{word}` is not a number of bytes"), "write digits"))
}

#[cfg(test)]
mod tests {
    use tollgate_core::time::Span;

    use super::*;

    #[test]
    fn an_order_replaces_all_faults_of_a_direction() {
        let mut faults = ProxyFaults::default();
        apply_order("up delay 20ms jitter 5ms", &mut faults).expect("an order");
        apply_order("both stall cut-after 10", &mut faults).expect("an order");
        let link = LinkFaults {
            cut_after: Some(10),
            flow: Flow::Stall,
            ..LinkFaults::default()
        };
        assert_eq!((faults.up, faults.down), (link, link));
        apply_order("up delay 1s", &mut faults).expect("an order");
        assert_eq!(
            faults.up,
            LinkFaults {
                delay: Span::from_secs(1),
                ..LinkFaults::default()
            }
        );
        apply_order("clear", &mut faults).expect("an order");
        assert_eq!(faults, ProxyFaults::default());
    }

    #[test]
    fn errors_name_the_word_and_the_remedy_and_change_nothing() {
        let mut faults = ProxyFaults::default();
        for (line, expected) in [
            ("sideways drop", "`sideways` is not an order; write `up …`"),
            ("", "`` is not an order; write `up …`"),
            (
                "up slowly",
                "`slowly` is not a fault of a direction; write `delay 20ms`",
            ),
            (
                "up delay 20",
                "`20` is not a length of time; write a number with a unit",
            ),
            (
                "both cut-after",
                "`` is not a number of bytes; write digits",
            ),
        ] {
            let error = apply_order(line, &mut faults).expect_err(line).to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(faults, ProxyFaults::default());
        }
    }
}
