//! The decision service over gRPC, asked as Envoy asks it; times stand still unless a test moves them.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tollgate_config::Secret;
use tollgate_core::time::Span;
use tollgate_ledger::ManualClock;
use tollgate_server::{Grpc, GrpcOptions};

use crate::client::within_timeout;
use crate::decisions::frozen_ledger;
use crate::grpc_client::{
    Failed, GrpcClient, HealthCheckRequest, HealthCheckResponse, RateLimit, RateLimitDescriptor,
    RateLimitOverride, RateLimitResponse, SHOULD_RATE_LIMIT, UInt64Value, descriptor, failed,
    frame, request,
};
use crate::test_daemon::{TestDaemon, from_file, write_file};

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

const GUARDS: &str = "
  ip:     { limit: 10, period: 1m, burst: 2, by: ip }
  user:   { limit: 20, period: 1m, burst: 3, by: 'header:x-user-id' }
  trial:  { limit: 1, period: 1m, by: name, shadow: true }
  paths:  { limit: 4, period: 10s, by: name, match: { descriptor: { tenant: '*', path: '*' } } }
";

const PROVIDER: &str = "name: x
domain: api.example.org
limits: [{limit: 2, period: 10s, algorithm: fixed-window}]
entities: { ttl: { odds: 1m } }
";

struct Service {
    daemon: TestDaemon,
    grpc: Grpc,
    clock: Arc<ManualClock>,
}

/// A daemon with guards, a provider `x`, a caller `app` and the gRPC address.
async fn service(name: &str, rest: &str, token: Option<&str>) -> Service {
    let (config, provider) = (format!("{name}.tollgate.yaml"), format!("{name}.yaml"));
    write_file(&provider, PROVIDER);
    let callers = "callers: { app: { token: app-token-000001, guards: [ip, user] }, web: { token: web-token-000001 } }";
    write_file(&config, &format!("guards:{GUARDS}\n{callers}\n{rest}\n"));
    let mut sources = from_file(&provider);
    sources.config = Some(config);
    let (ledger, clock) = frozen_ledger();
    let daemon = TestDaemon::start_on(ledger, sources, Default::default(), None).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = GrpcOptions {
        token: token.map(|token| Secret::new(token.to_owned())),
        ..GrpcOptions::default()
    };
    let grpc = Grpc::serve(&daemon.daemon, listener, options).unwrap();
    Service {
        daemon,
        grpc,
        clock,
    }
}

impl Service {
    async fn client(&self) -> GrpcClient {
        GrpcClient::connect(self.grpc.address()).await
    }

    /// One descriptor in the domain `guards`.
    async fn ask(&self, entries: &[(&str, &str)]) -> RateLimitResponse {
        let asked = request("guards", vec![descriptor(entries)]);
        self.client().await.ask(&asked).await.unwrap()
    }
}

fn hits(entries: &[(&str, &str)], hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        hits_addend: Some(UInt64Value { value: hits }),
        ..descriptor(entries)
    }
}

