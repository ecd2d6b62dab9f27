//! `tollgate-sim` as a child process.

use std::net::SocketAddr;
use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use crate::client::{get, get_with, post, with_timeout};

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate-sim"));
    command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.kill_on_drop(true);
    command
}

/// A running program and the address it printed.
async fn start(args: &[&str]) -> (Child, BufReader<ChildStdout>, SocketAddr) {
    let mut child = program(args).spawn().expect("the program starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    out.read_line(&mut line).await.expect("a line");
    let address = line
        .trim()
        .trim_start_matches("http://")
        .parse()
        .expect("an address");
    (child, out, address)
}

async fn signal(child: &Child, name: &str) {
    let pid = child.id().expect("it runs").to_string();
    let done = Command::new("kill")
        .args([name, &pid])
        .status()
        .await
        .expect("kill runs");
    assert!(done.success());
}

async fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = program(args).output().await.expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

/// What was used until a moment of a run, such as the start of a flood.
#[tokio::test]
async fn a_language_model_reports_its_account_while_it_runs() {
    let args = ["llm", "--tpm", "1000", "--first-token", "0", "--speed", "0"];
    let (_child, _out, address) = start(&args).await;
    let report = async || -> Value {
        let response = get(address, "/-/report").await.expect("a response");
        serde_json::from_str(&response.body).expect("JSON")
    };
    assert_eq!(report().await["output_tokens"], 0);
    let body =
        r#"{"model": "m", "messages": [{"role": "user", "content": "hi"}], "sim_output": 7}"#;
    let response = post(address, "/v1/chat/completions", body).await;
    assert_eq!(response.expect("a response").status, 200);
    let after = report().await;
    assert_eq!(
        (&after["accepted"], &after["output_tokens"]),
        (&1.into(), &7.into())
    );
}

#[tokio::test]
async fn serve_prints_its_address_and_a_report_on_sigterm() {
    let args = [
        "serve",
        "--rule",
        "fixed 3/1d",
        "--style",
        "x-ratelimit",
        "--fault",
        "outage next 1",
    ];
    let (mut child, mut out, address) = start(&args).await;
    let mut seen = Vec::new();
    for call in ["a", "a", "b", "c"] {
        let response = get_with(address, "/", &[("x-call-id", call)])
            .await
            .expect("a response");
        seen.push(response.status);
    }
    assert_eq!(seen, [503, 200, 200, 429]);
    signal(&child, "-TERM").await;
    let mut rest = String::new();
    out.read_to_string(&mut rest).await.expect("the rest");
    assert_eq!(
        with_timeout(child.wait()).await.expect("it ends").code(),
        Some(0)
    );
    let report: Value = serde_json::from_str(rest.trim()).expect("one line of JSON");
    let figures = [
        "arrivals",
        "accepted",
        "violations",
        "duplicates",
        "answered",
        "struck",
    ]
    .map(|name| report[name].as_u64());
    assert_eq!(
        figures,
        [Some(4), Some(3), Some(1), Some(0), Some(4), Some(1)]
    );
}

#[tokio::test]
async fn serve_ends_on_sigint_even_while_a_request_hangs() {
    let (mut child, _out, address) = start(&["serve", "--fault", "hang now"]).await;
    let hanging = tokio::spawn(get(address, "/"));
    loop {
        let report = get(address, "/-/report").await.expect("a report").json();
        if report["in_flight"] == 1 {
            break;
        }
    }
    signal(&child, "-INT").await;
    assert_eq!(
        with_timeout(child.wait()).await.expect("it ends").code(),
        Some(0)
    );
    with_timeout(hanging)
        .await
        .expect("no panic")
        .expect_err("its connection ended");
}

#[tokio::test]
async fn proxy_applies_flags_and_lines_on_stdin() {
    let (_provider, _out, upstream) = start(&["serve"]).await;
    let args = ["proxy", &upstream.to_string(), "--order", "up delay 1ms"];
    let (mut child, _proxy_out, address) = start(&args).await;
    assert_eq!(get(address, "/").await.expect("a response").status, 200);
    let mut orders = child.stdin.take().expect("piped");
    orders.write_all(b"sideways\nrefuse\n").await.expect("sent");
    let mut problems = BufReader::new(child.stderr.take().expect("piped")).lines();
    let problem = problems
        .next_line()
        .await
        .expect("a line")
        .expect("a problem");
    assert!(
        problem.contains("`sideways` is not an order; write `up …`"),
        "{problem}"
    );
    while get(address, "/").await.is_ok() {}
    signal(&child, "-TERM").await;
    assert_eq!(
        with_timeout(child.wait()).await.expect("it ends").code(),
        Some(0)
    );
}

#[tokio::test]
async fn faults_can_be_planned_while_it_serves() {
    let (_child, _out, address) = start(&["serve", "--status", "201", "--body-bytes", "500"]).await;
    let response = get(address, "/").await.expect("a response");
    assert_eq!((response.status, response.body.len()), (201, 500));
    post(address, "/-/fault", "outage next 1 504")
        .await
        .expect("planned");
    assert_eq!(get(address, "/").await.expect("a response").status, 504);
}

#[tokio::test]
async fn wrong_usage_exits_2_and_names_the_remedy() {
    for (args, expected) in [
        (
            vec!["serve", "--rule", "slide 4/1s"],
            "write sliding, two-counter",
        ),
        (vec!["serve", "--fault", "hang soon"], "write `8s..11s`"),
        (vec!["serve", "--style", "rude"], "known are retry-after"),
        (vec!["serve", "--up", "20"], "write `20ms`"),
        (vec!["serve", "--key", "cookie"], "write `header:X-Api-Key`"),
        (
            vec!["serve", "--body-bytes", "99999999999"],
            "write at most",
        ),
        (
            vec!["proxy", "127.0.0.1:1", "--order", "up slowly"],
            "write `delay 20ms`",
        ),
        (vec!["proxy"], "proxy"),
    ] {
        let (code, _, stderr) = run(&args).await;
        assert_eq!(code, Some(2), "{args:?}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
}

#[tokio::test]
async fn an_address_in_use_exits_1_and_names_it_once() {
    let (_child, _out, address) = start(&["serve"]).await;
    let taken = address.to_string();
    let (code, _, stderr) = run(&["serve", "--listen", &taken]).await;
    assert_eq!(code, Some(1));
    assert!(
        stderr.contains(&format!("could not listen on {taken}")),
        "{stderr}"
    );
    assert_eq!(stderr.matches("in use").count(), 1, "{stderr}");
}

#[tokio::test]
async fn every_command_has_an_example_in_its_help() {
    for command in ["serve", "proxy", "exactness", "stores"] {
        let (code, help, _) = run(&[command, "--help"]).await;
        assert_eq!(code, Some(0));
        assert!(
            help.contains("Example") && help.contains(&format!("tollgate-sim {command}")),
            "{help}"
        );
    }
}

#[tokio::test]
async fn the_table_of_stores_has_a_line_per_world_and_no_violation() {
    let args = [
        "stores",
        "--secs",
        "3",
        "--nodes",
        "1,2",
        "--round-trips",
        "1ms",
    ];
    let (code, table, _) = run(&args).await;
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = table.lines().skip(2).collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines.iter().all(|line| line.ends_with("| 0 |")), "{table}");
}
