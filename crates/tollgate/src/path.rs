//! The path of a call, stage by stage.
//!
//! ```text
//! caller ─► route ─► cache ─► flight ─► retry( credential ─► connect ─► permit ─► send ─► learn ) ─► keep ─► answer
//!                     │hit      │join              └────────── once per ATTEMPT ──────────┘
//! ```
//!
//! Promises: a call is not an attempt. Every attempt, retries included, passes `permit` again. A
//! call that is dropped at any await gives its permit back, or counts it as sent, whichever is true.
//!
//! Never: a hidden attempt below this path.

mod route; // which provider, entity, caller, priority, cost and deadline?
mod place; //   whose call it is, and where it goes
mod query; //   where a key stands in a query, and when two ask the same
mod noise; //   headers that make no other question
mod cache; // is there an answer already?
mod hit; //   the first two stages in one step, for the plainest calls
mod serve; //   how a kept answer goes to the caller, and how it is renewed
mod flight; // is somebody asking the same right now?
mod table; //   everything that is on its way
mod share; //   what is the same question, and who may share its answer
mod landing; //   how a flight ends
mod writes; //   what was changed since it was asked for
mod urgency; //   as urgent and patient as all who wait for it
mod merge; // can it be a part of a larger question?
mod recipe; //   how parts are asked for together, and taken apart
mod retry; // once more? Everything below happens once per attempt
mod credential; // with which key
mod account; //   the credentials that tokens are fetched for
mod token; //   the token in use, and who waits for the next
mod login; //   the call that fetches one
mod connect; // is there a connection?
mod admit; // what to ask the gate for, and what its answer means
mod on_its_way; //   an attempt that health waits to hear of
pub mod permit; //   who waits and who goes
mod denied; //   why there is none
mod send; // the bytes leave
mod learn; // what did the answer say?
mod decode; //   a compressed body, opened beside what is passed on
mod keep; // is the answer kept for later?
mod scrub; //   what of it is not: keys, and what is of one moment
mod target; //   which kept answers its links concern
mod rates; // what the headers of an answer say of limits
pub(crate) use account::Account;
pub use cache::UseCache;
pub(crate) use credential::{Aside, marks};
pub(crate) use flight::Flights;
pub use hit::{Hit, Known};
pub(crate) use keep::Recorder;
pub(crate) use merge::Items;
pub(crate) use noise::is_noise;
pub(crate) use query::{encoded, parameters, without_parameter};
pub use rates::{Left, Rate, Rates};
pub use route::{Call, Said, Target};
pub(crate) use send::{is_no_key, written};
pub(crate) use token::Tokens;
pub(crate) use writes::Writes;

use std::sync::Arc;

use bytes::Bytes;
use http::response::Parts;
use http_body::Body;
use tollgate_core::time::Span;

use crate::Error;
use crate::body::{BodyError, ReplyBody};
use crate::event::Fact;
use crate::pool::Origin;
use crate::shop::{Live, Plan, Shop};
use cache::{Looked, Question};
use flight::Place;
use learn::Answered;
use retry::{Ended, Next, Tries};
use route::Route;

/// An answer.
#[derive(Debug)]
pub struct Reply {
    /// Status and headers, as they came.
    pub head: Parts,
    /// The body, as it comes.
    pub body: ReplyBody,
    /// Where it came from.
    pub source: Source,
    /// Little is left of a limit, so only the cache is used.
    pub degraded: bool,
}

/// Where an answer came from. The words are those of `X-Tollgate-Source`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// The provider, for this call.
    #[default]
    Upstream,
    /// What was kept of an earlier answer.
    Cache,
    /// The same, past its time.
    Stale,
    /// The provider, for somebody who asked the same at the same time.
    Shared,
    /// The provider, as a part of a larger answer.
    Merged,
}

impl Source {
    /// As in `X-Tollgate-Source`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Source::Upstream => "upstream",
            Source::Cache => "cache",
            Source::Stale => "stale",
            Source::Shared => "shared",
            Source::Merged => "merged",
        }
    }
}

/// What happened to a call, whatever came of it.
#[derive(Clone, Debug, Default)]
pub struct Trail {
    /// The provider, once it is known.
    pub provider: Option<Arc<Live>>,
    /// The origin it was sent to.
    pub origin: Option<Origin>,
    /// Attempts whose bytes may have left.
    pub attempts: u32,
    /// Time spent waiting for permits.
    pub waited: Span,
    /// What the limits had left when it was decided.
    pub rates: Rates,
}

/// What came of a call that went out.
#[derive(Debug)]
struct Outcome {
    answer: Result<Reply, Error>,
    /// The answer, or the lack of one, is a failure of the provider.
    is_failure: bool,
    /// Attempts whose bytes may have left.
    attempts: u32,
    /// Time spent waiting for permits.
    waited: Span,
    /// What the limits had left when it was decided.
    rates: Rates,
}

impl Outcome {
    /// An answer for which this call did nothing.
    fn of(reply: Reply) -> Outcome {
        Outcome {
            answer: Ok(reply),
            is_failure: false,
            attempts: 0,
            waited: Span::ZERO,
            rates: Rates::default(),
        }
    }

    /// No answer.
    fn refused(error: Error) -> Outcome {
        Outcome {
            answer: Err(error),
            is_failure: true,
            attempts: 0,
            waited: Span::ZERO,
            rates: Rates::default(),
        }
    }
}

