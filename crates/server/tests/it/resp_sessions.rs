//! Clients of the Redis protocol: who they are, how they connect, how they end.

use std::os::unix::fs::PermissionsExt;

use tokio::net::{TcpListener, UnixStream};
use tollgate_config::Sources;
use tollgate_server::ServeError;
use tollgate_server::{RespOptions, RespServer};

use crate::client::wait_until;
use crate::decisions::frozen;
use crate::resp_client::{Reply, RespClient, connect, encode, serve};
use crate::test_daemon::{TestDaemon, from_file, raw_request, write_file};

const ADMIN: &str = "canary-admin-token"; // tidy:canary
const APP: &str = "canary-app-token"; // tidy:canary

/// A daemon with one provider and one caller that has a token.
pub(crate) async fn with_caller(name: &str) -> TestDaemon {
    let (file, provider) = (format!("{name}-tollgate.yaml"), format!("{name}.yaml"));
    let callers = "callers: { app: { token: canary-app-token }, other: { token: canary-other } }\n"; // tidy:canary
    write_file(&file, callers);
    write_file(
        &provider,
        "name: x\ndomain: api.example.org\nlimits: [100/1h]\n",
    );
    let sources = Sources {
        config: Some(file),
        ..from_file(&provider)
    };
    TestDaemon::start(sources).await
}

fn ok() -> Reply {
    Reply::Simple("OK".to_owned())
}

#[tokio::test]
async fn with_a_token_nobody_is_let_in_without_one() {
    let daemon = with_caller("resp-auth").await;
    let server = serve(&daemon, Some(ADMIN)).await;
    let mut client = connect(&server).await;
    for words in [
        "PING",
        "CL.THROTTLE k 1 1 1",
        "TG.STATUS",
        "COMMAND",
        "NONSENSE",
    ] {
        let reply = client.say(words).await;
        assert!(reply.is_error("NOAUTH"), "{words}: {reply:?}");
    }
    assert!(client.say("HELLO 3").await.is_error("NOAUTH"));
    for words in ["AUTH wrong", "AUTH app wrong", "HELLO 3 AUTH default wrong"] {
        let reply = client.say(words).await;
        assert!(reply.is_error("WRONGPASS"), "{words}: {reply:?}");
    }
    // Another caller's name with this caller's token is nobody.
    assert!(
        client
            .ask(&["AUTH", "other", APP])
            .await
            .is_error("WRONGPASS")
    );
    assert_eq!(client.ask(&["AUTH", ADMIN]).await, ok());
    assert!(matches!(client.say("TG.STATUS").await, Reply::Array(_)));
    assert_eq!(client.say("RESET").await, Reply::Simple("RESET".to_owned()));
    assert!(client.say("PING").await.is_error("NOAUTH"));
    let hello = client.ask(&["HELLO", "3", "AUTH", "default", ADMIN]).await;
    assert_eq!(hello.field("proto"), Reply::Integer(3));
    let mut stranger = connect(&server).await;
    stranger.send(b"*11\r\n").await;
    let error = stranger.reply().await;
    assert!(error.is_error("invalid multibulk length"), "{error:?}");
}

/// A caller asks for itself only, and the operator's commands are not for it.
#[tokio::test]
async fn a_callers_token_lets_it_ask_for_itself() {
    let daemon = with_caller("resp-caller").await;
    let server = serve(&daemon, Some(ADMIN)).await;
    let mut client = connect(&server).await;
    assert_eq!(client.ask(&["AUTH", "app", APP]).await, ok());
    assert_eq!(client.say("CL.THROTTLE k 0 1 60").await.integers()[0], 0);
    let granted = client.say("TG.ACQUIRE x NOWAIT").await;
    assert_eq!(granted.field("granted"), Reply::Integer(1), "{granted:?}");
    let own = client.say("TG.ACQUIRE x CALLER app NOWAIT").await;
    assert_eq!(own.field("granted"), Reply::Integer(1), "{own:?}");
    let others = client.say("TG.ACQUIRE x CALLER other NOWAIT").await;
    assert!(others.is_error("NOPERM"), "{others:?}");
    assert!(client.say("TG.STATUS").await.is_error("NOPERM"));
}

