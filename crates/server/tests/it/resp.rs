//! The Redis protocol over sockets: `CL.THROTTLE`, pipelines, cuts, caps.

use std::sync::Arc;

use tollgate_core::time::Span;
use tollgate_ledger::ManualClock;
use tollgate_server::RespServer;

use crate::decisions::frozen;
use crate::resp_client::{Reply, connect, encode, serve};
use crate::test_daemon::TestDaemon;

async fn frozen_server(name: &str) -> (TestDaemon, RespServer, Arc<ManualClock>) {
    let (daemon, clock) = frozen(&format!("{name}.yaml"), "limits: [2/1h]").await;
    let server = serve(&daemon, None).await;
    (daemon, server, clock)
}

/// The five integers of redis-cell, at a time that stands still: 30 per minute, 16 at once.
#[tokio::test]
async fn cl_throttle_replies_as_redis_cell_does() {
    let (_daemon, server, clock) = frozen_server("resp-throttle").await;
    let mut client = connect(&server).await;
    let throttle = |rest: &str| format!("CL.THROTTLE user123 15 30 60{rest}");
    assert_eq!(
        client.say(&throttle("")).await.integers(),
        [0, 16, 15, -1, 2]
    );
    assert_eq!(
        client.say(&throttle(" 1")).await.integers(),
        [0, 16, 14, -1, 4]
    );
    // A look takes nothing.
    assert_eq!(
        client.say(&throttle(" 0")).await.integers(),
        [0, 16, 14, -1, 4]
    );
    // More than is left: nothing is taken, and the time is exact.
    assert_eq!(
        client.say(&throttle(" 16")).await.integers(),
        [1, 16, 14, 4, 4]
    );
    // More than fits: never.
    assert_eq!(
        client.say(&throttle(" 17")).await.integers(),
        [1, 16, 14, -1, 4]
    );
    // Tokens are put back, and never more than fit.
    assert_eq!(
        client.say(&throttle(" -1")).await.integers(),
        [0, 16, 15, -1, 2]
    );
    assert_eq!(
        client.say(&throttle(" -9")).await.integers(),
        [0, 16, 16, -1, 0]
    );
    assert_eq!(
        client.say(&throttle(" 16")).await.integers(),
        [0, 16, 0, -1, 32]
    );
    assert_eq!(
        client.say(&throttle("")).await.integers(),
        [1, 16, 0, 2, 32]
    );
    // A started second counts: 0 never stands beside a denial.
    clock.pass(Span(1_999_999));
    assert_eq!(
        client.say(&throttle("")).await.integers(),
        [1, 16, 0, 1, 31]
    );
    clock.pass(Span(1));
    assert_eq!(
        client.say(&throttle("")).await.integers(),
        [0, 16, 0, -1, 32]
    );
    // Another key has its own bucket, and a burst of 0 is one token.
    assert_eq!(
        client.say("CL.THROTTLE k 0 1 2").await.integers(),
        [0, 1, 0, -1, 2]
    );
    assert_eq!(
        client.say("cl.throttle k 0 1 2").await.integers(),
        [1, 1, 0, 2, 2]
    );
}

/// Wrong requests are errors that say what is wrong; nothing is counted.
#[tokio::test]
async fn wrong_requests_are_errors_and_count_nothing() {
    let (_daemon, server, _) = frozen_server("resp-wrong").await;
    let mut client = connect(&server).await;
    for (words, part) in [
        ("CL.THROTTLE", "Usage: cl.throttle <key>"),
        ("CL.THROTTLE k 1 1", "Usage: cl.throttle <key>"),
        ("CL.THROTTLE k 1 1 1 1 1", "Usage: cl.throttle <key>"),
        ("CL.THROTTLE k x 1 1", "max_burst is not an integer"),
        (
            "CL.THROTTLE k 1 1.5 1",
            "count per period is not an integer",
        ),
        (
            "CL.THROTTLE k 1 1 9223372036854775808",
            "period is not an integer",
        ),
        ("CL.THROTTLE k 1 1 60 many", "quantity is not an integer"),
        ("CL.THROTTLE k -1 1 1", "max_burst must be from 0"),
        ("CL.THROTTLE k 1 0 1", "zero rates are not supported"),
        ("CL.THROTTLE k 1 1 0", "zero rates are not supported"),
        ("CL.THROTTLE k 4294967294 1 60", "73 years"),
        ("GET k", "this is Tollgate, not Redis"),
        ("CL.THROTLE k 1 1 1", "did you mean 'cl.throttle'?"),
        ("MULTI", "pipeline(transaction=False)"),
        ("SELECT 1", "there is one database"),
        ("CONFIG SET save 1", "tollgate.yaml"),
        ("CLIENT KILL ID 1", "unknown subcommand"),
        ("HELLO 4", "NOPROTO"),
        ("HELLO 3 NAME x", "Syntax error"),
        (
            "TG.ACQUIRE x COST apples=3",
            "the unit `apples`, which does not exist; units are calls, requests, tokens",
        ),
        ("ECHO", "wrong number of arguments for 'echo'"),
    ] {
        let reply = client.say(words).await;
        assert!(reply.is_error(part), "{words}: {reply:?}");
    }
    let untouched = client.say("CL.THROTTLE k 1 1 60 0").await;
    assert_eq!(untouched.integers(), [0, 2, 2, -1, 0]);
}

