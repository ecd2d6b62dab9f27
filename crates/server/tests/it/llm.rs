//! Language models: limits that are learned from responses, tokens held before and settled after.
//! The oracle is the simulated provider's own account.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, Ledger};
use tollgate_sim::llm::account::Tier;
use tollgate_sim::llm::wire::LlmDialect;
use tollgate_sim::llm::{LlmProvider, LlmSettings};

use crate::client::{ClientResponse, Session, pause, post, request, wait_until};
use crate::test_gateway::TestGateway;
use tollgate::providers::Options;

/// A provider file that starts from a preset and has its upstream on loopback.
pub(crate) fn preset(name: &str, upstream: SocketAddr, rest: &str) -> String {
    format!("name: x\npreset: {name}\nupstream: http://{upstream}\napi_key: k1\n{rest}\n")
}

pub(crate) fn calls_per_minute(requests: u64) -> Tier {
    Tier {
        requests: Some(requests),
        ..Tier::UNLIMITED
    }
}

pub(crate) fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 16})
}

async fn call(gateway: SocketAddr, wait: &str, body: &Value) -> ClientResponse {
    let headers = [
        ("x-tollgate-timeout", wait),
        ("content-type", "application/json"),
    ];
    post(
        gateway,
        "/x/v1/chat/completions",
        &headers,
        &body.to_string(),
    )
    .await
}

/// A bucket of 30 and one in two seconds, stated in headers only; 120 calls in 24 s from many
/// callers: at most two are rejected by the provider, and nearly all that it allows is used.
#[tokio::test]
async fn a_limit_stated_in_headers_is_learned_before_the_first_429() {
    let settings = LlmSettings::new(LlmDialect::OpenAi, calls_per_minute(30));
    let provider = LlmProvider::start(settings).await.unwrap();
    let gateway = TestGateway::start(&[preset("openai", provider.address(), "")]).await;
    let mut callers = JoinSet::new();
    for index in 0..120_u64 {
        let address = gateway.address;
        callers.spawn(async move {
            pause(index * 200).await;
            call(address, "4s", &chat("gpt")).await.status
        });
    }
    let statuses = callers.join_all().await;
    let (accepted, rejected) = provider.counts();
    assert!(rejected <= 2, "{rejected} rejections by the provider");
    assert!(accepted >= 30, "{accepted} of about 43 were used");
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(served as u64, accepted, "nobody else got a response");
}

/// A provider that lowers its limit is followed with the response that states it.
#[tokio::test]
async fn a_changed_limit_is_followed_within_one_response() {
    let settings = LlmSettings::new(LlmDialect::OpenAi, calls_per_minute(100));
    let provider = LlmProvider::start(settings).await.unwrap();
    let gateway = TestGateway::start(&[preset("openai", provider.address(), "")]).await;
    assert_eq!(call(gateway.address, "1s", &chat("gpt")).await.status, 200);
    provider.change_tier(calls_per_minute(5));
    let mut statuses = Vec::new();
    for _ in 0..10 {
        statuses.push(call(gateway.address, "3s", &chat("gpt")).await.status);
    }
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!((served, provider.counts()), (4, (5, 0)), "{statuses:?}");
}

/// Each model and key has limits of its own, and before the first response one call goes at a time.
#[tokio::test]
async fn models_are_learned_apart() {
    let settings = LlmSettings::new(LlmDialect::OpenAi, calls_per_minute(3));
    let provider = LlmProvider::start(settings).await.unwrap();
    let gateway = TestGateway::start(&[preset("openai", provider.address(), "")]).await;
    for model in ["a", "b"] {
        let mut calls = JoinSet::new();
        for _ in 0..9 {
            let address = gateway.address;
            let body = chat(model);
            calls.spawn(async move { call(address, "5s", &body).await.status });
        }
        let statuses = calls.join_all().await;
        let served = statuses.iter().filter(|status| **status == 200).count();
        assert_eq!(served, 3, "{model}: {statuses:?}");
    }
    assert_eq!(provider.counts(), (6, 0));
}

