//! How the healthy side works, and what it tells of a run.
//!
//! Promises: plain data; a plan says everything that a run depends on beside its world.
//!
//! Never: decides.

use tollgate_core::cooldown::CooldownSettings;
use tollgate_core::gate::Resolution;
use tollgate_core::health::{HealthSettings, Reason, State};
use tollgate_core::limit::Rule;
use tollgate_core::retry::{RetrySettings, Stop};
use tollgate_core::time::{Micros, Span};

use crate::world::NodeId;

/// How the governed side works.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Every limit, as it is obeyed.
    pub limits: Vec<Rule>,
    /// The health machine.
    pub health: HealthSettings,
    /// When and how often a failed call is tried again.
    pub retry: RetrySettings,
    /// How long everybody rests after a 429.
    pub cooldown: CooldownSettings,
    /// How long a call may wait and run in all.
    pub patience: Span,
    /// When a node gives up on an answer.
    pub give_up: Span,
    /// The longest time until a node hears of a scope that another one has changed; drawn per change.
    pub news_delay: Span,
    /// Decides jitter and delays.
    pub seed: u64,
}

/// Something that the health machine of one node told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// When, on the node's own clock.
    pub at: Micros,
    /// Which node.
    pub node: NodeId,
    /// The state before.
    pub from: State,
    /// The state after.
    pub to: State,
    /// Why.
    pub reason: Reason,
}

/// Why a call was given up.
#[derive(Clone, Debug, PartialEq)]
pub enum GivenUp {
    /// It never got a permit.
    Waiting(Resolution),
    /// It failed and is not tried again.
    Failed(Stop),
}

impl Plan {
    /// These limits, every default, and calls that wait for ten minutes.
    #[must_use]
    pub fn new(limits: Vec<Rule>) -> Plan {
        Plan {
            limits,
            health: HealthSettings::default(),
            retry: RetrySettings::default(),
            cooldown: CooldownSettings::default(),
            patience: Span::from_secs(600),
            give_up: Span::from_secs(30),
            news_delay: Span::ZERO,
            seed: 0,
        }
    }
}
