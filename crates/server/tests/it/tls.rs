//! Upstreams over TLS: certificate checks, what is sent, and what a failed handshake costs.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tollgate::pool::Roots;
use tollgate::providers::Options;

use crate::client::get;
use crate::test_gateway::TestGateway;
use crate::upstream::{Upstream, ok};

/// An upstream that shows a certificate for this name, and the certificate. It would rather speak
/// HTTP/2, and cannot.
async fn secure(name: &str) -> (Upstream, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let tls = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = Upstream::over(listener, Some(tls), |_, _| async { ok() });
    (upstream, made.cert.der().clone())
}

/// A gateway to this host at the upstream's port that believes this certificate only.
async fn start(host: &str, upstream: &Upstream, believed: CertificateDer<'static>) -> TestGateway {
    let port = upstream.address.port();
    let text = format!(
        "name: x\nupstream: https://{host}:{port}\napi_key: canary\nauth: {{header: x-key}}\n\
         limits: [1/1h]\nretry: {{retries: {{high: 0, normal: 0, low: 0}}}}\n"
    );
    let options = Options {
        roots: Roots::Only(vec![believed]),
        ..Options::default()
    };
    TestGateway::start_with(&[text], options).await
}

/// H3: the key is sent to the provider's own origin, in HTTP/1.1 whatever else is offered. No
/// Tollgate header is added.
#[tokio::test]
async fn h3_a_key_is_sent_to_its_own_origin_over_tls() {
    let (upstream, certificate) = secure("localhost").await;
    let gateway = start("localhost", &upstream, certificate).await;
    let response = get(gateway.address, "/x/a").await;
    assert_eq!((response.status, response.body.as_str()), (200, "fine"));
    let received = &upstream.requests()[0];
    assert_eq!(received.headers["x-key"], "canary");
    let host = format!("localhost:{}", upstream.address.port());
    assert_eq!(received.headers["host"], host);
    assert!(!received.headers.contains_key("via"));
}

/// H3: an upstream with an invalid certificate gets no key, costs no permit, and is reported to the
/// caller and the log.
#[tokio::test]
async fn h3_an_invalid_certificate_costs_no_permit_and_is_reported() {
    let (right, _) = secure("localhost").await;
    let (wrong, certificate) = secure("other.example.org").await;
    let (_, of_nobody) = secure("localhost").await;
    for (upstream, believed) in [(&wrong, certificate), (&right, of_nobody)] {
        let gateway = start("localhost", upstream, believed).await;
        let response = get(gateway.address, "/x/a").await;
        let json = response.json();
        assert_eq!(
            (response.status, json["error"].as_str()),
            (502, Some("UpstreamError"))
        );
        assert!(
            json["hint"].as_str().unwrap().contains("certificate"),
            "{json}"
        );
        assert_eq!(response.header("x-tollgate-attempts"), "0");
        let look = gateway.registry.named("x").unwrap().limits(None).await;
        assert_eq!(look[0].view.unwrap().remaining, 1, "the permit is there");
        assert_eq!(upstream.count(), 0);
    }
    assert!(crate::log::captured().contains("invalid peer certificate"));
}

/// An upstream given by IP is verified by its IP.
#[tokio::test]
async fn an_upstream_given_by_ip_is_verified_by_ip() {
    let (upstream, certificate) = secure("127.0.0.1").await;
    let by_address = start("127.0.0.1", &upstream, certificate.clone()).await;
    assert_eq!(get(by_address.address, "/x/a").await.status, 200);
    let by_name = start("localhost", &upstream, certificate).await;
    assert_eq!(get(by_name.address, "/x/a").await.status, 502);
}
