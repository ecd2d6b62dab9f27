//! The route stage: which provider, entity, caller, priority, cost and deadline?
//!
//! Promises: the path that was matched is the path that is sent. The provider's key is sent only to
//! the provider's own origin.
//!
//! Never: requests a permit, or opens a connection.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{IF_RANGE, RANGE};
use http::{HeaderMap, Method};
use http_body::Body;
use tollgate_config::Secret;
use tollgate_config::provider::Upstream;
use tollgate_core::ask::Priority;
use tollgate_core::entity::{EntityError, EntityRequest, OnAmbiguity};
use tollgate_core::gate::CallerId;
use tollgate_core::time::{Micros, Span};

use super::cache::UseCache;
use super::destination::{Destination, resolve, to_upstream};
use super::merge::MergeState;
use crate::Error;
use crate::cache::BackgroundRefresh;
use crate::flights::Conditions;
use crate::flights::{CallDemand, SharedDemand};
use crate::payload::{BodyError, Payload, READ_MAX, WHOLE_MAX};
use crate::pool::Origin;
use crate::providers::{
    ActiveProvider, CallAttributes, CallCost, Claim, ProviderRegistry, call_costs, caller_id,
};
use crate::timer::within;

/// What a caller asks for.
#[derive(Debug)]
pub struct Call<B> {
    /// The provider or URL.
    pub target: Target,
    /// The method.
    pub method: Method,
    /// The headers to send, hop-by-hop ones and our own already removed.
    pub headers: HeaderMap,
    /// The body to send.
    pub body: B,
    /// Options of the call.
    pub options: CallOptions,
}

/// The provider or URL that a call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A provider by name.
    Provider {
        /// The name.
        name: String,
        /// The path below it, with its slash.
        path: String,
        /// The query, without `?`.
        query: Option<String>,
    },
    /// A URL; its host determines the provider.
    Url {
        /// `https`.
        tls: bool,
        /// Host and port.
        authority: String,
        /// The path, with its slash.
        path: String,
        /// The query, without `?`.
        query: Option<String>,
    },
}

/// Options of a call.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// The call's id in logs.
    pub id: String,
    /// Its priority; a known caller's own maximum applies.
    pub priority: Priority,
    /// The caller named no priority: a known caller has its own.
    pub uses_default_priority: bool,
    /// Who calls.
    pub caller: Option<String>,
    /// The token that proves it.
    pub token: Option<Secret>,
    /// The entity, if the path does not determine it.
    pub entity: Option<String>,
    /// What it costs, by unit.
    pub costs: Vec<(String, u64)>,
    /// How long it may wait and run in total.
    pub timeout: Option<Span>,
    /// The caller's address.
    pub ip: Option<IpAddr>,
    /// It wants its own response, even if an identical call is in flight.
    pub no_dedup: bool,
    /// How it uses the cache.
    pub cache: UseCache,
}

impl CallOptions {
    /// A call of our own that others wait for.
    fn urgent() -> CallOptions {
        CallOptions {
            priority: Priority::High,
            ..CallOptions::default()
        }
    }
}

/// A routed call.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) provider: Arc<ActiveProvider>,
    pub(crate) origin: Origin,
    /// Our key may be sent there.
    pub(crate) is_own_origin: bool,
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) payload: Payload,
    pub(crate) entity: Option<String>,
    pub(crate) prices: Vec<CallCost>,
    pub(crate) options: CallOptions,
    /// The share of every limit that its caller may use, in thousandths.
    pub(crate) at_most_permille: Option<u16>,
    caller: CallerId,
    deadline: Option<Micros>,
    /// A stale response is available: the call neither waits nor retries.
    pub(crate) fallback: bool,
    started: Micros,
    /// A fingerprint of the client's conditions; the cache may replace the conditions themselves.
    pub(crate) conditions: Conditions,
    /// The demand of all callers that wait for the same response; `None` = nobody can join.
    pub(crate) shared_demand: Option<Arc<SharedDemand>>,
    /// How it takes part in flights.
    pub(crate) sharing: SharingState,
    /// How it takes part in merging.
    pub(crate) merging: MergeState,
    /// It is a background refresh of a stale response.
    pub(crate) refresh: Option<Arc<BackgroundRefresh>>,
}

/// How a call takes part in flights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharingState {
    /// It must go alone.
    pub(crate) is_alone: bool,
    /// How many leaders it has seen fail.
    pub(crate) failed_flights: u32,
}

/// Routes a call. Reads its body as far as it may be read before the permit.
pub(crate) async fn route<B>(registry: &ProviderRegistry, call: Call<B>) -> Result<Route, Error>
where
    B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    let (sent, pending) = start(registry, call)?;
    let payload = within(
        pending.options.timeout,
        Payload::gather(sent, pending.body_max()),
    )
    .await
    .map_err(|_| Error::NoBody)??;
    pending.finish(payload)
}

