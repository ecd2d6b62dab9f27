//! The path of a call, stage by stage.
//!
//! ```text
//! caller ─► route ─► cache ─► flight ─► retry( credential ─► connect ─► permit ─► send ─► learn ) ─► store ─► response
//!                     │hit      │join              └────────── once per ATTEMPT ──────────┘
//! ```
//!
//! Promises: a call is not an attempt. Every attempt, including each retry, passes `permit` again.
//! A call that is dropped at any await returns its permit if no byte has left, and otherwise counts
//! it as sent.
//!
//! Never: a hidden attempt below this path.

mod route; // which provider, entity, caller, priority, cost and deadline?
mod destination; //   the provider and origin of a call
mod subject; //   time and priority of a call
mod cache; // is there a cached response?
mod hit; //   route and cache in one step, for simple GET requests
mod serve; //   builds responses from the cache, and refreshes them
mod flight; // is the same request already in flight?
mod identity; //   which requests are identical
mod outcome; //   what became of a call
mod merge; // can the call be part of a larger one?
mod retry; // try again? Everything below happens once per attempt
mod credential; // with which key or token?
mod token; //   the current token, or the next one
mod login; //   the call that fetches a token
mod unsendable; //   settings whose values cannot be sent
mod connect; // is there a connection?
mod acquire; // permit: what to request from the gate, and what its verdict means
mod attempt_guard; //   reports the end of an attempt to health
mod send; // the bytes leave
mod learn; // what does the response say about limits and health?
mod store; // may the response be cached?
mod scrub; //   removes keys and short-lived headers before storing
mod link_target; //   which cached responses a link refers to
mod rates; // the rate limits reported in response headers
pub use crate::reply::{Reply, Source};
pub use cache::UseCache;
pub use hit::{Hit, RememberedRequest};
pub use outcome::CallTrace;
pub use rates::{Rate, RateState, Rates};
pub use route::{Call, CallOptions, Target};

use std::sync::Arc;

use bytes::Bytes;
use http_body::Body;

use crate::Error;
use crate::body::BodyError;
use crate::event::LogEvent;
use crate::headers::is_upgrade;
use crate::providers::{CompiledPolicy, ProviderRegistry};
use cache::{CacheResult, PendingStore};
use flight::FlightRole;
use learn::UpstreamResponse;
use outcome::CallOutcome;
use retry::{AttemptError, NextStep, RetryState};
use route::Route;

/// Makes a call: the whole path, outermost stage first. Fills the trace on the way.
pub async fn call<B>(
    registry: &ProviderRegistry,
    call: Call<B>,
    trace: &mut CallTrace,
) -> Result<Reply, Error>
where
    B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    let mut route = route::route(registry, call).await?; // which provider, which limits, how urgent
    trace.provider = Some(route.provider.clone());
    trace.origin = Some(route.origin.clone());
    let pending = match cache::lookup(registry, &mut route).await? {
        CacheResult::Hit(reply) => return Ok(*reply), // a cached response costs nothing
        CacheResult::Miss(pending) => pending,
    };
    loop {
        let role = if is_upgrade(&route.headers) {
            FlightRole::Alone // a tunnel cannot be shared
        } else {
            flight::join(registry.flights(), &mut route) // identical calls become one
        };
        let outcome = match role {
            // On the heap in either case: every caller's future would otherwise grow by its size.
            FlightRole::Alone => match recheck_cache(&route, &pending) {
                Some(reply) => CallOutcome::from_reply(reply),
                None => Box::pin(execute(route, pending)).await,
            },
            FlightRole::Unshared(entry) => {
                let outcome = Box::pin(execute(route, pending)).await;
                if let (Ok(reply), false) = (&outcome.result, outcome.is_failure) {
                    entry.on_reply(reply); // perhaps the next calls can share one response
                }
                outcome
            }
            FlightRole::Leader(flight) => match cache::recheck(&route, &pending) {
                Some(reply) => flight.finish_with(reply), // another flight has just stored it
                None => flight.lead(Box::pin(execute(route, pending))).await,
            },
            FlightRole::Follower(flight) => match flight::follow(flight, &mut route).await {
                Some(outcome) => outcome,
                None => continue, // the leader failed or may not share: our turn
            },
        };
        (trace.attempts, trace.waited) = (outcome.attempts, outcome.waited);
        trace.rates = outcome.rates;
        return outcome.result;
    }
}

/// A call that could not use the response of a flight checks whether another call has stored one
/// meanwhile.
fn recheck_cache(route: &Route, pending: &PendingStore) -> Option<Reply> {
    let has_waited = route.sharing.is_alone;
    has_waited.then(|| cache::recheck(route, pending)).flatten()
}

/// Sends a call, or a whole flight, upstream: attempts until one succeeds, then stores the
/// response.
async fn execute(mut route: Route, mut pending: PendingStore) -> CallOutcome {
    let mut retries = RetryState::default();
    let done = loop {
        if !is_upgrade(&route.headers)
            && let Some(follower) = merge::join(&mut route)
        {
            match merge::wait_part(follower, &mut route).await {
                Some(part) => break part, // calls for one item that wait together become one
                None => continue,
            }
        }
        let done = attempts(&mut route, &mut retries).await;
        if let Some(done) = merge::split(&mut route, done).await
            && !store::retries_unconditionally(&mut route, &mut pending, &done)
        {
            break done; // each caller gets its own part
        }
    };
    let has_failed = match &done {
        Ok(response) => response.class.is_failure(),
        Err(_) => true,
    };
    emit_completed(&route, &retries, &done);
    if let Ok(response) = &done
        && !route.method.is_safe()
    {
        let (status, now) = (response.head.status, route.provider.ledger.at());
        route.provider.writes.record(&route.path, status, now);
    }
    let mut result = store::store(&route, pending, done); // may it be stored?
    if let Ok(reply) = &mut result
        && route.merging.is_part
    {
        reply.source = Source::Merged;
    }
    let has_another = |reply: &Reply| matches!(reply.source, Source::Cache | Source::Stale);
    CallOutcome {
        // A cached response has replaced the failure.
        is_failure: has_failed && !result.as_ref().is_ok_and(has_another),
        result,
        attempts: retries.made,
        waited: retries.waited,
        rates: retries.rates,
    }
}

/// Makes attempts until one succeeds or no further one is allowed.
async fn attempts(route: &mut Route, retries: &mut RetryState) -> Result<UpstreamResponse, Error> {
    route
        .provider
        .health
        .on_call(&route.provider.policy().retry.budget);
    loop {
        let policy = route.provider.policy();
        let attempt = attempt(route, &policy, retries).await; // everything once per attempt
        match retries.next(route, &policy, attempt) {
            // Retry-After, backoff and budget determine the delay.
            NextStep::Again(after, unwanted) => retry::wait_and_discard(after, unwanted).await,
            NextStep::Done(done) => return done,
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
    let expected = connect::connect(route, policy).await?; // before the permit: failing is free
    let granted = acquire::permit(route, &key, retries).await?; // health and all limits at once
    let sent = send::send(route, policy, &key, granted, expected, retries).await?; // bytes leave
    let response = learn::learn(route, policy, &key, sent).await; // what does the response say?
    credential::on_response(route, policy, &key, retries, response).await // suspends a rejected key
}

fn emit_completed(route: &Route, retries: &RetryState, done: &Result<UpstreamResponse, Error>) {
    if let Ok(response) = done {
        LogEvent::Completed {
            id: &route.options.id,
            provider: &route.provider.name,
            status: response.head.status.as_u16(),
            attempts: retries.made,
            waited: retries.waited,
            priority: route.options.priority,
        }
        .emit();
    }
}
