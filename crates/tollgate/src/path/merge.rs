//! The merge stage: calls for parts of one item that wait together become one call (M15).
//!
//! The first of them waits for a permit as usual. Until its bytes leave, others for the same item
//! join it; then one larger call is made, and each caller gets its own part. Nobody waits for
//! somebody to join.
//!
//! Promises: each caller gets the JSON that its own call would have had. If the larger call fails or
//! lacks a part, who wanted it asks alone. A first caller that leaves, or whose time is up, takes
//! nobody with it: its flight goes on for the others, and a call without one is followed by another.
//!
//! Merging is a setting of its own: it works with `dedup: off` too, which is about whole answers. Who
//! wants an answer of its own (`X-Tollgate-Dedup: no`) is never merged.
//!
//! Never: merges calls that differ in anything but the part they want.

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

/// The items of a provider that calls wait for. Bounded by its queue.
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
    /// The first caller's, if it shares its answer with others.
    flight: Option<Arc<Flight>>,
}

#[derive(Debug)]
struct GroupState {
    /// What is wanted, each once. Nobody can join once they are closed.
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
    /// The larger answer, who asked for it, and when its permit was granted.
    Whole {
        head: Arc<Parts>,
        body: Bytes,
        identity: Arc<RequestIdentity>,
        granted: Option<Micros>,
    },
    /// There is none that would do.
    None,
    /// The first caller has left before its bytes did.
    LeaderLeft,
}

/// A call's part in merging.
#[derive(Debug, Default)]
pub(crate) struct MergeState {
    /// It has been told to go alone.
    is_alone: bool,
    /// Its answer is a part of a larger one.
    pub(crate) is_part: bool,
    /// The flight that it flies.
    pub(super) flight: Option<Arc<Flight>>,
    leader: Option<MergeLeader>,
}

/// The first call for an item. Dropped, it leaves the others to themselves.
#[derive(Debug)]
struct MergeLeader {
    group: Arc<MergeGroup>,
    provider: Arc<ActiveProvider>,
    part: ItemPart,
}

/// A call that rides along.
#[derive(Debug)]
pub(crate) struct MergeFollower {
    group: Arc<MergeGroup>,
    part: ItemPart,
    /// While it rides, the first caller's flight is wanted.
    _follower: Option<Follower>,
}

/// Joins others that wait for the same item; `None` = it goes itself, and others may join it.
pub(crate) fn join(route: &mut Route) -> Option<MergeFollower> {
    let plan = route.provider.policy();
    let recipe = plan.provider.merge;
    if recipe == Merge::Off || route.merging.is_alone || !is_mergeable(route) {
        return None;
    }
    let part = recipe::part(recipe, &route.path, route.query.as_deref())?;
    let key = sharing::key_of(route, &part.item);
    let live = route.provider.clone();
    let mut open = live.items.open.lock();
    match open.get(&key).map(|group| (group, group.join(&part.kind))) {
        Some((group, JoinResult::Joined)) => {
            group.demand.join(route.demand());
            live.savings.on_joined_merge();
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
    let wish = route.own_demand();
    let urgency = route
        .shared_demand
        .get_or_insert_with(|| Arc::new(SharedDemand::of_call(wish)))
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
        demand: urgency,
        flight: route.merging.flight.clone(),
    });
    open.insert(key, group.clone());
    drop(open);
    route.merging.leader = Some(MergeLeader {
        group,
        provider: live,
        part,
    });
    None
}

/// The target of a call whose bytes leave now: with the parts of all who have joined. `true` = it is
/// a larger one than was asked for.
pub(crate) fn target(route: &Route) -> (String, Option<String>, bool) {
    let own = || (route.path.clone(), route.query.clone(), false);
    let Some(lead) = &route.merging.leader else {
        return own();
    };
    let pieces = lead.close();
    if pieces.len() < 2 {
        return own();
    }
    let query = route.query.as_deref();
    let (path, query) = recipe::merged_target(lead.group.recipe, &lead.part.item, query, &pieces);
    (path, query, true)
}

