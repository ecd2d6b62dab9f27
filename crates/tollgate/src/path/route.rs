//! The route stage: which provider, entity, caller, priority, cost and deadline?
//!
//! Promises: the path that was matched is the path that is sent. The provider's key is sent only to
//! the provider's own origin.
//!
//! Never: requests a permit, or opens a connection.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, IF_RANGE, RANGE};
use http::{HeaderMap, Method};
use http_body::Body;
use tollgate_config::provider::{AuthStyle, Upstream};
use tollgate_core::ask::{PathTag, Priority};
use tollgate_core::entity::{EntityError, EntityRequest, OnAmbiguity};
use tollgate_core::gate::CallerId;
use tollgate_core::time::Micros;

use super::call::{CallOptions, HttpCall, UseCache};
use super::destination::{Destination, is_own_origin, resolve, to_upstream};
use super::request_costs::costs;
use super::subject::Subject;
use crate::Error;
use crate::body_memory::{BodyMemory, BodyShare};
use crate::body_scan::LargeBody;
use crate::cache::BackgroundRefresh;
use crate::credentials::find_client_credential;
use crate::event::Event;
use crate::flights::{Conditions, Flight, MergeLeader};
use crate::foreign::ForeignClient;
use crate::payload::{BodyError, Payload, READ_MAX, ReadBack, ReadBounds, WHOLE_MAX};
use crate::pool::Origin;
use crate::providers::{ActiveProvider, Claim, CompiledPolicy, ProviderRegistry, caller_id};
use crate::timer::within;
use crate::usage_event;

/// A routed call, split by who needs what.
#[derive(Debug)]
pub(crate) struct Route {
    /// What permit and learn need.
    pub(crate) subject: Subject,
    /// What cache and send need.
    pub(crate) request: Request,
    /// What flight and merge need.
    pub(crate) flight: FlightMembership,
}

/// The request that is sent.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) origin: Origin,
    /// Our key may be sent there.
    pub(crate) is_own_origin: bool,
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) payload: Payload,
    /// The payload's part of the memory of all bodies.
    pub(crate) _body_share: Option<BodyShare>,
    /// A fingerprint of the client's conditions; the cache may replace the conditions themselves.
    pub(crate) conditions: Conditions,
    /// The client that sends it; `None` = our own pool.
    pub(crate) client: Option<ForeignClient>,
    /// It wants its own response, even if an identical call is in flight.
    pub(crate) no_dedup: bool,
    /// How it uses the cache.
    pub(crate) cache: UseCache,
}

/// How a call takes part in flights, merges and background refreshes.
#[derive(Debug, Default)]
pub(crate) struct FlightMembership {
    /// It must go alone.
    pub(crate) is_alone: bool,
    /// How many leaders it has seen fail.
    pub(crate) failed_flights: u32,
    /// How it takes part in merging.
    pub(crate) merging: MergeState,
    /// It is a background refresh of a stale response.
    pub(crate) refresh: Option<Arc<BackgroundRefresh>>,
}

/// How a call takes part in merging.
#[derive(Debug, Default)]
pub(crate) struct MergeState {
    /// It must go alone.
    pub(crate) is_alone: bool,
    /// Its response is a part of a larger one.
    pub(crate) is_part: bool,
    /// The flight that it leads.
    pub(crate) flight: Option<Arc<Flight>>,
    /// It leads a merge.
    pub(crate) leader: Option<MergeLeader>,
}

