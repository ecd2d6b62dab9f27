//! docs/llm.md, run as its reader runs it: every program and every provider file of the page.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tollgate_sim::llm::account::Tier;
use tollgate_sim::llm::wire::LlmDialect;
use tollgate_sim::llm::{LlmProvider, LlmSettings};

use crate::folder::Folder;
use crate::llm_clients::Bench;
use crate::running_daemon::RunningDaemon;

const PAGE: &str = include_str!("../../../../docs/llm.md");

/// The blocks of the page in this language.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let parts = PAGE.split(fence.as_str()).skip(1);
    parts
        .map(|part| part.split("```").next().unwrap_or_default())
        .collect()
}

/// All of the Python of the page is one program.
#[test]
fn every_program_of_the_page_runs() {
    let bench = Bench::start("llm-page", "");
    let program = blocks("python").join("\n");
    assert!(program.matches("import").count() >= 4, "{program}");
    let program = program.replace("127.0.0.1:4290", &bench.daemon.gateway);
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients");
    let mut command = Command::new("timeout");
    command.arg("60").arg(clients.join("venv/bin/python"));
    command.args(["-c", &program]).env("NO_PROXY", "127.0.0.1");
    let output = command.output().expect("timeout runs");
    let (out, err) = (crate::text(&output.stdout), crate::text(&output.stderr));
    assert!(output.status.success(), "{program}\n{out}\n{err}");
    assert!(out.contains("word"), "{out}");
    let status = bench.daemon.tollgate(&["status", "openai"]);
    assert!(status.out.contains("learned "), "{}", status.out);
    let shown = bench
        .daemon
        .tollgate(&["provider", "show", "openai", "--provider", "x.yaml"]);
    assert!(
        shown.out.contains("6000 in 60.0 s, learned "),
        "{}",
        shown.out
    );
}

/// Every provider file of the page is one, and the commands make one that is.
#[test]
fn every_file_of_the_page_is_valid() {
    for (index, block) in blocks("yaml").into_iter().enumerate() {
        let file = format!("name: x\n{block}");
        let folder = Folder::new(&format!("llm-file-{index}"))
            .file("x.yaml", &file)
            .env("OPENAI_API_KEY", "k")
            .env("K1", "k")
            .env("K2", "k2");
        let checked = folder.run(&["check", "--provider", "x.yaml"]);
        assert_eq!(
            checked.code,
            Some(0),
            "{block}\n{}{}",
            checked.out,
            checked.err
        );
    }
    let commands: String = blocks("sh").concat();
    assert!(commands.contains("tollgate init openai"), "{commands}");
    let folder = Folder::new("llm-init").env("OPENAI_API_KEY", "k");
    let made = folder.run(&["init", "openai"]);
    assert_eq!(made.code, Some(0), "{}{}", made.out, made.err);
}

/// A file of the page, which has this word, in front of a provider with these limits.
struct Served {
    runtime: tokio::runtime::Runtime,
    provider: LlmProvider,
    daemon: RunningDaemon,
}

impl Served {
    fn start(word: &str, tier: Tier) -> Served {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let settings = LlmSettings::new(LlmDialect::OpenAi, tier);
        let provider = runtime.block_on(LlmProvider::start(settings));
        let provider = provider.expect("a free port");
        let mut all = blocks("yaml").into_iter();
        let block = all.find(|block| block.contains(word)).expect("a file");
        let file = format!(
            "name: openai\nupstream: http://{}\n{block}",
            provider.address()
        );
        let folder = Folder::new(&format!("llm-served-{}", word.replace(' ', "-")))
            .file("x.yaml", &file)
            .env("OPENAI_API_KEY", "k")
            .env("K1", "k1")
            .env("K2", "k2");
        Served {
            daemon: RunningDaemon::start(folder, &[]),
            runtime,
            provider,
        }
    }

    /// The status and the body of a call that uses so many tokens.
    fn call(&self, caller: &str, tokens: u64) -> (u16, Value) {
        let body =
            json!({"model": "m", "messages": [], "max_tokens": tokens, "sim_output": tokens});
        let request = reqwest::Client::new()
            .post(format!(
                "http://{}/openai/v1/chat/completions",
                self.daemon.gateway
            ))
            .header("content-type", "application/json")
            .header("x-tollgate-caller", caller)
            .header("x-tollgate-timeout", "5s")
            .body(body.to_string());
        self.runtime.block_on(async {
            let response = request.send().await.expect("a response");
            let status = response.status().as_u16();
            let text = response.text().await.expect("a body");
            (status, serde_json::from_str(&text).unwrap_or_default())
        })
    }
}

/// The budget of the page: the team that has used it up is rejected, and others go on.
#[test]
fn the_budget_of_the_page_ends_with_its_last_token() {
    let served = Served::start("team budget", Tier::UNLIMITED);
    assert_eq!(served.call("a", 1_500_000).0, 200);
    let (status, rejected) = served.call("a", 1_500_000);
    assert_eq!(
        (status, &rejected["limit"]),
        (429, &json!("team budget")),
        "{rejected}"
    );
    assert_eq!(served.call("a", 1_000).0, 200, "it has room for less");
    assert_eq!(served.call("b", 1_500_000).0, 200);
    assert_eq!(served.provider.counts(), (3, 0));
}

/// The two keys of the page: what one has no room for goes with the other.
#[test]
fn both_keys_of_the_page_are_used() {
    let tier = Tier {
        requests: Some(3),
        ..Tier::UNLIMITED
    };
    let served = Served::start("api_keys", tier);
    for call in 0..6 {
        assert_eq!(served.call("a", 10).0, 200, "{call}");
    }
    let accounts = served.provider.accounts();
    let used: Vec<(&str, u64)> = accounts
        .iter()
        .map(|((key, _), one)| (key.as_str(), one.accepted))
        .collect();
    assert_eq!(used, [("k1", 3), ("k2", 3)]);
}
