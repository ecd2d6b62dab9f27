//! S11 over sockets: the switches of one call through reqwest and through tower above hyper.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use axum::serve::ListenerExt;
use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper_util::client::legacy::{Client, Error as HyperError, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tollgate::reqwest::Governed;
use tollgate::tower::{Govern, GovernLayer};
use tollgate::{Call, Error, Priority, Provider, Reason, RequestBody, Source, Tollgate, UseCache};
use tower_layer::Layer;

use crate::fake_client::send;

const HOUR: Duration = Duration::from_secs(3_600);
/// Long enough for a call, too short for any limit here.
const SOON: Duration = Duration::from_millis(500);

/// A server that notes each arrival. Responses of `/held…` wait until so many have arrived, or until
/// they are let go.
#[derive(Clone)]
struct Site {
    arrivals: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
    count: watch::Sender<usize>,
    let_go: watch::Sender<usize>,
    url: String,
}

impl Site {
    async fn start() -> Site {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let site = Site {
            arrivals: Arc::default(),
            connections: Arc::default(),
            count: watch::Sender::new(0),
            let_go: watch::Sender::new(usize::MAX),
            url: format!("http://{}", listener.local_addr().expect("bound")),
        };
        let connections = site.connections.clone();
        let listener = listener.tap_io(move |_| {
            connections.fetch_add(1, Ordering::Relaxed);
        });
        let router = Router::new().route("/{path}", get(respond));
        let router = router.with_state(site.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        site
    }

    fn arrivals(&self) -> Vec<String> {
        self.arrivals.lock().clone()
    }

    async fn has_seen(&self, arrivals: usize) {
        let mut count = self.count.subscribe();
        count
            .wait_for(|&count| count >= arrivals)
            .await
            .expect("it serves");
        // What other tasks of this thread have begun meanwhile, they have done as far as they can.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    /// Held responses go out once so many calls have arrived in all; 0 lets them go.
    fn hold_until(&self, arrivals: usize) {
        self.let_go.send_replace(arrivals);
    }
}

async fn respond(State(site): State<Site>, Path(path): Path<String>) -> &'static str {
    site.arrivals.lock().push(path.clone());
    site.count.send_modify(|count| *count += 1);
    if path.starts_with("held") {
        let mut wanted = site.let_go.subscribe();
        let mut count = site.count.subscribe();
        loop {
            let least = *wanted.borrow_and_update();
            if *count.borrow_and_update() >= least {
                break;
            }
            tokio::select! {
                changed = wanted.changed() => changed.expect("it serves"),
                changed = count.changed() => changed.expect("it serves"),
            }
        }
    }
    "ok"
}

fn at(site: &Site) -> Provider {
    Provider::new("x")
        .domain("api.example.org")
        .upstream(&site.url)
}

async fn tollgate(provider: Provider) -> Tollgate {
    let builder = Tollgate::builder().provider(provider).expect("valid");
    builder.build().await.expect("it starts")
}

async fn with_reqwest(provider: Provider) -> Governed {
    let tollgate = tollgate(provider).await;
    Governed::new(&tollgate, reqwest::Client::builder()).expect("a client")
}

fn url(path: &str) -> String {
    format!("https://api.example.org/{path}")
}

type Hyper = Govern<Client<HttpConnector, RequestBody>>;

async fn with_hyper(provider: Provider) -> Hyper {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let layer = GovernLayer::new(&tollgate(provider).await);
    layer.connect_errors(HyperError::is_connect).layer(client)
}

/// Where the response of hyper comes from.
async fn hyper(client: &Hyper, path: &str, call: Call) -> Result<Source, Error> {
    let request = Request::get(url(path)).extension(call.timeout(SOON * 20));
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let response = send(client, request).await?;
    Ok(*response.extensions().get().expect("known"))
}

/// S11: `Only` asks nobody; `Refresh` asks and stores what comes back.
#[tokio::test]
async fn s11_reqwest_only_and_refresh() {
    let site = Site::start().await;
    let client = with_reqwest(at(&site).limit(9, HOUR).cache(HOUR)).await;
    let source = async |path: &str, cache| {
        let response = client.get(url(path)).cache(cache).send().await?;
        let source = *response.extensions().get::<Source>().expect("known");
        response.text().await.expect("a body");
        Ok::<_, Error>(source)
    };
    let missing = source("a", UseCache::Only).await;
    assert!(
        matches!(missing, Err(Error::NotInCache { .. })),
        "{missing:?}"
    );
    assert_eq!(site.arrivals().len(), 0, "nobody was asked");
    assert_eq!(
        source("a", UseCache::Refresh).await.unwrap(),
        Source::Upstream
    );
    assert_eq!(
        source("a", UseCache::Refresh).await.unwrap(),
        Source::Upstream
    );
    assert_eq!(source("a", UseCache::Only).await.unwrap(), Source::Cache);
    assert_eq!(site.arrivals(), ["a", "a"]);
}

/// S11: two equal calls at once are one arrival, or two where a call says so.
#[tokio::test]
async fn s11_reqwest_dedup() {
    let site = Site::start().await;
    let client = with_reqwest(at(&site).limit(9, HOUR)).await;
    let ask = |path: &str, dedup| client.get(url(path)).dedup(dedup).send();
    let (first, second, ()) = tokio::join!(ask("held", true), ask("held", true), async {
        site.has_seen(1).await;
        site.hold_until(0);
    });
    let sources = [first, second].map(|one| *one.unwrap().extensions().get::<Source>().unwrap());
    assert!(sources.contains(&Source::Upstream) && sources.contains(&Source::Shared));
    assert_eq!(site.arrivals(), ["held"]);
    site.hold_until(3);
    let (first, second) = tokio::join!(ask("held2", false), ask("held2", false));
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(site.arrivals(), ["held", "held2", "held2"]);
}

/// S11: the entity of a call has a limit of its own, and so has its caller.
#[tokio::test]
async fn s11_reqwest_entity_and_caller() {
    let site = Site::start().await;
    let of_entity = json!({ "limit": 1, "period": "1h", "per": "entity" });
    let client = with_reqwest(at(&site).limit_with(of_entity)).await;
    let ask = |path: &str, entity: &str| client.get(url(path)).entity(entity).timeout(SOON).send();
    ask("a", "odds").await.expect("the first of odds");
    ask("b", "teams").await.expect("the first of teams");
    let error = ask("c", "odds").await.unwrap_err();
    assert_eq!(
        (error.reason(), error.limit()),
        (Some(Reason::Limit), Some("1/1h"))
    );

    let of_caller = json!({ "limit": 1, "period": "1h", "per": "caller" });
    let client = with_reqwest(at(&site).limit_with(of_caller)).await;
    let ask = |path: &str, caller: &str| client.get(url(path)).caller(caller).timeout(SOON).send();
    ask("d", "web").await.expect("the first of web");
    ask("e", "batch").await.expect("the first of batch");
    let error = ask("f", "web").await.unwrap_err();
    assert_eq!(
        (error.reason(), error.limit()),
        (Some(Reason::Limit), Some("1/1h"))
    );
    assert_eq!(site.arrivals(), ["a", "b", "d", "e"]);
}

/// S11: of the calls that wait for one place, the urgent one goes first.
#[tokio::test]
async fn s11_reqwest_priority() {
    let site = Site::start().await;
    let client = with_reqwest(
        at(&site)
            .limit(1_000, Duration::from_secs(1))
            .concurrency(1),
    )
    .await;
    let ask = |path: &str, priority| client.get(url(path)).priority(priority).send();
    let held = ask("held", Priority::Normal);
    let (held, low, high, ()) = tokio::join!(
        async { held.await.expect("it was let go").text().await },
        async {
            ask("low", Priority::Low)
                .await
                .expect("a place")
                .text()
                .await
        },
        async {
            ask("high", Priority::High)
                .await
                .expect("a place")
                .text()
                .await
        },
        async {
            site.has_seen(1).await;
            site.hold_until(0);
        }
    );
    assert!(held.is_ok() && low.is_ok() && high.is_ok());
    assert_eq!(site.arrivals(), ["held", "high", "low"]);
}

/// S11: the same switches in front of hyper's own client.
#[tokio::test]
async fn s11_tower_over_hyper() {
    let site = Site::start().await;
    let of_entity = json!({ "limit": 1, "period": "1h", "per": "entity" });
    let client = with_hyper(at(&site).limit_with(of_entity)).await;
    let soon = |entity: &str| Call::unaddressed().entity(entity);
    assert_eq!(
        hyper(&client, "a", soon("odds")).await.unwrap(),
        Source::Upstream
    );
    assert_eq!(
        hyper(&client, "b", soon("teams")).await.unwrap(),
        Source::Upstream
    );
    let error = hyper(&client, "c", soon("odds")).await.unwrap_err();
    assert_eq!(
        (error.reason(), error.limit()),
        (Some(Reason::Limit), Some("1/1h"))
    );
    assert_eq!(site.arrivals(), ["a", "b"]);

    let client = with_hyper(at(&site).limit(9, HOUR).cache(HOUR)).await;
    let only = || Call::unaddressed().cache(UseCache::Only);
    let missing = hyper(&client, "d", only()).await;
    assert!(
        matches!(missing, Err(Error::NotInCache { .. })),
        "{missing:?}"
    );
    let refreshed = Call::unaddressed().cache(UseCache::Refresh);
    assert_eq!(
        hyper(&client, "d", refreshed).await.unwrap(),
        Source::Upstream
    );

    let plain = Call::unaddressed;
    let calls = (
        hyper(&client, "held", plain()),
        hyper(&client, "held", plain()),
    );
    let (first, second, ()) = tokio::join!(calls.0, calls.1, async {
        site.has_seen(4).await;
        site.hold_until(0);
    });
    let sources = [first.unwrap(), second.unwrap()];
    assert!(sources.contains(&Source::Upstream) && sources.contains(&Source::Shared));
    assert_eq!(site.arrivals(), ["a", "b", "d", "held"]);
    site.hold_until(6);
    let alone = || Call::unaddressed().dedup(false).cache(UseCache::No);
    let (first, second) = tokio::join!(
        hyper(&client, "held2", alone()),
        hyper(&client, "held2", alone())
    );
    assert_eq!([first.unwrap(), second.unwrap()], [Source::Upstream; 2]);
    assert_eq!(site.arrivals().len(), 6);
}

/// Calls one after the other use one connection, as with a reqwest client of one's own.
#[tokio::test]
async fn a_governed_client_keeps_its_connection() {
    let site = Site::start().await;
    let client = with_reqwest(at(&site).limit(1_000, HOUR)).await;
    for number in 0..20 {
        let response = client.get(url(&format!("a{number}"))).send().await;
        assert_eq!(
            response.expect("a response").text().await.expect("a body"),
            "ok"
        );
    }
    assert_eq!(site.arrivals().len(), 20);
    assert_eq!(site.connections.load(Ordering::Relaxed), 1);
}

/// What reqwest cannot build is said in our error: which part, why, and what to write.
#[tokio::test]
async fn a_request_that_cannot_be_built_names_what_is_wrong() {
    let site = Site::start().await;
    let client = with_reqwest(at(&site).limit(1, HOUR)).await;
    let get = || client.get(url("a"));
    let unnamed = std::collections::BTreeMap::from([(vec![1], 2)]); // no JSON object has such a name
    for (request, words) in [
        (
            client.get("items/1"),
            "its URL: relative URL without a base; write an absolute URL",
        ),
        (
            client.get("data:items"),
            "its URL: URL scheme is not allowed; write an absolute URL",
        ),
        (
            get().header("a\nb", "c"),
            "the name of a header: invalid HTTP header name; use letters",
        ),
        (
            get().header("x-key", "canary\n"), // tidy:canary
            "the value of the header `x-key`: failed to parse header value; leave out line breaks",
        ),
        (
            get().with(|request| request.header("x-key", "canary\n")), // tidy:canary
            "the value of a header: failed to parse header value; leave out line breaks",
        ),
        (
            get().with(|request| request.bearer_auth("canary\n")), // tidy:canary
            "the value of a header: failed to parse header value; leave out line breaks",
        ),
        (
            get().with(|request| request.query(&5)),
            "its query, form or body: top-level serializer",
        ),
        (
            get().with(|request| request.json(&unnamed)),
            "its JSON body: key must be a string; give a value",
        ),
    ] {
        let error = request.send().await.unwrap_err();
        assert!(matches!(error, Error::NotBuilt(_)), "{error:?}");
        assert!(
            error.to_string().contains(words),
            "{error} has not: {words}"
        );
        assert!(!error.to_string().contains("canary"), "{error}");
    }
    assert_eq!(site.arrivals().len(), 0);
    get().send().await.expect("the permit is still there");
}