/// Every field of a response, under the limit and over it.
#[tokio::test]
async fn guards_decide_what_envoy_asks() {
    let service = service("grpc-guards", "", None).await;
    let ip = [("remote_address", "203.0.113.7")];
    let first = service.ask(&ip).await;
    assert_eq!(first.overall_code, OK);
    let [status] = &first.statuses[..] else {
        panic!("{first:?}");
    };
    assert_eq!((status.code, status.limit_remaining), (OK, 1));
    let limit = RateLimit {
        requests_per_unit: 10,
        unit: 2,
        name: "ip".to_owned(),
    };
    assert_eq!(status.current_limit, Some(limit));
    let reset = status.duration_until_reset.clone().unwrap();
    assert_eq!((reset.seconds, reset.nanos), (6, 0));
    assert_eq!(first.header("x-ratelimit-limit"), "10");
    assert_eq!(first.header("x-ratelimit-remaining"), "1");
    assert_eq!(first.header("ratelimit"), "\"ip\";r=1;t=6");
    assert_eq!(first.header("ratelimit-policy"), "\"ip\";q=10;w=60");
    assert_eq!(first.header("x-tollgate-decision"), "allow");
    assert!(first.raw_body.is_empty());
    service.clock.pass(Span(1_000_001));
    assert_eq!(service.ask(&ip).await.overall_code, OK);
    let denied = service.ask(&ip).await;
    assert_eq!(denied.overall_code, OVER_LIMIT);
    assert_eq!(denied.statuses[0].code, OVER_LIMIT);
    assert_eq!(denied.header("retry-after"), "5");
    assert_eq!(denied.header("retry-after-ms"), "5000");
    assert_eq!(denied.header("x-ratelimit-remaining"), "0");
    assert_eq!(denied.header("content-type"), "application/json");
    let body: Value = serde_json::from_slice(&denied.raw_body).unwrap();
    assert_eq!(body["guard"], "ip");
    assert_eq!(
        (&body["limit"], &body["reason"]),
        (&json!("10/1m"), &json!("limit"))
    );
    // The same bucket as over HTTP.
    let status = service
        .daemon
        .request("GET", "/v1/guards/ip?identifier=203.0.113.7", "")
        .await;
    assert!(status.json()["tokens_available"].as_f64().unwrap() < 1.0);
}

/// All descriptors or none: what one guard rejects, no other is charged for.
#[tokio::test]
async fn several_descriptors_are_decided_as_one() {
    let service = service("grpc-several", "", None).await;
    let both = |user: &str| {
        let descriptors = vec![
            descriptor(&[("x-user-id", user)]),
            descriptor(&[("generic_key", "no guard has it")]),
            descriptor(&[("remote_address", "203.0.113.7")]),
        ];
        request("guards", descriptors)
    };
    let mut client = service.client().await;
    for expected in [OK, OK, OVER_LIMIT, OVER_LIMIT] {
        let response = client.ask(&both("u1")).await.unwrap();
        assert_eq!(response.overall_code, expected);
        let codes: Vec<i32> = response.statuses.iter().map(|status| status.code).collect();
        assert_eq!(codes, [OK, OK, expected]);
        assert_eq!(response.statuses[1].current_limit, None);
    }
    let left = service.ask(&[("user", "u1")]).await;
    assert_eq!(
        left.statuses[0].limit_remaining, 0,
        "two of three were taken before"
    );
}

/// Request-level 0 or unset counts 1. The descriptor's own number wins, and its 0 takes nothing.
#[tokio::test]
async fn hits_addend_is_the_cost() {
    let service = service("grpc-hits", "", None).await;
    let mut client = service.client().await;
    let user = [("user", "u1")];
    let mut ask = async |own: Option<u64>, all: u32, is_negative: bool| {
        let one = RateLimitDescriptor {
            hits_addend: own.map(|value| UInt64Value { value }),
            is_negative_hits: is_negative,
            ..descriptor(&user)
        };
        let mut asked = request("guards", vec![one]);
        asked.hits_addend = all;
        let response = client.ask(&asked).await.unwrap();
        (response.overall_code, response.statuses[0].limit_remaining)
    };
    assert_eq!(ask(Some(0), 0, false).await, (OK, 3), "a peek");
    assert_eq!(ask(None, 0, false).await, (OK, 2));
    assert_eq!(ask(None, 2, false).await, (OK, 0));
    assert_eq!(
        ask(Some(0), 7, false).await,
        (OVER_LIMIT, 0),
        "nothing is left"
    );
    assert_eq!(ask(Some(2), 0, true).await, (OK, 2), "put back");
    assert_eq!(ask(Some(3), 1, false).await, (OVER_LIMIT, 2), "not charged");
    assert_eq!(ask(Some(u64::MAX), 1, false).await, (OVER_LIMIT, 2));
    assert_eq!(ask(Some(2), 9, false).await, (OK, 0));
}

