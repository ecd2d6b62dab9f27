//! The effects that a client queues in a callback.
//!
//! Promises: effects are applied in the order in which they were queued, once the callback has
//! returned.
//!
//! Never: changes anything while a callback runs.

use std::collections::BTreeMap;

use tollgate_core::time::{Micros, Now, Span};

use crate::clock::NodeClock;
use crate::rule::CallId;

use super::{Call, NodeId};

/// One effect.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    Send { after: Span, call: Call },
    Timer(Option<Micros>),
    Nudge { node: NodeId, after: Span },
    Done(CallId),
}

/// The effects of one callback.
#[derive(Debug)]
pub struct Effects<'a> {
    clocks: &'a [NodeClock],
    acknowledged: &'a BTreeMap<CallId, Micros>,
    truth: Micros,
    queued: Vec<Effect>,
}

impl<'a> Effects<'a> {
    pub(super) fn new(
        clocks: &'a [NodeClock],
        acknowledged: &'a BTreeMap<CallId, Micros>,
        truth: Micros,
    ) -> Effects<'a> {
        Effects {
            clocks,
            acknowledged,
            truth,
            queued: Vec::new(),
        }
    }

    pub(super) fn into_queued(self) -> Vec<Effect> {
        self.queued
    }

    /// The bytes of an attempt leave this node now.
    pub fn send(&mut self, call: Call) {
        self.send_after(Span::ZERO, call);
    }

    /// The bytes of an attempt leave this node after a delay: a pool, a handshake or a pause
    /// between the permit and the write. A suspended node sends when it resumes.
    pub fn send_after(&mut self, after: Span, call: Call) {
        self.queued.push(Effect::Send { after, call });
    }

    /// Sets this node's timer, on its own ledger clock. A time in the past means now.
    pub fn wake_at(&mut self, at: Micros) {
        self.queued.push(Effect::Timer(Some(at)));
    }

    /// Clears this node's timer.
    pub fn clear_timer(&mut self) {
        self.queued.push(Effect::Timer(None));
    }

    /// Wakes any node after a delay in true time: a signal from a shared ledger.
    pub fn nudge(&mut self, node: NodeId, after: Span) {
        self.queued.push(Effect::Nudge { node, after });
    }

    /// The caller has its response: tells the judge that the call is not lost.
    pub fn done(&mut self, id: CallId) {
        self.queued.push(Effect::Done(id));
    }

    /// True time, for a client that brings a network of its own. Its nodes must not see it.
    #[must_use]
    pub fn truth(&self) -> Micros {
        self.truth
    }

    /// Does this node's kernel know that the peer has all bytes of a call in flight? It says nothing
    /// of the peer's limiter.
    #[must_use]
    pub fn is_acknowledged(&self, call: CallId) -> bool {
        let at = self.acknowledged.get(&call);
        at.is_some_and(|at| *at <= self.truth)
    }

    /// The clocks of any node, such as the host of a shared ledger; `None` if it does not exist.
    #[must_use]
    pub fn clock_of(&self, node: NodeId) -> Option<Now> {
        self.clocks.get(node.0).map(|clock| clock.read(self.truth))
    }
}
