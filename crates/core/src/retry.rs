//! May this call be tried again, and when?
//!
//! Promises: a call is repeated only when repeating cannot do something twice, only as often as
//! its priority allows (M7), never before the provider's `Retry-After` (M8), and only while the
//! budget has tokens, so that retries cannot turn an outage into a storm.
//!
//! Never: waits. It answers with a length; the permit stage makes the call queue again, behind
//! whatever cool-down or sleep is in force.

mod budget;
pub use budget::{Budget, BudgetSettings};
#[cfg(test)]
mod tests;

use crate::ask::Priority;
use crate::backoff::{Backoff, BackoffNames, Dice, RETRY_AFTER_FLOOR, effective_retry_after};
use crate::health::Class;
use crate::problem::{Problem, Problems};
use crate::time::{Micros, Span};

/// The most retries that may be configured: with the default backoff the hundredth would come
/// after 50 minutes, longer than any deadline we accept.
pub const RETRIES_MAX: u32 = 100;

/// Tries after the first, by priority; 0 = none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Calls that a person waits for: 2, because the third wait is longer than patience (M7).
    pub high: u32,
    /// Everything that says nothing: 3, between both.
    pub normal: u32,
    /// Background work: 5, because it has time (M7).
    pub low: u32,
}

/// When and how often a failed call is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrySettings {
    /// How long to wait when the provider does not say.
    pub backoff: Backoff,
    /// How often.
    pub retries: Retries,
    /// How many of all calls may be retries.
    pub budget: BudgetSettings,
    /// What a `Retry-After` of 0 or of the past is taken for.
    pub retry_after_floor: Span,
}

/// What makes a repetition harmless, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safety {
    /// The method promises that twice is the same as once.
    Idempotent,
    /// The caller's `Idempotency-Key` makes the provider recognise the repetition.
    Keyed,
    /// No byte of the request left this host.
    Unsent,
    /// The provider may have acted on it: repeating may act twice.
    MayHaveActed,
}

/// One failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// How urgent the call is.
    pub priority: Priority,
    /// How many of its retries the call has used up.
    pub used: u32,
    /// What came back.
    pub class: Class,
    /// What the provider said about when to return.
    pub retry_after: Option<Span>,
    /// May it be repeated?
    pub safety: Safety,
    /// It was the probe of a provider that was thought to be down. A failed probe uses up
    /// neither the call's retries nor the budget: the call was lent to all the others.
    pub probe: bool,
    /// What is left until the caller's deadline; `None` = no deadline.
    pub time_remaining: Option<Span>,
}

/// What to do with a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Queue for a permit again after this long.
    Again {
        /// From now.
        after: Span,
        /// Whether this uses up one of the call's retries.
        counts: bool,
    },
    /// Hand the failure to the caller.
    Stop(StopReason),
}

/// Why a call is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// It was no failure, or one that trying again cannot mend (A11: other 4xx).
    Final,
    /// Repeating may act twice.
    Unsafe,
    /// The priority's retries are used up.
    Spent,
    /// The next try would come after the caller's deadline.
    Deadline,
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
    /// How many this priority has.
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
            budget: BudgetSettings::default(),
            retry_after_floor: RETRY_AFTER_FLOOR,
        }
    }
}

impl Safety {
    /// What is known of a request that has failed. `sent` = at least one byte of it may have left.
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

    /// Cannot do something twice.
    #[must_use]
    pub fn is_safe(self) -> bool {
        match self {
            Safety::Idempotent | Safety::Keyed | Safety::Unsent => true,
            Safety::MayHaveActed => false,
        }
    }
}

impl RetrySettings {
    /// Decides about one failed attempt. Takes a token from the budget only if it is tried again.
    pub fn decide(
        &self,
        failed: &FailedAttempt,
        budget: &mut Budget,
        dice: Dice,
        now: Micros,
    ) -> Decision {
        if !failed.class.is_failure() {
            return Decision::Stop(StopReason::Final);
        }
        if !failed.safety.is_safe() {
            return Decision::Stop(StopReason::Unsafe);
        }
        if !failed.probe && failed.used >= self.retries.of(failed.priority) {
            return Decision::Stop(StopReason::Spent);
        }
        let after = effective_retry_after(failed.retry_after, self.retry_after_floor)
            .unwrap_or_else(|| self.backoff.wait(failed.used, dice));
        if failed.time_remaining.is_some_and(|left| after >= left) {
            return Decision::Stop(StopReason::Deadline);
        }
        if !failed.probe && !budget.try_take(&self.budget, now) {
            return Decision::Stop(StopReason::Budget);
        }
        Decision::Again {
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

/// RFC 9110, 9.2.2. Methods are case-sensitive; one that we do not know promises nothing.
#[must_use]
pub fn is_idempotent(method: &str) -> bool {
    ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"].contains(&method)
}
