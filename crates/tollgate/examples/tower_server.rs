//! An axum server that limits its callers.
//!
//! `cargo run -p tollgate --example tower_server`

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use tollgate::tower::GuardLayer;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let minute = Duration::from_secs(60);
    let guards = GuardLayer::builder()
        .ip(10, minute, 2)
        .user("x-user-id", 20, minute, 10)
        .global(100, minute, 20)
        .exempt("/health")
        .peer(|head| {
            let peer = head.extensions.get::<ConnectInfo<SocketAddr>>();
            peer.map(|peer| peer.0.ip())
        });
    let app = Router::new().route("/items", get(async || "items"));
    let app = app.layer(guards.build()?);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/items", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });

    let mut statuses = Vec::new();
    for _ in 0..3 {
        let response = reqwest::get(&url).await?;
        assert_eq!(response.headers()["x-ratelimit-limit"], "10");
        statuses.push(response.status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 429]);
    Ok(())
}