/// Routes a call. Reads its body as far as it may be read before the permit.
pub(crate) async fn route<B>(registry: &ProviderRegistry, call: HttpCall<B>) -> Result<Route, Error>
where
    B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    let (sent, mut pending) = start(registry, call)?;
    let upload = &pending.destination.policy.provider.upload;
    let bounds = ReadBounds::new(upload, pending.body_max());
    let mut share = BodyShare::new(BodyMemory::of_process());
    let mut large = None;
    let gathered = Payload::gather(sent, bounds, &mut share, &mut large);
    let payload = within(pending.options.timeout, gathered)
        .await
        .map_err(|_| Error::SlowBody)??;
    let read_back = if bounds.body_decides() && payload.is_unread() {
        Box::pin(payload.read_back()).await?
    } else {
        None
    };
    if !payload.is_empty() {
        pending.arrived = registry.ledger().at(); // an upload does not use up its time in the queue
        pending.body_share = Some(share);
    }
    let large = large.as_deref().filter(|_| read_back.is_none());
    pending.finish(payload, (read_back.as_ref(), large))
}

/// Routes a call that has no body.
pub(super) fn route_without_body(
    registry: &ProviderRegistry,
    call: HttpCall<()>,
) -> Result<Route, Error> {
    let ((), pending) = start(registry, call)?;
    pending.finish(Payload::Whole(Bytes::new()), (None, None))
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
    /// When all of it was there.
    arrived: Micros,
    body_share: Option<BodyShare>,
}

fn start<B>(
    registry: &ProviderRegistry,
    mut call: HttpCall<B>,
) -> Result<(B, PendingRoute), Error> {
    let started = registry.ledger().at();
    let rights = registry.callers().rights(Claim {
        name: call.options.caller.as_deref(),
        token: call.options.token.as_ref(),
        priority: (!call.options.uses_default_priority).then_some(call.options.priority),
        is_operator: call.options.is_operator,
    })?;
    call.options.priority = rights.priority;
    let (destination, path, query) = resolve(registry, call.target)?;
    reject_loop(&destination.provider, &call.headers)?;
    check_method(&destination.policy, &call.method)?;
    let pending = PendingRoute {
        method: call.method,
        headers: call.headers,
        options: call.options,
        destination,
        path,
        query,
        at_most_permille: rights.at_most_permille,
        started,
        arrived: started,
        body_share: None,
    };
    Ok((call.body, pending))
}

impl PendingRoute {
    /// How much of the body is read: more where the body decides something.
    fn body_max(&self) -> usize {
        let provider = &self.destination.policy.provider;
        let costs = provider.costs.iter();
        let mut reads = costs.filter(|cost| !cost.before.is_empty() || cost.prompt);
        let is_given = |unit: &str| self.options.costs.iter().any(|(named, _)| named == unit);
        if self.needs_body() || reads.any(|cost| !is_given(&cost.unit)) {
            READ_MAX
        } else {
            WHOLE_MAX
        }
    }

    /// Only the body determines the entity.
    fn needs_body(&self) -> bool {
        let entities = &self.destination.policy.provider.entities;
        self.options.entity.is_none() && entities.reads_body(&self.path)
    }

    /// Asks for usage in a stream, where the provider's file says so. `true`: the client did not.
    fn with_usage(&mut self, payload: Payload) -> (Payload, bool) {
        let is_wanted = self.destination.policy.provider.inject_usage;
        let asked = match is_wanted && usage_event::is_asked_at(&self.path) {
            true => usage_event::ask_for_usage(payload.buffered()),
            false => None,
        };
        match asked {
            Some(body) => {
                // The event cannot be removed from a compressed stream.
                self.headers.remove(ACCEPT_ENCODING);
                (Payload::Whole(body), true)
            }
            None => (payload, false),
        }
    }

    /// The costs of a stream are read as it passes, and a stream cannot be decoded in pieces: where
    /// they are settled, it comes uncompressed.
    fn drop_compression(&mut self, body: &[u8]) {
        let mut costs = self.destination.policy.provider.costs.iter();
        let mut settles = || costs.any(|cost| !cost.after.is_empty());
        if self.headers.contains_key(ACCEPT_ENCODING)
            && settles()
            && usage_event::is_stream(&self.path, body)
        {
            self.headers.remove(ACCEPT_ENCODING);
        }
    }