/// A guard in shadow counts and never rejects; `limiting` switches all of them at run time.
#[tokio::test]
async fn shadow_and_off_never_reject() {
    let service = service("grpc-shadow", "", None).await;
    let trial = [("trial", "anyone")];
    for _ in 0..3 {
        let response = service.ask(&trial).await;
        assert_eq!((response.overall_code, response.statuses[0].code), (OK, OK));
    }
    let seen = &service.ask(&trial).await.statuses[0];
    assert_eq!(seen.limit_remaining, 0, "it counts");
    let ip = [("ip", "203.0.113.8")];
    for (mode, codes, has_limit) in [
        ("shadow", [OK, OK, OK], true),
        ("off", [OK, OK, OK], false),
        ("on", [OVER_LIMIT, OVER_LIMIT, OVER_LIMIT], true),
    ] {
        let body = json!({ "mode": mode }).to_string();
        let set = service.daemon.request("POST", "/v1/limiting", &body).await;
        assert_eq!(set.status, 200);
        for code in codes {
            let response = service.ask(&ip).await;
            assert_eq!(response.overall_code, code, "{mode}");
            let status = &response.statuses[0];
            assert_eq!(status.current_limit.is_some(), has_limit, "{mode}");
        }
    }
}

/// A limit that the route brings along; a period that is no unit of the protocol is said by name.
#[tokio::test]
async fn limits_of_descriptors_and_units() {
    let service = service("grpc-limits", "", None).await;
    let mut client = service.client().await;
    let mut ask = async |requests_per_unit, unit| {
        let one = RateLimitDescriptor {
            limit: Some(RateLimitOverride {
                requests_per_unit,
                unit,
            }),
            ..descriptor(&[("ip", "203.0.113.7")])
        };
        client.ask(&request("guards", vec![one])).await
    };
    for remaining in [4, 3, 2, 1, 0] {
        let response = ask(5, 3).await.unwrap();
        assert_eq!(response.overall_code, OK);
        let status = &response.statuses[0];
        assert_eq!(status.limit_remaining, remaining);
        let limit = status.current_limit.clone().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit), (5, 3));
    }
    assert_eq!(ask(5, 3).await.unwrap().overall_code, OVER_LIMIT);
    assert_eq!(ask(0, 6).await.unwrap().overall_code, OVER_LIMIT);
    let unknown = ask(5, 77).await.unwrap_err();
    assert_eq!(unknown.code, 3);
    assert!(unknown.message.contains("MINUTE"), "{unknown:?}");
    let odd = service.ask(&[("path", "/a"), ("tenant", "t")]).await;
    let limit = odd.statuses[0].current_limit.clone().unwrap();
    assert_eq!(
        (limit.requests_per_unit, limit.unit, &*limit.name),
        (4, 0, "paths")
    );
}

/// The domain is a provider: a permit for a call that Envoy makes.
#[tokio::test]
async fn a_provider_gives_permits() {
    let service = service("grpc-provider", "", None).await;
    let mut client = service.client().await;
    let call = || request("x", vec![descriptor(&[("entity", "odds")])]);
    let peek = request("x", vec![hits(&[("entity", "odds")], 0)]);
    for remaining in [1, 0] {
        assert_eq!(client.ask(&peek).await.unwrap().overall_code, OK);
        let response = client.ask(&call()).await.unwrap();
        assert_eq!(response.overall_code, OK, "{response:?}");
        let status = &response.statuses[0];
        assert_eq!(status.limit_remaining, remaining);
        assert_eq!(status.current_limit.as_ref().unwrap().name, "2/10s");
        assert_eq!(response.header("x-tollgate-decision"), "allow");
        response.assert_reset();
    }
    for asked in [call(), peek] {
        let denied = client.ask(&asked).await.unwrap();
        assert_eq!(denied.overall_code, OVER_LIMIT);
        assert_eq!(denied.statuses[0].code, OVER_LIMIT);
        assert_eq!(denied.header("x-tollgate-decision"), "reject");
        let body: Value = serde_json::from_slice(&denied.raw_body).unwrap();
        assert_eq!(
            (&body["provider"], &body["limit"]),
            (&json!("x"), &json!("2/10s"))
        );
        assert!(
            body["message"].is_string() && body["hint"].is_string(),
            "{body}"
        );
    }
    let details = service
        .daemon
        .request("GET", "/v1/providers/x", "")
        .await
        .json();
    assert_eq!(details["permits"]["open"], 2, "{}", details["permits"]);
    let costly = request("x", vec![hits(&[], 3)]);
    let never = client.ask(&costly).await.unwrap();
    let body: Value = serde_json::from_slice(&never.raw_body).unwrap();
    assert_eq!(body["reason"], "too_costly");
}

