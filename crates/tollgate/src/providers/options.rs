//! How a registry works.
//!
//! Promises: plain data with defaults.
//!
//! Never: decides anything.

use tollgate_core::time::Span;

use crate::cache::Cache;
use crate::event::Events;
use crate::pool::Roots;

/// How Tollgate treats calls to domains that no provider has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// They run without limits.
    #[default]
    Allow,
    /// Tollgate rejects them.
    Refuse,
}

/// How a registry works.
#[derive(Clone, Debug)]
pub struct Options {
    /// How Tollgate treats calls to domains that no provider has.
    pub unknown: Unknown,
    /// URLs may lead to private addresses even where no file names them.
    pub private: bool,
    /// The trusted root certificates.
    pub roots: Roots,
    /// The number of nodes that share the limits. Each node gets this fraction of every limit if it
    /// has its own ledger, and under `on_store_loss: local-share`.
    pub nodes: u32,
    /// This process lasts, so it may have a share under `on_store_loss: local-share`. One that ends after a
    /// permit must not: while it is gone, nobody else uses its share.
    pub has_share: bool,
    /// Within this time all nodes have noticed that the store is lost or back.
    pub node_lease: Span,
    /// Every provider starts asleep, until an operator says `resume` (A5).
    pub offline: bool,
    /// The seed of all random delays; `None` = a different one in each process.
    pub dice: Option<u64>,
    /// The response cache.
    pub cache: Cache,
    /// Where events are emitted.
    pub events: Events,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            unknown: Unknown::default(),
            private: false,
            roots: Roots::default(),
            nodes: 1,
            has_share: true,
            node_lease: Span::from_secs(5),
            offline: false,
            dice: None,
            cache: Cache::default(),
            events: Events::default(),
        }
    }
}
