//! Real clients of language models through `tollgate serve`: the SDKs of OpenAI and Anthropic for Python and
//! Node, LangChain and LlamaIndex. Unchanged but for the base URL; each call of theirs is one call at
//! the provider.

use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate_core::time::Span;
use tollgate_sim::llm::account::Tier;
use tollgate_sim::llm::wire::LlmDialect;
use tollgate_sim::llm::{LlmProvider, LlmSettings};

use crate::folder::Folder;
use crate::running_daemon::RunningDaemon;

/// Two providers and a daemon in front of them.
pub(crate) struct Bench {
    runtime: tokio::runtime::Runtime,
    pub(crate) openai: LlmProvider,
    pub(crate) anthropic: LlmProvider,
    pub(crate) daemon: RunningDaemon,
}

impl Bench {
    pub(crate) fn start(name: &str, rest: &str) -> Bench {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let start = |dialect| {
            let tier = Tier {
                requests: Some(6_000),
                ..Tier::UNLIMITED
            };
            let settings = LlmSettings {
                token_time: Span::from_millis(1),
                ..LlmSettings::new(dialect, tier)
            };
            let started = runtime.block_on(LlmProvider::start(settings));
            started.expect("a free port")
        };
        let (openai, anthropic) = (start(LlmDialect::OpenAi), start(LlmDialect::Anthropic));
        let file = |name: &str, provider: &LlmProvider| {
            let at = provider.address();
            // The SDKs send a key of their own, which is replaced.
            format!("preset: {name}\nupstream: http://{at}\napi_key: k1\n{rest}\n")
        };
        let folder = Folder::new(name)
            .file(
                "x.yaml",
                &format!("name: openai\n{}", file("openai", &openai)),
            )
            .file(
                "y.yaml",
                &format!("name: anthropic\n{}", file("anthropic", &anthropic)),
            );
        let daemon = RunningDaemon::start(folder, &["--provider", "y.yaml"]);
        Bench {
            runtime,
            openai,
            anthropic,
            daemon,
        }
    }

    /// Calls of this model that reached the provider.
    fn hits(&self, model: &str) -> u64 {
        let all = [&self.openai, &self.anthropic].map(LlmProvider::accounts);
        let of_model = all.iter().flatten().filter(|((_, name), _)| name == model);
        of_model.map(|(_, one)| one.accepted + one.rejected).sum()
    }
}

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients")
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/llm")
        .join(name)
}

/// Runs a client that must succeed; how many steps it made.
fn run(command: &mut Command) -> usize {
    let output = command.output().expect("timeout runs");
    let (out, err) = (crate::text(&output.stdout), crate::text(&output.stderr));
    assert!(
        output.status.success(),
        "is it installed? run `make tools`\n{out}\n{err}"
    );
    out.matches("ok ").count()
}

/// Models that were called once.
fn assert_once(bench: &Bench, models: &[&str]) {
    for model in models {
        assert_eq!(bench.hits(model), 1, "{model}");
    }
}

#[test]
fn sdks_for_python_langchain_and_llamaindex_work_unchanged() {
    let bench = Bench::start("llm-python", "");
    let mut command = Command::new("timeout");
    command.arg("100").arg(clients().join("venv/bin/python"));
    command.arg(script("sdk.py")).arg(&bench.daemon.gateway);
    // Clients of the machine's own proxy or key would not test the gateway.
    command
        .env_remove("OPENAI_API_KEY")
        .env("NO_PROXY", "127.0.0.1");
    assert_eq!(run(&mut command), 20);
    assert_once(
        &bench,
        &[
            "openai-chat",
            "openai-stream",
            "openai-responses",
            "openai-responses-stream",
            "claude-chat",
            "claude-stream",
            "claude-tools",
            "openai-async",
            "openai-async-stream",
            "claude-async",
            "gpt-4o",
            "langchain-chat",
            "langchain-stream",
            "langchain-tools",
        ],
    );
    assert_eq!(
        (bench.hits("openai-tools"), bench.hits("gpt-4o-mini")),
        (2, 2)
    );
    // The call before, and one for each attempt of the SDK: two retries are three.
    let timeouts = ["openai-timeout", "claude-timeout"];
    assert_eq!(timeouts.map(|model| bench.hits(model)), [4, 4]);
    // Before the first response of a model one call goes at a time: a retry is told to come back when the first is
    // finished, and is one call then.
    let timeouts = ["openai-new-timeout", "claude-new-timeout"];
    let hits = timeouts.map(|model| bench.hits(model));
    assert!(hits.iter().all(|hits| (1..=3).contains(hits)), "{hits:?}");
    let bad = [&bench.openai, &bench.anthropic].map(LlmProvider::bad_requests);
    assert_eq!(bad, [0, 0]);
}

#[test]
fn sdks_for_node_work_unchanged() {
    let bench = Bench::start("llm-node", "");
    let mut command = Command::new("timeout");
    command.args(["100", "node"]).arg(script("sdk.mjs"));
    command.arg(&bench.daemon.gateway);
    command.arg(clients().join("node/node_modules"));
    assert_eq!(run(&mut command), 8);
    assert_once(
        &bench,
        &[
            "node-chat",
            "node-stream",
            "node-tools",
            "node-claude",
            "node-claude-stream",
            "node-claude-tools",
        ],
    );
    // The call before, and one for each attempt of the SDK: two retries are three.
    let timeouts = ["node-timeout", "node-claude-timeout"];
    assert_eq!(timeouts.map(|model| bench.hits(model)), [4, 4]);
}

/// An SDK retries what the provider did not take; the gateway adds no retries of its own to them.
#[test]
fn retries_of_an_sdk_are_not_multiplied() {
    let bench = Bench::start("llm-retries", "");
    bench.anthropic.overload(100);
    bench.openai.overload(100);
    // A GET may be repeated by anybody, so that two retries of each would be nine calls and more.
    let code = format!(
        "import openai\nclient = openai.OpenAI(base_url='http://{}/openai/v1', api_key='unused', max_retries=2)\ntry:\n    client.models.list()\n    raise SystemExit('no error')\nexcept openai.APIStatusError as error:\n    print('ok', error.status_code)\n",
        bench.daemon.gateway
    );
    let mut command = Command::new("timeout");
    command.arg("60").arg(clients().join("venv/bin/python"));
    command.args(["-c", &code]).env("NO_PROXY", "127.0.0.1");
    assert_eq!(run(&mut command), 1);
    let calls = 100 - bench.openai.overloads_left();
    assert_eq!(calls, 3, "one for each attempt of the SDK");
    let code = format!(
        "import anthropic\nclient = anthropic.Anthropic(base_url='http://{}/anthropic', api_key='unused', max_retries=2)\ntry:\n    client.messages.create(model='m', messages=[{{'role': 'user', 'content': 'x'}}], max_tokens=5)\n    raise SystemExit('no error')\nexcept anthropic.APIStatusError as error:\n    print('ok', error.status_code)\n",
        bench.daemon.gateway
    );
    let mut command = Command::new("timeout");
    command.arg("60").arg(clients().join("venv/bin/python"));
    command.args(["-c", &code]).env("NO_PROXY", "127.0.0.1");
    assert_eq!(run(&mut command), 1);
    let calls = 100 - bench.anthropic.overloads_left();
    assert_eq!(calls, 3, "one for each attempt of the SDK");
    drop(bench.runtime);
}