/// Makes a call: the whole path, outermost first. The trail is filled on the way.
pub async fn call<B>(shop: &Shop, call: Call<B>, trail: &mut Trail) -> Result<Reply, Error>
where
    B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    let mut route = route::route(shop, call).await?; // which provider, which limits, how urgent
    trail.provider = Some(route.live.clone());
    trail.origin = Some(route.origin.clone());
    let question = match cache::look(shop, &mut route).await? {
        Looked::Answer(reply) => return Ok(*reply), // an answer that we already have costs nothing
        Looked::Nothing(question) => question,
    };
    loop {
        let place = if send::is_upgrade(&route.headers) {
            Place::Alone // a tunnel is nobody else's
        } else {
            flight::join(shop.flights(), &mut route) // the same question asked twice is one call
        };
        let outcome = match place {
            // On the heap in either case: a future of this size would be copied at every level above.
            Place::Alone => match alone(&route, &question) {
                Some(reply) => Outcome::of(reply),
                None => Box::pin(go(route, question)).await,
            },
            Place::Apart(mark) => {
                let outcome = Box::pin(go(route, question)).await;
                mark.heed(&outcome); // perhaps the next ones can be one call
                outcome
            }
            Place::First(flight) => match cache::look_again(&route, &question) {
                Some(reply) => flight.lands_with(reply), // another flight has just brought it
                None => flight.lead(Box::pin(go(route, question))).await,
            },
            Place::Behind(flight) => match flight.follow(&mut route).await {
                Some(outcome) => outcome,
                None => continue, // whoever went ahead failed or may not share: our turn
            },
        };
        (trail.attempts, trail.waited) = (outcome.attempts, outcome.waited);
        trail.rates = outcome.rates;
        return outcome.answer;
    }
}

/// Whoever comes out of a flight whose answer it could not have looks for what others have kept
/// meanwhile.
fn alone(route: &Route, question: &Question) -> Option<Reply> {
    let has_waited = route.sharing.is_alone;
    has_waited
        .then(|| cache::look_again(route, question))
        .flatten()
}

/// The way out, for a call or a whole flight: attempts until one is the answer, which is then kept.
async fn go(mut route: Route, mut question: Question) -> Outcome {
    let mut tries = Tries::default();
    let done = loop {
        if !send::is_upgrade(&route.headers)
            && let Some(ride) = merge::join(&mut route)
        {
            match ride.part(&mut route).await {
                Some(part) => break part, // calls for one item that wait together are one
                None => continue,
            }
        }
        let done = attempts(&mut route, &mut tries).await;
        if let Some(done) = merge::split(&mut route, done).await
            && !keep::asks_again(&mut route, &mut question, &done)
        {
            break done; // each caller gets its own part
        }
    };
    let has_failed = match &done {
        Ok(answered) => answered.class.is_failure(),
        Err(_) => true,
    };
    tell(&route, &tries, &done);
    if let Ok(answered) = &done
        && !route.method.is_safe()
    {
        let (status, now) = (answered.head.status, route.live.ledger.at());
        route.live.writes.note(&route.path, status, now);
    }
    let mut answer = keep::keep(&route, question, done); // may it be used again?
    if let Ok(reply) = &mut answer
        && route.merging.is_part
    {
        reply.source = Source::Merged;
    }
    let has_another = |reply: &Reply| matches!(reply.source, Source::Cache | Source::Stale);
    Outcome {
        // What was kept has taken its place.
        is_failure: has_failed && !answer.as_ref().is_ok_and(has_another),
        answer,
        attempts: tries.made,
        waited: tries.waited,
        rates: tries.rates,
    }
}

/// Attempts until one is the answer, or no other is allowed.
async fn attempts(route: &mut Route, tries: &mut Tries) -> Result<Answered, Error> {
    route.live.machine.called(&route.live.plan().retry.budget);
    loop {
        let plan = route.live.plan();
        let attempt = attempt(route, &plan, tries).await; // everything once per attempt
        match tries.next(route, &plan, attempt) {
            // Retry-After, backoff and budget said when.
            Next::Again(after, unwanted) => retry::rest(after, unwanted).await,
            Next::Done(done) => return done,
        }
    }
}

/// One attempt: each line is a stage.
async fn attempt(
    route: &mut Route,
    plan: &Arc<Plan>,
    tries: &mut Tries,
) -> Result<Answered, Ended> {
    let key = credential::choose(route, plan).await?; // whose key or token, and where it is counted
    let expected = connect::connect(route, plan).await?; // before the permit: failing costs nothing
    let granted = admit::admit(route, &key, tries).await?; // turn, health and every limit at once
    let sent = send::send(route, plan, &key, granted, expected, tries).await?; // the bytes leave
    let answered = learn::learn(route, plan, &key, sent).await; // what did the answer say?
    credential::heed(route, plan, &key, tries, answered).await // a refused key is not used again
}

fn tell(route: &Route, tries: &Tries, done: &Result<Answered, Error>) {
    if let Ok(answered) = done {
        Fact::Answered {
            id: &route.said.id,
            provider: &route.live.name,
            status: answered.head.status.as_u16(),
            attempts: tries.made,
            waited: tries.waited,
            priority: route.said.priority,
        }
        .tell();
    }
}
