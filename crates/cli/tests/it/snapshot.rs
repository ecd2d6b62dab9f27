//! `postgres: {mode: snapshot}`: counts in memory, written to a real Postgres now and then (H8).

use tollgate_sim::test_servers::PostgresServer;

use crate::folder::Folder;
use crate::processes::{JudgedProvider, Program, get};

fn row(server: &PostgresServer) -> String {
    let is_there = "SELECT to_regclass('rate_limiter_state') IS NOT NULL";
    if server.sql("postgres", is_there).trim() != "t" {
        return String::new();
    }
    let row = "SELECT domain, request_count FROM rate_limiter_state";
    server.sql("postgres", row).trim().to_owned()
}

/// H8: without `mode: snapshot` every permit is in Postgres before its call is sent: a gateway that is killed right after a response
/// has lost nothing.
#[test]
fn h8_in_strict_mode_the_default_a_kill_loses_nothing() {
    let server = PostgresServer::start(&["fsync=off"]);
    let judge = JudgedProvider::start("first-use 20/1d");
    let config = format!("store: {}\n", server.url("postgres"));
    let file = judge.file("domain: strict.example\nlimits: [20/1d]");
    let folder = Folder::new("strict-mode")
        .file("strict.yaml", &file)
        .file("tollgate.yaml", &config);
    let args = ["--provider", "strict.yaml", "--config", "tollgate.yaml"];
    for (calls, expected) in [(0..7, 200), (7..14, 200), (14..20, 200), (20..21, 429)] {
        let mut program = Program::start(&folder, &args);
        for number in calls {
            let status = get(&program.address, number).map(|reply| reply.0);
            assert_eq!(status, Some(expected), "{number}");
        }
        program.kill();
    }
    assert_eq!(judge.verdict(), (20, 0));
}

/// H8: the row of the document is written, and after kill -9 the next process goes on with its count.
#[test]
fn h8_a_killed_gateway_goes_on_with_the_last_snapshot() {
    let server = PostgresServer::start(&["fsync=off"]);
    let judge = JudgedProvider::start("first-use 20/1d");
    let config = format!(
        "store: {}\npostgres: {{ mode: snapshot, every: 200ms }}\n",
        server.url("postgres")
    );
    let folder = Folder::new("snapshot")
        .file(
            "strict.yaml",
            &judge.file("domain: strict.example\nlimits: [20/1d]"),
        )
        .file("tollgate.yaml", &config);
    let args = ["--provider", "strict.yaml", "--config", "tollgate.yaml"];
    let status = |program: &Program, number| get(&program.address, number).map(|reply| reply.0);
    let mut program = Program::start(&folder, &args);
    for number in 0..12 {
        assert_eq!(status(&program, number), Some(200));
    }
    let began = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    while row(&server) != "strict.example|12" {
        let waited = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap() - began;
        assert!(waited.as_secs() < 60, "{}", row(&server));
        std::thread::park_timeout(std::time::Duration::from_millis(50));
    }
    program.kill();
    let program = Program::start(&folder, &args);
    for number in 12..20 {
        assert_eq!(status(&program, number), Some(200));
    }
    assert_eq!(status(&program, 20), Some(429));
    let (arrived, violations) = judge.verdict();
    assert_eq!((arrived, violations), (20, 0));
}
