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

/// A daemon that was killed a moment ago still accepts connections, and resets them.
#[test]
fn a_daemon_that_ends_before_it_responds_is_no_daemon() {
    let folder = Folder::new("acquire-reset").file("x.yaml", X);
    let dying = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = dying.local_addr().expect("an address").to_string();
    // Each connection is accepted and dropped; the thread ends with the test's process.
    std::thread::spawn(move || dying.incoming().for_each(drop));
    let args = ["acquire", "--provider", "x.yaml", "--admin", &address, "x"];
    let granted = folder.run(&args);
    assert_eq!(granted.code, Some(0), "{}", granted.err);
    assert!(
        granted.err.contains("this process decides itself"),
        "{}",
        granted.err
    );
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
    assert_eq!(wrong.code, Some(2));
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

/// A named daemon that was not there was an error, although the store can decide; permits that it never
/// gave are still nobody's.
#[test]
fn without_a_named_daemon_the_store_decides() {
    let folder = Folder::new("acquire-named").file("x.yaml", X);
    let run = |args: &[&str]| {
        let options = ["--provider", "x.yaml", "--admin", "127.0.0.1:9"];
        folder.run(&[args, &options].concat())
    };
    let granted = run(&["acquire", "x"]);
    assert_eq!(granted.code, Some(0), "{}", granted.err);
    assert!(
        granted.err.contains("no daemon responds on 127.0.0.1:9"),
        "{}",
        granted.err
    );
    assert_eq!(run(&["capacity", "x"]).out, "available, 1 remaining\n");
    assert_eq!(
        outcome(&run(&["release", granted.out.trim()])),
        (Some(0), "")
    );
    let permit = "0".repeat(32);
    for command in ["report", "release"] {
        let asked = run(&[command, &permit]);
        assert_eq!(asked.code, Some(1), "{command}");
        let text = "no daemon responds on 127.0.0.1:9";
        assert!(asked.err.contains(text), "{}", asked.err);
    }
}

/// `acquire` on a store far away printed a permit that nothing could report or release.
#[test]
fn scripts_settle_each_others_permits_in_redis() {
    let server = RedisServer::start(&[]);
    settle_each_others_permits("acquire-settle-redis", &server.url());
}

#[test]
fn scripts_settle_each_others_permits_in_postgres() {
    let server = PostgresServer::start(&["fsync=off"]);
    settle_each_others_permits("acquire-settle-postgres", &server.url("postgres"));
}

fn settle_each_others_permits(name: &str, store: &str) {
    let folder = Folder::new(name)
        .file("x.yaml", X)
        .env("TOLLGATE_STATE_DIR", "state");
    let run = |args: &[&str]| {
        let options = ["--provider", "x.yaml", "--store", store];
        folder.run(&[args, &options].concat())
    };
    let acquire = || {
        let granted = run(&["acquire", "x"]);
        assert_eq!(outcome(&granted), (Some(0), ""));
        granted.out.trim().to_owned()
    };
    let (unused, used) = (acquire(), acquire());
    assert_eq!(outcome(&run(&["release", &unused])), (Some(0), ""));
    let report = ["report", &used, "--status", "200"];
    assert_eq!(outcome(&run(&report)), (Some(0), ""));
    assert_eq!(run(&["capacity", "x"]).out, "available, 1 remaining\n");
    let late = run(&["release", &used]);
    assert!(late.err.contains("was reported as used"), "{}", late.err);
}

/// A report that could not be stored exited with 0, was lost, and could not be sent again.
#[test]
fn a_report_without_its_store_fails_and_can_be_repeated() {
    let mut server = PostgresServer::start(&["fsync=off"]);
    let folder = Folder::new("acquire-lost")
        .file("x.yaml", X)
        .env("TOLLGATE_STATE_DIR", "state");
    let url = server.url("postgres");
    let run = |args: &[&str]| {
        let options = ["--provider", "x.yaml", "--store", &url];
        folder.run(&[args, &options].concat())
    };
    let permits = [(), ()].map(|()| run(&["acquire", "x"]).out.trim().to_owned());
    let [used, unused] = &permits;
    let limited = [
        "report",
        used,
        "--status",
        "429",
        "--header",
        "Retry-After: 30",
    ];
    server.stop("fast");
    for (args, permit) in [(&limited[..], used), (&["release", unused], unused)] {
        let lost = run(args);
        assert_eq!(lost.code, Some(1), "{}", lost.err);
        let words = format!("the permit {permit} could not be settled");
        assert!(lost.err.contains(&words), "{}", lost.err);
    }
    let never = "0".repeat(32);
    let unknown = run(&["report", &never, "--status", "200"]);
    assert_eq!(unknown.code, Some(1), "{}", unknown.err);
    let says_only_this = unknown.err.contains(&never) && !unknown.err.contains("never was");
    assert!(says_only_this, "{}", unknown.err);
    server.restart();
    assert_eq!(outcome(&run(&limited)), (Some(0), ""));
    assert_eq!(outcome(&run(&["release", unused])), (Some(0), ""));
    let denied = run(&["acquire", "x"]);
    assert!(denied.err.contains("asked for a pause"), "{}", denied.err);
}

/// A mistake in an argument is wrong usage, whoever finds it; an error names the permit.
#[test]
fn wrong_arguments_are_wrong_usage() {
    let folder = Folder::new("acquire-usage").file("x.yaml", X);
    let store = ["--provider", "x.yaml", "--store", "sqlite:state"];
    let permit = folder.run(&[&["acquire", "x"][..], &store].concat()).out;
    let permit = permit.trim();
    for args in [
        &["acquire", "x", "--cost", "-1"][..],
        &["acquire", "x", "--cost", "foo=3"],
        &["acquire", "x", "--priority", "zz"],
        &["report", permit, "--status", "999"],
        &["report", permit, "--error", "nope"],
    ] {
        let wrong = folder.run(&[args, &store].concat());
        assert_eq!(wrong.code, Some(2), "{args:?}: {}", wrong.err);
    }
    let never = "0".repeat(32);
    let nobody = [
        "report",
        &never,
        "--status",
        "200",
        "--admin",
        "127.0.0.1:9",
    ];
    let unknown = folder.run(&nobody);
    assert_eq!(unknown.code, Some(1), "{}", unknown.err);
    assert!(unknown.err.contains(&never), "{}", unknown.err);
}

/// A permit in memory ends with its process: that was said nowhere, and the error was about a daemon.
#[test]
fn a_permit_in_memory_cannot_be_settled_and_both_commands_say_so() {
    let folder = Folder::new("acquire-memory").file("x.yaml", X);
    let run = |args: &[&str]| {
        let options = ["--provider", "x.yaml", "--store", "memory:"];
        folder.run(&[args, &options].concat())
    };
    let granted = run(&["acquire", "x"]);
    assert_eq!(granted.code, Some(0));
    assert!(granted.err.contains("store in memory"), "{}", granted.err);
    let released = run(&["release", granted.out.trim()]);
    assert_eq!(released.code, Some(1));
    assert!(released.err.contains("store in memory"), "{}", released.err);
}

/// A call that can never be granted said only which limit denied it, and a cost below zero that `-1` is a
/// command.
#[test]
fn a_cost_that_no_limit_grants_says_so() {
    let folder = Folder::new("acquire-costly").file("x.yaml", X);
    let run = |cost: &str| {
        folder.run(&[
            "acquire",
            "x",
            "--cost",
            cost,
            "--provider",
            "x.yaml",
            "--store",
            "sqlite:state",
        ])
    };
    let costly = run("3");
    assert_eq!(costly.code, Some(75));
    let text = "costs more than the limit `2/1h` can ever grant";
    assert!(costly.err.contains(text), "{}", costly.err);
    let negative = run("-1");
    assert_eq!(negative.code, Some(2), "{}", negative.err);
    assert!(negative.err.contains("tokens=1200"), "{}", negative.err);
}

/// `--provider` was ignored without a word where a daemon decides.
#[test]
fn provider_files_beside_a_daemon_are_noted() {
    let folder = Folder::new("acquire-noted").file("x.yaml", X);
    let daemon = RunningDaemon::start(folder, &[]);
    let granted = daemon.tollgate(&["acquire", "x", "--provider", "x.yaml"]);
    assert_eq!(granted.code, Some(0), "{}", granted.err);
    assert!(granted.err.contains("a daemon decides"), "{}", granted.err);
}

/// The command went on after `tollgate` was killed: nobody renewed or reported its permit, so others got
/// its place while it ran.
#[test]
fn a_signal_ends_the_command_and_its_permit_is_reported() {
    let limit = "name: x\ndomain: api.example.org\nconcurrency: 1\n";
    let folder = Folder::new("acquire-signal").file("x.yaml", limit);
    let options = ["--provider", "x.yaml", "--store", "sqlite:state"];
    let script = "trap 'exit 9' TERM; echo $$ > started; while :; do sleep 0.05; done";
    for (signal, code) in [("TERM", 9), ("HUP", 129)] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["acquire", "x"]).args(options);
        command.args(["--", "/bin/sh", "-c", script]);
        command.stdin(std::process::Stdio::null());
        let mut running = folder.prepare(&mut command).spawn().expect("it runs");
        let started = folder.path().join("started");
        while !started.metadata().is_ok_and(|about| about.len() > 0) {
            assert!(running.try_wait().expect("a child").is_none(), "it runs");
            std::thread::yield_now();
        }
        let mut kill = std::process::Command::new("kill");
        kill.args(["-s", signal, &running.id().to_string()]);
        assert!(kill.status().expect("kill runs").success());
        let ended = running.wait().expect("it ends");
        assert_eq!(ended.code(), Some(code), "{signal}: as the command did");
        let child = folder.read("started");
        let alive = std::path::Path::new("/proc").join(child.trim()).exists();
        assert!(!alive, "{signal}: the command has ended");
        std::fs::remove_file(&started).expect("a file");
        let next = folder.run(&[&["capacity", "x"][..], &options].concat());
        assert_eq!(
            next.code,
            Some(0),
            "{signal}: its place is free: {}",
            next.err
        );
    }
}
