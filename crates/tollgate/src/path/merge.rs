//! The merge stage: waiting calls for parts of one item become one call (M15).
//!
//! The first call, the leader, waits for a permit as usual. Until its bytes leave, other calls for
//! the same item join it. Then one larger call is made, and each caller gets its own part. No call
//! waits for others to join.
//!
//! Promises: each caller gets the JSON that its own call would have returned. If the larger call
//! fails or lacks a part, the caller of that part sends its own call. A leader that leaves or times
//! out does not affect the others: its flight continues for them, and if there is none, another
//! call leads.
//!
//! Merging is a separate setting: it works with `dedup: off` too, which concerns whole responses. A
//! call with `X-Tollgate-Dedup: no` is never merged.
//!
//! Never: merges calls that differ in anything but the requested part.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, ETAG, HeaderName, LAST_MODIFIED, TRANSFER_ENCODING,
};
use http::response::Parts;
use http::{HeaderValue, Method, StatusCode};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate_config::settings::Merge;
use tollgate_core::time::{Micros, Span};

use super::decode;
use super::demand::{SharedDemand, wait_as_if_alone};
use super::flight::{Flight, Follower};
use super::learn::UpstreamResponse;
use super::recipe::{self, ItemPart, PARTS_MAX, PartKind};
use super::route::Route;
use super::sharing::{self, FlightKey, RequestIdentity};
use crate::Error;
use crate::body::{OBJECT_MAX, ReplyBody};
use crate::error::Stage;
use crate::providers::ActiveProvider;

/// Headers about one resource or one transfer; a part has none of them.
const WHOLE_BODY_HEADERS: [HeaderName; 4] =
    [ETAG, LAST_MODIFIED, TRANSFER_ENCODING, CONTENT_LENGTH];

/// The items of a provider that calls wait for. The provider's queue bounds them.
#[derive(Debug, Default)]
pub(crate) struct MergeGroups {
    open: Mutex<HashMap<FlightKey, Arc<MergeGroup>>>,
}

/// Calls for one item.
#[derive(Debug)]
struct MergeGroup {
    key: FlightKey,
    recipe: Merge,
    state: Mutex<GroupState>,
    changed: Notify,
    demand: Arc<SharedDemand>,
    /// The leader's flight, if it shares its response with others.
    flight: Option<Arc<Flight>>,
}

#[derive(Debug)]
struct GroupState {
    /// The requested parts, each once. Nobody can join once the group is closed.
    parts: Vec<PartKind>,
    is_closed: bool,
    end: Option<GroupEnd>,
}

enum JoinResult {
    Joined,
    CannotJoin,
    TooLate,
}

