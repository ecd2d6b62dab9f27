//! The permits that other processes hold: the open ones, and what became of the others.
//!
//! Promises: open permits are bounded, and no caller has more than its share of the places. Permits
//! that are closed take no place of open ones.
//!
//! Never: settles a permit.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use tollgate_core::time::Micros;

use super::decide::{AcquiredPermit, Learned};
use crate::caller_shares::{CallerShares, PlaceHolder};

/// Permits that are open at a time. At some 1 KiB each 16 MiB; with a response timeout of 30 s
/// that is 270 unreported permits per second.
pub const PERMITS_MAX: usize = 16_384;

/// Permits that are reported or released and remembered, for those who report twice: at some 200
/// bytes each 13 MiB, and at a thousand permits per second those of the last minute.
pub const CLOSED_MAX: usize = 65_536;

/// What the table holds.
#[derive(Debug)]
pub(super) struct TableState {
    pub(super) open: HashMap<Arc<str>, OpenPermit>,
    /// Of the open ones: the first to expire first.
    pub(super) by_expiry: BTreeSet<(Micros, Arc<str>)>,
    pub(super) closed: HashMap<Arc<str>, (PlaceHolder, ClosedPermit)>,
    /// The one that was closed first in front, and when it would have expired.
    pub(super) closing_order: VecDeque<(Micros, Arc<str>)>,
    /// Places of permits that are open or still being decided.
    pub(super) places: CallerShares,
    /// Permits handed out so far.
    pub(super) count: u64,
    /// Permits that nobody reported or released in time, by provider. As many entries as providers.
    pub(super) unreported: HashMap<String, u64>,
    /// A task waits for the first to expire.
    pub(super) has_timer: bool,
}

#[derive(Debug)]
pub(super) struct OpenPermit {
    pub(super) decision: Box<AcquiredPermit>,
    pub(super) expires: Micros,
    /// Who may settle it, beside the operator.
    pub(super) holder: PlaceHolder,
}

/// What became of a permit. Remembered for a while: whoever reports twice is told so.
#[derive(Clone, Debug)]
pub(super) enum ClosedPermit {
    /// Empty while the report is being evaluated.
    Reported(Arc<OnceLock<Learned>>),
    Released,
}

impl TableState {
    pub(super) fn new() -> TableState {
        TableState {
            open: HashMap::new(),
            by_expiry: BTreeSet::new(),
            closed: HashMap::new(),
            closing_order: VecDeque::new(),
            places: CallerShares::new(PERMITS_MAX),
            count: 0,
            unreported: HashMap::new(),
            has_timer: false,
        }
    }

    /// Takes an open permit out, and frees its place.
    pub(super) fn take_open(&mut self, id: &str) -> Option<((Micros, Arc<str>), OpenPermit)> {
        let (id, permit) = self.open.remove_entry(id)?;
        let key = (permit.expires, id);
        self.by_expiry.remove(&key);
        self.places.give_back(permit.holder.as_deref());
        Some((key, permit))
    }

    pub(super) fn remember_closed(
        &mut self,
        (expires, id): (Micros, Arc<str>),
        holder: PlaceHolder,
        closed: ClosedPermit,
    ) {
        while self.closed.len() >= CLOSED_MAX
            && let Some((_, oldest)) = self.closing_order.pop_front()
        {
            self.closed.remove(&oldest);
        }
        self.closing_order.push_back((expires, id.clone()));
        self.closed.insert(id, (holder, closed));
    }

    /// Those closed first go once they would have expired.
    pub(super) fn evict_closed(&mut self, now: Micros) {
        while let Some((_, id)) = self
            .closing_order
            .pop_front_if(|(expires, _)| *expires <= now)
        {
            self.closed.remove(&id);
        }
    }
}
