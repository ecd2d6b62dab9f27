//! Why the cost of a call is not certain, and what counts then.
//!
//! Promises: a sentence of ours.
//!
//! Never: holds anything of a request or a response.

use std::fmt;

/// Why the cost of a call is not certain. What counts is never less than what is likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostDoubt {
    /// The body of a request is not JSON.
    UnreadableBody,
    /// The request states a bound that is no number of tokens.
    AbsurdBound,
    /// The response has ended without a usage.
    MissingUsage,
    /// The response reports a usage that is no number of tokens, or more than the whole limit.
    AbsurdUsage,
    /// The response reports less than was seen of it.
    LowUsage,
    /// The response broke off.
    BrokenOff,
}

impl CostDoubt {
    /// How many there are.
    pub const COUNT: usize = 6;
}

impl fmt::Display for CostDoubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CostDoubt::UnreadableBody => "the request is not JSON: it counts with its size",
            CostDoubt::AbsurdBound => {
                "the request states a bound that is no number of tokens: it counts as unbounded, or as all that the limit has"
            }
            CostDoubt::MissingUsage => "the response reports no usage: what was held counts",
            CostDoubt::AbsurdUsage => {
                "the response reports a usage that is no number of tokens, or more than one call can use: at most the whole limit counts"
            }
            CostDoubt::LowUsage => "the response reports less than was seen of it: what was seen or held counts",
            CostDoubt::BrokenOff => "the response broke off: what was held counts",
        })
    }
}
