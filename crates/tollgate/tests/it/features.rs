//! What a build without a feature does with a call that needs it.
//!
//! Run with `cargo test -p tollgate --no-default-features`.

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Empty};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tollgate::path::{self, CallOptions, CallTrace, HttpCall, Target};
use tollgate::{Options, ProviderRegistry};
use tollgate_config::{Environment, ProviderFile};
use tollgate_ledger::{Clock, Ledger};

fn registry(upstream: &str) -> ProviderRegistry {
    let text = format!("name: x\nupstream: {upstream}\nlimits: [9/1h]\ncache: {{ttl: 1h}}\n");
    let file = ProviderFile::read("x.yaml", &text).expect("YAML");
    let provider = file.check(&Environment::empty()).provider;
    let ledger = Ledger::memory(Clock::System);
    let providers = vec![provider.expect("a valid provider")];
    ProviderRegistry::build(providers, ledger, Options::default()).expect("sane providers")
}

fn call() -> HttpCall<Empty<Bytes>> {
    HttpCall {
        target: Target::Provider {
            name: "x".to_owned(),
            path: "/a".to_owned(),
            query: None,
        },
        method: Method::GET,
        headers: HeaderMap::new(),
        body: Empty::new(),
        options: CallOptions::default(),
    }
}

/// With the cache, the second call does not reach the provider; without it, both do.
#[tokio::test]
async fn a_response_is_cached_only_with_the_feature() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let registry = registry(&format!("http://{}", listener.local_addr().expect("bound")));
    tokio::spawn(async move {
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut head = [0; 1_024];
            let _read = stream.read(&mut head).await.expect("a request");
            let response = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\n{number}"
            );
            stream.write_all(response.as_bytes()).await.expect("open");
        }
    });
    let mut bodies = Vec::new();
    for _ in 0..2 {
        let reply = path::call(&registry, call(), &mut CallTrace::default()).await;
        let body = reply.expect("a response").body.collect().await;
        bodies.push(body.expect("a whole body").to_bytes());
    }
    let second = if cfg!(feature = "cache") { "0" } else { "1" };
    assert_eq!(bodies, ["0", second]);
}

/// It is never sent in the clear, and the error names setting and feature.
#[cfg(not(feature = "tls"))]
#[tokio::test]
async fn an_https_upstream_is_misconfigured_without_the_feature() {
    let registry = registry("https://127.0.0.1:9");
    let error = path::call(&registry, call(), &mut CallTrace::default()).await;
    match error.expect_err("there is no TLS") {
        tollgate::Error::Misconfigured { setting, why, .. } => {
            assert_eq!(setting, "upstream");
            assert!(why.contains("`tls`"), "{why}");
        }
        other => panic!("{other}"),
    }
}
