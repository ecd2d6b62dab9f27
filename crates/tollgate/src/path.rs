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
mod destination; //   whose call it is, and where it goes
mod query; //   where a key stands in a query, and when two ask the same
mod ignored_headers; //   headers that make no other question
mod cache; // is there an answer already?
mod hit; //   the first two stages in one step, for the plainest calls
mod serve; //   how a kept answer goes to the caller, and how it is renewed
mod flight; // is somebody asking the same right now?
mod flight_table; //   everything that is on its way
mod sharing; //   what is the same question, and who may share its answer
mod flight_end; //   how a flight ends
mod writes; //   what was changed since it was asked for
mod demand; //   as urgent and patient as all who wait for it
mod merge; // can it be a part of a larger question?
mod recipe; //   how parts are asked for together, and taken apart
mod retry; // once more? Everything below happens once per attempt
mod credential; // with which key
mod account; //   the credentials that tokens are fetched for
mod token; //   the token in use, and who waits for the next
mod login; //   the call that fetches one
mod connect; // is there a connection?
mod acquire; // what to ask the gate for, and what its answer means
mod attempt_guard; //   an attempt that health waits to hear of
pub mod permit; //   who waits and who goes
mod denied; //   why there is none
mod send; // the bytes leave
mod learn; // what did the answer say?
mod decode; //   a compressed body, opened beside what is passed on
mod store; // is the answer kept for later?
mod scrub; //   what of it is not: keys, and what is of one moment
mod link_target; //   which kept answers its links concern
mod rates; // what the headers of an answer say of limits
pub(crate) use account::Account;
pub use cache::UseCache;
pub(crate) use credential::{SuspendedKeys, fingerprints};
pub(crate) use flight::Flights;
pub use hit::{Hit, RememberedRequest};
pub(crate) use ignored_headers::is_ignored_header;
pub(crate) use merge::MergeGroups;
pub(crate) use query::{encoded, parameters, without_parameter};
pub use rates::{Rate, RateState, Rates};
pub use route::{Call, CallOptions, Target};
pub(crate) use send::{auth_headers, is_keyless_header};
pub(crate) use store::Recorder;
pub(crate) use token::Tokens;
pub(crate) use writes::Writes;

use std::sync::Arc;

use bytes::Bytes;
use http::response::Parts;
use http_body::Body;
use tollgate_core::time::Span;

use crate::Error;
use crate::body::{BodyError, ReplyBody};
use crate::event::LogEvent;
use crate::pool::Origin;
use crate::providers::{ActiveProvider, CompiledPolicy, ProviderRegistry};
use cache::{CacheResult, PendingStore};
use flight::FlightRole;
use learn::UpstreamResponse;
use retry::{AttemptError, NextStep, RetryState};
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
    pub fn as_str(self) -> &'static str {
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
pub struct CallTrace {
    /// The provider, once it is known.
    pub provider: Option<Arc<ActiveProvider>>,
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
struct CallOutcome {
    result: Result<Reply, Error>,
    /// The answer, or the lack of one, is a failure of the provider.
    is_failure: bool,
    /// Attempts whose bytes may have left.
    attempts: u32,
    /// Time spent waiting for permits.
    waited: Span,
    /// What the limits had left when it was decided.
    rates: Rates,
}

impl CallOutcome {
    /// An answer for which this call did nothing.
    fn from_reply(reply: Reply) -> CallOutcome {
        CallOutcome {
            result: Ok(reply),
            is_failure: false,
            attempts: 0,
            waited: Span::ZERO,
            rates: Rates::default(),
        }
    }

    /// No answer.
    fn from_error(error: Error) -> CallOutcome {
        CallOutcome {
            result: Err(error),
            is_failure: true,
            attempts: 0,
            waited: Span::ZERO,
            rates: Rates::default(),
        }
    }
}

/// Makes a call: the whole path, outermost first. The trail is filled on the way.
pub async fn call<B>(
    shop: &ProviderRegistry,
    call: Call<B>,
    trail: &mut CallTrace,
) -> Result<Reply, Error>
where
    B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    let mut route = route::route(shop, call).await?; // which provider, which limits, how urgent
    trail.provider = Some(route.provider.clone());
    trail.origin = Some(route.origin.clone());
    let question = match cache::lookup(shop, &mut route).await? {
        CacheResult::Hit(reply) => return Ok(*reply), // an answer that we already have costs nothing
        CacheResult::Miss(question) => question,
    };
    loop {
        let place = if send::is_upgrade(&route.headers) {
            FlightRole::Alone // a tunnel is nobody else's
        } else {
            flight::join(shop.flights(), &mut route) // the same question asked twice is one call
        };
        let outcome = match place {
            // On the heap in either case: a future of this size would be copied at every level above.
            FlightRole::Alone => match recheck_cache(&route, &question) {
                Some(reply) => CallOutcome::from_reply(reply),
                None => Box::pin(execute(route, question)).await,
            },
            FlightRole::Unshared(mark) => {
                let outcome = Box::pin(execute(route, question)).await;
                mark.on_outcome(&outcome); // perhaps the next ones can be one call
                outcome
            }
            FlightRole::Leader(flight) => match cache::recheck(&route, &question) {
                Some(reply) => flight.finish_with(reply), // another flight has just brought it
                None => flight.lead(Box::pin(execute(route, question))).await,
            },
            FlightRole::Follower(flight) => match flight.follow(&mut route).await {
                Some(outcome) => outcome,
                None => continue, // whoever went ahead failed or may not share: our turn
            },
        };
        (trail.attempts, trail.waited) = (outcome.attempts, outcome.waited);
        trail.rates = outcome.rates;
        return outcome.result;
    }
}

