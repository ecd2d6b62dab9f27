//! The path of a call, stage by stage.
//!
//! ```text
//! caller ─► route ─► cache ─► flight ─► retry( credential ─► connect ─► permit ─► send ─► learn )
//! ```
//!
//! Promises: a call is not an attempt. Every attempt, retries included, passes `permit` again. A
//! call that is dropped at any await gives its permit back, or counts it as sent, whichever is true.
//!
//! Never: a hidden attempt below this path. Of its stages cache and flight are not built yet.

pub mod permit;
mod admit;
mod connect;
mod credential;
mod learn;
mod query;
mod rates;
mod retry;
mod route;
mod send;
pub(crate) use query::without_parameter;
pub use rates::{Left, Rate, Rates};
pub use route::{Call, Said, Target};

use std::sync::Arc;

use bytes::Bytes;
use http::response::Parts;
use http_body::Body;
use tollgate_core::time::Span;

use crate::Error;
use crate::body::{BodyError, ReplyBody};
use crate::event::Fact;
use crate::shop::{Live, Plan, Shop};
use learn::Answered;
use retry::{Ended, Next, Tries};
use route::Route;

/// An answer of a provider.
#[derive(Debug)]
pub struct Reply {
    /// Status and headers, as they came.
    pub head: Parts,
    /// The body, as it comes.
    pub body: ReplyBody,
}

/// What happened to a call, whatever came of it.
#[derive(Clone, Debug, Default)]
pub struct Trail {
    /// The provider, once it is known.
    pub provider: Option<Arc<Live>>,
    /// The origin it was sent to.
    pub origin: Option<String>,
    /// Attempts whose bytes may have left.
    pub attempts: u32,
    /// Time spent waiting for permits.
    pub waited: Span,
    /// What the limits had left when it was decided.
    pub rates: Rates,
}

/// Makes a call: the whole path, outermost first. The trail is filled on the way.
pub async fn call<B>(shop: &Shop, call: Call<B>, trail: &mut Trail) -> Result<Reply, Error>
where
    B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    let mut route = route::route(shop, call).await?; // which provider, which limits, how urgent
    trail.provider = Some(route.live.clone());
    trail.origin = Some(route.origin.to_string());
    // cache: an answer that we already have costs nothing. It will stand here.
    // flight: one question asked twice is one attempt. It will stand here.
    let mut tries = Tries::default();
    route.live.machine.called(&route.live.plan().retry.budget);
    loop {
        let plan = route.live.plan();
        let attempt = attempt(&mut route, &plan, &mut tries).await; // everything once per attempt
        (trail.attempts, trail.waited) = (tries.made, tries.waited);
        trail.rates = std::mem::take(&mut tries.rates);
        match tries.next(&route, &plan, attempt) {
            // Retry-After, backoff and budget said when.
            Next::Again(after, unwanted) => retry::rest(after, unwanted).await,
            Next::Done(done) => return finish(&route, trail, done),
        }
    }
}

/// One attempt: each line is a stage.
async fn attempt(route: &mut Route, plan: &Plan, tries: &mut Tries) -> Result<Answered, Ended> {
    let key = credential::choose(route, plan)?; // whose key, and where it is counted
    let expected = connect::connect(route, plan).await?; // before the permit: failing costs nothing
    let granted = admit::admit(route, &key, tries).await?; // turn, health and every limit at once
    let sent = send::send(route, plan, &key, granted, expected, tries).await?; // the bytes leave
    Ok(learn::learn(route, plan, &key, sent).await) // what did the answer say?
}

fn finish(route: &Route, trail: &Trail, done: Result<Answered, Error>) -> Result<Reply, Error> {
    let answered = done?;
    Fact::Answered {
        id: &route.said.id,
        provider: &route.live.name,
        status: answered.head.status.as_u16(),
        attempts: trail.attempts,
        waited: trail.waited,
        priority: route.said.priority,
    }
    .tell();
    Ok(Reply {
        head: answered.head,
        body: answered.body,
    })
}
