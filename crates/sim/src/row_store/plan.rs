//! Configuration of the awkward store.
//!
//! Promises: plain data; a plan has everything that the store and its network depend on.
//!
//! Never: decides.

use tollgate_core::replica::Rules;
use tollgate_core::time::{Micros, Span};

use super::exact_clock;
use crate::clock::NodeClock;
use crate::world::NodeId;

/// Configuration of the store, its network and the nodes' protocol.
#[derive(Clone, Debug)]
pub struct StorePlan {
    /// Seeds everything random.
    pub seed: u64,
    /// The shortest and the longest time of a message in one direction.
    pub one_way: (Span, Span),
    /// How many messages take up to `late` longer, per million.
    pub late_ppm: u32,
    /// See `late_ppm`.
    pub late: Span,
    /// Requests that are lost, per million.
    pub lost_requests_ppm: u32,
    /// Replies that are lost, per million.
    pub lost_replies_ppm: u32,
    /// Wake-ups that are lost, per million.
    pub lost_pushes_ppm: u32,
    /// Requests that arrive twice, per million.
    pub repeated_ppm: u32,
    /// Conflicts without a reason, per million.
    pub conflict_ppm: u32,
    /// The store's clock: its wall clock, with drift and steps.
    pub clock: NodeClock,
    /// How far the present host's clock is ahead of `clock`, in microseconds.
    pub ahead: i64,
    /// Other hosts take over, in order of time.
    pub promotions: Vec<Promotion>,
    /// A promotion loses nothing, and the nodes know it.
    pub durable: bool,
    /// The nodes' hosts have used the provider before: a store without its rows was wiped.
    pub knew_provider: bool,
    /// After this long a node counts a request as lost.
    pub deadline: Span,
    /// Nodes that lose the store for a while.
    pub partitions: Vec<Partition>,
    /// The rules of the protocol.
    pub rules: Rules,
}

/// A node cannot reach the store for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Which.
    pub node: NodeId,
    /// From when, in true time.
    pub from: Micros,
    /// Until when.
    pub to: Micros,
    /// Its requests arrive; what comes back is lost.
    pub is_deaf: bool,
}

impl Partition {
    fn covers(&self, node: NodeId, at: Micros) -> bool {
        self.node == node && at >= self.from && at < self.to
    }

    /// Is what this node sends lost?
    pub(super) fn loses_sent(&self, node: NodeId, at: Micros) -> bool {
        !self.is_deaf && self.covers(node, at)
    }

    /// Is what is sent to this node lost?
    pub(super) fn loses_received(&self, node: NodeId, at: Micros) -> bool {
        self.covers(node, at)
    }
}

/// Another host takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// When, in true time.
    pub at: Micros,
    /// Its copy lacks what was written in the last so much.
    pub behind: Span,
    /// Its clock is ahead of the former one's by so many microseconds.
    pub ahead_us: i64,
    /// It has nothing at all.
    pub is_wiped: bool,
}

impl StorePlan {
    /// A store that behaves, with this round trip.
    #[must_use]
    pub fn new(seed: u64, round_trip: Span) -> StorePlan {
        let half = Span(round_trip.0 / 2);
        StorePlan {
            seed,
            one_way: (Span(half.0 * 8 / 10), Span(half.0 * 12 / 10)),
            late_ppm: 0,
            late: Span::ZERO,
            lost_requests_ppm: 0,
            lost_replies_ppm: 0,
            lost_pushes_ppm: 0,
            repeated_ppm: 0,
            conflict_ppm: 0,
            clock: exact_clock(),
            ahead: 0,
            promotions: Vec::new(),
            durable: false,
            knew_provider: false,
            deadline: Span::from_secs(1),
            partitions: Vec::new(),
            rules: Rules::default(),
        }
    }
}
