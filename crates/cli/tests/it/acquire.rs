//! `tollgate acquire`, `capacity`, `report`, `release`, with a daemon and without one.

use tollgate_sim::test_servers::{PostgresServer, RedisServer};

use crate::folder::{CommandOutput, Folder};
use crate::running_daemon::RunningDaemon;

const X: &str = "name: x\ndomain: api.example.org\nlimits: [2/1h]\n";

fn outcome(output: &CommandOutput) -> (Option<i32>, &str) {
    (output.code, output.err.trim_end())
}

/// Exit 0 granted, 75 denied, with the limit and the time; a released permit is free again.
#[test]
fn a_script_gets_permits_from_a_daemon() {
    let folder = Folder::new("acquire-daemon").file("x.yaml", X);
    let daemon = RunningDaemon::start(folder, &[]);
    let first = daemon.tollgate(&["acquire", "x"]);
    assert_eq!(outcome(&first), (Some(0), ""));
    let second = daemon.tollgate(&["acquire", "https://api.example.org/a", "--json"]);
    let reply: serde_json::Value = serde_json::from_str(&second.out).expect("JSON");
    assert_eq!((second.code, &reply["granted"]), (Some(0), &true.into()));
    let denied = daemon.tollgate(&["acquire", "x"]);
    assert_eq!(denied.code, Some(75), "{}", denied.err);
    assert!(
        denied.err.starts_with("denied: limit 2/1h; try again in "),
        "{}",
        denied.err
    );
    let patient = daemon.tollgate(&["acquire", "x", "--timeout", "1s"]);
    assert_eq!(patient.code, Some(75), "an hour is known to be too long");
    let full = daemon.tollgate(&["capacity", "x"]);
    assert_eq!(full.code, Some(75), "{}", full.err);
    let permit = first.out.trim();
    let released = daemon.tollgate(&["release", permit]);
    assert_eq!(outcome(&released), (Some(0), ""));
    let room = daemon.tollgate(&["capacity", "x"]);
    assert_eq!(
        (room.code, room.out.as_str()),
        (Some(0), "available, 1 remaining\n")
    );
    let other = reply["permit"].as_str().expect("a permit");
    for note in ["", "note: it was reported before; nothing has changed"] {
        let reported = daemon.tollgate(&["report", other, "--status", "200"]);
        assert_eq!(outcome(&reported), (Some(0), note));
    }
    let wrong = daemon.tollgate(&["acquire", "xx"]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.err.contains("did you mean `x`"), "{}", wrong.err);
    let unknown = daemon.tollgate(&["report", "nope", "--status", "200"]);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.err.contains("expired"), "{}", unknown.err);
}

#[test]
fn scripts_without_a_daemon_share_one_quota() {
    share_one_quota("acquire-store", "sqlite:state");
}

/// S13: limits shared through Redis.
#[test]
fn s13_scripts_share_one_quota_in_redis() {
    let server = RedisServer::start(&[]);
    share_one_quota("acquire-redis", &server.url());
}

#[test]
fn scripts_share_one_quota_in_postgres() {
    let server = PostgresServer::start(&["fsync=off"]);
    share_one_quota("acquire-postgres", &server.url("postgres"));
}

/// Without a daemon each process opens the store itself, and all share one quota.
fn share_one_quota(name: &str, store: &str) {
    let folder = Folder::new(name).file("x.yaml", X);
    let run = |args: &[&str], command: &[&str]| {
        let mut all = args.to_vec();
        all.extend(["--provider", "x.yaml", "--store", store]);
        if !command.is_empty() {
            all.push("--");
            all.extend(command);
        }
        folder.run(&all)
    };
    let room = run(&["capacity", "x"], &[]);
    assert_eq!(
        (room.code, room.out.as_str()),
        (Some(0), "available, 2 remaining\n"),
        "{}",
        room.err
    );
    let failed = run(&["acquire", "x"], &["/nothing/here"]);
    assert_eq!(failed.code, Some(127), "{}", failed.err);
    let script = "test -n \"$TOLLGATE_PERMIT\" && exit 3";
    let ran = run(&["acquire", "x"], &["/bin/sh", "-c", script]);
    assert_eq!(outcome(&ran), (Some(3), ""), "as the command did");
    let room = run(&["capacity", "x", "--json"], &[]);
    assert!(
        room.out.contains("\"remaining\":1"),
        "the failed start cost nothing: {}",
        room.out
    );
    let last = run(&["acquire", "x"], &[]);
    assert_eq!(
        (last.code, last.out.trim().len()),
        (Some(0), 32),
        "{}",
        last.err
    );
    assert_eq!(
        run(&["acquire", "x"], &[]).code,
        Some(75),
        "it counts although its process is gone"
    );
}

