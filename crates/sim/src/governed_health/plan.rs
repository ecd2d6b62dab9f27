//! Configuration of the governed client with health, and the events of a run.
//!
//! Promises: plain data; a plan has everything that a run depends on besides its world.
//!
//! Never: decides.

use tollgate_core::ask::PathTag;
use tollgate_core::cooldown::CooldownSettings;
use tollgate_core::gate::Resolution;
use tollgate_core::health::{HealthSettings, HealthState, Reason};
use tollgate_core::limit::Rule;
use tollgate_core::retry::{RetrySettings, StopReason};
use tollgate_core::time::{Micros, Span};

use crate::rule::CallId;
use crate::world::NodeId;

/// Configuration of the governed client.
#[derive(Clone, Debug)]
pub struct HealthPlan {
    /// Every limit that the client applies.
    pub limits: Vec<Rule>,
    /// The health machine.
    pub health: HealthSettings,
    /// When and how often a failed call is retried.
    pub retry: RetrySettings,
    /// How long all calls cool down after a 429.
    pub cooldown: CooldownSettings,
    /// How long a call may wait and run in total.
    pub patience: Span,
    /// When a node gives up on a response.
    pub give_up: Span,
    /// The longest delay until a node learns of a scope that another one has changed; drawn per
    /// change.
    pub scope_update_delay: Span,
    /// The calls go to this many paths in turn, by their ids; 0 = the client does not know paths.
    pub paths: u64,
    /// Seeds jitter and delays.
    pub seed: u64,
}

/// A transition of the health machine of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthTransition {
    /// When, on the node's own clock.
    pub at: Micros,
    /// Which node.
    pub node: NodeId,
    /// The state before.
    pub from: HealthState,
    /// The state after.
    pub to: HealthState,
    /// Why.
    pub reason: Reason,
}

/// Why a call was given up.
#[derive(Clone, Debug, PartialEq)]
pub enum GiveUpReason {
    /// It never got a permit.
    NoPermit(Resolution),
    /// It failed and is not retried.
    Failed(StopReason),
}

impl HealthPlan {
    /// These limits, every default, and calls that wait for ten minutes.
    #[must_use]
    pub fn new(limits: Vec<Rule>) -> HealthPlan {
        HealthPlan {
            limits,
            health: HealthSettings::default(),
            retry: RetrySettings::default(),
            cooldown: CooldownSettings::default(),
            patience: Span::from_secs(600),
            give_up: Span::from_secs(30),
            scope_update_delay: Span::ZERO,
            paths: 0,
            seed: 0,
        }
    }

    /// The path of a call.
    pub(super) fn path_of(&self, call: CallId) -> Option<PathTag> {
        let index = call.0.checked_rem(self.paths)?;
        self.paths().nth(usize::try_from(index).ok()?)
    }

    /// All paths.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathTag> {
        let letters = ('a'..='z').cycle().zip(0..self.paths);
        letters.map(|(letter, _)| PathTag::of(&format!("/{letter}")))
    }
}
