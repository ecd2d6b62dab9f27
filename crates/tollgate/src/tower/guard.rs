//! Guards around a tower server (C4): limits on the callers of the program's own service.
//!
//! Promises: all guards of a request agree, or none is charged. A rejection is a 429 with
//! `Retry-After` and `X-RateLimit-*`; a response that passes has the same rate headers; both say so in
//! `X-Tollgate-Decision`. Paths under an exempt prefix are not counted.
//!
//! Never: asks the service about a request that a guard rejects.

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use serde_json::{Value, json};
use tollgate_config::amount::HumanSpan;
use tollgate_config::config::Limiting;
use tollgate_config::{
    Config, Environment, FileContent, Level, PathKind, Place, Problem, Problems, Sources, disk,
};
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, Ledger};
use tower_layer::Layer;
use tower_service::Service;

use crate::event::Events;
use crate::guards::{GuardAsk, GuardDenied, GuardError, GuardVerdict, GuardedRequest, Guards};
use crate::path::Rates;
use crate::rate_headers;

/// What the guards decided (C10).
const DECISION: HeaderName = HeaderName::from_static("x-tollgate-decision");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// The name of the text that code makes of its guards, in problems.
const IN_CODE: &str = "the guards of GuardLayer";

/// Finds the address of a request's peer.
type Peer = Arc<dyn Fn(&Parts) -> Option<IpAddr> + Send + Sync>;

/// Guards in front of a server. Clones share their counts.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tollgate::tower::GuardLayer;
///
/// let guards = GuardLayer::builder().global(100, Duration::from_secs(60), 20).build()?;
/// let app: Router = Router::new().route("/items", get(async || "items")).layer(guards);
/// # drop(app);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct GuardLayer {
    guards: Arc<Guards>,
    peer: Peer,
}

impl fmt::Debug for GuardLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GuardLayer")
    }
}

/// What a [`GuardLayer`] is made of.
#[must_use = "`build` makes a layer of it"]
pub struct GuardLayerBuilder {
    /// In the order of the calls: the first that is used up rejects.
    guards: Vec<(String, Value)>,
    /// As for the daemon, `/health` until the program says otherwise.
    exempt_paths: Vec<String>,
    trusted_proxies: Vec<String>,
    clock: Clock,
    peer: Peer,
}

impl fmt::Debug for GuardLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GuardLayerBuilder")
    }
}

impl GuardLayer {
    /// Begins without a guard; paths under `/health` are exempt.
    pub fn builder() -> GuardLayerBuilder {
        GuardLayerBuilder {
            guards: Vec::new(),
            exempt_paths: vec!["/health".to_owned()],
            trusted_proxies: Vec::new(),
            clock: Clock::System,
            peer: Arc::new(|head| head.extensions.get().map(SocketAddr::ip)),
        }
    }

    /// Whether its guards reject: at once, for all clones, until the process ends; `None` = as they
    /// were built. `Off` counts nothing, `Shadow` counts and lets every request pass.
    pub fn set_limiting(&self, limiting: impl Into<Option<Limiting>>) {
        self.guards.set_limiting(limiting.into());
    }

    /// Whether its guards reject now.
    #[must_use]
    pub fn limiting(&self) -> Limiting {
        self.guards.limiting()
    }

    /// What a request asks of the guards.
    fn asks(&self, head: &Parts) -> Result<Vec<GuardAsk>, GuardError> {
        // Callers without a known address share one bucket: an address guard never passes them free.
        let peer = (self.peer)(head).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        self.guards.asks_of(&GuardedRequest {
            guards: None,
            path: head.uri.path(),
            is_exact: true,
            ip: self.guards.client_ip(peer, &head.headers),
            headers: &head.headers,
        })
    }
}

impl GuardLayerBuilder {
    /// Each address: `limit` requests per `period`, `burst` at once.
    pub fn ip(self, limit: u32, period: Duration, burst: u32) -> GuardLayerBuilder {
        self.by("ip", "ip", (limit, period, burst))
    }

    /// Each value of this header: `limit` requests per `period`, `burst` at once. Requests without
    /// the header are not counted by it.
    pub fn user(self, header: &str, limit: u32, period: Duration, burst: u32) -> GuardLayerBuilder {
        self.by("user", &format!("header:{header}"), (limit, period, burst))
    }

