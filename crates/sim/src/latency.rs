//! Delays between a node and the provider: up (before the provider counts), work, body, and down.
//!
//! Promises: a delay is a function of its parameters and the random stream; models that differ only
//! in scale draw the same numbers in the same order, so runs stay comparable.
//!
//! Never: counts permits. This is the one module of the simulator with floats in its arithmetic;
//! its results are whole microseconds.

use fastrand::Rng;
use tollgate_core::time::Span;

/// The longest delay drawn. An hour is far beyond every give-up time; the bound keeps a heavy tail
/// from reaching the ends of the clock.
pub const DELAY_MAX: Span = Span::from_secs(3_600);

/// How long one leg takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delay {
    /// Always the same.
    Constant(Span),
    /// Anything from `least` to `most`, both included, equally likely.
    Uniform {
        /// The shortest.
        least: Span,
        /// The longest.
        most: Span,
    },
    /// `median · e^(sigma · z)` with z normal: most are near the median, some far beyond.
    Lognormal {
        /// Half are shorter.
        median: Span,
        /// Width; 0 is constant.
        sigma: f64,
    },
}

/// The legs of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// From the node to the limiter.
    pub up: Delay,
    /// From the limiter's decision to the head of the response; a 429 does not wait for it.
    pub work: Delay,
    /// From the head of the response to its end; a 429 has none.
    pub body: Delay,
    /// From the provider back to the node.
    pub down: Delay,
}

impl Delay {
    /// One delay.
    pub fn draw(&self, dice: &mut Rng) -> Span {
        let drawn = match *self {
            Delay::Constant(span) => span,
            Delay::Uniform { least, most } => Span(dice.u64(least.0..=most.0.max(least.0))),
            Delay::Lognormal { median, sigma } => scaled(median, (sigma * normal(dice)).exp()),
        };
        Span(drawn.0.min(DELAY_MAX.0))
    }
}

impl Latency {
    /// One host or one rack: 2 ms up, 20 ms of work.
    pub const LAN: Latency = Latency::lognormal(2, 0.5, 20, 0.5);
    /// Across a continent, with a heavy tail: 30 ms up, 100 ms of work.
    pub const WAN: Latency = Latency::lognormal(30, 0.8, 100, 0.5);
    /// A language model behind the same network: 2 s of work.
    pub const LLM: Latency = Latency::lognormal(30, 0.8, 2_000, 0.8);

    /// The same network up and down, medians in milliseconds, responses that end with their head.
    #[must_use]
    pub const fn lognormal(net_ms: u64, net_sigma: f64, work_ms: u64, work_sigma: f64) -> Latency {
        let net = Delay::Lognormal {
            median: Span::from_millis(net_ms),
            sigma: net_sigma,
        };
        let work = Delay::Lognormal {
            median: Span::from_millis(work_ms),
            sigma: work_sigma,
        };
        Latency {
            up: net,
            work,
            body: Delay::Constant(Span::ZERO),
            down: net,
        }
    }

    /// The same delays for every request, responses that end with their head.
    #[must_use]
    pub const fn constant(up: Span, work: Span, down: Span) -> Latency {
        Latency {
            up: Delay::Constant(up),
            work: Delay::Constant(work),
            body: Delay::Constant(Span::ZERO),
            down: Delay::Constant(down),
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "delays are random to begin with; the cast saturates"
)]
fn scaled(span: Span, factor: f64) -> Span {
    Span((span.0 as f64 * factor).round() as u64)
}

/// A normal variate (Box and Muller), always from two draws so that streams stay aligned.
fn normal(dice: &mut Rng) -> f64 {
    // 1 − u is in (0, 1], where the logarithm is finite.
    let radius = (-2.0 * (1.0 - dice.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * dice.f64()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thousand(delay: Delay, seed: u64) -> Vec<Span> {
        let mut dice = Rng::with_seed(seed);
        let mut drawn: Vec<Span> = (0..1_000).map(|_| delay.draw(&mut dice)).collect();
        drawn.sort_unstable();
        drawn
    }

    #[test]
    fn a_constant_needs_no_dice() {
        let drawn = thousand(Delay::Constant(Span(7)), 1);
        assert_eq!((drawn[0], drawn[999]), (Span(7), Span(7)));
    }

    #[test]
    fn a_uniform_delay_stays_inside_and_reaches_both_ends() {
        let drawn = thousand(
            Delay::Uniform {
                least: Span(3),
                most: Span(9),
            },
            1,
        );
        assert_eq!((drawn[0], drawn[999]), (Span(3), Span(9)));
        let upside_down = Delay::Uniform {
            least: Span(3),
            most: Span(1),
        };
        assert_eq!(thousand(upside_down, 1)[999], Span(3));
    }

    #[test]
    fn a_lognormal_delay_has_its_median_and_a_tail() {
        let drawn = thousand(
            Delay::Lognormal {
                median: Span(30_000),
                sigma: 0.8,
            },
            1,
        );
        assert!(
            (27_000..33_000).contains(&drawn[500].0),
            "median {}",
            drawn[500]
        );
        // e^0.8 above the median is the 84th percentile.
        assert!(
            (60_000..75_000).contains(&drawn[841].0),
            "84th percentile {}",
            drawn[841]
        );
        assert!(drawn[999] > Span::from_millis(200));
    }

    #[test]
    fn no_tail_passes_the_longest_delay() {
        let drawn = thousand(
            Delay::Lognormal {
                median: Span(u64::MAX),
                sigma: 99.0,
            },
            1,
        );
        assert_eq!(drawn[999], DELAY_MAX);
    }

    #[test]
    fn the_same_seed_draws_the_same_delays() {
        assert_eq!(thousand(Latency::WAN.up, 5), thousand(Latency::WAN.up, 5));
        assert_ne!(thousand(Latency::WAN.up, 5), thousand(Latency::WAN.up, 6));
    }
}
