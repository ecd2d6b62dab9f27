//! The side under test, as the world sees it.
//!
//! Promises: one client runs every node, so nodes may share a ledger inside it; callbacks come one
//! at a time, in order of true time.
//!
//! Never: sees true time or the provider.

use tollgate_core::time::{Now, Span};

use crate::judge::Priority;
use crate::rule::{CallId, Cost, LimitStatus};

use super::Effects;

/// One of the hosts or processes of a run, counted from zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// What a caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its name; an attempt made again keeps it.
    pub id: CallId,
    /// What it costs.
    pub cost: Cost,
    /// How urgent it is.
    pub priority: Priority,
}

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The provider did the work.
    Accepted {
        /// How its rules stood when it counted the request: what headers would say.
        statuses: Vec<LimitStatus>,
    },
    /// A limit was exceeded (429).
    Limited {
        /// The rule that refused.
        rule: usize,
        /// What `Retry-After` would say, unrounded.
        retry_after: Option<Span>,
        /// How its rules stood.
        statuses: Vec<LimitStatus>,
    },
    /// The provider is down (503); nothing was counted.
    Unavailable,
    /// Nothing came back before [`Setup::give_up`](super::Setup::give_up); it may have been counted or not, or may
    /// still arrive.
    NoResponse,
}

/// The side under test: one value runs all nodes, so nodes may share a ledger inside it.
///
/// A callback sees the clocks of its node and leaves its wishes in [`Effects`]; they take effect
/// when it returns. A node has one timer: setting it replaces it.
pub trait Client {
    /// The run begins (every node is woken once at true time zero), the node's timer is due, or
    /// somebody nudged the node. May come without a reason; ask the clock, not the fact.
    fn on_wake(&mut self, node: NodeId, now: Now, effects: &mut Effects<'_>);

    /// The head of an answer to this node is back, or give-up has come. Once per attempt, except
    /// when a run without [`Setup::give_up`](super::Setup::give_up) loses it.
    fn on_response(
        &mut self,
        node: NodeId,
        call: Call,
        outcome: &Outcome,
        now: Now,
        effects: &mut Effects<'_>,
    );

    /// The end of an answer is back, at or after its head. Not after silence.
    fn on_response_end(
        &mut self,
        _node: NodeId,
        _call: Call,
        _now: Now,
        _effects: &mut Effects<'_>,
    ) {
    }

    /// A caller on this node asks for a call ([`World::submit`](super::World::submit)). Clients that make demand of
    /// their own do without.
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
