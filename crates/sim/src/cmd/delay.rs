//! Delays as typed on the command line: `20ms`, `10ms..30ms`, `30ms~0.8`.
//!
//! Promises: errors name the text and the remedy.
//!
//! Never: draws a delay; `tollgate_sim::latency` does.

use tollgate_core::time::Span;
use tollgate_sim::fault::parse_span;
use tollgate_sim::latency::{Delay, Latency};

/// Reads one delay.
///
/// # Errors
/// What is wrong with it, and the remedy.
pub(crate) fn parse_delay(text: &str) -> Result<Delay, String> {
    let bad = || {
        format!(
            "`{text}` is not a delay; write `20ms`, `10ms..30ms` (uniform) \
             or `30ms~0.8` (lognormal, median and sigma)"
        )
    };
    let span = |text: &str| parse_span(text).ok_or_else(bad);
    if let Some((least, most)) = text.split_once("..") {
        let (least, most) = (span(least)?, span(most)?);
        return if least <= most {
            Ok(Delay::Uniform { least, most })
        } else {
            Err(bad())
        };
    }
    if let Some((median, sigma)) = text.split_once('~') {
        let sigma: f64 = sigma.parse().map_err(|_| bad())?;
        // The width must be finite and not negative.
        let sigma = Some(sigma)
            .filter(|sigma| (0.0..=10.0).contains(sigma))
            .ok_or_else(bad)?;
        return Ok(Delay::Lognormal {
            median: span(median)?,
            sigma,
        });
    }
    Ok(Delay::Constant(span(text)?))
}

/// Reads the name of a whole network.
///
/// # Errors
/// What is wrong with it, and the remedy.
pub(crate) fn parse_network(name: &str) -> Result<Latency, String> {
    match name {
        "none" => Ok(Latency::constant(Span::ZERO, Span::ZERO, Span::ZERO)),
        "lan" => Ok(Latency::LAN),
        "wan" => Ok(Latency::WAN),
        "llm" => Ok(Latency::LLM),
        _ => Err(format!(
            "`{name}` is not a network; write none, lan, wan or llm"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_uniform_and_lognormal_delays_are_parsed() {
        let ms = Span::from_millis;
        assert_eq!(parse_delay("20ms"), Ok(Delay::Constant(ms(20))));
        let uniform = Delay::Uniform {
            least: ms(10),
            most: ms(1_000),
        };
        assert_eq!(parse_delay("10ms..1s"), Ok(uniform));
        assert_eq!(
            parse_delay("30ms~0.8"),
            Ok(Delay::Lognormal {
                median: ms(30),
                sigma: 0.8
            })
        );
    }

    #[test]
    fn an_error_names_the_text_and_the_remedy() {
        for text in [
            "", "20", "20ms..", "..", "30ms~", "30ms~-1", "30ms~NaN", "30ms~inf", "~1", "3s..2s",
        ] {
            let error = parse_delay(text).expect_err(text);
            assert!(
                error.starts_with(&format!("`{text}` is not a delay; write `20ms`")),
                "{error}"
            );
        }
        assert!(
            parse_network("moon")
                .expect_err("no such network")
                .contains("none, lan, wan")
        );
    }
}