#[derive(Clone, Debug)]
enum GroupEnd {
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

/// How a call takes part in merging.
#[derive(Debug, Default)]
pub(crate) struct MergeState {
    /// It must go alone.
    is_alone: bool,
    /// Its response is a part of a larger one.
    pub(crate) is_part: bool,
    /// The flight that it leads.
    pub(super) flight: Option<Arc<Flight>>,
    leader: Option<MergeLeader>,
}

/// The first call for an item. Dropped, it releases the others.
#[derive(Debug)]
struct MergeLeader {
    group: Arc<MergeGroup>,
    provider: Arc<ActiveProvider>,
    part: ItemPart,
}

/// A call that has joined a leader.
#[derive(Debug)]
pub(crate) struct MergeFollower {
    group: Arc<MergeGroup>,
    part: ItemPart,
    /// Keeps the leader's flight alive while this call waits.
    _follower: Option<Follower>,
}

/// Joins calls that wait for the same item; `None` = it leads, and others may join it.
pub(crate) fn join(route: &mut Route) -> Option<MergeFollower> {
    let policy = route.provider.policy();
    let recipe = policy.provider.merge;
    if recipe == Merge::Off || route.merging.is_alone || !is_mergeable(route) {
        return None;
    }
    let part = recipe::part(recipe, &route.path, route.query.as_deref())?;
    let key = sharing::key_of(route, &part.item);
    let provider = route.provider.clone();
    let mut open = provider.items.open.lock();
    match open.get(&key).map(|group| (group, group.join(&part.kind))) {
        Some((group, JoinResult::Joined)) => {
            group.demand.join(route.demand());
            provider.savings.on_joined_merge();
            let group = group.clone();
            drop(open);
            let flight = group.flight.as_ref();
            let wanted = flight.and_then(Flight::join_for_part);
            return Some(MergeFollower {
                group,
                part,
                _follower: wanted,
            });
        }
        Some((_, JoinResult::CannotJoin)) => return None,
        Some((_, JoinResult::TooLate)) | None => {}
    }
    let own_demand = route.own_demand();
    let demand = route
        .shared_demand
        .get_or_insert_with(|| Arc::new(SharedDemand::of_call(own_demand)))
        .clone();
    let group = Arc::new(MergeGroup {
        key,
        recipe,
        state: Mutex::new(GroupState {
            parts: vec![part.kind.clone()],
            is_closed: false,
            end: None,
        }),
        changed: Notify::new(),
        demand,
        flight: route.merging.flight.clone(),
    });
    open.insert(key, group.clone());
    drop(open);
    route.merging.leader = Some(MergeLeader {
        group,
        provider,
        part,
    });
    None
}

/// The target of a call whose bytes leave now: with the parts of all callers that have joined.
/// `true` = it is larger than the call's own.
pub(crate) fn target(route: &Route) -> (String, Option<String>, bool) {
    let own = || (route.path.clone(), route.query.clone(), false);
    let Some(leader) = &route.merging.leader else {
        return own();
    };
    let parts = leader.close();
    if parts.len() < 2 {
        return own();
    }
    let query = route.query.as_deref();
    let (path, query) =
        recipe::merged_target(leader.group.recipe, &leader.part.item, query, &parts);
    (path, query, true)
}

/// Gives all callers their parts of the response; `None` = unusable, and each caller goes alone.
pub(crate) async fn split(
    route: &mut Route,
    done: Result<UpstreamResponse, Error>,
) -> Option<Result<UpstreamResponse, Error>> {
    let Some(leader) = route.merging.leader.take() else {
        return Some(done);
    };
    if leader.close().len() < 2 {
        return Some(done); // dropping the leader informs the others
    }
    route.merging.is_alone = true;
    let response = match done {
        Ok(response) => response,
        Err(Error::NoResponse { .. }) => {
            // The size may have broken the larger call: each caller requests its own part.
            leader.group.finish(GroupEnd::None);
            return None;
        }
        // It may have been sent, and no time remains for another: the others continue without it.
        Err(late @ Error::TooLate { .. }) => return Some(Err(late)),
        Err(_) => return None, // it was not sent: the others continue without it
    };
    let identity = Arc::new(RequestIdentity::new(route, &route.provider.policy()));
    let UpstreamResponse {
        mut head,
        body,
        granted,
        ..
    } = response;
    let Some(body) = read_whole(&mut head, body).await else {
        leader.group.finish(GroupEnd::None);
        return None;
    };
    let head = Arc::new(head);
    // A private response of this caller is not shared with others.
    leader
        .group
        .finish(if sharing::may_share_parts(&identity, &head) {
            GroupEnd::Whole {
                head: head.clone(),
                body: body.clone(),
                identity,
                granted,
            }
        } else {
            GroupEnd::None
        });
    let part = leader
        .group
        .extract_part(&leader.part, &head, &body, granted)?;
    route.merging.is_part = true;
    Some(Ok(part))
}

/// May others join this call for their parts?
pub(super) fn may_lead(route: &Route) -> bool {
    let recipe = route.provider.policy().provider.merge;
    recipe != Merge::Off
        && is_mergeable(route)
        && recipe::part(recipe, &route.path, route.query.as_deref()).is_some()
}

/// A call that could be part of another: one that differs only in its target.
fn is_mergeable(route: &Route) -> bool {
    let asks_about_one = sharing::CONDITIONS
        .iter()
        .any(|name| route.headers.contains_key(name));
    route.method == Method::GET
        && route.payload.is_empty()
        && !route.options.no_dedup
        && !asks_about_one
}

/// The body of a larger response, decoded, because its parts are extracted from it. A body that was
/// compressed unasked loses its validators.
async fn read_whole(head: &mut Parts, mut body: ReplyBody) -> Option<Bytes> {
    if head.status != StatusCode::OK {
        return None;
    }
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame.ok()?.data_ref() {
            read.extend_from_slice(data);
        }
        if read.len() > OBJECT_MAX {
            return None;
        }
    }
    if !head.headers.contains_key(CONTENT_ENCODING) {
        return Some(read.freeze());
    }
    // A truncated or too large body is not valid JSON, so nothing is extracted from it.
    let opened = decode::decoded(&head.headers, &read, OBJECT_MAX).into_owned();
    head.headers.remove(CONTENT_ENCODING);
    for name in WHOLE_BODY_HEADERS {
        head.headers.remove(name);
    }
    Some(opened.into())
}