/// Without a token loopback is the operator, who asks for any caller.
#[tokio::test]
async fn without_a_token_loopback_is_the_operator() {
    let daemon = with_caller("resp-open").await;
    let server = serve(&daemon, None).await;
    let mut client = connect(&server).await;
    let granted = client.say("TG.ACQUIRE x CALLER other NOWAIT").await;
    assert_eq!(granted.field("granted"), Reply::Integer(1), "{granted:?}");
    assert_eq!(client.ask(&["AUTH", APP]).await, ok());
    assert!(client.say("TG.STATUS").await.is_error("NOPERM"));
}

/// An address that others can reach needs somebody with a token.
#[tokio::test]
async fn an_open_address_without_tokens_is_not_served() {
    let (daemon, _) = frozen("resp-open-address.yaml", "limits: [2/1h]").await;
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let served = RespServer::serve(&daemon.daemon, listener, &RespOptions::default());
    assert!(matches!(served, Err(ServeError::NoToken(_))));
    let daemon = with_caller("resp-open-address-caller").await;
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let server = RespServer::serve(&daemon.daemon, listener, &RespOptions::default()).unwrap();
    let port = server.address().unwrap().port();
    let mut client = RespClient::connect(([127, 0, 0, 1], port).into()).await;
    assert!(client.say("PING").await.is_error("NOAUTH"));
    assert_eq!(client.ask(&["AUTH", APP]).await, ok());
}

/// What clients of Redis send when they connect.
#[tokio::test]
async fn clients_find_what_they_ask_for() {
    let (daemon, _) = frozen("resp-hello.yaml", "limits: [2/1h]").await;
    let server = serve(&daemon, None).await;
    let mut client = connect(&server).await;
    let hello = client.say("HELLO").await;
    assert_eq!(hello.field("server").text(), "tollgate");
    assert_eq!(hello.field("proto"), Reply::Integer(2));
    assert_eq!(
        client.say("HELLO 3 SETNAME me").await.field("mode").text(),
        "standalone"
    );
    assert_eq!(client.say("CLIENT GETNAME").await.text(), "me");
    assert_eq!(client.say("CLIENT SETINFO LIB-NAME x").await, ok());
    assert!(client.say("CLIENT ID").await.integer() > 0);
    assert!(
        client
            .say("CLIENT SETNAME a\nb")
            .await
            .is_error("Client names")
    );
    assert_eq!(client.say("SELECT 0").await, ok());
    assert_eq!(client.say("ECHO a").await.text(), "a");
    assert_eq!(client.say("PING a").await.text(), "a");
    let info = client.say("INFO server").await;
    for line in ["redis_version:7.0.0", "loading:0", "connected_clients:1"] {
        assert!(info.text().contains(line), "{info:?}");
    }
    let Reply::Array(commands) = client.say("COMMAND").await else {
        panic!("a list");
    };
    let count = client.say("COMMAND COUNT").await.integer();
    assert_eq!(count, i64::try_from(commands.len()).unwrap());
    let one = client.say("COMMAND INFO cl.throttle nothing").await;
    let Reply::Array(found) = one else {
        panic!("a list");
    };
    assert_eq!(found[1], Reply::Null);
    let docs = client
        .say("COMMAND DOCS tg.acquire")
        .await
        .field("tg.acquire");
    assert!(docs.field("summary").text().contains("GUARD"));
    let save = client.say("CONFIG GET save").await;
    assert_eq!(save.field("save").text(), "");
    assert_eq!(client.say("RESET").await.text(), "RESET");
    assert_eq!(client.say("CLIENT GETNAME").await, Reply::Null);
    assert_eq!(client.say("QUIT").await, ok());
    assert!(client.is_closed().await);
}