    /// The bytes that entity and costs are read from. An unread body is not "no entity": a large body
    /// must not evade a limit.
    fn deciding<'a>(
        &self,
        payload: &'a Payload,
        read_back: Option<&'a ReadBack>,
        large: Option<&'a LargeBody>,
    ) -> Result<&'a [u8], Error> {
        let entities = &self.destination.policy.provider.entities;
        let is_unread = payload.is_unread() && read_back.is_none();
        let is_known = || {
            large
                .zip(entities.body_field())
                .is_some_and(|(large, field)| large.knows(field))
        };
        let may_reject = entities.on_ambiguity == OnAmbiguity::Reject;
        if is_unread && self.needs_body() && may_reject && !is_known() {
            return Err(EntityError::Body.into());
        }
        Ok(match (read_back, large) {
            (Some(read), _) => &read.bytes,
            (None, Some(large)) => &large.json,
            (None, None) => payload.buffered(),
        })
    }

    /// `read_back`: the body that the decisions read, if it is in a file; `large`: what it states, if
    /// it is too large for that.
    fn finish(
        mut self,
        payload: Payload,
        (read_back, large): (Option<&ReadBack>, Option<&LargeBody>),
    ) -> Result<Route, Error> {
        let (payload, strips_usage) = self.with_usage(payload);
        let body = self.deciding(&payload, read_back, large)?;
        self.drop_compression(body);
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
            body,
        })?;
        let caller = options.caller.as_deref();
        let entity: Option<Arc<str>> = routed.entity.map(|entity| entity.as_str().into());
        let costs = costs(
            &destination,
            &options,
            &headers,
            (body, large),
            entity.as_deref(),
        );
        let subject = Subject {
            caller_id: caller.map_or_else(CallerId::default, caller_id),
            costs,
            entity,
            strips_usage,
            host: Some(destination.origin.host.clone()),
            path: Some(PathTag::of(&routed.path)),
            priority: options.priority,
            deadline: options.timeout.map(|timeout| self.started + timeout),
            id: options.id,
            caller: options.caller,
            ip: options.ip,
            at_most_permille: self.at_most_permille,
            no_wait: options.no_wait,
            ..Subject::new(destination.provider, self.arrived)
        };
        let subject = subject.with_entity_metrics(&destination.policy);
        let request = Request {
            path: join_path(&destination.base, routed.path),
            origin: destination.origin,
            is_own_origin: destination.is_own_origin,
            conditions: Conditions::of(&headers),
            method: self.method,
            headers,
            query,
            payload,
            _body_share: self.body_share,
            client: options.client,
            no_dedup: options.no_dedup,
            cache: options.cache,
        };
        Ok(Route {
            subject,
            request,
            flight: FlightMembership::default(),
        })
    }
}

impl Request {
    /// The client that sends it, if that adds something that is not seen here.
    pub(crate) fn client_name(&self) -> Option<&str> {
        self.client.as_ref().and_then(ForeignClient::name)
    }

    /// Is one of our keys sent with the call?
    pub(crate) fn uses_own_key(&self, policy: &CompiledPolicy) -> bool {
        let auth = &policy.provider.auth;
        let has_own =
            policy.key_count() > 0 && !matches!(auth.style, AuthStyle::None) && self.is_own_origin;
        has_own && (auth.replace || self.client_credential(policy).is_none())
    }

    /// Rejects a call to an origin that was its provider's own when it was routed and is not under
    /// this policy: the keys of this policy are for another.
    pub(crate) fn reject_if_moved(&self, policy: &CompiledPolicy) -> Result<(), Error> {
        if !self.is_own_origin || is_own_origin(&self.origin, policy) {
            return Ok(());
        }
        Err(Error::Moved {
            provider: policy.provider.name.clone(),
        })
    }

