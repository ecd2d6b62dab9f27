//! The side under test, as the world sees it.
//!
//! Promises: one client runs every node, so nodes may share a ledger inside it; callbacks come one
//! at a time, in order of true time.
//!
//! Never: sees true time or the provider.

use tollgate_core::time::{Now, Span};

use crate::checker::Priority;
use crate::rule::{CallId, Cost, LimitStatus};

use super::Effects;

/// One host or process of a run, counted from zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// One call of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its id; a retry keeps it.
    pub id: CallId,
    /// Its cost.
    pub cost: Cost,
    /// How urgent it is.
    pub priority: Priority,
}

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The provider accepted the request.
    Accepted {
        /// The status of its rules after it counted the request: the content of rate-limit headers.
        statuses: Vec<LimitStatus>,
    },
    /// A limit was exceeded (429).
    Limited {
        /// The rule that limited the request.
        rule: usize,
        /// The value of `Retry-After`, not rounded.
        retry_after: Option<Span>,
        /// The status of its rules.
        statuses: Vec<LimitStatus>,
    },
    /// The provider is down (503); nothing was counted.
    Unavailable,
    /// No response arrived before [`Setup::give_up`](super::Setup::give_up); the request may have
    /// been counted or not, or may still arrive.
    NoResponse,
}

/// The side under test: one value runs all nodes, so nodes may share a ledger inside it.
///
/// A callback sees the clocks of its node and queues its effects in [`Effects`]; they take effect
/// when it returns. A node has one timer: setting it replaces it.
pub trait Client {
    /// The run begins (every node is woken once at true time zero), the node's timer is due, or
    /// another node nudged it. May come without a reason; the client must check its clock.
    fn on_wake(&mut self, node: NodeId, now: Now, effects: &mut Effects<'_>);

    /// The head of a response has reached this node, or the give-up time has passed. Once per
    /// attempt, unless a run without [`Setup::give_up`](super::Setup::give_up) loses the response.
    fn on_response(
        &mut self,
        node: NodeId,
        call: Call,
        outcome: &Outcome,
        now: Now,
        effects: &mut Effects<'_>,
    );

    /// The end of a response has arrived, at or after its head. Not called after `NoResponse`.
    fn on_response_end(
        &mut self,
        _node: NodeId,
        _call: Call,
        _now: Now,
        _effects: &mut Effects<'_>,
    ) {
    }

    /// A caller on this node submits a call ([`World::submit`](super::World::submit)). Clients that
    /// generate their own calls ignore it.
    fn on_submit(&mut self, _node: NodeId, _call: Call, _now: Now, _effects: &mut Effects<'_>) {}
}

impl<C: Client + ?Sized> Client for Box<C> {
    fn on_wake(&mut self, node: NodeId, now: Now, effects: &mut Effects<'_>) {
        (**self).on_wake(node, now, effects);
    }

    fn on_response(
        &mut self,
        node: NodeId,
        call: Call,
        outcome: &Outcome,
        now: Now,
        effects: &mut Effects<'_>,
    ) {
        (**self).on_response(node, call, outcome, now, effects);
    }

    fn on_response_end(&mut self, node: NodeId, call: Call, now: Now, effects: &mut Effects<'_>) {
        (**self).on_response_end(node, call, now, effects);
    }

    fn on_submit(&mut self, node: NodeId, call: Call, now: Now, effects: &mut Effects<'_>) {
        (**self).on_submit(node, call, now, effects);
    }
}