    /// All requests together.
    pub fn global(self, limit: u32, period: Duration, burst: u32) -> GuardLayerBuilder {
        self.by("api", "global", (limit, period, burst))
    }

    fn by(
        self,
        name: &str,
        by: &str,
        (limit, period, burst): (u32, Duration, u32),
    ) -> GuardLayerBuilder {
        let period = HumanSpan(Span::from(period)).to_string();
        self.guard(
            name,
            json!({ "limit": limit, "period": period, "burst": burst, "by": by }),
        )
    }

    /// A guard with all its fields, as in `tollgate.yaml`.
    pub fn guard(mut self, name: &str, fields: impl Into<Value>) -> GuardLayerBuilder {
        self.guards.retain(|(known, _)| known != name);
        self.guards.push((name.to_owned(), fields.into()));
        self
    }

    /// Paths under this prefix are not guarded either, besides those so far (`/health`).
    pub fn exempt(mut self, prefix: impl Into<String>) -> GuardLayerBuilder {
        self.exempt_paths.push(prefix.into());
        self
    }

    /// Only paths under these prefixes are not guarded: `exempt_paths([""; 0])` guards every path.
    pub fn exempt_paths<P: Into<String>>(
        mut self,
        prefixes: impl IntoIterator<Item = P>,
    ) -> GuardLayerBuilder {
        self.exempt_paths = prefixes.into_iter().map(Into::into).collect();
        self
    }

    /// A proxy, or a network of them, whose `X-Forwarded-For` is believed.
    pub fn trusted_proxy(mut self, network: impl Into<String>) -> GuardLayerBuilder {
        self.trusted_proxies.push(network.into());
        self
    }

    /// Where the address of a request's peer is. Without it, a `SocketAddr` in the extensions. For
    /// axum: `|head| head.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip())`.
    pub fn peer(
        mut self,
        peer: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> GuardLayerBuilder {
        self.peer = Arc::new(peer);
        self
    }

    /// Another clock, so that tests run in virtual time.
    pub fn clock(mut self, clock: Clock) -> GuardLayerBuilder {
        self.clock = clock;
        self
    }

    /// The layer.
    ///
    /// # Errors
    /// A guard is wrong: every problem with its remedy.
    pub fn build(self) -> Result<GuardLayer, Problems> {
        // An object of `serde_json` sorts its names, and the order of guards counts.
        let guards = self.guards.iter();
        let guards = guards.map(|(name, fields)| format!("{}: {fields}", json!(name)));
        let text = format!(
            "{{\"guards\": {{{}}}, \"exempt_paths\": {}, \"trusted_proxies\": {}}}",
            guards.collect::<Vec<_>>().join(", "),
            json!(self.exempt_paths),
            json!(self.trusted_proxies),
        );
        let read = |_: &str| {
            Ok(FileContent {
                text: text.clone(),
                readable_by_others: false,
            })
        };
        let environment = Environment {
            read_file: &read,
            path_kind: &|_| Ok(PathKind::File),
            ..Environment::empty()
        };
        load(IN_CODE, &environment).map(|config| self.with(&config))
    }

    /// The layer with the guards of a `tollgate.yaml`, in place of those of the builder. With `guard_store: redis://…`
    /// (feature `redis`) they count in Redis, in the runtime of the requests.
    ///
    /// # Errors
    /// The file cannot be read, or is wrong: every problem with its place and remedy.
    pub fn build_from_file(self, path: &str) -> Result<GuardLayer, Problems> {
        load(path, &disk::environment()).map(|config| self.with(&config))
    }

    fn with(self, config: &Config) -> GuardLayer {
        let ledger = Ledger::memory(self.clock);
        GuardLayer {
            guards: Arc::new(Guards::new(ledger, Events::default(), config)),
            peer: self.peer,
        }
    }
}

fn load(path: &str, environment: &Environment<'_>) -> Result<Config, Problems> {
    let sources = Sources {
        config: Some(path.to_owned()),
        only_named: true,
        ..Sources::default()
    };
    let config = Config::load(&sources, environment)?.config;
    if config.guard_store.is_shared() && !cfg!(feature = "redis") {
        return Err(Problem {
            level: Level::Error,
            place: Place::whole(path),
            path: "guard_store".to_owned(),
            what: "this program was built without the feature `redis` of tollgate".to_owned(),
            remedy: "build it with the feature, or write `memory:`".to_owned(),
        }
        .into());
    }
    Ok(config)
}

impl<S> Layer<S> for GuardLayer {
    type Service = GuardedService<S>;

