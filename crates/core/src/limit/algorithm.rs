//! How a limit can count, when its slots start to come back, and what makes a rule impossible.
//!
//! Promises: plain data; what each algorithm promises stands in its own file.
//!
//! Never: checks anything. `Rule` does.

use crate::limit::calendar::Calendar;
use crate::time::Span;

/// How a limit counts.
#[derive(Clone, Debug, PartialEq)]
pub enum Algorithm {
    /// At most N in any period (rule A: a slot comes back one period after the answer).
    Sliding {
        /// The window's length.
        period: Span,
    },
    /// N per period on average, at most `burst` at once (rule B: debited at the answer).
    Bucket {
        /// The time in which N tokens come back.
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
    /// N at a time (rule F: released at the end of the answer).
    InFlight,
}

/// When a slot starts to come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HoldUntil {
    /// When there is proof of arrival: exact for any latency.
    #[default]
    Response,
    /// When it is granted: for limits that are soft anyway, and for tests.
    Send,
}

/// Which part of an answer proves that a call was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SettleAt {
    /// The head: calls are counted before they are answered.
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
    /// Nothing is left for us.
    #[error("the headroom takes the whole limit; leave at least 1")]
    Headroom,
}
