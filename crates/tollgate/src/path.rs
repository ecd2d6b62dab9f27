//! The path of a call, stage by stage.
//!
//! ```text
//! caller ─► route ─► cache ─► flight ─► merge ─► retry( credential ─► connect ─► permit ─► send ─► learn ) ─► store ─► response
//!                     │hit      │join     │part            └────────── once per ATTEMPT ──────────┘
//! ```
//!
//! Promises: a call is not an attempt. Every attempt, including each retry, passes `permit` again.
//! A call that is dropped at any await returns its permit if no byte has left, and otherwise counts
//! it as sent.
//!
//! Never: a hidden attempt below this path.

mod route; // which provider, entity, caller, priority, cost and deadline?
mod request_costs; //   what a call costs before it is sent
mod call; //   what a caller asks for
mod destination; //   the provider and origin of a call
mod subject; //   what permit and learn need of a call
mod progress; //   how far a call has come
mod cache; // is there a cached response?
mod cache_request; //   a request, as the cache sees it
mod hit; //   route and cache in one step, for simple GET requests
mod serve; //   builds responses from the cache
mod refresh; //   refreshes stale ones in the background
mod flight; // is the same request already in flight?
mod identity; //   which requests are identical
mod outcome; //   what became of a call
mod call_end; //   its end, reported once
mod merge; // can the call be part of a larger one?
mod retry; // try again? Everything below happens once per attempt
mod response; //   what an attempt brings back
mod credential; // with which key or token?
mod token; //   the current token, or the next one
mod login; //   the call that fetches a token
pub mod deliver; //   a POST of our own, to a webhook
mod unsendable; //   settings whose values cannot be sent
mod connect; // is there a connection?
mod permit; // do turn, health and all limits agree?
mod requested_limits; //   what one attempt asks for, and what a verdict means
mod attempt_guard; //   reports the end of an attempt to health
mod rates; //   what remained of the limits, for response headers
mod send; // the bytes leave
mod send_foreign; //   through a client of the embedding program
mod await_head; //   waits for the response, or for the arrival without one
mod learn; // what does the response say about limits and health?
mod response_cost; //   what the call has really cost
mod store; // may the response be cached?
mod recorder; //   stores it while it passes
mod scrub; //   removes keys and short-lived headers before storing
mod link_target; //   which cached responses a link refers to
pub mod decide; // permit and learn without a request
pub mod detached_permit; //   permits that another process settles
mod permit_report; //   what is said about permits that other processes hold
mod open_permits; //   the open ones of them, and what became of the others
pub mod permit_table; //   permits that other processes hold, by id
pub mod capacity; //   the same check without taking a permit
pub use crate::reply::{Reply, Source};
pub use call::{CallOptions, HttpCall, Target, UseCache, is_caller_name};
pub use hit::{Hit, RememberedRequest};
pub use outcome::CallTrace;
pub use rates::{Rate, RateState, Rates};

use std::sync::Arc;

use bytes::Bytes;
use http_body::Body;

use crate::Error;
use crate::body::BodyError;
use crate::providers::{CompiledPolicy, ProviderRegistry};
use cache::CacheResult;
use cache_request::PendingStore;
use call_end::RunningCall;
use outcome::{BoxedCall, CallOutcome};
use response::{AttemptError, UpstreamResponse};
use retry::{NextStep, RetryState};
use route::Route;

/// Makes a call: the whole path, outermost stage first. Fills the trace on the way.
pub async fn call<B>(
    registry: &ProviderRegistry,
    call: HttpCall<B>,
    trace: &mut CallTrace,
) -> Result<Reply, Error>
where
    B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    let mut running = RunningCall::new(registry.events(), call.options.id.clone(), trace);
    let result = stages(registry, call, &mut running).await;
    running.finish(&result); // reported once, whoever responded
    result
}

async fn stages<B>(
    registry: &ProviderRegistry,
    call: HttpCall<B>,
    running: &mut RunningCall<'_>,
) -> Result<Reply, Error>
where
    B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    let mut route = route::route(registry, call).await?; // which provider, which limits, how urgent
    running.on_routed(&mut route);
    route.emit_request(&route.subject.id);
    let pending = match cache::lookup(registry, &mut route, boxed).await? {
        CacheResult::Hit(reply) => return Ok(*reply), // a cached response costs nothing
        CacheResult::Miss(pending) => pending,
    };
    let outcome = flight::fly(registry.flights(), route, pending, boxed).await; // identical calls become one
    running.trace.on_outcome(outcome)
}

/// Sends a call, or a whole flight, upstream.
async fn go(mut route: Route, mut pending: PendingStore) -> CallOutcome {
    let mut retries = RetryState::default();
    let done = loop {
        if let Some(part) = merge::part_of_another(&mut route).await {
            break part; // calls for parts of one item that wait together become one
        }
        let done = attempts(&mut route, &mut retries).await; // until one succeeds
        if let Some(done) = merge::split(&mut route, done).await // each caller gets its own part
            && !store::retries_unconditionally(&mut route, &mut pending, &done)
        {
            break done;
        }
    };
    store::store(&route, pending, done, retries, boxed) // may it be used again?
}

/// `go` on the heap: every caller's future would otherwise grow by its size.
fn boxed(route: Route, pending: PendingStore) -> BoxedCall {
    Box::pin(go(route, pending))
}

/// Makes attempts until one succeeds or no further one is allowed.
async fn attempts(route: &mut Route, retries: &mut RetryState) -> Result<UpstreamResponse, Error> {
    retries.begin(&route.subject);
    let mut failure = None;
    loop {
        let policy = route.subject.provider.policy();
        let attempt = attempt(route, &policy, retries).await; // everything once per attempt
        match retries.next(route, &policy, attempt) {
            // Retry-After, backoff and budget determine the delay.
            NextStep::Again(after, unwanted) => {
                failure = retry::wait_and_keep(&route.subject, after, unwanted).await;
            }
            NextStep::Done(done) => return retry::or_failure(done, failure),
        }
    }
}

/// One attempt: each line is a stage.
async fn attempt(
    route: &mut Route,
    policy: &Arc<CompiledPolicy>,
    retries: &mut RetryState,
) -> Result<UpstreamResponse, AttemptError> {
    let key = credential::choose(route, policy).await?; // which key or token
    let mark = key.fingerprint();
    let sent = match route.request.client.clone() {
        None => {
            let expected = connect::connect(route, policy, retries.has_failed()).await?; // before the permit: failing is free
            let granted = permit::permit(&route.subject, mark, &mut retries.permits).await?; // all limits at once
            send::send(route, policy, &key, granted, expected, retries).await? // bytes leave
        }
        Some(client) => {
            // It connects by itself. Boxed: every call's future would otherwise grow by its size.
            let granted = permit::permit(&route.subject, mark, &mut retries.permits);
            let granted = Box::pin(granted).await?;
            let sent = send_foreign::send(route, policy, &key, granted, client, retries);
            Box::pin(sent).await?
        }
    };
    let response = learn::learn(&route.subject, policy, mark, sent).await; // what does it say?
    credential::on_response(route, policy, &key, retries, response).await // suspends a rejected key
}