/// What was learned is in the ledger: a process that starts later knows it.
#[tokio::test]
async fn another_process_of_the_ledger_knows_what_was_learned() {
    let settings = LlmSettings::new(LlmDialect::OpenAi, calls_per_minute(5));
    let provider = LlmProvider::start(settings).await.unwrap();
    let files = [preset("openai", provider.address(), "")];
    let ledger = Ledger::memory(Clock::System);
    let first = TestGateway::start_on_ledger(ledger.clone(), &files, Options::default()).await;
    for _ in 0..4 {
        assert_eq!(call(first.address, "1s", &chat("gpt")).await.status, 200);
    }
    let second = TestGateway::start_on_ledger(ledger, &files, Options::default()).await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(call(second.address, "3s", &chat("gpt")).await.status);
    }
    assert_eq!(
        statuses.iter().filter(|status| **status == 200).count(),
        1,
        "{statuses:?}"
    );
    assert_eq!(provider.counts(), (5, 0));
}

/// A limit of the file wins if it is lower, and the learned one if that is lower.
#[tokio::test]
async fn the_lower_of_a_configured_and_a_learned_limit_applies() {
    for (configured, learned, served) in [(2, 5, 2), (9, 3, 3)] {
        let settings = LlmSettings::new(LlmDialect::OpenAi, calls_per_minute(learned));
        let provider = LlmProvider::start(settings).await.unwrap();
        let rest = format!("limits: [{{name: rpm, limit: {configured}, period: 1m, per: entity}}]");
        let gateway = TestGateway::start(&[preset("openai", provider.address(), &rest)]).await;
        let mut ok = 0;
        for _ in 0..8 {
            ok += u32::from(call(gateway.address, "3s", &chat("gpt")).await.status == 200);
        }
        assert_eq!((ok, provider.counts().1), (served, 0));
    }
}

/// The body of an Anthropic, Gemini or OpenAI request that the simulator completes with `output`
/// tokens.
pub(crate) fn completion(output: u64, bound: Option<u64>) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(400)}], "sim_output": output});
    if let Some(bound) = bound {
        body["max_tokens"] = json!(bound);
    }
    body
}

pub(crate) fn tokens_per_minute(tokens: u64) -> Tier {
    Tier {
        tokens: Some(tokens),
        ..Tier::UNLIMITED
    }
}

/// Runs calls against a limit of tokens for some seconds, many at a time. Returns the provider's
/// accepted and rejected calls and the tokens used.
async fn flood(
    gateways: &[SocketAddr],
    provider: &Arc<LlmProvider>,
    seconds: u64,
    body: impl Fn(u64) -> Value,
) -> (u64, u64, u64) {
    let mut callers = JoinSet::new();
    let end = provider.now() + Span::from_secs(seconds);
    for index in 0..48_u64 {
        let gateway = gateways[usize::try_from(index).unwrap() % gateways.len()];
        let (body, provider) = (body(index), Arc::clone(provider));
        callers.spawn(async move {
            while provider.now() < end {
                call(gateway, "2s", &body).await;
            }
        });
    }
    callers.join_all().await;
    let used: u64 = provider
        .accounts()
        .iter()
        .map(|(_, account)| account.used.input + account.used.output)
        .sum();
    let (accepted, rejected) = provider.counts();
    (accepted, rejected, used)
}

/// Requests that state a bound are never rejected by the provider, and at least 97 % of the tokens are
/// used, with two processes on one ledger.
#[tokio::test]
async fn tokens_with_a_bound_are_never_overdrawn_and_nearly_all_are_used() {
    let settings = LlmSettings::new(LlmDialect::OpenAi, tokens_per_minute(60_000));
    let provider = Arc::new(LlmProvider::start(settings).await.unwrap());
    let files = [preset("openai", provider.address(), "")];
    let ledger = Ledger::memory(Clock::System);
    let first = TestGateway::start_on_ledger(ledger.clone(), &files, Options::default()).await;
    let second = TestGateway::start_on_ledger(ledger, &files, Options::default()).await;
    let gateways = [first.address, second.address];
    // What comes back after the last caller has asked is nobody's.
    let seconds = 20;
    let (accepted, rejected, used) = flood(&gateways, &provider, seconds, |index| {
        completion(100 + index, Some(200))
    })
    .await;
    let quota = 60_000 + seconds * 1_000;
    assert_eq!(rejected, 0, "{accepted} were accepted");
    assert!(used * 100 >= quota * 97, "{used} of {quota}");
}

