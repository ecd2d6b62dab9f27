//! Permits over the Redis protocol. The simulated provider's own log judges.

use std::sync::Arc;

use tollgate_sim::http::{Settings, SimProvider};

use crate::client::{get, wait_until, within_timeout};
use crate::decisions::frozen;
use crate::resp_client::{Reply, connect, encode, serve};
use crate::test_daemon::{TestDaemon, from_file, write_file};

/// Twelve clients ask, make their calls themselves and report; some give their permit back: the
/// provider counts no call too many.
#[tokio::test]
async fn permits_over_resp_keep_the_providers_limit() {
    let settings = Settings::with_rules("sliding 4/1s").expect("rules");
    let provider = SimProvider::start(settings).await.expect("a free port");
    let limits = "limits: [4/1s]\ntimeout: {first_byte: 1s}";
    let text = crate::test_gateway::file(provider.address(), limits);
    write_file("resp-sim.yaml", &text);
    let daemon = Arc::new(TestDaemon::start(from_file("resp-sim.yaml")).await);
    let server = Arc::new(serve(&daemon, None).await);
    let to = provider.address();
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..12 {
        let server = server.clone();
        clients.spawn(async move {
            let mut client = connect(&server).await;
            let granted = client.say("TG.ACQUIRE x WAIT 25000").await;
            let permit = granted.field("permit").text().to_owned();
            assert!(!permit.is_empty(), "{granted:?}");
            if number % 4 == 3 {
                let released = client.ask(&["TG.RELEASE", &permit]).await;
                assert_eq!(released.text(), "OK");
                return 0;
            }
            let status = get(to, &format!("/{number}")).await.status.to_string();
            let report = ["TG.REPORT", &permit, "STATUS", &status, "LATENCY", "12"];
            let reported = client.ask(&report).await;
            assert_eq!(reported.field("class").text(), "success", "{reported:?}");
            1
        });
    }
    let mut made = 0;
    while let Some(done) = within_timeout(clients.join_next()).await {
        made += done.expect("no panic");
    }
    let report = provider.stop().await;
    assert_eq!((report.violations, report.accepted, made), (0, 9, 9));
}

/// A grant, a denial with its limit and its time in milliseconds, and what comes back.
#[tokio::test]
async fn replies_have_the_fields_of_the_http_api_in_milliseconds() {
    let (daemon, _) = frozen("resp-fields.yaml", "limits: [2/1h]").await;
    let server = serve(&daemon, None).await;
    let mut client = connect(&server).await;
    let granted = client.say("TG.ACQUIRE x NOWAIT").await;
    assert_eq!(granted.field("granted"), Reply::Integer(1));
    assert_eq!(granted.field("decision").text(), "allow");
    assert_eq!(granted.field("remaining"), Reply::Integer(1));
    assert_eq!(granted.field("retry_in"), Reply::Null);
    assert_eq!(granted.field("use_within"), Reply::Integer(30_000));
    let limit = granted.field("limit");
    assert_eq!(limit.field("name").text(), "2/1h");
    assert_eq!(limit.field("period"), Reply::Integer(3_600_000));
    let permit = granted.field("permit").text().to_owned();
    let url = "https://api.example.org/v1/x";
    let second = client.ask(&["TG.ACQUIRE", url, "PRIORITY", "high"]).await;
    assert_eq!(second.field("granted"), Reply::Integer(1), "{second:?}");
    // From here on in the other version of the protocol.
    client.say("HELLO 3").await;
    let denied = client.say("TG.ACQUIRE x NOWAIT").await;
    assert_eq!(denied.field("granted"), Reply::Boolean(false));
    assert_eq!(denied.field("reason").text(), "limit");
    assert_eq!(denied.field("decision").text(), "reject");
    assert_eq!(denied.field("permit"), Reply::Null);
    assert!(denied.field("message").text().contains("2/1h"));
    let capacity = client.say("TG.CAPACITY x").await;
    assert_eq!(capacity.field("available"), Reply::Boolean(false));
    assert_eq!(capacity.field("state").text(), "normal");
    let released = client.ask(&["TG.RELEASE", &permit]).await;
    assert_eq!(released.text(), "OK");
    let capacity = client.say("TG.CAPACITY x COST 1 PRIORITY low").await;
    assert_eq!(capacity.field("available"), Reply::Boolean(true));
    assert_eq!(capacity.field("remaining"), Reply::Integer(1));
    let late = client.ask(&["TG.REPORT", &permit, "STATUS", "200"]).await;
    assert!(late.is_error("released"), "{late:?}");
    let permit = second.field("permit").text().to_owned();
    let header = ["HEADER", "Retry-After", "30", "HEADER", "X-A", "b"];
    let report = [&["TG.REPORT", &permit, "STATUS", "429"], &header[..]].concat();
    let reported = client.ask(&report).await;
    assert_eq!(reported.field("class").text(), "limited");
    assert_eq!(reported.field("first"), Reply::Boolean(true));
    assert_eq!(reported.field("retry_in"), Reply::Integer(30_000));
    let again = client.ask(&["TG.REPORT", &permit, "ERROR", "reset"]).await;
    assert_eq!(again.field("first"), Reply::Boolean(false));
    let status = client.say("TG.STATUS x").await;
    assert_eq!(status.field("name").text(), "x");
    let Reply::Array(limits) = status.field("limits") else {
        panic!("a list");
    };
    assert_eq!(limits[0].field("period"), Reply::Integer(3_600_000));
    let Reply::Array(all) = client.say("TG.STATUS").await else {
        panic!("a list");
    };
    assert_eq!(all[0].field("name").text(), "x");
}

