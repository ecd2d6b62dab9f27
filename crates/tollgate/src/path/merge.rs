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
use super::flight::{Flight, Follow};
use super::learn::Answered;
use super::recipe::{self, PARTS_MAX, Part, Piece};
use super::route::Route;
use super::share::{self, Asked, Key};
use super::urgency::{Urgency, as_if_alone};
use crate::Error;
use crate::body::{OBJECT_MAX, ReplyBody};
use crate::error::Stage;
use crate::shop::Live;

/// Headers about one resource or one transfer; a part has none of them.
const OF_THE_WHOLE: [HeaderName; 4] = [ETAG, LAST_MODIFIED, TRANSFER_ENCODING, CONTENT_LENGTH];

/// The items of a provider that calls wait for. Bounded by its queue.
#[derive(Debug, Default)]
pub(crate) struct Items {
    open: Mutex<HashMap<Key, Arc<Group>>>,
}

/// Calls for one item.
#[derive(Debug)]
struct Group {
    key: Key,
    recipe: Merge,
    state: Mutex<State>,
    changed: Notify,
    urgency: Arc<Urgency>,
    /// The first caller's, if it shares its answer with others.
    flight: Option<Arc<Flight>>,
}

#[derive(Debug)]
struct State {
    /// What is wanted, each once. Nobody can join once they are closed.
    pieces: Vec<Piece>,
    is_closed: bool,
    end: Option<End>,
}

enum Boarded {
    Rides,
    HasNoPlace,
    TooLate,
}

#[derive(Clone, Debug)]
enum End {
    /// The larger answer, who asked for it, and when its permit was granted.
    Whole {
        head: Arc<Parts>,
        body: Bytes,
        asked: Arc<Asked>,
        granted: Option<Micros>,
    },
    /// There is none that would do.
    None,
    /// The first caller has left before its bytes did.
    Left,
}

/// A call's part in merging.
#[derive(Debug, Default)]
pub(crate) struct Merging {
    /// It has been told to go alone.
    is_alone: bool,
    /// Its answer is a part of a larger one.
    pub(crate) is_part: bool,
    /// The flight that it flies.
    pub(super) flight: Option<Arc<Flight>>,
    lead: Option<Lead>,
}

/// The first call for an item. Dropped, it leaves the others to themselves.
#[derive(Debug)]
struct Lead {
    group: Arc<Group>,
    live: Arc<Live>,
    part: Part,
}

/// A call that rides along.
#[derive(Debug)]
pub(crate) struct Ride {
    group: Arc<Group>,
    part: Part,
    /// While it rides, the first caller's flight is wanted.
    _wanted: Option<Follow>,
}

/// Joins others that wait for the same item; `None` = it goes itself, and others may join it.
pub(crate) fn join(route: &mut Route) -> Option<Ride> {
    let plan = route.live.plan();
    let recipe = plan.provider.merge;
    if recipe == Merge::Off || route.merging.is_alone || !is_simple(route) {
        return None;
    }
    let part = recipe::part(recipe, &route.path, route.query.as_deref())?;
    let key = share::key_of(route, &part.item);
    let live = route.live.clone();
    let mut open = live.items.open.lock();
    match open
        .get(&key)
        .map(|group| (group, group.board(&part.piece)))
    {
        Some((group, Boarded::Rides)) => {
            group.urgency.join(route.wish());
            live.saved.rides();
            let group = group.clone();
            drop(open);
            let flight = group.flight.as_ref();
            let wanted = flight.and_then(Flight::wanted_too);
            return Some(Ride {
                group,
                part,
                _wanted: wanted,
            });
        }
        Some((_, Boarded::HasNoPlace)) => return None,
        Some((_, Boarded::TooLate)) | None => {}
    }
    let wish = route.own_wish();
    let urgency = route
        .urgency
        .get_or_insert_with(|| Arc::new(Urgency::of_call(wish)))
        .clone();
    let group = Arc::new(Group {
        key,
        recipe,
        state: Mutex::new(State {
            pieces: vec![part.piece.clone()],
            is_closed: false,
            end: None,
        }),
        changed: Notify::new(),
        urgency,
        flight: route.merging.flight.clone(),
    });
    open.insert(key, group.clone());
    drop(open);
    route.merging.lead = Some(Lead { group, live, part });
    None
}

/// The target of a call whose bytes leave now: with the parts of all who have joined. `true` = it is
/// a larger one than was asked for.
pub(crate) fn target(route: &Route) -> (String, Option<String>, bool) {
    let own = || (route.path.clone(), route.query.clone(), false);
    let Some(lead) = &route.merging.lead else {
        return own();
    };
    let pieces = lead.close();
    if pieces.len() < 2 {
        return own();
    }
    let query = route.query.as_deref();
    let (path, query) = recipe::whole(lead.group.recipe, &lead.part.item, query, &pieces);
    (path, query, true)
}