/// A thousand commands in one write get a thousand replies, in order.
#[tokio::test]
async fn a_pipeline_is_replied_to_in_order() {
    let (_daemon, server, _) = frozen_server("resp-pipeline").await;
    let mut client = connect(&server).await;
    let mut bytes = Vec::new();
    for number in 0..500 {
        bytes.extend(encode(&["CL.THROTTLE", "k", "299", "1", "60"]));
        bytes.extend(encode(&["ECHO", &number.to_string()]));
    }
    client.send(&bytes).await;
    for number in 0..500_i64 {
        let found = client.reply().await.integers();
        let is_limited = i64::from(number >= 300);
        let (remaining, retry) = ((299 - number).max(0), if number < 300 { -1 } else { 60 });
        let reset = (number + 1).min(300) * 60;
        assert_eq!(found, [is_limited, 300, remaining, retry, reset]);
        assert_eq!(client.reply().await, Reply::Bulk(number.to_string()));
    }
}

/// Commands that are cut at any byte are the same commands.
#[tokio::test]
async fn commands_may_be_cut_at_every_byte() {
    let (_daemon, server, _) = frozen_server("resp-cut").await;
    let mut whole = encode(&["ECHO", "a\r\nb"]);
    whole.extend_from_slice(b"echo \"x y\"\r\n\r\n");
    whole.extend(encode(&["CL.THROTTLE", "cut", "9", "1", "60", "0"]));
    for cut in 1..whole.len() {
        let mut client = connect(&server).await;
        client.send(&whole[..cut]).await;
        // The reply to another connection shows that the first part was read meanwhile, or will be.
        client.send(&whole[cut..]).await;
        assert_eq!(client.reply().await, Reply::Bulk("a\r\nb".to_owned()));
        assert_eq!(client.reply().await, Reply::Bulk("x y".to_owned()));
        assert_eq!(client.reply().await.integers(), [0, 10, 10, -1, 0]);
    }
    let mut slow = connect(&server).await;
    for byte in &whole {
        slow.send(&[*byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(slow.reply().await, Reply::Bulk("a\r\nb".to_owned()));
    assert_eq!(slow.reply().await, Reply::Bulk("x y".to_owned()));
    assert_eq!(slow.reply().await.integers(), [0, 10, 10, -1, 0]);
}

/// What is no command ends the connection; what came before it is replied to.
#[tokio::test]
async fn a_protocol_error_ends_the_connection() {
    let (_daemon, server, _) = frozen_server("resp-protocol").await;
    for (wrong, part) in [
        (&b"*1\r\n*1\r\n"[..], "expected '$'"),
        (b"*100000\r\n", "invalid multibulk length"),
        (b"*2\r\n$4\r\nPING\r\n$9999999\r\n", "invalid bulk length"),
        (b"*1\r\n$1\r\nPING\r\n", "longer than its length"),
        (b"echo \"a\r\n", "unbalanced quotes"),
    ] {
        let mut client = connect(&server).await;
        client.send(&[b"PING\r\n", wrong].concat()).await;
        assert_eq!(client.reply().await, Reply::Simple("PONG".to_owned()));
        let error = client.reply().await;
        assert!(error.is_error(part), "{error:?}");
        assert!(client.is_closed().await);
    }
    let mut endless = connect(&server).await;
    endless.send(&vec![b'a'; 64 * 1_024]).await;
    let error = endless.reply().await;
    assert!(error.is_error("too big inline request"), "{error:?}");
}

/// A page in a browser of this host can make it send HTTP here: nothing of it is run.
#[tokio::test]
async fn a_request_of_a_browser_is_not_run() {
    let (_daemon, server, _) = frozen_server("resp-browser").await;
    let body = "CL.THROTTLE stolen 9 1 60\r\n";
    for head in [
        "POST / HTTP/1.1\r\nContent-Type: text/plain\r\n\r\n",
        "PUT / HTTP/1.1\r\n\r\n",
        "Host: 127.0.0.1\r\n\r\n",
    ] {
        let mut browser = connect(&server).await;
        browser.send(format!("{head}{body}").as_bytes()).await;
        assert!(browser.is_closed().await, "{head}");
    }
    let mut client = connect(&server).await;
    let untouched = client.say("CL.THROTTLE stolen 9 1 60 0").await;
    assert_eq!(untouched.integers(), [0, 10, 10, -1, 0]);
}

/// `limiting` of the guards is for throttles too.
#[tokio::test]
async fn limiting_off_and_shadow_let_everything_pass() {
    let (daemon, server, _) = frozen_server("resp-limiting").await;
    let mut client = connect(&server).await;
    let ask = "CL.THROTTLE k 0 1 60";
    for (mode, expected) in [
        ("on", [0, 1, 0, -1, 60]),
        ("on", [1, 1, 0, 60, 60]),
        ("shadow", [0, 1, 0, -1, 60]),
        ("off", [0, 1, 0, -1, 60]),
        ("on", [1, 1, 0, 60, 60]),
    ] {
        let body = format!("{{\"mode\": \"{mode}\"}}");
        let set = daemon.request("POST", "/v1/limiting", &body).await;
        assert_eq!(set.status, 200);
        assert_eq!(client.say(ask).await.integers(), expected, "{mode}");
    }
}