/// Routes a call that has no body.
pub(super) fn route_without_body(
    registry: &ProviderRegistry,
    call: Call<()>,
) -> Result<Route, Error> {
    let ((), pending) = start(registry, call)?;
    pending.finish(Payload::Whole(Bytes::new()))
}

/// A call before its body is read.
struct PendingRoute {
    method: Method,
    headers: HeaderMap,
    options: CallOptions,
    destination: Destination,
    path: String,
    query: Option<String>,
    at_most_permille: Option<u16>,
    started: Micros,
}

fn start<B>(registry: &ProviderRegistry, mut call: Call<B>) -> Result<(B, PendingRoute), Error> {
    let started = registry.ledger().at();
    let rights = registry.callers().rights(Claim {
        name: call.options.caller.as_deref(),
        token: call.options.token.as_ref(),
        priority: (!call.options.uses_default_priority).then_some(call.options.priority),
    })?;
    call.options.priority = rights.priority;
    let (destination, path, query) = resolve(registry, call.target)?;
    reject_loop(&destination.provider, &call.headers)?;
    let pending = PendingRoute {
        method: call.method,
        headers: call.headers,
        options: call.options,
        destination,
        path,
        query,
        at_most_permille: rights.at_most_permille,
        started,
    };
    Ok((call.body, pending))
}

impl PendingRoute {
    /// How much of the body is read: more where the body decides something.
    fn body_max(&self) -> usize {
        let provider = &self.destination.policy.provider;
        let costs = provider.costs.iter();
        let mut reads = costs.filter(|cost| !cost.before.is_empty());
        let is_said = |unit: &str| self.options.costs.iter().any(|(named, _)| named == unit);
        if self.needs_body() || reads.any(|cost| !is_said(&cost.unit)) {
            READ_MAX
        } else {
            WHOLE_MAX
        }
    }

    /// Only the body determines the entity.
    fn needs_body(&self) -> bool {
        let entities = &self.destination.policy.provider.entities;
        self.options.entity.is_none() && entities.reads_body()
    }

    fn finish(self, payload: Payload) -> Result<Route, Error> {
        // An unread body is not "no entity": a large body must not evade a limit.
        let doubt = self.destination.policy.provider.entities.on_ambiguity;
        if payload.is_stream() && self.needs_body() && doubt == OnAmbiguity::Reject {
            return Err(EntityError::Body.into());
        }
        let PendingRoute {
            headers,
            options,
            destination,
            query,
            ..
        } = self;
        let provider = &destination.policy.provider;
        let read = provider.entities.reads_headers();
        let texts: Vec<(&str, &str)> = headers
            .iter()
            .filter(|_| read)
            .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
            .collect();
        let routed = provider.entities.route(&EntityRequest {
            named: options.entity.as_deref(),
            host: Some(&destination.host),
            path: &self.path,
            query: query.as_deref().unwrap_or_default(),
            headers: &texts,
            body: payload.buffered(),
        })?;
        let caller = options.caller.as_deref();
        Ok(Route {
            caller: caller.map_or_else(CallerId::default, caller_id),
            prices: call_costs(&provider.costs, &options.costs, payload.buffered()),
            path: join_path(&destination.base, routed.path),
            entity: routed.entity.map(|entity| entity.as_str().to_owned()),
            origin: destination.origin,
            is_own_origin: destination.is_own_origin,
            provider: destination.provider,
            conditions: Conditions::of(&headers),
            method: self.method,
            headers,
            query,
            payload,
            deadline: options.timeout.map(|timeout| self.started + timeout),
            options,
            at_most_permille: self.at_most_permille,
            fallback: false,
            started: self.started,
            shared_demand: None,
            sharing: SharingState::default(),
            merging: MergeState::default(),
            refresh: None,
        })
    }
}

