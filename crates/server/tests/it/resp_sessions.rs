//! Clients of the Redis protocol: who they are, how they connect, how they end.

use std::os::unix::fs::PermissionsExt;

use tokio::net::{TcpListener, UnixStream};
use tollgate_config::Sources;
use tollgate_server::ServeError;
use tollgate_server::{RespOptions, RespServer};

use crate::decisions::frozen;
use crate::resp_client::{Reply, RespClient, connect, encode, serve};
use crate::test_daemon::{TestDaemon, from_file, write_file};

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

/// The connection above the cap learns why.
#[tokio::test]
async fn a_connection_above_the_cap_is_rejected() {
    let (daemon, _) = frozen("resp-cap.yaml", "limits: [2/1h]").await;
    let options = RespOptions {
        connections_max: 2,
        ..RespOptions::default()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = RespServer::serve(&daemon.daemon, listener, &options).unwrap();
    let (mut one, mut two) = (connect(&server).await, connect(&server).await);
    assert_eq!(one.say("PING").await.text(), "PONG");
    assert_eq!(two.say("PING").await.text(), "PONG");
    let mut three = connect(&server).await;
    assert!(three.reply().await.is_error("max number of clients"));
    assert!(three.is_closed().await);
    assert_eq!(one.say("QUIT").await, ok());
    assert!(one.is_closed().await);
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
    for (option, name) in [("ENTITY", "a\nb"), ("ENTITY", &long), ("CALLER", "a b")] {
        let reply = client.ask(&["TG.ACQUIRE", "x", option, name]).await;
        assert!(reply.is_error(&format!("ERR {option} is not")), "{reply:?}");
    }
}
