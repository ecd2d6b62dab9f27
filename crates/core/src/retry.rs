//! May this call be retried, and when?
//!
//! Promises: a call is retried only if the retry cannot act twice, only as often as its priority
//! allows (M7), never before the provider's `Retry-After` (M8), never after its deadline, and only
//! while the budget has tokens, so that retries cannot turn an outage into a retry storm. A call
//! whose response did not come in time is repeated once: each attempt costs the provider the whole
//! work again. A caller that repeats its calls itself has each made once, so that its retries and
//! ours do not multiply.
//!
//! Never: waits. It returns a length; the permit stage queues the call again, behind the current
//! cool-down or sleep.

mod budget;
pub use budget::{Budget, BudgetSettings};
#[cfg(test)]
mod tests;

use crate::ask::Priority;
use crate::backoff::{Backoff, BackoffNames, Dice, RETRY_AFTER_FLOOR, effective_retry_after};
use crate::health::Class;
use crate::problem::{Problem, Problems};
use crate::time::{Micros, Span};

/// The most retries that may be configured: with the default backoff the hundredth comes after 50
/// minutes, longer than any accepted deadline.
pub const RETRIES_MAX: u32 = 100;

/// Retries after the first attempt, by priority; 0 = none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Calls that a person waits for: 2, because a third wait would be too long (M7).
    pub high: u32,
    /// Calls without a stated priority: 3, between both.
    pub normal: u32,
    /// Background work: 5, because it has time (M7).
    pub low: u32,
}

/// When and how often a failed call is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrySettings {
    /// How long to wait if the provider states no time.
    pub backoff: Backoff,
    /// How often.
    pub retries: Retries,
    /// How often a call is repeated after a response timeout, whatever its priority: once.
    pub timeouts: u32,
    /// How many of all calls may be retries.
    pub budget: BudgetSettings,
    /// The wait for a `Retry-After` of 0 or in the past.
    pub retry_after_floor: Span,
}

/// Whether a retry is safe, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safety {
    /// The method is idempotent.
    Idempotent,
    /// The caller's `Idempotency-Key` lets the provider recognise the retry.
    Keyed,
    /// No byte of the request was sent.
    Unsent,
    /// The provider may have acted on the request: a retry may act twice.
    MayHaveActed,
}

/// One failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// How urgent the call is.
    pub priority: Priority,
    /// How many of its retries the call has used up.
    pub used: u32,
    /// The class of its result.
    pub class: Class,
    /// The request was sent and no response came in time: this many such attempts of the call,
    /// this one included. `None` = it ended otherwise.
    pub timeouts: Option<u32>,
    /// The provider's `Retry-After`.
    pub retry_after: Option<Span>,
    /// Whether a retry is safe.
    pub safety: Safety,
    /// It was a probe of a provider that may be down. A failed probe uses up neither the call's
    /// retries nor the budget, because it ran on behalf of all waiting calls.
    pub probe: bool,
    /// The caller repeats failed calls itself.
    pub caller_retries: bool,
    /// How long the caller still waits; `None` = without end.
    pub time_remaining: Option<Span>,
}

/// What to do with a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// Queue for a permit again after this long.
    Again {
        /// From now.
        after: Span,
        /// Whether this uses up one of the call's retries.
        counts: bool,
    },
    /// Return the failure to the caller.
    Stop(StopReason),
}

/// Why a call is not retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// It was no failure, or one that a retry cannot fix (A11: other 4xx).
    Final,
    /// A retry may act twice.
    Unsafe,
    /// The caller repeats the call itself.
    CallerRetries,
    /// The priority's retries are used up.
    Spent,
    /// The provider was too slow too often.
    Timeouts,
    /// The retry would come after the caller's deadline.
    Deadline {
        /// When it would come, from now.
        after: Span,
    },
    /// Too many of all calls are retries already.
    Budget,
}

impl Default for Retries {
    fn default() -> Retries {
        Retries {
            high: 2,
            normal: 3,
            low: 5,
        }
    }
}

impl Retries {
    /// The number of retries of this priority.
    #[must_use]
    pub fn of(self, priority: Priority) -> u32 {
        match priority {
            Priority::High => self.high,
            Priority::Normal => self.normal,
            Priority::Low => self.low,
        }
    }
}

impl Default for RetrySettings {
    fn default() -> RetrySettings {
        RetrySettings {
            backoff: Backoff::default(),
            retries: Retries::default(),
            timeouts: 1,
            budget: BudgetSettings::default(),
            retry_after_floor: RETRY_AFTER_FLOOR,
        }
    }
}

impl Safety {
    /// The safety of retrying a failed request. `sent` = at least one byte of it may have been
    /// sent.
    #[must_use]
    pub fn of(method: &str, has_idempotency_key: bool, sent: bool) -> Safety {
        if !sent {
            Safety::Unsent
        } else if is_idempotent(method) {
            Safety::Idempotent
        } else if has_idempotency_key {
            Safety::Keyed
        } else {
            Safety::MayHaveActed
        }
    }

    /// A retry cannot act twice.
    #[must_use]
    pub fn is_safe(self) -> bool {
        match self {
            Safety::Idempotent | Safety::Keyed | Safety::Unsent => true,
            Safety::MayHaveActed => false,
        }
    }
}

impl RetrySettings {
    /// Decides about one failed attempt. Takes a token from the budget only for a retry.
    pub fn decide(
        &self,
        failed: &FailedAttempt,
        budget: &mut Budget,
        dice: Dice,
        now: Micros,
    ) -> RetryDecision {
        if !failed.class.is_failure() {
            return RetryDecision::Stop(StopReason::Final);
        }
        if !failed.safety.is_safe() {
            return RetryDecision::Stop(StopReason::Unsafe);
        }
        // One that did not leave costs the provider nothing.
        if failed.caller_retries && failed.safety != Safety::Unsent {
            return RetryDecision::Stop(StopReason::CallerRetries);
        }
        if !failed.probe && failed.used >= self.retries.of(failed.priority) {
            return RetryDecision::Stop(StopReason::Spent);
        }
        if !failed.probe && failed.timeouts.is_some_and(|made| made > self.timeouts) {
            return RetryDecision::Stop(StopReason::Timeouts);
        }
        let after = effective_retry_after(failed.retry_after, self.retry_after_floor)
            .unwrap_or_else(|| self.backoff.wait(failed.used, dice));
        if failed
            .time_remaining
            .is_some_and(|remaining| after >= remaining)
        {
            return RetryDecision::Stop(StopReason::Deadline { after });
        }
        if !failed.probe && !budget.try_take(&self.budget, now) {
            return RetryDecision::Stop(StopReason::Budget);
        }
        RetryDecision::Again {
            after,
            counts: !failed.probe,
        }
    }

    /// Every problem of the `retry` block.
    #[must_use]
    pub fn check(&self) -> Vec<Problem> {
        let mut problems = Problems::default();
        self.backoff.check(&BackoffNames::RETRY, &mut problems);
        for (retries, name) in [
            (self.retries.high, "retry.retries.high"),
            (self.retries.normal, "retry.retries.normal"),
            (self.retries.low, "retry.retries.low"),
            (self.timeouts, "retry.timeouts"),
        ] {
            problems.unless(
                retries <= RETRIES_MAX,
                name,
                "must be between 0 and 100; write `3`",
            );
        }
        self.budget.check(&mut problems);
        problems.found()
    }
}

/// RFC 9110, 9.2.2. Methods are case-sensitive; an unknown one is not idempotent.
#[must_use]
pub fn is_idempotent(method: &str) -> bool {
    ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"].contains(&method)
}