/// Without a bound the estimate learns from usage: at most one in a hundred is rejected.
#[tokio::test]
async fn tokens_without_a_bound_are_estimated_from_usage() {
    let settings = LlmSettings::new(LlmDialect::OpenAi, tokens_per_minute(60_000));
    let provider = Arc::new(LlmProvider::start(settings).await.unwrap());
    let gateway = TestGateway::start(&[preset("openai", provider.address(), "")]).await;
    let body = |index: u64| completion(100 + index, None);
    let (accepted, rejected, _) = flood(&[gateway.address], &provider, 10, body).await;
    assert!(rejected * 100 <= accepted, "{rejected} of {accepted}");
    assert!(accepted > 200, "{accepted}");
}

/// Input and output are separate limits at Anthropic.
#[tokio::test]
async fn input_and_output_tokens_are_separate() {
    for (tier, served) in [
        (
            Tier {
                input: Some(1_000),
                ..Tier::UNLIMITED
            },
            6,
        ),
        (
            Tier {
                output: Some(1_000),
                ..Tier::UNLIMITED
            },
            10,
        ),
    ] {
        let settings = LlmSettings::new(LlmDialect::Anthropic, tier);
        let provider = LlmProvider::start(settings).await.unwrap();
        let gateway = TestGateway::start(&[preset("anthropic", provider.address(), "")]).await;
        let mut ok = 0;
        for _ in 0..14 {
            let response = call(gateway.address, "1s", &completion(100, Some(100))).await;
            ok += u64::from(response.status == 200);
        }
        let (accepted, rejected) = provider.counts();
        assert_eq!(rejected, 0, "{tier:?}");
        assert!(
            (served..=served + 4).contains(&ok) && ok == accepted,
            "{tier:?}: {ok}"
        );
    }
}

/// Usage is asked for in a stream, settles the call, and is not shown to a client that did not ask.
#[tokio::test]
async fn usage_is_injected_into_streams_and_removed_again() {
    let settings = LlmSettings::new(LlmDialect::OpenAi, tokens_per_minute(10_000));
    let provider = LlmProvider::start(settings).await.unwrap();
    let gateway = TestGateway::start(&[preset("openai", provider.address(), "")]).await;
    let mut body = completion(20, Some(2_000));
    body["stream"] = json!(true);
    for _ in 0..8 {
        // Each holds more than 2,000 and uses 121.
        let response = call(gateway.address, "1s", &body).await;
        assert_eq!(response.status, 200);
        assert!(!response.body.contains("total_tokens"), "{}", response.body);
        assert!(
            response.body.ends_with("data: [DONE]\n\n"),
            "{}",
            response.body
        );
        assert_eq!(response.body.matches("word").count(), 20);
    }
    body["stream_options"] = json!({"include_usage": true});
    let response = call(gateway.address, "1s", &body).await;
    assert!(
        response.body.contains("\"total_tokens\":121"),
        "{}",
        response.body
    );
}

/// A client that leaves in mid-stream pays for what it has seen: the quota is not stuck.
#[tokio::test]
async fn a_client_that_leaves_pays_for_what_it_has_seen() {
    let settings = LlmSettings {
        token_time: Span::from_millis(5),
        ..LlmSettings::new(LlmDialect::OpenAi, tokens_per_minute(10_000))
    };
    let provider = LlmProvider::start(settings).await.unwrap();
    let gateway = TestGateway::start(&[preset("openai", provider.address(), "")]).await;
    let mut body = completion(5_000, Some(8_000));
    body["stream"] = json!(true);
    let used = || {
        provider
            .accounts()
            .first()
            .map_or(0, |one| one.1.used.output)
    };
    for _ in 0..3 {
        let before = used();
        let mut session = Session::open(gateway.address).await;
        let headers = [
            ("content-type", "application/json"),
            ("x-tollgate-timeout", "20s"),
        ];
        let path = "/x/v1/chat/completions";
        let response = session
            .send(request("POST", path, &headers, &body.to_string()))
            .await;
        assert_eq!(response.status(), 200, "what the last one held is back");
        let mut stream = response.into_body();
        http_body_util::BodyExt::frame(&mut stream)
            .await
            .unwrap()
            .unwrap();
        drop((stream, session));
        wait_until(|| used() > before).await;
    }
    assert_eq!(provider.counts().1, 0);
}

