//! The steps of a call, in order: for whoever asks why it waited, failed or was rejected.
//!
//! Promises: bounded; steps hold no key, query, header or body.
//!
//! Never: kept while nobody wants the ends of calls.

use std::ops::Deref;

use smallvec::SmallVec;
use tollgate_core::health::{Class, Fault};
use tollgate_core::time::{Span, Wall};

use super::DecisionVerdict;

/// The most steps of a call: six attempts of four steps each, and what surrounds them. Later ones
/// are not kept.
pub const STEPS_MAX: usize = 32;

/// Steps of most calls: decided, sent, response. So many need no memory of their own.
const STEPS_EXPECTED: usize = 4;

/// The steps of a call, in order; at most [`STEPS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps(SmallVec<[Step; STEPS_EXPECTED]>);

impl Steps {
    /// Adds one, unless there are too many.
    pub(crate) fn push(&mut self, step: Step) {
        if self.0.len() < STEPS_MAX {
            self.0.push(step);
        }
    }
}

impl Deref for Steps {
    type Target = [Step];

    fn deref(&self) -> &[Step] {
        &self.0
    }
}

impl From<Step> for Steps {
    fn from(step: Step) -> Steps {
        Steps(SmallVec::from_iter([step]))
    }
}

/// One step of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When.
    pub at: Wall,
    /// What.
    pub kind: StepKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// A cached response was served.
    Cached {
        /// `cache` or `stale`.
        source: &'static str,
        /// Its age.
        age: Span,
        /// Why it may be stale; `fresh` if it is not.
        why: &'static str,
    },
    /// Another call with the same request was under way, and the call waits for its response.
    Joined,
    /// The call waits for a permit.
    Queued {
        /// So many calls of this provider waited already.
        ahead: usize,
    },
    /// The permit stage has decided about an attempt, after this wait.
    Decided(DecisionVerdict, Span),
    /// The bytes of an attempt leave.
    Sent {
        /// Its number, from 1.
        attempt: u32,
    },
    /// The head of a response has arrived.
    Response {
        /// The status.
        status: u16,
        /// What it means for limits and health.
        class: Class,
    },
    /// An attempt got no response.
    Failed(Fault),
    /// The provider limited the call: its scope cools down.
    Cooldown {
        /// For how long.
        duration: Span,
        /// What the provider asked for.
        retry_after: Option<Span>,
    },
    /// The call waits until its next attempt.
    RetryWait(Span),
}