impl MergeFollower {
    /// The part; `None` = the call must go another way.
    pub(crate) async fn wait_part(
        self,
        route: &mut Route,
    ) -> Option<Result<UpstreamResponse, Error>> {
        let group = &self.group;
        // A caller that joins this call's flight raises the priority of the merge too.
        let ended = async {
            let mut ended = std::pin::pin!(group.finished());
            loop {
                tokio::select! {
                    biased;
                    end = &mut ended => return end,
                    () = route.until_raised() => group.demand.join(route.demand()),
                }
            }
        };
        let end = match wait_as_if_alone(route, route.demand(), &group.demand, ended).await {
            Ok(end) => end,
            Err(late) => return Some(Err(late)),
        };
        let part = match end {
            GroupEnd::Whole { head, identity, .. }
                if identity.varies_for(&head, &sharing::user_agent(&route.headers)) =>
            {
                None
            }
            GroupEnd::Whole {
                head,
                body,
                granted,
                ..
            } => self.group.extract_part(&self.part, &head, &body, granted),
            GroupEnd::None => None,
            GroupEnd::LeaderLeft if route.own_remaining() == Some(Span::ZERO) => {
                let provider = route.provider.name.clone();
                let at = Stage::Upstream;
                return Some(Err(Error::TooLate { provider, at }));
            }
            GroupEnd::LeaderLeft => return None,
        };
        route.merging.is_alone = part.is_none();
        route.merging.is_part = part.is_some();
        route.provider.savings.on_merged(part.is_some());
        part.map(Ok)
    }
}

impl MergeGroup {
    /// Another caller wants a part of the item.
    fn join(&self, piece: &PartKind) -> JoinResult {
        let mut state = self.state.lock();
        if state.is_closed || state.end.is_some() {
            return JoinResult::TooLate;
        }
        // Several callers of the same part are the flight stage's task, if they may share at all.
        if state.parts.contains(piece) || state.parts.len() >= PARTS_MAX {
            return JoinResult::CannotJoin;
        }
        state.parts.push(piece.clone());
        JoinResult::Joined
    }

    async fn finished(&self) -> GroupEnd {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(end) = &self.state.lock().end {
                return end.clone();
            }
            changed.await;
        }
    }

    fn finish(&self, end: GroupEnd) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.end.get_or_insert(end);
        drop(state);
        self.changed.notify_waiters();
    }

    /// One caller's part of the response.
    fn extract_part(
        &self,
        part: &ItemPart,
        head: &Parts,
        whole: &Bytes,
        granted: Option<Micros>,
    ) -> Option<UpstreamResponse> {
        let parts = self.state.lock().parts.clone();
        let body = recipe::extract(self.recipe, part, &parts, whole)?;
        let mut head = head.clone();
        if part.kind != PartKind::All {
            for name in WHOLE_BODY_HEADERS {
                head.headers.remove(name);
            }
        }
        head.headers
            .insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        Some(UpstreamResponse::part(
            head,
            ReplyBody::whole(body),
            granted,
        ))
    }
}

impl MergeLeader {
    /// Closes the group: nobody can join any more.
    fn close(&self) -> Vec<PartKind> {
        let mut open = self.provider.items.open.lock();
        let group = &self.group;
        if open
            .get(&group.key)
            .is_some_and(|found| Arc::ptr_eq(found, group))
        {
            open.remove(&group.key);
        }
        drop(open);
        let mut state = group.state.lock();
        state.is_closed = true;
        state.parts.clone()
    }
}

impl Drop for MergeLeader {
    fn drop(&mut self) {
        self.close();
        self.group.finish(GroupEnd::LeaderLeft);
    }
}