/// `report` and `release` needed a daemon: without one, a permit that a script did not use stayed counted.
#[test]
fn scripts_without_a_daemon_settle_each_others_permits() {
    let folder = Folder::new("acquire-settle").file("x.yaml", X);
    let run = |args: &[&str]| {
        let options = ["--provider", "x.yaml", "--store", "sqlite:state"];
        folder.run(&[args, &options].concat())
    };
    let acquire = || run(&["acquire", "x"]).out.trim().to_owned();
    let remaining = || run(&["capacity", "x"]).out;
    let (unused, used) = (acquire(), acquire());
    assert_eq!(run(&["acquire", "x"]).code, Some(75), "both are counted");
    for _ in 0..2 {
        assert_eq!(outcome(&run(&["release", &unused])), (Some(0), ""));
        assert_eq!(remaining(), "available, 1 remaining\n", "given back once");
    }
    let wrong = run(&["report", &used, "--status", "999"]);
    assert_eq!(wrong.code, Some(1));
    for note in ["", "note: it was reported before; nothing has changed"] {
        let reported = run(&["report", &used, "--status", "200"]);
        assert_eq!(outcome(&reported), (Some(0), note));
    }
    assert_eq!(remaining(), "available, 1 remaining\n", "it was used");
    for (args, text) in [
        (["release", &used], "was reported as used"),
        (["report", &unused], "was released"),
        (["report", "abc"], "there is no such permit"),
    ] {
        let late = run(&args);
        assert_eq!(late.code, Some(1));
        assert!(late.err.contains(text), "{}", late.err);
    }
    let permits = folder.path().join("state/permits");
    for entry in std::fs::read_dir(permits).expect("the folder of permits") {
        let about = entry.expect("an entry").metadata().expect("its metadata");
        let mode = std::os::unix::fs::PermissionsExt::mode(&about.permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
}

/// What a report says about the provider counts for the next process: a 429 cools it down.
#[test]
fn a_report_without_a_daemon_teaches_the_next_process() {
    let folder = Folder::new("acquire-learn").file("x.yaml", X);
    let run = |args: &[&str]| {
        let options = ["--provider", "x.yaml", "--store", "sqlite:state"];
        folder.run(&[args, &options].concat())
    };
    let permit = run(&["acquire", "x"]).out;
    let header = "Retry-After: 100";
    let report = [
        "report",
        permit.trim(),
        "--status",
        "429",
        "--header",
        header,
    ];
    assert_eq!(outcome(&run(&report)), (Some(0), ""));
    let denied = run(&["acquire", "x", "--json"]);
    let reply: serde_json::Value = serde_json::from_str(&denied.out).expect("JSON");
    assert_eq!(
        (denied.code, &reply["reason"]),
        (Some(75), &"cooldown".into())
    );
}

/// A daemon that an option names and that is not there is an error: the store is not asked instead.
#[test]
fn a_named_daemon_that_is_not_there_is_an_error() {
    let folder = Folder::new("acquire-named").file("x.yaml", X);
    let nobody = "127.0.0.1:9";
    let permit = "0".repeat(32);
    for (command, of) in [
        ("acquire", "x"),
        ("capacity", "x"),
        ("report", &permit),
        ("release", &permit),
    ] {
        let asked = folder.run(&[command, of, "--provider", "x.yaml", "--admin", nobody]);
        assert_eq!(asked.code, Some(1), "{command}");
        assert!(
            asked.err.contains("no daemon responds on 127.0.0.1:9"),
            "{}",
            asked.err
        );
    }
}
