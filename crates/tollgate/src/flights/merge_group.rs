//! Calls for parts of one item that become one call.
//!
//! The first call leads; others join until the bytes of the leader's call leave.
//!
//! Promises: nobody joins a group that is closed, and no part is in a group twice. A leader that is
//! dropped releases the others.
//!
//! Never: takes locks against their order (flights, flight, demand).

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use http::header::{CONTENT_LENGTH, ETAG, HeaderName, LAST_MODIFIED, TRANSFER_ENCODING};
use http::response::Parts;
use tollgate_config::settings::Merge;
use tollgate_core::time::Micros;

use super::demand::{CallDemand, SharedDemand};
use super::flight::{Flight, Follower};
use super::recipe::{self, ItemPart, PARTS_MAX, PartKind};
use super::sharing::{FlightKey, RequestIdentity};
use crate::single_flight::{Join, Leader, Leaders, Role, Round};

/// Headers about one resource or one transfer; a part has none of them.
pub(crate) const WHOLE_BODY_HEADERS: [HeaderName; 4] =
    [ETAG, LAST_MODIFIED, TRANSFER_ENCODING, CONTENT_LENGTH];

/// The items of a provider that calls wait for. The provider's queue bounds them.
#[derive(Debug, Default)]
pub(crate) struct MergeGroups {
    open: Leaders<FlightKey, MergeGroup>,
}

/// Calls for one item.
#[derive(Debug)]
pub(crate) struct MergeGroup {
    recipe: Merge,
    pub(crate) round: Round<GroupParts, GroupEnd>,
    pub(crate) demand: Arc<SharedDemand>,
    /// The leader's flight, if it shares its response with others.
    flight: Option<Arc<Flight>>,
}

#[derive(Debug)]
pub(crate) struct GroupParts {
    /// The requested parts, each once. Nobody can join once the group is closed.
    parts: Vec<PartKind>,
    is_closed: bool,
}

/// How a group ends.
#[derive(Clone, Debug)]
pub(crate) enum GroupEnd {
    /// The larger response, the identity of its request, and when its permit was granted.
    Whole {
        head: Arc<Parts>,
        body: Bytes,
        identity: Arc<RequestIdentity>,
        granted: Option<Micros>,
    },
    /// No usable response.
    None,
    /// The leader has left before its bytes did.
    LeaderLeft,
}

/// The first call for an item. Dropped, it releases the others.
#[derive(Debug)]
pub(crate) struct MergeLeader {
    leader: Leader<FlightKey, MergeGroup>,
    pub(crate) part: ItemPart,
}

/// A call that has joined a leader.
#[derive(Debug)]
pub(crate) struct MergeFollower {
    pub(crate) group: Arc<MergeGroup>,
    pub(crate) part: ItemPart,
    /// Keeps the leader's flight alive while this call waits.
    _follower: Option<Follower>,
}

impl MergeGroups {
    /// Joins the group of an item for this part, or leads a new one.
    pub(crate) fn join(
        &self,
        key: FlightKey,
        part: &ItemPart,
        demand: CallDemand,
        new: impl FnOnce() -> MergeGroup,
    ) -> Role<FlightKey, MergeGroup, MergeFollower> {
        let join = |group: &Arc<MergeGroup>| group.join(&part.kind, demand);
        match self.open.join_or_lead(key, usize::MAX, join, new) {
            Role::Follower(group) => Role::Follower(MergeFollower {
                part: part.clone(),
                _follower: group.flight.as_ref().and_then(Flight::join_for_part),
                group,
            }),
            Role::Leader(leader) => Role::Leader(leader),
            Role::Alone => Role::Alone,
        }
    }
}

impl MergeGroup {
    pub(crate) fn new(
        recipe: Merge,
        first: PartKind,
        demand: Arc<SharedDemand>,
        flight: Option<Arc<Flight>>,
    ) -> MergeGroup {
        MergeGroup {
            recipe,
            round: Round::new(GroupParts {
                parts: vec![first],
                is_closed: false,
            }),
            demand,
            flight,
        }
    }

    /// Another caller wants a part of the item.
    fn join(self: &Arc<MergeGroup>, part: &PartKind, demand: CallDemand) -> Join<Arc<MergeGroup>> {
        let mut state = self.round.lock();
        if state.open.is_closed || state.end.is_some() {
            return Join::Over;
        }
        // Several callers of the same part are the flight stage's task, if they may share at all.
        let parts = &mut state.open.parts;
        if parts.contains(part) || parts.len() >= PARTS_MAX {
            return Join::Alone;
        }
        parts.push(part.clone());
        drop(state);
        self.demand.join(demand);
        Join::Joined(self.clone())
    }

    /// Ends the group.
    pub(crate) fn finish(&self, end: GroupEnd) {
        self.round.lock().open.is_closed = true;
        self.round.finish(end);
    }

    /// One caller's part of the response.
    pub(crate) fn extract_part(
        &self,
        part: &ItemPart,
        head: &Parts,
        whole: &Bytes,
    ) -> Option<(Parts, Bytes)> {
        let parts = self.round.lock().open.parts.clone();
        let body = recipe::extract(self.recipe, part, &parts, whole)?;
        let mut head = head.clone();
        if part.kind != PartKind::All {
            for name in WHOLE_BODY_HEADERS {
                head.headers.remove(name);
            }
        }
        head.headers
            .insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        Some((head, body))
    }
}

impl MergeLeader {
    pub(crate) fn new(leader: Leader<FlightKey, MergeGroup>, part: ItemPart) -> MergeLeader {
        MergeLeader { leader, part }
    }

    pub(crate) fn group(&self) -> &MergeGroup {
        self.leader.round()
    }

    /// Closes the group: nobody can join any more.
    pub(crate) fn close(&self) -> Vec<PartKind> {
        self.leader.close();
        let mut state = self.group().round.lock();
        state.open.is_closed = true;
        state.open.parts.clone()
    }

    /// Path and query of the call for all these parts.
    pub(crate) fn merged_target(
        &self,
        query: Option<&str>,
        parts: &[PartKind],
    ) -> (String, Option<String>) {
        recipe::merged_target(self.group().recipe, &self.part.item, query, parts)
    }
}

impl Drop for MergeLeader {
    fn drop(&mut self) {
        self.close();
        self.group().finish(GroupEnd::LeaderLeft);
    }
}
