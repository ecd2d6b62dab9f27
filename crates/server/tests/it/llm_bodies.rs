//! Language models: large and odd bodies. What is held and settled for them, and what SDKs repeat.

use std::sync::Arc;

use serde_json::{Value, json};

use tollgate::event::{Event, Notification};
use tollgate::providers::Options;
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, ManualClock};
use tollgate_sim::llm::account::Tier;
use tollgate_sim::llm::wire::LlmDialect;
use tollgate_sim::llm::{LlmProvider, LlmSettings};

use crate::client::{ClientResponse, Session, get_with, post, request};
use crate::llm::{calls_per_minute, chat, completion, preset, tokens_per_minute};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, reply};

const PATH: &str = "/x/v1/chat/completions";
const HEADERS: [(&str, &str); 2] = [
    ("content-type", "application/json"),
    ("x-tollgate-timeout", "3s"),
];

async fn openai(tier: Tier, rest: &str) -> (LlmProvider, TestGateway) {
    let provider = LlmProvider::start(LlmSettings::new(LlmDialect::OpenAi, tier)).await;
    let provider = provider.unwrap();
    let gateway = TestGateway::start(&[preset("openai", provider.address(), rest)]).await;
    (provider, gateway)
}

async fn call(gateway: &TestGateway, body: &Value) -> ClientResponse {
    post(gateway.address, PATH, &HEADERS, &body.to_string()).await
}

/// A chat about an image of so many bytes in base64.
fn image(bytes: usize) -> Value {
    let url = format!("data:image/png;base64,{}", "iVBORw0K".repeat(bytes / 8));
    json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}],
        "model": "m", "max_tokens": 100})
}

/// A former bug: a request above 1 MiB, such as one with an image, had no model and held nothing.
#[tokio::test]
async fn a_large_request_counts_for_its_model_and_an_image_as_one() {
    let (provider, gateway) = openai(calls_per_minute(4), "").await;
    for _ in 0..3 {
        assert_eq!(call(&gateway, &image(2 << 20)).await.status, 200);
    }
    assert_eq!(call(&gateway, &chat("m")).await.status, 200);
    for body in [image(2 << 20), chat("m")] {
        assert_eq!(call(&gateway, &body).await.status, 429, "the same limit");
    }
    assert_eq!(provider.counts(), (4, 0));

    // 1,600 tokens of an image, its prompt and its bound are held: far less than its bytes.
    let limit = "limits: [{name: tpm, limit: 4000, period: 1h, per: entity, unit: tokens}]";
    let upstream = Upstream::start(|_, _| async { reply(200, &[], "{}") }).await;
    let text = preset("openai", upstream.address, limit);
    let gateway = TestGateway::start(&[text]).await;
    for status in [200, 200, 429] {
        let response = call(&gateway, &image(2 << 20)).await;
        assert_eq!(response.status, status, "{}", response.body);
    }
    // Of a text each byte counts; more than the limit is never held.
    let text = json!({"messages": ["some words ".repeat(200_000)], "model": "other"});
    for status in [200, 429] {
        assert_eq!(call(&gateway, &text).await.status, status);
    }
}

/// What cannot be read is sent, counts with its size, and is logged.
#[tokio::test]
async fn a_large_body_that_cannot_be_read_passes_and_is_doubted() {
    let limit = "limits: [{name: tpm, limit: 4000, period: 1h, unit: tokens}]";
    let upstream = Upstream::start(|_, _| async { reply(200, &[], "{}") }).await;
    let gateway = TestGateway::start(&[preset("openai", upstream.address, limit)]).await;
    let mut events = gateway.registry.events().subscribe();
    let wrong = "no json ".repeat(1 << 18);
    assert_eq!(
        post(gateway.address, PATH, &HEADERS, &wrong).await.status,
        200
    );
    let mut doubts = Vec::new();
    while let Some(Notification::Event(event)) = events.try_next() {
        if let Event::CostInDoubt(_, why) = &*event {
            doubts.push(why.to_string());
        }
    }
    assert!(
        doubts.iter().any(|why| why.contains("not JSON")),
        "{doubts:?}"
    );
    assert_eq!(call(&gateway, &chat("m")).await.status, 429, "all is held");
}

/// Larger than what is stored of a body: it is streamed, and what was seen of it decides.
#[tokio::test]
async fn a_body_beyond_the_spool_counts_for_the_model_that_it_begins_with() {
    let (provider, gateway) = openai(calls_per_minute(3), "upload: {spool: 1MiB}").await;
    let text = "x".repeat(3 << 20);
    let body = format!("{{\"model\":\"m\",\"max_tokens\":5,\"messages\":[\"{text}\"]}}");
    assert_eq!(
        post(gateway.address, PATH, &HEADERS, &body).await.status,
        200
    );
    for status in [200, 200, 429] {
        assert_eq!(call(&gateway, &chat("m")).await.status, status);
    }
    assert_eq!(provider.counts(), (3, 0));
}

/// Each of several completions is as long as the bound.
#[tokio::test]
async fn several_completions_hold_several_bounds() {
    let (provider, gateway) = openai(tokens_per_minute(3_000), "").await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let mut body = completion(400, Some(400));
        body["n"] = json!(3);
        let address = gateway.address;
        calls.spawn(async move {
            post(address, PATH, &HEADERS, &body.to_string())
                .await
                .status
        });
    }
    let statuses = calls.join_all().await;
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!((served, provider.counts()), (2, (2, 0)), "{statuses:?}");
}