/// What cannot be decided names the thing and the remedy, and counts nothing.
#[tokio::test]
async fn mistakes_are_statuses_that_name_the_remedy() {
    let service = service("grpc-mistakes", "", None).await;
    let mut client = service.client().await;
    let one = || vec![descriptor(&[("ip", "203.0.113.7")])];
    let many = vec![descriptor(&[("ip", "203.0.113.7")]); 33];
    let long = vec![descriptor(&[("k", "v"); 17])];
    let limited = RateLimitDescriptor {
        limit: Some(RateLimitOverride::default()),
        ..descriptor(&[("entity", "odds")])
    };
    let refund = RateLimitDescriptor {
        is_negative_hits: true,
        ..descriptor(&[])
    };
    for (asked, code, part) in [
        (request("", one()), 3, "domain: guards"),
        (request("guards", vec![]), 3, "no descriptors"),
        (request("guards", many), 3, "more than 32"),
        (request("guards", long), 3, "more than 16"),
        (request("gards", vec![descriptor(&[])]), 5, "gards"),
        // The entries were blamed, although the domain is wrong.
        (request("gards", one()), 5, "gards"),
        (request("x", one()), 3, "entity"),
        (
            request("x", vec![descriptor(&[("priority", "soon")])]),
            3,
            "high, normal or low",
        ),
        (
            request("x", vec![descriptor(&[]), descriptor(&[])]),
            3,
            "one descriptor",
        ),
        (request("x", vec![limited]), 3, "in its file"),
        (request("x", vec![refund]), 3, "release"),
        (request("x", vec![hits(&[], 1 << 60)]), 3, "2^53"),
    ] {
        let error = client.ask(&asked).await.unwrap_err();
        assert_eq!(error.code, code, "{error:?}");
        assert!(error.message.contains(part), "{error:?}");
    }
    let left = service.ask(&[("ip", "203.0.113.7")]).await;
    assert_eq!(left.statuses[0].limit_remaining, 1, "nothing was counted");
}

/// More guards than one step decides were an error, and Envoy lets those pass.
#[tokio::test]
async fn any_number_of_guards_is_decided() {
    let service = service("grpc-many", "", None).await;
    let mut client = service.client().await;
    let users: Vec<String> = (0..12).map(|number| format!("u{number}")).collect();
    let users = users.iter().map(|user| descriptor(&[("user", user)]));
    let asked = request("guards", users.collect());
    for expected in [OK, OK, OK, OVER_LIMIT] {
        let response = client.ask(&asked).await.unwrap();
        assert_eq!(response.overall_code, expected);
        assert_eq!(response.statuses.len(), 12);
    }
    let nine = vec![descriptor(&[("ip", "203.0.113.7")]); 9];
    let denied = client.ask(&request("guards", nine)).await.unwrap();
    assert_eq!(denied.overall_code, OVER_LIMIT);
    let left = service.ask(&[("ip", "203.0.113.7")]).await;
    assert_eq!(left.statuses[0].limit_remaining, 1, "nothing was counted");
}