    /// The credential that the client sent itself, where this provider expects one.
    pub(crate) fn client_credential(&self, policy: &CompiledPolicy) -> Option<String> {
        let style = &policy.provider.auth.style;
        find_client_credential(style, &self.headers, self.query.as_deref())
    }
}

/// The longest path of a call in a log line: enough to recognize the call.
const LOGGED_PATH_MAX: usize = 256;

impl Route {
    /// Emits what the call with this id asks for.
    pub(crate) fn emit_request(&self, id: &str) {
        let provider = &self.subject.provider;
        provider.events.emit_with(|| {
            let (method, path) = self.request_line();
            Event::Request {
                id: id.into(),
                provider: provider.label(),
                method,
                path,
            }
        });
    }

    /// Its method, and its path without the query, shortened; never with one of our keys.
    pub(crate) fn request_line(&self) -> (Method, Arc<str>) {
        let path = &*self.request.path;
        let policy = self.subject.provider.policy();
        let secrets = &policy.cache.secrets;
        // Most are shorter in bytes already.
        let cut = (path.len() > LOGGED_PATH_MAX).then(|| path.char_indices().nth(LOGGED_PATH_MAX));
        let path = match cut.flatten() {
            _ if secrets.found_in(path.as_bytes()) => "(contains a key)",
            Some((end, _)) => path.get(..end).unwrap_or_default(),
            None => path,
        };
        (self.request.method.clone(), path.into())
    }

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
            Some(upstream) if is_at_home && !provider.withholds_keys => upstream.rewrite(to),
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
        // The file names it, so it may be a private address.
        let origin = to_upstream(live.clone(), policy.clone(), at, true).origin;
        Route {
            subject: Subject {
                entity: entity.map(|entity| entity.as_str().into()),
                host: Some(origin.host.clone()),
                path: Some(PathTag::of(&path)),
                priority: Priority::High, // calls wait for it
                ..Subject::new(live, started)
            },
            request: Request {
                origin,
                is_own_origin: is_own,
                method: Method::POST,
                headers,
                path,
                query: None,
                payload: Payload::Whole(body),
                _body_share: None,
                conditions: Conditions::default(),
                client: None,
                no_dedup: false,
                cache: UseCache::default(),
            },
            flight: FlightMembership::default(),
        }
    }

    /// The same request for a background refresh: whole, with low priority, and for as long as the
    /// queue allows. A cacheable request has an empty body.
    pub(crate) fn for_refresh(&self) -> Route {
        let Route {
            subject, request, ..
        } = self;
        let mut headers = request.headers.clone();
        for name in [RANGE, IF_RANGE] {
            headers.remove(name);
        }
        Route {
            subject: Subject {
                id: format!("{}-refresh", subject.id).into(),
                priority: Priority::Low,
                started: subject.provider.ledger.at(),
                deadline: None,
                fallback: false,
                no_wait: false,
                shared_demand: None,
                progress: None,
                ..subject.clone()
            },
            request: Request {
                origin: request.origin.clone(),
                is_own_origin: request.is_own_origin,
                method: Method::GET,
                headers,
                path: request.path.clone(),
                query: request.query.clone(),
                payload: Payload::Whole(Bytes::new()),
                _body_share: None,
                conditions: request.conditions,
                client: request.client.clone(),
                no_dedup: request.no_dedup,
                cache: request.cache,
            },
            flight: FlightMembership::default(),
        }
    }

    /// Its bytes leave now.
    pub(crate) fn mark_sent(&self) {
        if let Some(refresh) = &self.flight.refresh {
            refresh.mark_sent();
        }
    }
}

/// Rejects a method that the provider's file does not allow.
fn check_method(policy: &CompiledPolicy, method: &Method) -> Result<(), Error> {
    let provider = &policy.provider;
    if provider.allows_method(method.as_str()) {
        return Ok(());
    }
    Err(Error::MethodNotAllowed {
        provider: Some(provider.name.clone()),
        method: method.clone(),
        allowed: provider.allowed_methods(),
    })
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