/// Bad input is counted on the safe side and reaches the provider, which rejects it itself.
#[tokio::test]
async fn bad_bodies_pass_and_no_quota_is_stuck() {
    let settings = LlmSettings::new(LlmDialect::OpenAi, tokens_per_minute(20_000));
    let provider = LlmProvider::start(settings).await.unwrap();
    let gateway = TestGateway::start(&[preset("openai", provider.address(), "")]).await;
    let headers = [("x-tollgate-timeout", "2s")];
    for body in [
        "no json",
        "{",
        "[1]",
        "{\"model\": 7}",
        "{\"model\":\"m\",\"max_tokens\":-1}",
        "{\"model\":\"m\",\"max_tokens\":1e400}",
    ] {
        let response = post(gateway.address, "/x/v1/chat/completions", &headers, body).await;
        assert!(
            [200, 400].contains(&response.status),
            "{body}: {} {}",
            response.status,
            response.body
        );
    }
    let huge = json!({"model": "m", "messages": ["x"], "max_tokens": 19_000});
    assert_eq!(call(gateway.address, "2s", &huge).await.status, 200);
    assert_eq!(call(gateway.address, "2s", &chat("m")).await.status, 200);
}

/// A budget per caller and day: a clear 429 for the one who has used it up, and others go on.
#[tokio::test]
async fn a_budget_per_caller_is_a_limit_of_its_own() {
    let settings = LlmSettings::new(LlmDialect::OpenAi, Tier::UNLIMITED);
    let provider = LlmProvider::start(settings).await.unwrap();
    let budget = "limits: [{name: team budget, limit: 500, period: 1d, algorithm: calendar, timezone: UTC, unit: tokens, per: caller}]";
    let gateway = TestGateway::start(&[preset("openai", provider.address(), budget)]).await;
    let body = completion(100, Some(100)).to_string();
    let send = async |caller: &str| {
        let headers = [("x-tollgate-caller", caller), ("x-tollgate-timeout", "1s")];
        post(gateway.address, "/x/v1/chat/completions", &headers, &body).await
    };
    for _ in 0..2 {
        assert_eq!(send("a").await.status, 200);
    }
    let rejected = send("a").await;
    assert_eq!(rejected.status, 429, "{}", rejected.body);
    assert_eq!(rejected.json()["limit"], "team budget", "{}", rejected.body);
    assert_eq!(rejected.json()["remaining"], 98, "{}", rejected.body);
    let message = rejected.json()["message"].to_string();
    assert!(message.contains("98 of 500 tokens remain"), "{message}");
    assert!(!rejected.header("retry-after").is_empty());
    assert_eq!(
        rejected.header("x-ratelimit-remaining"),
        "98",
        "{:?}",
        rejected.headers
    );
    assert_eq!(send("b").await.status, 200);
}

/// Each call goes with the key that has the most room; one without credit is set aside.
#[tokio::test]
async fn keys_are_learned_apart_and_one_without_credit_is_set_aside() {
    let settings = LlmSettings::new(LlmDialect::OpenAi, calls_per_minute(4));
    let provider = LlmProvider::start(settings).await.unwrap();
    let file =
        preset("openai", provider.address(), "api_keys: [k1, k2, k3]").replace("api_key: k1\n", "");
    let gateway = TestGateway::start(&[file]).await;
    provider.set_unpaid("k3", true);
    let mut served = 0;
    for _ in 0..14 {
        served += u32::from(call(gateway.address, "3s", &chat("gpt")).await.status == 200);
    }
    assert_eq!((served, provider.counts()), (8, (8, 0)));
    let keys: Vec<String> = provider
        .accounts()
        .into_iter()
        .map(|((key, _), _)| key)
        .collect();
    assert_eq!(keys, ["k1", "k2"]);
}

/// 529 is overload, not a limit: the caller sees it, nothing is learned from it, and the next call goes at
/// once.
#[tokio::test]
async fn an_overloaded_provider_is_no_limit() {
    let settings = LlmSettings::new(LlmDialect::Anthropic, calls_per_minute(50));
    let provider = LlmProvider::start(settings).await.unwrap();
    let gateway = TestGateway::start(&[preset("anthropic", provider.address(), "")]).await;
    provider.overload(1);
    assert_eq!(call(gateway.address, "5s", &chat("m")).await.status, 529);
    assert_eq!(call(gateway.address, "5s", &chat("m")).await.status, 200);
    assert_eq!(provider.counts(), (1, 0));
}