/// Whoever comes out of a flight whose answer it could not have looks for what others have kept
/// meanwhile.
fn recheck_cache(route: &Route, question: &PendingStore) -> Option<Reply> {
    let has_waited = route.sharing.is_alone;
    has_waited
        .then(|| cache::recheck(route, question))
        .flatten()
}

/// The way out, for a call or a whole flight: attempts until one is the answer, which is then kept.
async fn execute(mut route: Route, mut question: PendingStore) -> CallOutcome {
    let mut tries = RetryState::default();
    let done = loop {
        if !send::is_upgrade(&route.headers)
            && let Some(ride) = merge::join(&mut route)
        {
            match ride.wait_part(&mut route).await {
                Some(part) => break part, // calls for one item that wait together are one
                None => continue,
            }
        }
        let done = attempts(&mut route, &mut tries).await;
        if let Some(done) = merge::split(&mut route, done).await
            && !store::retries_unconditionally(&mut route, &mut question, &done)
        {
            break done; // each caller gets its own part
        }
    };
    let has_failed = match &done {
        Ok(answered) => answered.class.is_failure(),
        Err(_) => true,
    };
    emit_completed(&route, &tries, &done);
    if let Ok(answered) = &done
        && !route.method.is_safe()
    {
        let (status, now) = (answered.head.status, route.provider.ledger.at());
        route.provider.writes.record(&route.path, status, now);
    }
    let mut answer = store::store(&route, question, done); // may it be used again?
    if let Ok(reply) = &mut answer
        && route.merging.is_part
    {
        reply.source = Source::Merged;
    }
    let has_another = |reply: &Reply| matches!(reply.source, Source::Cache | Source::Stale);
    CallOutcome {
        // What was kept has taken its place.
        is_failure: has_failed && !answer.as_ref().is_ok_and(has_another),
        result: answer,
        attempts: tries.made,
        waited: tries.waited,
        rates: tries.rates,
    }
}

/// Attempts until one is the answer, or no other is allowed.
async fn attempts(route: &mut Route, tries: &mut RetryState) -> Result<UpstreamResponse, Error> {
    route
        .provider
        .health
        .on_call(&route.provider.policy().retry.budget);
    loop {
        let plan = route.provider.policy();
        let attempt = attempt(route, &plan, tries).await; // everything once per attempt
        match tries.next(route, &plan, attempt) {
            // Retry-After, backoff and budget said when.
            NextStep::Again(after, unwanted) => retry::wait_and_discard(after, unwanted).await,
            NextStep::Done(done) => return done,
        }
    }
}

/// One attempt: each line is a stage.
async fn attempt(
    route: &mut Route,
    plan: &Arc<CompiledPolicy>,
    tries: &mut RetryState,
) -> Result<UpstreamResponse, AttemptError> {
    let key = credential::choose(route, plan).await?; // whose key or token, and where it is counted
    let expected = connect::connect(route, plan).await?; // before the permit: failing costs nothing
    let granted = acquire::permit(route, &key, tries).await?; // turn, health and every limit at once
    let sent = send::send(route, plan, &key, granted, expected, tries).await?; // the bytes leave
    let answered = learn::learn(route, plan, &key, sent).await; // what did the answer say?
    credential::on_response(route, plan, &key, tries, answered).await // a refused key is not used again
}

fn emit_completed(route: &Route, tries: &RetryState, done: &Result<UpstreamResponse, Error>) {
    if let Ok(answered) = done {
        LogEvent::Completed {
            id: &route.options.id,
            provider: &route.provider.name,
            status: answered.head.status.as_u16(),
            attempts: tries.made,
            waited: tries.waited,
            priority: route.options.priority,
        }
        .emit();
    }
}