/// Guards: all or none.
#[tokio::test]
async fn guards_are_acquired_together_or_not_at_all() {
    write_file(
        "resp-guards-tollgate.yaml",
        "guards: { ip: { limit: 10, period: 1m, burst: 2, by: ip }, api: { limit: 100, period: 1m, burst: 1, by: global } }\n",
    );
    write_file(
        "resp-guards.yaml",
        "name: x\ndomain: api.example.org\nlimits: [9/1h]\n",
    );
    let sources = tollgate_config::Sources {
        config: Some("resp-guards-tollgate.yaml".to_owned()),
        ..from_file("resp-guards.yaml")
    };
    let (ledger, _) = crate::decisions::frozen_ledger();
    let daemon = TestDaemon::start_on(ledger, sources, Default::default(), None).await;
    let server = serve(&daemon, None).await;
    let mut client = connect(&server).await;
    let both = "TG.ACQUIRE GUARD ip 203.0.113.7 GUARD api global NOWAIT";
    let granted = client.say(both).await;
    assert_eq!(granted.field("granted"), Reply::Integer(1), "{granted:?}");
    assert_eq!(granted.field("permit"), Reply::Null);
    let denied = client.say(both).await;
    assert_eq!(denied.field("guard").text(), "api");
    assert_eq!(denied.field("retry_in"), Reply::Integer(600));
    let left = client.say("TG.CAPACITY GUARD ip 203.0.113.7").await;
    assert_eq!(
        left.field("remaining"),
        Reply::Integer(1),
        "it paid nothing"
    );
    assert_eq!(left.field("burst_size"), Reply::Integer(2));
    assert_eq!(left.field("retry_in"), Reply::Integer(0));
    assert_eq!(left.field("limit").field("scope").text(), "guard");
    let costly = client.say("TG.CAPACITY GUARD ip 203.0.113.7 COST 2").await;
    assert_eq!(costly.field("available"), Reply::Integer(0));
    assert!(costly.field("retry_in").integer() > 0, "{costly:?}");
    let impossible = client.say("TG.CAPACITY GUARD ip 203.0.113.7 COST 3").await;
    assert_eq!(impossible.field("retry_in"), Reply::Null);
}

/// Wrong requests are errors that name what is wrong, and take nothing.
#[tokio::test]
async fn wrong_requests_take_nothing() {
    let (daemon, _) = frozen("resp-mistakes.yaml", "limits: [2/1h]").await;
    let server = serve(&daemon, None).await;
    let mut client = connect(&server).await;
    for (words, part) in [
        ("TG.ACQUIRE", "wrong number of arguments"),
        ("TG.ACQUIRE y", "y"),
        (
            "TG.ACQUIRE ftp://api.example.org/",
            "not a provider or a URL",
        ),
        ("TG.ACQUIRE x PRIORTY high", "did you mean PRIORITY?"),
        ("TG.ACQUIRE x PRIORITY urgent", "PRIORITY is not high"),
        ("TG.ACQUIRE x PRIORITY", "PRIORITY has no value"),
        ("TG.ACQUIRE x COST 0", "COST is not a cost"),
        ("TG.ACQUIRE x COST -1", "COST is not a cost"),
        ("TG.ACQUIRE x COST 9007199254740993", "COST is not a cost"),
        ("TG.ACQUIRE x COST apples=3", "the unit `apples`"),
        ("TG.ACQUIRE x COST 1 COST 1", "COST stands twice"),
        ("TG.ACQUIRE x WAIT soon", "milliseconds"),
        ("TG.ACQUIRE x WAIT -1", "milliseconds"),
        ("TG.ACQUIRE x WAIT 1 NOWAIT", "WAIT and NOWAIT"),
        (
            "TG.ACQUIRE GUARD ip",
            "the identifier of GUARD has no value",
        ),
        ("TG.ACQUIRE GUARD ip a NOWAIT", "there is no guard `ip`"),
        (
            "TG.ACQUIRE GUARD ip a ENTITY e",
            "ENTITY stands beside GUARD",
        ),
        ("TG.CAPACITY x NOWAIT", "not an option of this command"),
        ("TG.REPORT p", "no such permit"),
        ("TG.REPORT p STATUS 99", "STATUS is not a number"),
        ("TG.REPORT p STATUS 200 ERROR reset", "STATUS and ERROR"),
        ("TG.REPORT p ERROR boom", "timeout, dns, connect or reset"),
        ("TG.REPORT p HEADER a", "HEADER has no value"),
        ("TG.REPORT p BODY {}", "no STATUS"),
        ("TG.RELEASE p", "no such permit"),
        ("TG.RELEASE p q", "wrong number of arguments"),
        ("TG.STATUS y", "y"),
    ] {
        let reply = client.say(words).await;
        assert!(reply.is_error(part), "{words}: {reply:?}");
        assert!(reply.is_error("ERR "), "{words}: {reply:?}");
    }
    let full = client.say("TG.CAPACITY x").await;
    assert_eq!(full.field("remaining"), Reply::Integer(2));
}

