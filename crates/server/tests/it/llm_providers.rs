//! Language models: what differs from provider to provider. Paths, counting, empty accounts.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tollgate_sim::llm::account::Tier;
use tollgate_sim::llm::wire::LlmDialect;
use tollgate_sim::llm::{LlmProvider, LlmSettings};

use crate::client::{ClientResponse, post};
use crate::llm::{calls_per_minute, chat, completion, preset, tokens_per_minute};
use crate::test_gateway::TestGateway;

/// A provider: its preset, its dialect, and the paths that its clients use for the model `m`.
type Dialect = (&'static str, LlmDialect, &'static [&'static str]);

const DIALECTS: [Dialect; 6] = [
    (
        "openai",
        LlmDialect::OpenAi,
        &["/v1/chat/completions", "/v1/responses"],
    ),
    (
        "azure_openai",
        LlmDialect::AzureOpenAi,
        &[
            "/openai/deployments/m/chat/completions?api-version=2024-10-21",
            "/openai/v1/chat/completions",
            "/openai/v1/responses",
        ],
    ),
    (
        "groq",
        LlmDialect::Groq,
        &["/openai/v1/chat/completions", "/openai/v1/responses"],
    ),
    ("anthropic", LlmDialect::Anthropic, &["/v1/messages"]),
    ("mistral", LlmDialect::Mistral, &["/v1/chat/completions"]),
    (
        "gemini",
        LlmDialect::Gemini,
        &[
            "/v1beta/models/m:generateContent",
            "/v1beta/models/m:streamGenerateContent?alt=sse",
            "/v1/models/m:generateContent",
            "/v1beta/openai/chat/completions",
        ],
    ),
];

/// A preset against the simulator.
async fn start((name, dialect, _): Dialect, tier: Tier, keys: &str) -> (LlmProvider, TestGateway) {
    let settings = LlmSettings::new(dialect, tier);
    let provider = LlmProvider::start(settings).await.unwrap();
    let file = preset(name, provider.address(), "").replace("api_key: k1", keys);
    let gateway = TestGateway::start(&[file]).await;
    (provider, gateway)
}

async fn call_path(gateway: SocketAddr, path: &str, wait: &str, body: &Value) -> ClientResponse {
    let headers = [
        ("x-tollgate-timeout", wait),
        ("content-type", "application/json"),
    ];
    post(gateway, &format!("/x{path}"), &headers, &body.to_string()).await
}

/// The dialects of all providers that state limits in headers, and of the one that names them in
/// its rejections. Every path of a provider counts for the same model, and what Tollgate adds to a
/// stream is accepted everywhere.
#[tokio::test]
async fn every_dialect_is_learned() {
    for dialect in DIALECTS {
        let (name, _, paths) = dialect;
        let (provider, gateway) = start(dialect, calls_per_minute(8), "api_key: k1").await;
        let mut served = 0;
        for index in 0..20 {
            let mut body = chat("m");
            body["stream"] = json!(index % 3 == 0);
            let path = paths[index % paths.len()];
            let response = call_path(gateway.address, path, "2s", &body).await;
            served += u32::from(response.status == 200);
        }
        let (accepted, rejected) = provider.counts();
        let most_rejections = u64::from(name == "gemini");
        assert_eq!((served, accepted), (8, 8), "{name}");
        assert!(rejected <= most_rejections, "{name}: {rejected}");
        assert_eq!(provider.bad_requests(), 0, "{name}");
        assert_eq!(provider.accounts().len(), 1, "{name}: one model");
    }
}

/// A former bug: `stream_options` was added to every stream, and the Responses API rejects it.
#[tokio::test]
async fn every_path_of_a_provider_settles_tokens_of_streams() {
    for dialect in DIALECTS {
        let (name, _, paths) = dialect;
        let tier = match name {
            "anthropic" => Tier {
                output: Some(5_000),
                ..Tier::UNLIMITED
            },
            "gemini" => Tier {
                input: Some(5_000),
                ..Tier::UNLIMITED
            },
            _ => tokens_per_minute(5_000),
        };
        let (provider, gateway) = start(dialect, tier, "api_key: k1").await;
        for index in 0..9 {
            // Each holds more than 2,000 where output counts, and uses 20.
            let mut body = completion(20, Some(2_000));
            body["stream"] = json!(true);
            let path = paths[index % paths.len()];
            let response = call_path(gateway.address, path, "2s", &body).await;
            assert_eq!(response.status, 200, "{name} {path}: {}", response.body);
        }
        assert_eq!(
            (provider.counts().1, provider.bad_requests()),
            (0, 0),
            "{name}"
        );
    }
}

/// Groq does not count cached tokens of prompts; Gemini counts input tokens only.
#[tokio::test]
async fn tokens_count_as_the_provider_counts_them() {
    let cached = json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(4_000)}],
        "max_tokens": 10, "sim_output": 10, "sim_cached": 990});
    let (provider, gateway) = start(DIALECTS[2], tokens_per_minute(4_000), "api_key: k1").await;
    for _ in 0..12 {
        let response = call_path(gateway.address, DIALECTS[2].2[0], "5s", &cached).await;
        assert_eq!(response.status, 200, "{}", response.body);
    }
    assert_eq!(provider.counts(), (12, 0));

    let tier = Tier {
        input: Some(1_000),
        ..Tier::UNLIMITED
    };
    let (provider, gateway) = start(DIALECTS[5], tier, "api_key: k1").await;
    let body = json!({"contents": [{"parts": [{"text": "x".repeat(400)}]}],
        "generationConfig": {"maxOutputTokens": 5_000}, "sim_output": 3_000});
    let mut served = 0;
    for _ in 0..14 {
        let response = call_path(gateway.address, DIALECTS[5].2[0], "1s", &body).await;
        served += u64::from(response.status == 200);
    }
    let (accepted, rejected) = provider.counts();
    assert!(rejected <= 1, "{rejected}");
    assert!((8..=10).contains(&served) && accepted == served, "{served}");
}

/// Every provider has its own words for an empty account, and each sets the key aside.
#[tokio::test]
async fn a_key_without_credit_is_set_aside_at_every_provider() {
    for dialect in DIALECTS {
        let (name, _, paths) = dialect;
        let keys = "api_keys: [k1, k2]";
        let (provider, gateway) = start(dialect, calls_per_minute(100), keys).await;
        provider.set_unpaid("k1", true);
        for _ in 0..6 {
            let response = call_path(gateway.address, paths[0], "2s", &chat("m")).await;
            assert_eq!(response.status, 200, "{name}: {}", response.body);
        }
        assert_eq!(provider.counts(), (6, 0), "{name}");
        assert_eq!(provider.unpaid_calls(), 1, "{name}: one call found out");
    }
}
