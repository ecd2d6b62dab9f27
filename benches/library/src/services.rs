//! tower: a service that responds at once, bare, behind `RateLimit`, and behind `GovernLayer`.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Empty, Full};
use tollgate::tower::GovernLayer;
use tollgate::{Call, Provider, RequestBody, Tollgate, UseCache};
use tower::{Layer, Service, ServiceExt};

use crate::{Effort, Row, cpu};

/// Never reached.
const MANY: u64 = 1_000_000_000;
const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Clone)]
struct AtOnce;

impl<B> Service<Request<B>> for AtOnce {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        ready(Ok(Response::new(Full::new(Bytes::from_static(b"{}")))))
    }
}

fn request() -> Request<Empty<Bytes>> {
    let request = Request::get("https://api.example.org/items/1");
    request.body(Empty::new()).expect("a valid request")
}

async fn calls<S, R>(service: &mut S, calls: u64, request: impl Fn() -> Request<Empty<Bytes>>) -> f64
where
    S: Service<Request<Empty<Bytes>>, Response = Response<R>>,
    S::Error: std::fmt::Debug,
    R: http_body_util::BodyExt,
    R::Error: std::fmt::Debug,
{
    let before = cpu();
    for _ in 0..calls {
        let service = service.ready().await.expect("ready");
        let response = service.call(request()).await.expect("a response");
        response.into_body().collect().await.expect("a body");
    }
    (cpu() - before) / calls as f64
}

/// All subjects, in interleaved rounds.
pub async fn measure(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let api = || Provider::new("shop").domain("api.example.org").limit(MANY, HOUR);
    let memory = Tollgate::builder().provider(api())?.build().await?;
    let folder = std::env::temp_dir().join(format!("tollgate-bench-library-{}", std::process::id()));
    let sqlite = Tollgate::builder().store(format!("sqlite:{}", folder.display()));
    let sqlite = sqlite.provider(api())?.build().await?;
    let alone = || {
        let mut request = request();
        let options = Call::unaddressed().cache(UseCache::No).dedup(false);
        request.extensions_mut().insert(options);
        request
    };
    let mut bare = AtOnce;
    let mut limited = tower::ServiceBuilder::new().rate_limit(MANY, HOUR).service(AtOnce);
    let mut in_memory = GovernLayer::new(&memory).layer(Named);
    let mut in_folder = GovernLayer::new(&sqlite).layer(Named);
    let names = [
        "bare",
        "tower `RateLimit` (one process, no reaction to responses)",
        "`GovernLayer`, `memory:` (the whole path)",
        "`GovernLayer`, `sqlite:` (shared by processes)",
    ];
    let mut rows: Vec<Row> = names.map(|name| Row { name, rounds: Vec::new() }).into();
    for _ in 0..effort.rounds {
        rows[0].rounds.push(calls(&mut bare, effort.plain, request).await);
        rows[1].rounds.push(calls(&mut limited, effort.plain, request).await);
        rows[2].rounds.push(calls(&mut in_memory, effort.plain / 10, alone).await);
        rows[3].rounds.push(calls(&mut in_folder, effort.plain / 100, alone).await);
    }
    drop((in_folder, sqlite));
    drop(std::fs::remove_dir_all(folder));
    Ok(rows)
}

/// [`AtOnce`] for one type of request only, as clients are.
#[derive(Clone)]
struct Named;

impl Service<Request<RequestBody>> for Named {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        AtOnce.call(request)
    }
}