/// Gives everybody their part of the answer; `None` = it was not one, and each asks alone.
pub(crate) async fn split(
    route: &mut Route,
    done: Result<UpstreamResponse, Error>,
) -> Option<Result<UpstreamResponse, Error>> {
    let Some(lead) = route.merging.leader.take() else {
        return Some(done);
    };
    if lead.close().len() < 2 {
        return Some(done); // the others hear of it as it is dropped
    }
    route.merging.is_alone = true;
    let answered = match done {
        Ok(answered) => answered,
        Err(Error::NoResponse { .. }) => {
            // What broke the larger call may be its size: everybody asks for their own part.
            lead.group.finish(GroupEnd::None);
            return None;
        }
        // It may have been sent, and there is no time for another: the others go on without this one.
        Err(late @ Error::TooLate { .. }) => return Some(Err(late)),
        Err(_) => return None, // it was not sent: the others go on without this one
    };
    let asked = Arc::new(RequestIdentity::new(route, &route.provider.policy()));
    let UpstreamResponse {
        mut head,
        body,
        granted,
        ..
    } = answered;
    let Some(body) = read_whole(&mut head, body).await else {
        lead.group.finish(GroupEnd::None);
        return None;
    };
    let head = Arc::new(head);
    // What is this caller's own is no part of anybody else's answer.
    lead.group
        .finish(if sharing::may_share_parts(&asked, &head) {
            GroupEnd::Whole {
                head: head.clone(),
                body: body.clone(),
                identity: asked,
                granted,
            }
        } else {
            GroupEnd::None
        });
    let part = lead.group.extract_part(&lead.part, &head, &body, granted)?;
    route.merging.is_part = true;
    Some(Ok(part))
}

/// May others join this call for the sake of their parts?
pub(super) fn may_lead(route: &Route) -> bool {
    let recipe = route.provider.policy().provider.merge;
    recipe != Merge::Off
        && is_mergeable(route)
        && recipe::part(recipe, &route.path, route.query.as_deref()).is_some()
}

/// A call that could be part of another: one that only its target tells apart.
fn is_mergeable(route: &Route) -> bool {
    let asks_about_one = sharing::CONDITIONS
        .iter()
        .any(|name| route.headers.contains_key(name));
    route.method == Method::GET
        && route.payload.is_empty()
        && !route.options.no_dedup
        && !asks_about_one
}

/// The body of a larger answer, if it is one, as plain text: its parts are cut out of it. What was
/// compressed although nobody asked for it has no name of its own afterwards.
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
    // What broke off or is too large is no JSON, so that nothing is cut out of it.
    let opened = decode::decoded(&head.headers, &read, OBJECT_MAX).into_owned();
    head.headers.remove(CONTENT_ENCODING);
    for name in WHOLE_BODY_HEADERS {
        head.headers.remove(name);
    }
    Some(opened.into())
}

impl MergeFollower {
    /// The part; `None` = the call must find another way.
    pub(crate) async fn wait_part(
        self,
        route: &mut Route,
    ) -> Option<Result<UpstreamResponse, Error>> {
        let group = &self.group;
        // Whoever joins this call's flight makes the ride as urgent as itself.
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
            GroupEnd::Whole {
                head,
                identity: asked,
                ..
            } if asked.varies_for(&head, &sharing::user_agent(&route.headers)) => None,
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
    /// One more wants a part of it.
    fn join(&self, piece: &PartKind) -> JoinResult {
        let mut state = self.state.lock();
        if state.is_closed || state.end.is_some() {
            return JoinResult::TooLate;
        }
        // Several who want the same part are the flight's affair, if they want to be one at all.
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

    /// One caller's part of the answer.
    fn extract_part(
        &self,
        part: &ItemPart,
        head: &Parts,
        whole: &Bytes,
        granted: Option<Micros>,
    ) -> Option<UpstreamResponse> {
        let pieces = self.state.lock().parts.clone();
        let body = recipe::extract(self.recipe, part, &pieces, whole)?;
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
    /// Nobody can join any more.
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
