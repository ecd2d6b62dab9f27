//! How a limit can count, when its slots start to free, and what makes a rule impossible.
//!
//! Promises: plain data; each algorithm documents its promises in its own file.
//!
//! Never: checks anything. `Rule` does.

use crate::limit::calendar::Calendar;
use crate::time::Span;

/// How a limit counts.
#[derive(Clone, Debug, PartialEq)]
pub enum Algorithm {
    /// At most N in any period (rule A: a slot frees one period after the response).
    Sliding {
        /// The window's length.
        period: Span,
    },
    /// N per period on average, at most `burst` at once (rule B: debited at the response).
    Bucket {
        /// The time in which N tokens are refilled.
        period: Span,
        /// The bucket's depth.
        burst: u64,
    },
    /// N per window; a window opens with the first call.
    Fixed {
        /// The window's length.
        period: Span,
    },
    /// N per minute, hour, day, week or month of a time zone.
    Calendar(Calendar),
    /// As sliding, and evenly spaced on top.
    Paced {
        /// The window's length.
        period: Span,
    },
    /// N at a time (rule F: released at the end of the response).
    InFlight,
}

/// When a slot starts to free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HoldUntil {
    /// At the response, the proof of arrival: exact for any latency.
    #[default]
    Response,
    /// At the response, or `arrive_within` after the last byte has left if that is earlier: exact
    /// for uplinks within that bound, and full use where responses are slow.
    Arrived,
    /// At the grant: for limits that are soft anyway, and for tests.
    Send,
}

/// Which part of a response proves that a call was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SettleAt {
    /// The head: the provider counts calls before it responds.
    #[default]
    Head,
    /// The end of the body: concurrency, and costs counted afterwards such as tokens.
    End,
}

/// Why a rule cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// N is 0 or above 2⁵³.
    #[error("the limit must be between 1 and 2^53; write the number of calls per period")]
    Limit,
    /// The period is 0 or longer than 400 days.
    #[error(
        "the period must be between 1 microsecond and 400 days; write `10s`, `1m`, `1h` or `1d`"
    )]
    Period,
    /// The depth is 0 or above 2⁵³.
    #[error("the burst must be between 1 and 2^53; leave it out to use the limit")]
    Burst,
    /// The provider's tick refills as much as the bucket holds.
    #[error("the bucket is refilled in ticks as large as itself; use `sliding-window` instead")]
    Tick,
    /// Nothing is remaining for Tollgate.
    #[error("the headroom takes the whole limit; leave at least 1")]
    Headroom,
}
