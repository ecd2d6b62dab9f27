//! The text form of a relay's state, as typed into the running program.
//!
//! ```text
//! up delay 20ms jitter 5ms      slower from client to server
//! down stall                    hold what the server sends;  also: drop, half-close, pass
//! both cut-after 1000           reset after 1000 more bytes
//! refuse | accept               new connections
//! cut                           reset every open connection now
//! clear                         everything passes again
//! ```
//!
//! Promises: a lane is replaced as a whole by each line, so the last line is the truth; errors name the
//! word and the remedy, and change nothing.
//!
//! Never: keeps state of its own.

use super::{Flow, LinkFaults, ProxyFaults};
use crate::fault::parse_span;

/// An order that could not be read.
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

/// Carries out one order on `weather`.
///
/// # Errors
/// [`BadOrder`] if it cannot be read; `weather` is unchanged then.
pub fn apply_order(line: &str, weather: &mut ProxyFaults) -> Result<(), BadOrder> {
    let bad = |(problem, remedy)| BadOrder {
        line: line.trim().to_owned(),
        problem,
        remedy,
    };
    let mut words = line.split_ascii_whitespace();
    let order = words.next().unwrap_or("");
    match order {
        "up" => weather.up = parse_link(words).map_err(bad)?,
        "down" => weather.down = parse_link(words).map_err(bad)?,
        "both" => {
            weather.up = parse_link(words).map_err(bad)?;
            weather.down = weather.up;
        }
        "refuse" => weather.refuse = true,
        "accept" => weather.refuse = false,
        "cut" => weather.cut(),
        "clear" => weather.clear(),
        _ => return Err(bad((format!("`{order}` is not an order"), ORDERS))),
    }
    Ok(())
}

fn parse_link<'a>(
    mut words: impl Iterator<Item = &'a str>,
) -> Result<LinkFaults, (String, &'static str)> {
    let mut lane = LinkFaults::default();
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or("");
        match word {
            "pass" => lane.flow = Flow::Pass,
            "stall" => lane.flow = Flow::Stall,
            "drop" => lane.flow = Flow::Drop,
            "half-close" => lane.flow = Flow::HalfClose,
            "delay" => lane.delay = span(value())?,
            "jitter" => lane.jitter = span(value())?,
            "cut-after" => lane.cut_after = Some(bytes(value())?),
            _ => return Err((format!("`{word}` is not about a lane"), LINK_OPTIONS)),
        }
    }
    Ok(lane)
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
        let mut weather = ProxyFaults::default();
        apply_order("up delay 20ms jitter 5ms", &mut weather).expect("an order");
        apply_order("both stall cut-after 10", &mut weather).expect("an order");
        let lane = LinkFaults {
            cut_after: Some(10),
            flow: Flow::Stall,
            ..LinkFaults::default()
        };
        assert_eq!((weather.up, weather.down), (lane, lane));
        apply_order("up delay 1s", &mut weather).expect("an order");
        assert_eq!(
            weather.up,
            LinkFaults {
                delay: Span::from_secs(1),
                ..LinkFaults::default()
            }
        );
        apply_order("clear", &mut weather).expect("an order");
        assert_eq!(weather, ProxyFaults::default());
    }

    #[test]
    fn errors_name_the_word_and_the_remedy_and_change_nothing() {
        let mut weather = ProxyFaults::default();
        for (line, expected) in [
            ("sideways drop", "`sideways` is not an order; write `up …`"),
            ("", "`` is not an order; write `up …`"),
            (
                "up slowly",
                "`slowly` is not about a lane; write `delay 20ms`",
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
            let error = apply_order(line, &mut weather).expect_err(line).to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(weather, ProxyFaults::default());
        }
    }
}