/// A command that waits holds up the commands behind it on its own connection, and no other.
#[tokio::test]
async fn a_waiting_command_holds_up_its_own_connection_only() {
    let (daemon, _) = frozen("resp-waiting.yaml", "limits: [1/1h]").await;
    let server = serve(&daemon, None).await;
    let (mut first, mut other) = (connect(&server).await, connect(&server).await);
    let granted = first.say("TG.ACQUIRE x NOWAIT").await;
    let permit = granted.field("permit").text().to_owned();
    let mut pipeline = encode(&["TG.ACQUIRE", "x", "WAIT", "86400000"]);
    pipeline.extend(encode(&["PING"]));
    first.send(&pipeline).await;
    daemon.status_with_one_waiting("x").await;
    assert_eq!(other.say("PING").await.text(), "PONG");
    // What is given back goes to the one that waits; its reply is first, and then the other.
    assert_eq!(other.ask(&["TG.RELEASE", &permit]).await.text(), "OK");
    let waited = first.reply().await;
    assert_eq!(waited.field("decision").text(), "queue", "{waited:?}");
    assert_eq!(first.reply().await.text(), "PONG");
}

/// Permits that are asked for one after the other are asked for together, in order.
#[tokio::test]
async fn a_pipeline_of_permits_is_granted_in_order() {
    let (daemon, _) = frozen("resp-ordered.yaml", "limits: [3/1h]").await;
    let server = serve(&daemon, None).await;
    let mut client = connect(&server).await;
    let mut pipeline = Vec::new();
    for _ in 0..5 {
        pipeline.extend(encode(&["TG.ACQUIRE", "x", "NOWAIT"]));
    }
    pipeline.extend(encode(&["TG.ACQUIRE", "x", "COST", "0"]));
    pipeline.extend(encode(&["TG.CAPACITY", "x"]));
    client.send(&pipeline).await;
    let mut granted = Vec::new();
    for _ in 0..5 {
        granted.push(client.reply().await.field("granted").integer());
    }
    assert_eq!(granted, [1, 1, 1, 0, 0]);
    assert!(client.reply().await.is_error("COST"));
    let capacity = client.reply().await;
    assert_eq!(capacity.field("available"), Reply::Integer(0), "after them");
}

/// Who leaves no longer waits.
#[tokio::test]
async fn a_client_that_leaves_gives_up_its_place_in_the_queue() {
    let (daemon, _) = frozen("resp-leaving.yaml", "limits: [1/1h]").await;
    let server = serve(&daemon, None).await;
    let mut client = connect(&server).await;
    client.say("TG.ACQUIRE x NOWAIT").await;
    client
        .send(&encode(&["TG.ACQUIRE", "x", "WAIT", "86400000"]))
        .await;
    daemon.status_with_one_waiting("x").await;
    drop(client);
    let active = daemon.daemon.registry().named("x").unwrap();
    wait_until(|| active.waiting() == 0).await;
}

/// On shutdown a command that waits gets the grace period, and an error after it.
#[tokio::test]
async fn shutdown_ends_idle_connections_and_gives_waiting_commands_their_grace() {
    let (daemon, _) = frozen("resp-drain.yaml", "limits: [1/1h]").await;
    let options = tollgate_server::RespOptions {
        grace: tollgate_core::time::Span::from_millis(50),
        ..Default::default()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = tollgate_server::RespServer::serve(&daemon.daemon, listener, &options).unwrap();
    let (mut waiting, mut idle) = (connect(&server).await, connect(&server).await);
    waiting.say("TG.ACQUIRE x NOWAIT").await;
    assert_eq!(idle.say("PING").await.text(), "PONG");
    waiting
        .send(&encode(&["TG.ACQUIRE", "x", "WAIT", "86400000"]))
        .await;
    daemon.status_with_one_waiting("x").await;
    within_timeout(server.drain()).await;
    assert!(idle.is_closed().await);
    let error = waiting.reply().await;
    assert!(error.is_error("shutting down"), "{error:?}");
    assert!(waiting.is_closed().await);
}
