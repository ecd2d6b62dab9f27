//! The events of a run and their order.
//!
//! Promises: events are ordered by true time, then by queueing order; nothing else decides.
//!
//! Never: compares the kinds of events.

use tollgate_core::time::Micros;

use crate::rule::LimitStatus;

use super::{Call, LimitChange, NodeId, Outcome};

/// Something that happens at a true time.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) at: Micros,
    pub(super) seq: u64,
    pub(super) kind: EventKind,
}

/// The kind of an event.
#[derive(Debug)]
pub(super) enum EventKind {
    Wake {
        node: NodeId,
        timer: Option<u64>,
    },
    Submit {
        node: NodeId,
        call: Call,
    },
    Send {
        node: NodeId,
        call: Call,
    },
    Arrive(Attempt),
    /// The provider starts its response.
    Head {
        attempt: Attempt,
        statuses: Vec<LimitStatus>,
    },
    /// The provider has sent all of it.
    Finish(Attempt),
    /// The head of a response has arrived, and its end arrives at `ends`.
    Reply {
        attempt: Attempt,
        outcome: Outcome,
        ends: Micros,
    },
    /// The end of a response has arrived.
    End(Attempt),
    Change(LimitChange),
}

/// One try at a call, numbered over all nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) number: u64,
    pub(super) node: NodeId,
    pub(super) call: Call,
}

impl EventKind {
    /// The node that must be running for this event; the provider and the network always run.
    pub(super) fn node(&self) -> Option<NodeId> {
        match self {
            EventKind::Wake { node, .. }
            | EventKind::Submit { node, .. }
            | EventKind::Send { node, .. } => Some(*node),
            EventKind::Reply { attempt, .. } | EventKind::End(attempt) => Some(attempt.node),
            EventKind::Arrive(_)
            | EventKind::Head { .. }
            | EventKind::Finish(_)
            | EventKind::Change(_) => None,
        }
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}