/// A socket in a folder: for this user only; one that was left over is replaced, one in use is not.
#[tokio::test]
async fn a_unix_socket_is_served_and_removed() {
    let (daemon, _) = frozen("resp-unix.yaml", "limits: [2/1h]").await;
    let folder = std::env::temp_dir().join(format!("tollgate-resp-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("resp.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let serve = || RespServer::serve_unix(&daemon.daemon, &path, &RespOptions::default());
    let server = serve().unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(serve().is_err(), "it is in use");
    let mut client = RespClient::over(UnixStream::connect(&path).await.unwrap());
    assert_eq!(
        client.say("CL.THROTTLE k 0 1 60").await.integers(),
        [0, 1, 0, -1, 60]
    );
    let granted = client.say("TG.ACQUIRE x NOWAIT").await;
    assert_eq!(granted.field("granted"), Reply::Integer(1), "{granted:?}");
    server.drain().await;
    assert!(client.is_closed().await);
    assert!(!path.exists());
    std::fs::write(&path, "a file").unwrap();
    assert!(serve().is_err(), "it is no socket");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The connection above the cap learns why, if all others are being served.
#[tokio::test]
async fn a_connection_above_the_cap_is_rejected() {
    let (daemon, _) = frozen("resp-cap.yaml", "limits: [1/1h]").await;
    let options = RespOptions {
        connections_max: 2,
        ..RespOptions::default()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = RespServer::serve(&daemon.daemon, listener, &options).unwrap();
    let (mut one, mut two) = (connect(&server).await, connect(&server).await);
    one.say("TG.ACQUIRE x NOWAIT").await;
    for client in [&mut one, &mut two] {
        client.send(&encode(&["TG.ACQUIRE", "x"])).await;
    }
    let waiting = || daemon.daemon.registry().named("x").unwrap().waiting();
    wait_until(|| waiting() == 2).await;
    let mut three = connect(&server).await;
    assert!(three.reply().await.is_error("max number of clients"));
    assert!(three.is_closed().await);
    drop(one);
    // The place is free when the connection's task has ended.
    crate::client::within_timeout(async {
        loop {
            let mut next = connect(&server).await;
            next.send(&encode(&["PING"])).await;
            if next.reply().await.text() == "PONG" {
                break;
            }
        }
    })
    .await;
}

/// Silent connections of one client took every place, and all others were rejected for five minutes.
#[tokio::test]
async fn idle_connections_make_way() {
    let (daemon, _) = frozen("resp-idle.yaml", "limits: [2/1h]").await;
    let options = RespOptions {
        connections_max: 3,
        ..RespOptions::default()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = RespServer::serve(&daemon.daemon, listener, &options).unwrap();
    let mut first = connect(&server).await;
    assert_eq!(first.say("PING").await.text(), "PONG");
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(connect(&server).await);
    }
    let mut next = connect(&server).await;
    assert_eq!(next.say("PING").await.text(), "PONG");
    assert!(
        silent[0].is_closed().await,
        "the oldest silent one goes first"
    );
    let kept = first.say("PING").await;
    assert_eq!(kept.text(), "PONG", "whoever has asked goes last");
}

/// A client that left while its input was full kept the places of its commands for a minute.
#[tokio::test]
async fn a_client_that_leaves_behind_a_full_input_is_noticed_at_once() {
    let (daemon, _) = frozen("resp-left.yaml", "limits: [1/1h]").await;
    let server = serve(&daemon, None).await;
    let mut client = connect(&server).await;
    client.say("TG.ACQUIRE x NOWAIT").await;
    client
        .send(&encode(&["TG.ACQUIRE", "x", "WAIT", "86400000"]))
        .await;
    let waiting = || daemon.daemon.registry().named("x").unwrap().waiting();
    wait_until(|| waiting() == 1).await;
    // Runs after what waits: 144 KiB are held, and no more is read.
    client.send(&encode(&["PING"]).repeat(11_000)).await;
    drop(client);
    let left = wait_until(|| waiting() == 0);
    let soon = std::time::Duration::from_secs(20);
    let left = tokio::time::timeout(soon, left).await;
    left.expect("noticed before the ticks do");
}

/// Whoever saw the id of a permit could report a 429 for it, and so close the provider for all.
#[tokio::test]
async fn a_caller_settles_its_own_permits_only() {
    let daemon = with_caller("resp-holders").await;
    let server = serve(&daemon, Some(ADMIN)).await;
    let (mut app, mut other) = (connect(&server).await, connect(&server).await);
    assert_eq!(app.ask(&["AUTH", APP]).await, ok());
    assert_eq!(other.ask(&["AUTH", "canary-other"]).await, ok()); // tidy:canary
    let granted = app.say("TG.ACQUIRE x NOWAIT").await;
    let permit = granted.field("permit").text().to_owned();
    let report = [
        "TG.REPORT",
        &permit,
        "STATUS",
        "429",
        "HEADER",
        "Retry-After",
        "3600",
    ];
    for words in [&report[..], &["TG.RELEASE", &permit]] {
        let reply = other.ask(words).await;
        assert!(reply.is_error("no such permit"), "{reply:?}");
    }
    let body = serde_json::json!({ "permit": permit, "status": 429 }).to_string();
    let token = ("authorization", "Bearer canary-other"); // tidy:canary
    for path in ["/-/v1/report", "/-/v1/release", "/-/v1/renew"] {
        let body = match path {
            "/-/v1/report" => body.clone(),
            _ => serde_json::json!({ "permit": permit }).to_string(),
        };
        let own = daemon.gateway.to_string();
        let headers = [("host", own.as_str()), token];
        let reply = raw_request(daemon.gateway, "POST", path, &headers, &body).await;
        assert_eq!(reply.status, 404, "{path}: {reply:?}");
    }
    let reported = app.ask(&["TG.REPORT", &permit, "STATUS", "200"]).await;
    assert_eq!(reported.field("class").text(), "success", "{reported:?}");
    let again = other.ask(&report).await;
    assert!(again.is_error("no such permit"), "{again:?}");
}

/// `TG.CAPACITY GUARD` read the bucket of any identifier, and ignored its options.
#[tokio::test]
async fn the_capacity_of_a_guard_needs_the_right_to_it_and_reads_its_options() {
    write_file(
        "resp-guard-rights.yaml",
        "guards: { ip: { limit: 10, period: 1m, burst: 2, by: ip } }\ncallers: { app: { token: canary-app-token }, other: { token: canary-other } }\n", // tidy:canary
    );
    write_file("resp-guard-x.yaml", "name: x\ndomain: api.example.org\n");
    let sources = Sources {
        config: Some("resp-guard-rights.yaml".to_owned()),
        ..from_file("resp-guard-x.yaml")
    };
    let daemon = TestDaemon::start(sources).await;
    let server = serve(&daemon, Some(ADMIN)).await;
    let mut app = connect(&server).await;
    assert_eq!(app.ask(&["AUTH", APP]).await, ok());
    let ask = "TG.CAPACITY GUARD ip 203.0.113.7";
    let denied = app.say(ask).await;
    assert!(denied.is_error("NOPERM"), "{denied:?}");
    let mut operator = connect(&server).await;
    assert_eq!(operator.ask(&["AUTH", ADMIN]).await, ok());
    let available = |reply: Reply| reply.field("available");
    for (rest, expected) in [("", 1), (" COST 2", 1), (" COST 3", 0)] {
        let reply = operator.say(&format!("{ask}{rest}")).await;
        assert_eq!(available(reply), Reply::Integer(expected), "{rest}");
    }
    let wrong = operator.say(&format!("{ask} ENTITY zz")).await;
    assert!(wrong.is_error("ENTITY stands beside GUARD"), "{wrong:?}");
}

/// One caller filled the table of keys with buckets that take years to fill, and the first requests of
/// others were limited until the restart.
#[tokio::test]
async fn a_caller_holds_no_key_for_longer_than_a_day() {
    let daemon = with_caller("resp-slow-keys").await;
    let server = serve(&daemon, Some(ADMIN)).await;
    let mut app = connect(&server).await;
    assert_eq!(app.ask(&["AUTH", APP]).await, ok());
    let slow = app.say("CL.THROTTLE k 0 1 1000000000").await;
    assert!(slow.is_error("more than a day"), "{slow:?}");
    let day = app.say("CL.THROTTLE k 0 1 86400").await;
    assert!(matches!(day, Reply::Array(_)), "{day:?}");
    assert_eq!(app.ask(&["AUTH", ADMIN]).await, ok());
    let operator = app.say("CL.THROTTLE k 0 1 1000000000").await;
    assert!(matches!(operator, Reply::Array(_)), "{operator:?}");
}

/// A reload that changes a caller's token ends what clients with the old one may do.
#[tokio::test]
async fn a_session_does_not_outlive_its_token() {
    let daemon = with_caller("resp-new-token").await;
    let server = serve(&daemon, Some(ADMIN)).await;
    let mut client = connect(&server).await;
    assert_eq!(client.ask(&["AUTH", "app", APP]).await, ok());
    assert_eq!(client.say("PING").await.text(), "PONG");
    let callers = "callers: { app: { token: canary-new-token }, other: { token: canary-other } }\n"; // tidy:canary
    write_file("resp-new-token-tollgate.yaml", callers);
    let reloaded = daemon.reload().await;
    assert_eq!(reloaded.status, 200, "{reloaded:?}");
    assert!(client.say("CL.THROTTLE k 1 1 1").await.is_error("NOAUTH"));
    assert_eq!(client.ask(&["AUTH", "app", "canary-new-token"]).await, ok()); // tidy:canary
}

/// A caller emptied, or filled, the buckets of another: `CL.THROTTLE` keys are each caller's own, and
/// guards need its `guards`.
#[tokio::test]
async fn a_caller_cannot_touch_the_buckets_of_another() {
    let daemon = with_caller("resp-buckets").await;
    let server = serve(&daemon, Some(ADMIN)).await;
    let (mut app, mut other) = (connect(&server).await, connect(&server).await);
    assert_eq!(app.ask(&["AUTH", APP]).await, ok());
    assert_eq!(other.ask(&["AUTH", "canary-other"]).await, ok()); // tidy:canary
    let throttle = "CL.THROTTLE k 0 1 3600";
    let limited = |reply: Reply| match reply {
        Reply::Array(parts) => parts.first().cloned(),
        _ => None,
    };
    assert_eq!(limited(app.say(throttle).await), Some(Reply::Integer(0)));
    assert_eq!(limited(app.say(throttle).await), Some(Reply::Integer(1)));
    let own = other.say(throttle).await;
    assert_eq!(limited(own), Some(Reply::Integer(0)), "a bucket of its own");
    let guard = app.say("TG.ACQUIRE GUARD ip 203.0.113.7").await;
    assert!(guard.is_error("NOPERM"), "{guard:?}");
}

/// Names of entities and callers went into logs and labels as they were sent.
#[tokio::test]
async fn names_are_checked_as_over_http() {
    let daemon = with_caller("resp-names").await;
    let server = serve(&daemon, None).await;
    let mut client = connect(&server).await;
    let long = "e".repeat(129);
    for (option, name) in [
        ("ENTITY", "a\nb"),
        ("ENTITY", "a b"),
        ("ENTITY", &long),
        ("CALLER", "a b"),
    ] {
        let reply = client.ask(&["TG.ACQUIRE", "x", option, name]).await;
        assert!(reply.is_error(&format!("ERR {option} is not")), "{reply:?}");
    }
}
