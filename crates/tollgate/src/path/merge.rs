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

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_ENCODING;
use http::response::Parts;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use tollgate_config::settings::Merge;
use tollgate_core::time::{Micros, Span};

use super::identity;
use super::response::UpstreamResponse;
use super::route::Route;
use super::subject::wait_as_if_alone;
use crate::body::{OBJECT_MAX, ReplyBody};
use crate::error::Stage;
use crate::flights::{
    self, GroupEnd, MergeFollower, MergeGroup, MergeLeader, SharedDemand, WHOLE_BODY_HEADERS,
};
use crate::headers::{CONDITIONS, is_upgrade};
use crate::single_flight::Role;
use crate::{Error, decode};

/// The response as a part of another call's; `None` = the call must be sent, alone or for others.
pub(crate) async fn part_of_another(route: &mut Route) -> Option<Result<UpstreamResponse, Error>> {
    if is_upgrade(&route.request.headers) {
        return None;
    }
    loop {
        let follower = join(route)?;
        if let Some(part) = wait_part(follower, route).await {
            return Some(part);
        }
    }
}

/// Joins calls that wait for the same item; `None` = it leads, and others may join it.
fn join(route: &mut Route) -> Option<MergeFollower> {
    let policy = route.subject.provider.policy();
    let recipe = policy.provider.merge;
    if recipe == Merge::Off || route.flight.merging.is_alone || !is_mergeable(route) {
        return None;
    }
    let part = flights::part(recipe, &route.request.path, route.request.query.as_deref())?;
    let key = identity::key_of(route, &policy, &part.item);
    let demand = route.subject.demand();
    let provider = route.subject.provider.clone();
    let (own_demand, flight) = (
        route.subject.own_demand(),
        route.flight.merging.flight.clone(),
    );
    let shared_demand = &mut route.subject.shared_demand;
    let new = || {
        let own = || Arc::new(SharedDemand::of_call(own_demand));
        let demand = shared_demand.get_or_insert_with(own).clone();
        MergeGroup::new(recipe, part.kind.clone(), demand, flight)
    };
    match provider.items.join(key, &part, demand, new) {
        Role::Follower(follower) => {
            provider.savings.on_joined_merge();
            Some(follower)
        }
        Role::Leader(leader) => {
            route.flight.merging.leader = Some(MergeLeader::new(leader, part));
            None
        }
        Role::Alone => None,
    }
}

/// The target of a call whose bytes leave now, if it is larger than its own: with the parts of all
/// callers that have joined.
pub(crate) fn target(route: &Route) -> Option<(String, Option<String>)> {
    let leader = route.flight.merging.leader.as_ref()?;
    let parts = leader.close();
    let is_merged = parts.len() >= 2;
    is_merged.then(|| leader.merged_target(route.request.query.as_deref(), &parts))
}

/// Gives all callers their parts of the response; `None` = unusable, and each caller goes alone.
pub(crate) async fn split(
    route: &mut Route,
    done: Result<UpstreamResponse, Error>,
) -> Option<Result<UpstreamResponse, Error>> {
    let Some(leader) = route.flight.merging.leader.take() else {
        return Some(done);
    };
    if leader.close().len() < 2 {
        return Some(done); // dropping the leader informs the others
    }
    route.flight.merging.is_alone = true;
    let response = match done {
        Ok(response) => response,
        Err(Error::NoResponse { .. }) => {
            // The size may have broken the larger call: each caller requests its own part.
            leader.group().finish(GroupEnd::None);
            return None;
        }
        // It may have been sent, and no time remains for another: the others continue without it.
        Err(late @ Error::DeadlineExceeded { .. }) => return Some(Err(late)),
        Err(_) => return None, // it was not sent: the others continue without it
    };
    let identity = Arc::new(identity::identity(route, &route.subject.provider.policy()));
    let UpstreamResponse {
        mut head,
        body,
        granted,
        ..
    } = response;
    let Some(body) = read_whole(&mut head, body).await else {
        leader.group().finish(GroupEnd::None);
        return None;
    };
    let head = Arc::new(head);
    // A private response of this caller is not shared with others.
    leader
        .group()
        .finish(if flights::may_share_parts(&identity, &head) {
            GroupEnd::Whole {
                head: head.clone(),
                body: body.clone(),
                identity,
                granted,
            }
        } else {
            GroupEnd::None
        });
    let (head, body) = leader.group().extract_part(&leader.part, &head, &body)?;
    route.flight.merging.is_part = true;
    Some(Ok(part_response(head, body, granted)))
}

/// May others join this call for their parts?
pub(crate) fn may_lead(route: &Route) -> bool {
    let recipe = route.subject.provider.policy().provider.merge;
    recipe != Merge::Off
        && is_mergeable(route)
        && flights::part(recipe, &route.request.path, route.request.query.as_deref()).is_some()
}

/// A call that could be part of another: one that differs only in its target.
fn is_mergeable(route: &Route) -> bool {
    let asks_about_one = CONDITIONS
        .iter()
        .any(|name| route.request.headers.contains_key(name));
    route.request.method == Method::GET
        && route.request.payload.is_empty()
        && !route.request.no_dedup
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

/// Waits for the part of a larger response; `None` = the call must go another way.
async fn wait_part(
    follower: MergeFollower,
    route: &mut Route,
) -> Option<Result<UpstreamResponse, Error>> {
    let group = &follower.group;
    // A caller that joins this call's flight raises the priority of the merge too.
    let ended = async {
        let mut ended = std::pin::pin!(group.round.finished());
        loop {
            tokio::select! {
                biased;
                end = &mut ended => return end,
                () = route.subject.until_raised() => group.demand.join(route.subject.demand()),
            }
        }
    };
    let end = match wait_as_if_alone(&route.subject, route.subject.demand(), &group.demand, ended)
        .await
    {
        Ok(end) => end,
        Err(late) => return Some(Err(late)),
    };
    let part = match end {
        GroupEnd::Whole { head, identity, .. }
            if identity.varies_for(&head, &flights::user_agent(&route.request.headers)) =>
        {
            None
        }
        GroupEnd::Whole {
            head,
            body,
            granted,
            ..
        } => group
            .extract_part(&follower.part, &head, &body)
            .map(|(head, body)| part_response(head, body, granted)),
        GroupEnd::None => None,
        GroupEnd::LeaderLeft if route.subject.own_remaining() == Some(Span::ZERO) => {
            let provider = route.subject.provider.name.clone();
            let at = Stage::Upstream;
            return Some(Err(Error::DeadlineExceeded { provider, at }));
        }
        GroupEnd::LeaderLeft => return None,
    };
    route.flight.merging.is_alone = part.is_none();
    route.flight.merging.is_part = part.is_some();
    route.subject.provider.savings.on_merged(part.is_some());
    part.map(Ok)
}

fn part_response(head: Parts, body: Bytes, granted: Option<Micros>) -> UpstreamResponse {
    UpstreamResponse::part(head, ReplyBody::whole(body), granted)
}