/// The key with the largest part of its tightest limit goes first. A former bug: calls and tokens were
/// compared as numbers, so one token less decided before half of the calls, and a key without room for
/// the call was taken.
#[tokio::test]
async fn the_key_that_has_room_for_the_call_goes_first() {
    let head = |key: &str| {
        let (calls, tokens) = match key {
            "Bearer k1" => ("90", "200"),
            _ => ("50", "9000"),
        };
        let limits = [
            ("x-ratelimit-limit-requests", "100"),
            ("x-ratelimit-remaining-requests", calls),
            ("x-ratelimit-reset-requests", "60s"),
            ("x-ratelimit-limit-tokens", "10000"),
            ("x-ratelimit-remaining-tokens", tokens),
            ("x-ratelimit-reset-tokens", "60s"),
            ("content-type", "application/json"),
        ];
        reply(200, &limits, "{\"usage\":{\"total_tokens\":10}}")
    };
    let upstream = Upstream::start(move |_, received| {
        let key = received.headers["authorization"]
            .to_str()
            .unwrap_or_default();
        let response = head(key);
        async move { response }
    })
    .await;
    let text = preset("openai", upstream.address, "").replace("api_key: k1", "api_keys: [k1, k2]");
    let gateway = TestGateway::start(&[text]).await;
    for _ in 0..2 {
        assert_eq!(call(&gateway, &chat("m")).await.status, 200);
    }
    // k1 has 2 % of its tokens, and no room for this call.
    for _ in 0..3 {
        assert_eq!(
            call(&gateway, &completion(9, Some(1_000))).await.status,
            200
        );
    }
    let requests = upstream.requests();
    let keys = requests
        .iter()
        .map(|sent| sent.headers["authorization"].to_str().unwrap());
    let keys: Vec<&str> = keys.collect();
    let mut first = keys[..2].to_vec();
    first.sort_unstable();
    assert_eq!(first, ["Bearer k1", "Bearer k2"], "unknown keys take turns");
    assert_eq!(keys[2..], ["Bearer k2"; 3]);
}

/// A call of an SDK that repeats it itself is made once, whatever its method; another one as often as
/// the settings say.
#[tokio::test]
async fn calls_of_an_sdk_are_not_repeated() {
    let upstream = Upstream::start(|_, _| async { reply(503, &[], "") }).await;
    let retry = "retry: {base: 1ms, retries: {high: 2, normal: 2, low: 2}}";
    let gateway = TestGateway::start(&[file(upstream.address, retry)]).await;
    for (headers, calls) in [(vec![("x-stainless-retry-count", "0")], 1), (vec![], 3)] {
        let before = upstream.count();
        let response = get_with(gateway.address, "/x/v1/models", &headers).await;
        assert_eq!(response.status, 503);
        assert_eq!(upstream.count() - before, calls);
    }
}

/// A former bug: the events of a compressed stream were not read, so the call was never settled.
#[tokio::test]
async fn streams_that_are_settled_come_uncompressed() {
    let upstream = Upstream::start(|_, _| async { reply(200, &[], "{}") }).await;
    let gateway = TestGateway::start(&[preset("openai", upstream.address, "")]).await;
    let headers = [HEADERS[0], HEADERS[1], ("accept-encoding", "gzip")];
    for (stream, path, coding) in [
        (false, "/x/v1/chat/completions", Some("gzip")),
        (true, "/x/v1/chat/completions", None),
        (true, "/x/v1/responses", None),
    ] {
        let mut body = chat("m");
        body["stream"] = json!(stream);
        post(gateway.address, path, &headers, &body.to_string()).await;
        let sent = upstream.requests().pop().unwrap();
        let coding_sent = sent.headers.get("accept-encoding");
        assert_eq!(
            coding_sent.map(|value| value.to_str().unwrap()),
            coding,
            "{path} {stream}"
        );
    }
}

/// Half a stream: what was held stays held, the log says so once, and the window brings it back.
#[tokio::test]
async fn a_stream_that_breaks_off_keeps_what_it_held_until_the_window_ends() {
    let provider = LlmProvider::start(LlmSettings::new(LlmDialect::OpenAi, Tier::UNLIMITED)).await;
    let provider = provider.unwrap();
    let limit = "limits: [{name: tpm, limit: 1000, period: 1m, unit: tokens}]";
    let clock = ManualClock::new(Clock::System.now());
    let gateway = TestGateway::start_on_clock(
        Clock::Manual(Arc::clone(&clock)),
        &[preset("openai", provider.address(), limit)],
        Options::default(),
    )
    .await;
    let mut events = gateway.registry.events().subscribe();
    let mut body = completion(50, Some(700));
    (body["stream"], body["sim_break"]) = (json!(true), json!(25));
    let mut session = Session::open(gateway.address).await;
    let response = session
        .send(request("POST", PATH, &HEADERS, &body.to_string()))
        .await;
    assert_eq!(response.status(), 200);
    let end = http_body_util::BodyExt::collect(response.into_body()).await;
    assert!(end.is_err(), "the client sees that it is not complete");
    let next = completion(50, Some(700)).to_string();
    let headers = [HEADERS[0], ("x-tollgate-timeout", "100ms")];
    assert_eq!(
        post(gateway.address, PATH, &headers, &next).await.status,
        429
    );
    let mut doubts = Vec::new();
    while let Some(Notification::Event(event)) = events.try_next() {
        if let Event::CostInDoubt(_, why) = &*event {
            doubts.push(why.to_string());
        }
    }
    assert_eq!(doubts, ["the response broke off: what was held counts"]);
    // The window begins when the call may have counted last: some seconds after the last byte.
    clock.pass(Span::from_secs(70));
    assert_eq!(
        post(gateway.address, PATH, &HEADERS, &next).await.status,
        200
    );
}
