//! docs/llm.md, run as its reader runs it: every program and every provider file of the page.

use std::path::Path;
use std::process::Command;

use crate::folder::Folder;
use crate::llm_clients::Bench;

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
