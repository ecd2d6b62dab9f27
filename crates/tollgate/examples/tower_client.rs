//! hyper's own client in a `GovernLayer`, against a provider that enforces its limit.
//!
//! `cargo run -p tollgate --example tower_client`

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::TokioExecutor;
use tollgate::tower::GovernLayer;
use tollgate::{Call, Provider, Reason, Tollgate};
use tollgate_sim::http::{Settings, SimProvider};
use tower_layer::Layer;
use tower_service::Service;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), BoxError> {
    let strict = SimProvider::start(Settings::with_rules("sliding 5/100ms")?).await?;
    let shop = Provider::new("shop").domain("api.example.org");
    let shop = shop.upstream(strict.url());
    let shop = shop.limit(5, Duration::from_millis(100));
    // Nothing listens there: a connection that fails costs nothing.
    let closed = Provider::new("closed").domain("closed.example.org");
    let closed = closed.upstream("http://127.0.0.1:9").limit(1, HOUR);
    let builder = Tollgate::builder().provider(shop)?.provider(closed)?;
    let tollgate = builder.build().await?;

    let client = Client::builder(TokioExecutor::new()).build_http();
    let layer = GovernLayer::new(&tollgate).connect_errors(Error::is_connect);
    let mut client = layer.layer(client);
    for number in 0..20 {
        let request = get(&format!("https://api.example.org/items/{number}"))?;
        let response: Response<_> = client.call(request).await?;
        assert_eq!(response.status(), 200);
        response.into_body().collect().await?;
    }
    let report = strict.stop().await;
    assert_eq!((report.violations, report.accepted), (0, 20));

    let mut request = get("https://closed.example.org/")?;
    let second = Duration::from_secs(1);
    let options = Call::unaddressed().timeout(second);
    request.extensions_mut().insert(options);
    let error = client.call(request).await.err().ok_or("it is closed")?;
    assert_ne!(error.reason(), Some(Reason::Limit), "{error}");
    let capacity = tollgate.capacity("closed").await?;
    assert_eq!(capacity.remaining, Some(1), "given back");
    Ok(())
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const HOUR: Duration = Duration::from_secs(3_600);

fn get(url: &str) -> http::Result<Request<Empty<Bytes>>> {
    Request::get(url).body(Empty::new())
}