impl Route {
    /// A high-priority POST of our own to an address that the provider file names. As with every
    /// URL of its domains, the upstream replaces them where there is one.
    pub(crate) fn post(
        live: Arc<ActiveProvider>,
        to: &Upstream,
        headers: HeaderMap,
        body: Bytes,
    ) -> Route {
        let started = live.ledger.at();
        let policy = live.policy();
        let provider = &policy.provider;
        let is_at_home = provider
            .domains
            .iter()
            .any(|domain| domain.matches(&to.host));
        let at = match &provider.upstream {
            Some(upstream) if is_at_home => upstream.rewrite(to),
            Some(_) | None => to.clone(),
        };
        let is_own = match &provider.upstream {
            Some(own) => (own.tls, &own.host, own.port) == (at.tls, &at.host, at.port),
            None => is_at_home && at.tls && at.port == 443,
        };
        let mut path = at.base.clone();
        if path.is_empty() {
            path.push('/');
        }
        let routed = provider.entities.route(&EntityRequest {
            named: None,
            host: Some(&to.host),
            path: &path,
            query: "",
            headers: &[],
            body: &[],
        });
        let entity = routed
            .ok()
            .filter(|_| is_own)
            .and_then(|routed| routed.entity);
        Route {
            // The file names it, so it may be a private address.
            origin: to_upstream(live.clone(), policy.clone(), at, true).origin,
            entity: entity.map(|entity| entity.as_str().to_owned()),
            is_own_origin: is_own,
            provider: live,
            method: Method::POST,
            headers,
            path,
            query: None,
            payload: Payload::Whole(body),
            prices: Vec::new(),
            options: CallOptions::urgent(),
            conditions: Conditions::default(),
            at_most_permille: None,
            caller: CallerId::default(),
            deadline: None,
            fallback: false,
            started,
            shared_demand: None,
            sharing: SharingState::default(),
            merging: MergeState::default(),
            refresh: None,
        }
    }

    /// The attributes that limits may depend on.
    pub(crate) fn who<'a>(&'a self, key: Option<&'a str>) -> CallAttributes<'a> {
        CallAttributes {
            entity: self.entity.as_deref(),
            key,
            caller: self.options.caller.as_deref().unwrap_or_default(),
            ip: self.options.ip,
            host: self.origin.host.as_str(),
            priority: self.priority(),
            costs: &self.prices,
        }
    }

    /// The same request for a background refresh: whole, with low priority, and for as long as the
    /// queue allows. A cacheable request has an empty body.
    pub(crate) fn for_refresh(&self) -> Route {
        let mut headers = self.headers.clone();
        for name in [RANGE, IF_RANGE] {
            headers.remove(name);
        }
        Route {
            provider: self.provider.clone(),
            origin: self.origin.clone(),
            is_own_origin: self.is_own_origin,
            method: Method::GET,
            headers,
            path: self.path.clone(),
            query: self.query.clone(),
            payload: Payload::Whole(Bytes::new()),
            entity: self.entity.clone(),
            prices: self.prices.clone(),
            options: CallOptions {
                id: format!("{}-refresh", self.options.id),
                priority: Priority::Low,
                timeout: None,
                ..self.options.clone()
            },
            caller: self.caller,
            at_most_permille: self.at_most_permille,
            deadline: None,
            fallback: false,
            started: self.provider.ledger.at(),
            conditions: self.conditions,
            shared_demand: None,
            sharing: SharingState::default(),
            merging: MergeState::default(),
            refresh: None,
        }
    }

    /// Its bytes leave now.
    pub(crate) fn mark_sent(&self) {
        if let Some(refresh) = &self.refresh {
            refresh.mark_sent();
        }
    }

    /// Its priority, including all callers that wait for it.
    pub(crate) fn priority(&self) -> Priority {
        self.demand().priority
    }

    /// Its demand, including all callers that wait for it.
    pub(crate) fn demand(&self) -> CallDemand {
        match &self.shared_demand {
            Some(demand) => demand.demand(),
            None => self.own_demand(),
        }
    }

    /// The demand of this call alone.
    pub(crate) fn own_demand(&self) -> CallDemand {
        CallDemand {
            priority: self.options.priority,
            caller: self.caller,
            deadline: self.deadline,
            untimed_since: self.deadline.is_none().then_some(self.started),
        }
    }

    /// Waits in the queue until its priority is raised.
    pub(crate) async fn queue_until_raised(&self) {
        match &self.shared_demand {
            Some(demand) => demand.queue_until_raised().await,
            None => std::future::pending().await,
        }
    }

    /// The remaining time of the caller, or of the most patient one; `None` = no deadline.
    pub(crate) fn remaining(&self) -> Option<Span> {
        let deadline = self.demand().overall_deadline();
        deadline.map(|deadline| deadline.since(self.provider.ledger.at()))
    }

    /// The remaining time of this caller.
    pub(crate) fn own_remaining(&self) -> Option<Span> {
        self.deadline
            .map(|deadline| deadline.since(self.provider.ledger.at()))
    }
}

/// Rejects a call that we have sent ourselves: it would loop for ever.
fn reject_loop(live: &ActiveProvider, headers: &HeaderMap) -> Result<(), Error> {
    if live.via.has_passed(headers) {
        let provider = live.name.clone();
        return Err(Error::Loop { provider });
    }
    Ok(())
}

/// The path with its prefix, which is nearly always empty.
fn join_path(base: &str, path: String) -> String {
    if base.is_empty() {
        path
    } else {
        format!("{base}{path}")
    }
}