/// A caller put tokens back for anybody, and brought limits of its own.
#[tokio::test]
async fn only_the_operator_refunds_and_brings_limits() {
    let service = service("grpc-rights", "", Some("admin-token-00001")).await;
    let refund = RateLimitDescriptor {
        is_negative_hits: true,
        ..hits(&[("user", "u1")], 3)
    };
    let limited = RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: 1_000,
            unit: 2,
        }),
        ..descriptor(&[("user", "u1")])
    };
    for (token, expected) in [("app-token-000001", 7), ("admin-token-00001", 0)] {
        let mut client = service.client().await;
        let token = format!("Bearer {token}");
        client.headers.push(("authorization", token));
        for special in [&refund, &limited] {
            let asked = vec![descriptor(&[("user", "u1")]), special.clone()];
            let answer = client.ask(&request("guards", asked)).await;
            let code = answer.map_or_else(|error| error.code, |_| 0);
            assert_eq!(code, expected, "{special:?}");
        }
    }
}

/// Names of entities and callers went into logs and labels as they were sent.
#[tokio::test]
async fn names_are_checked_as_over_http() {
    let service = service("grpc-names", "", None).await;
    let mut client = service.client().await;
    for entry in [("entity", ""), ("entity", "a b"), ("caller", "a b")] {
        let asked = request("x", vec![descriptor(&[entry])]);
        let error = client.ask(&asked).await.unwrap_err();
        assert_eq!(error.code, 3, "{entry:?}");
        assert!(
            error.message.contains(entry.0),
            "{entry:?}: {}",
            error.message
        );
    }
}

/// Strangers that asked for health once held all connections, and nobody else got one.
#[tokio::test]
async fn idle_connections_make_way() {
    let service = service("grpc-places", "", Some("admin-token-00001")).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = GrpcOptions {
        token: Some(Secret::new("admin-token-00001".to_owned())),
        connections_max: 3,
        ..GrpcOptions::default()
    };
    let small = Grpc::serve(&service.daemon.daemon, listener, options).unwrap();
    let asked = request("guards", vec![descriptor(&[("user", "u1")])]);
    let token = || ("authorization", "Bearer admin-token-00001".to_owned());
    let mut first = GrpcClient::connect(small.address()).await;
    first.headers.push(token());
    first.ask(&asked).await.unwrap();
    let mut strangers = Vec::new();
    for _ in 0..8 {
        let mut stranger = GrpcClient::connect(small.address()).await;
        let health = HealthCheckRequest::default();
        let path = "/grpc.health.v1.Health/Check";
        let health: HealthCheckResponse = stranger.call(path, &health).await.unwrap();
        assert_eq!(health.status, 1);
        strangers.push(stranger);
    }
    first.ask(&asked).await.expect("strangers make way first");
    let mut second = GrpcClient::connect(small.address()).await;
    second.headers.push(token());
    second.ask(&asked).await.unwrap();
}

/// Requests that are no gRPC, unknown methods, and messages that are broken, compressed or too large.
#[tokio::test]
async fn what_is_no_call_is_rejected() {
    let service = service("grpc-framing", "", None).await;
    let mut client = service.client().await;
    let status = async |client: &mut GrpcClient, path: &str, body: Bytes| -> Failed {
        let (head, body) = client.send(path, body).await.into_parts();
        let collected = within_timeout(body.collect()).await.unwrap();
        let trailers = collected.trailers().cloned().unwrap_or(head.headers);
        failed(&trailers).unwrap_err()
    };
    let empty = frame(&[]);
    assert_eq!(status(&mut client, "/x.Y/Z", empty.clone()).await.code, 12);
    let cut = frame(&[0x0a, 0x7f, b'g']);
    let compressed = Bytes::from_static(&[1, 0, 0, 0, 0]);
    let two = Bytes::from([&empty[..], &empty[..]].concat());
    let large = frame(&vec![b'x'; 40_000]);
    for (body, code) in [
        (Bytes::new(), 3),
        (Bytes::from_static(&[0, 0]), 3),
        (cut, 3),
        (compressed, 12),
        (two, 3),
        (large, 8),
    ] {
        let error = status(&mut client, SHOULD_RATE_LIMIT, body).await;
        assert_eq!(error.code, code, "{error:?}");
        assert!(!error.message.is_empty());
    }
    for kind in ["application/grpc-web", "application/json"] {
        client.headers[0].1 = kind.to_owned();
        let response = client.send(SHOULD_RATE_LIMIT, empty.clone()).await;
        assert_eq!(response.status(), 415, "{kind}");
    }
}