/// Gives everybody their part of the answer; `None` = it was not one, and each asks alone.
pub(crate) async fn split(
    route: &mut Route,
    done: Result<Answered, Error>,
) -> Option<Result<Answered, Error>> {
    let Some(lead) = route.merging.lead.take() else {
        return Some(done);
    };
    if lead.close().len() < 2 {
        return Some(done); // the others hear of it as it is dropped
    }
    route.merging.is_alone = true;
    let answered = match done {
        Ok(answered) => answered,
        Err(Error::NoAnswer { .. }) => {
            // What broke the larger call may be its size: everybody asks for their own part.
            lead.group.end(End::None);
            return None;
        }
        // It may have been sent, and there is no time for another: the others go on without this one.
        Err(late @ Error::TooLate { .. }) => return Some(Err(late)),
        Err(_) => return None, // it was not sent: the others go on without this one
    };
    let asked = Arc::new(Asked::new(route, &route.live.plan()));
    let Answered {
        mut head,
        body,
        granted,
        ..
    } = answered;
    let Some(body) = whole(&mut head, body).await else {
        lead.group.end(End::None);
        return None;
    };
    let head = Arc::new(head);
    // What is this caller's own is no part of anybody else's answer.
    lead.group.end(if share::may_ride(&asked, &head) {
        End::Whole {
            head: head.clone(),
            body: body.clone(),
            asked,
            granted,
        }
    } else {
        End::None
    });
    let part = lead.group.cut(&lead.part, &head, &body, granted)?;
    route.merging.is_part = true;
    Some(Ok(part))
}

/// May others join this call for the sake of their parts?
pub(super) fn may_lead(route: &Route) -> bool {
    let recipe = route.live.plan().provider.merge;
    recipe != Merge::Off
        && is_simple(route)
        && recipe::part(recipe, &route.path, route.query.as_deref()).is_some()
}

/// A call that could be part of another: one that only its target tells apart.
fn is_simple(route: &Route) -> bool {
    let asks_about_one = share::CONDITIONS
        .iter()
        .any(|name| route.headers.contains_key(name));
    route.method == Method::GET && route.payload.is_empty() && !route.said.alone && !asks_about_one
}

/// The body of a larger answer, if it is one, as plain text: its parts are cut out of it. What was
/// compressed although nobody asked for it has no name of its own afterwards.
async fn whole(head: &mut Parts, mut body: ReplyBody) -> Option<Bytes> {
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
    let opened = decode::opened(&head.headers, &read, OBJECT_MAX).into_owned();
    head.headers.remove(CONTENT_ENCODING);
    for name in OF_THE_WHOLE {
        head.headers.remove(name);
    }
    Some(opened.into())
}

impl Ride {
    /// The part; `None` = the call must find another way.
    pub(crate) async fn part(self, route: &mut Route) -> Option<Result<Answered, Error>> {
        let group = &self.group;
        // Whoever joins this call's flight makes the ride as urgent as itself.
        let ended = async {
            let mut ended = std::pin::pin!(group.ended());
            loop {
                tokio::select! {
                    biased;
                    end = &mut ended => return end,
                    () = route.grows() => group.urgency.join(route.wish()),
                }
            }
        };
        let end = match as_if_alone(route, route.wish(), &group.urgency, ended).await {
            Ok(end) => end,
            Err(late) => return Some(Err(late)),
        };
        let part = match end {
            End::Whole { head, asked, .. }
                if asked.differs(&head, &share::agent(&route.headers)) =>
            {
                None
            }
            End::Whole {
                head,
                body,
                granted,
                ..
            } => self.group.cut(&self.part, &head, &body, granted),
            End::None => None,
            End::Left if route.own_left() == Some(Span::ZERO) => {
                let provider = route.live.name.clone();
                let at = Stage::Upstream;
                return Some(Err(Error::TooLate { provider, at }));
            }
            End::Left => return None,
        };
        route.merging.is_alone = part.is_none();
        route.merging.is_part = part.is_some();
        route.live.saved.merged(part.is_some());
        part.map(Ok)
    }
}

impl Group {
    /// One more wants a part of it.
    fn board(&self, piece: &Piece) -> Boarded {
        let mut state = self.state.lock();
        if state.is_closed || state.end.is_some() {
            return Boarded::TooLate;
        }
        // Several who want the same part are the flight's affair, if they want to be one at all.
        if state.pieces.contains(piece) || state.pieces.len() >= PARTS_MAX {
            return Boarded::HasNoPlace;
        }
        state.pieces.push(piece.clone());
        Boarded::Rides
    }

    async fn ended(&self) -> End {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(end) = &self.state.lock().end {
                return end.clone();
            }
            changed.await;
        }
    }

    fn end(&self, end: End) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.end.get_or_insert(end);
        drop(state);
        self.changed.notify_waiters();
    }

    /// One caller's part of the answer.
    fn cut(
        &self,
        part: &Part,
        head: &Parts,
        whole: &Bytes,
        granted: Option<Micros>,
    ) -> Option<Answered> {
        let pieces = self.state.lock().pieces.clone();
        let body = recipe::cut(self.recipe, part, &pieces, whole)?;
        let mut head = head.clone();
        if part.piece != Piece::All {
            for name in OF_THE_WHOLE {
                head.headers.remove(name);
            }
        }
        head.headers
            .insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        Some(Answered::part(head, ReplyBody::whole(body), granted))
    }
}

impl Lead {
    /// Nobody can join any more.
    fn close(&self) -> Vec<Piece> {
        let mut open = self.live.items.open.lock();
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
        state.pieces.clone()
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.close();
        self.group.end(End::Left);
    }
}