    fn layer(&self, inner: S) -> GuardedService<S> {
        GuardedService {
            inner,
            layer: self.clone(),
        }
    }
}

/// A server behind guards. Made by [`GuardLayer`].
#[derive(Clone, Debug)]
pub struct GuardedService<S> {
    inner: S,
    layer: GuardLayer,
}

impl<S, B, R> Service<Request<B>> for GuardedService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
    R: From<Bytes> + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (head, body) = request.into_parts();
        let guards = self.layer.guards.clone();
        let asks = match self.layer.asks(&head) {
            Ok(asks) => asks,
            Err(error) => return ready(misconfigured(&error)),
        };
        let request = Request::from_parts(head, body);
        if let Some(verdict) = guards.decide_in_memory(&asks) {
            let verdict = match passed(&guards, verdict) {
                Ok(verdict) => verdict,
                Err(rejection) => return ready(rejection),
            };
            let response = self.inner.call(request);
            return Box::pin(async move {
                let mut response = response.await?;
                add_headers(&guards, &verdict, response.headers_mut());
                Ok(response)
            });
        }
        // The service that was found ready is the one that is called; its clone may not be.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let verdict = match passed(&guards, guards.decide(&asks).await) {
                Ok(verdict) => verdict,
                Err(rejection) => return ready(rejection).await,
            };
            let mut response = inner.call(request).await?;
            add_headers(&guards, &verdict, response.headers_mut());
            Ok(response)
        })
    }
}

/// The verdict of a request that passes, or what to respond.
#[expect(
    clippy::result_large_err,
    reason = "a response is large, and is sent at once"
)]
fn passed(
    guards: &Guards,
    verdict: Result<GuardVerdict, GuardError>,
) -> Result<GuardVerdict, Response<Vec<u8>>> {
    let verdict = verdict.map_err(|error| misconfigured(&error))?;
    let Some(denied) = &verdict.denied else {
        return Ok(verdict);
    };
    let mut response = rejection(denied);
    add_headers(guards, &verdict, response.headers_mut());
    Err(response)
}

/// What the guards decided, and what remains of them.
fn add_headers(guards: &Guards, verdict: &GuardVerdict, headers: &mut HeaderMap) {
    if verdict.views.is_empty() {
        return;
    }
    let decision = match verdict.denied {
        Some(_) => "reject",
        None => "allow",
    };
    headers.insert(DECISION, HeaderValue::from_static(decision));
    rate_headers::add_guards(headers, verdict, &Rates::default(), guards.wall());
}

/// A response that is known already.
fn ready<R: From<Bytes>, E>(
    response: Response<Vec<u8>>,
) -> Pin<Box<dyn Future<Output = Result<Response<R>, E>> + Send>> {
    Box::pin(async move { Ok(response.map(|body| R::from(Bytes::from(body)))) })
}

/// The 429 of a guard, with the fields of every rejection of Tollgate.
fn rejection(denied: &GuardDenied) -> Response<Vec<u8>> {
    let wait = denied.retry_in;
    let body = json!({
        "error": denied.code(),
        "message": denied.message(),
        "hint": denied.hint(),
        "guard": denied.class.name(),
        "limit": denied.class.limit_name(),
        "reason": denied.reason(),
        "retryIn": wait.map(|wait| wait.0.div_ceil(1_000)),
    });
    let status = match denied.is_store_lost {
        false => StatusCode::TOO_MANY_REQUESTS,
        true => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut response = json_response(status, &body);
    if let Some(wait) = wait {
        // Rounded up: a retry that is too early would be rejected again.
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from(wait.0.div_ceil(1_000_000)));
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(wait.0.div_ceil(1_000)));
    }
    response
}

/// A guard that cannot be asked rejects: it never lets a request pass.
fn misconfigured(error: &GuardError) -> Response<Vec<u8>> {
    let body = json!({ "error": "Misconfigured", "message": error.to_string() });
    json_response(StatusCode::INTERNAL_SERVER_ERROR, &body)
}

fn json_response(status: StatusCode, body: &Value) -> Response<Vec<u8>> {
    let mut response = Response::new(body.to_string().into_bytes());
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