/// With a token, only the operator and callers with theirs are served, a caller for itself only.
/// Health needs none.
#[tokio::test]
async fn a_token_says_who_asks() {
    let service = service("grpc-token", "", Some("admin-token-00001")).await;
    let named = |caller: &str| request("x", vec![hits(&[("caller", caller)], 0)]);
    let guards = request("guards", vec![descriptor(&[("ip", "203.0.113.7")])]);
    for (token, of_guards, of_app, of_web) in [
        (None, 16, 16, 16),
        (Some("wrong-token-00001"), 16, 16, 16),
        (Some("app-token-000001"), 0, 0, 7),
        (Some("web-token-000001"), 7, 7, 0),
        (Some("admin-token-00001"), 0, 0, 0),
    ] {
        let mut client = service.client().await;
        let token = token.map(|token| ("authorization", format!("Bearer {token}")));
        client.headers.extend(token.clone());
        for (asked, expected) in [
            (guards.clone(), of_guards),
            (named("app"), of_app),
            (named("web"), of_web),
        ] {
            let code = client
                .ask(&asked)
                .await
                .map_or_else(|error| error.code, |_| 0);
            assert_eq!(code, expected, "{token:?} {asked:?}");
        }
        let asked = HealthCheckRequest::default();
        let health: HealthCheckResponse = client
            .call("/grpc.health.v1.Health/Check", &asked)
            .await
            .unwrap();
        assert_eq!(health.status, 1);
    }
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let open = Grpc::serve(&service.daemon.daemon, listener, GrpcOptions::default());
    let error = open.unwrap_err().to_string();
    assert!(error.contains("set admin.token"), "{error}");
}

/// `Check` and `Watch`: serving, unknown services, and the shutdown, which finishes what is running.
#[tokio::test]
async fn health_is_told_until_the_end() {
    let service = service("grpc-health", "", None).await;
    let mut client = service.client().await;
    let of = |name: &str| HealthCheckRequest {
        service: name.to_owned(),
    };
    let check = "/grpc.health.v1.Health/Check";
    for name in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        let health: HealthCheckResponse = client.call(check, &of(name)).await.unwrap();
        assert_eq!(health.status, 1, "{name}");
    }
    let other = of("no.Such");
    let unknown = client.call::<HealthCheckResponse>(check, &other).await;
    assert_eq!(unknown.unwrap_err().code, 5);
    let empty = frame(&[]);
    let watched = client.send("/grpc.health.v1.Health/Watch", empty).await;
    let mut stream = watched.into_body();
    let mut next = async || within_timeout(stream.frame()).await.unwrap().unwrap();
    let serving = Bytes::from_static(&[0, 0, 0, 0, 2, 8, 1]);
    assert_eq!(next().await.into_data().unwrap(), serving);
    let draining = tokio::spawn(service.grpc.drain());
    let not_serving = Bytes::from_static(&[0, 0, 0, 0, 2, 8, 2]);
    assert_eq!(next().await.into_data().unwrap(), not_serving);
    let trailers = next().await.into_trailers().unwrap();
    assert_eq!(failed(&trailers), Ok(()));
    within_timeout(draining).await.unwrap();
}
