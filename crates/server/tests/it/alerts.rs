//! Alerts: raised once, sent to webhooks with a signature, also across a restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::hmac;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tollgate::event::{Event, Notification};
use tollgate::providers::Options;
use tollgate_core::alert::QUIET_FOR;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{Clock, Ledger, ManualClock};
use tollgate_server::desk::Desk;
use tollgate_server::{AlertOptions, Alerts};

use crate::client::{get, wait_until};
use crate::page::Stream;
use crate::test_daemon::{TestDaemon, from_config, write_file};
use crate::upstream::{ReceivedRequest, Upstream, ok, reply};

const SECRET: &str = "webhook-secret"; // tidy:canary

/// The message that the page about operation shows.
fn documented_message() -> Value {
    const PAGE: &str = include_str!("../../../../docs/admin.md");
    let block = PAGE
        .split("```json\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    serde_json::from_str(block.expect("the page has one")).unwrap()
}

pub(crate) fn clock() -> Arc<ManualClock> {
    ManualClock::new(Now {
        at: Micros(1_000_000),
        wall: Wall(1_772_366_400_000_000),
    })
}

/// A daemon whose provider allows five calls an hour and warns below five, with one webhook.
async fn daemon(
    name: &str,
    clock: &Arc<ManualClock>,
    place: (&Upstream, std::net::SocketAddr),
    folder: &Path,
) -> TestDaemon {
    daemon_on("memory:", name, clock, place, folder).await
}

/// The same; its configuration names this store.
async fn daemon_on(
    store: &str,
    name: &str,
    clock: &Arc<ManualClock>,
    place: (&Upstream, std::net::SocketAddr),
    folder: &Path,
) -> TestDaemon {
    let ledger = Ledger::memory(Clock::Manual(clock.clone()));
    daemon_with(ledger, store, name, place, folder).await
}

/// The same with this ledger.
pub(crate) async fn daemon_with(
    ledger: Ledger,
    store: &str,
    name: &str,
    (upstream, receiver): (&Upstream, std::net::SocketAddr),
    folder: &Path,
) -> TestDaemon {
    let provider = format!("{name}-x.yaml");
    let address = upstream.address;
    let file = format!(
        "name: x\nupstream: http://{address}\nhealth: off\nlimits: [{{limit: 5, period: 1h}}]\nalerts: {{warning: 5, critical: 2}}\n"
    );
    write_file(&provider, &file);
    let config = format!(
        "providers: [{provider}]\nalerts: {{webhooks: [{{url: 'http://{receiver}/hook', secret: {SECRET}}}]}}\n"
    );
    write_file(&format!("{name}.yaml"), &config);
    let mut sources = from_config(&format!("{name}.yaml"));
    sources.flags[0].value = store.to_owned();
    let options = Options {
        private: true,
        ..Options::default()
    };
    let daemon = TestDaemon::start_on(ledger, sources, options, None).await;
    daemon.daemon.set_desk(Desk::open(folder).unwrap());
    daemon
}

/// Tries again at once.
pub(crate) fn impatient() -> AlertOptions {
    AlertOptions {
        retry_base: Span(1_000),
        retry_max: Span(1_000),
        ..AlertOptions::default()
    }
}

pub(crate) fn folder(name: &str) -> PathBuf {
    let folder =
        std::env::temp_dir().join(format!("tollgate-alerts-{name}-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&folder));
    folder
}

/// The body of a message whose signature is right.
pub(crate) fn verified(request: &ReceivedRequest) -> Value {
    let header = |name: &str| request.headers[name].to_str().unwrap().to_owned();
    let signature = header("x-tollgate-signature");
    let hex = signature.strip_prefix("sha256=").unwrap();
    let bytes = |at| u8::from_str_radix(hex.get(at..at + 2).unwrap(), 16).unwrap();
    let signature: Vec<u8> = (0..hex.len()).step_by(2).map(bytes).collect();
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    hmac::verify(&key, &request.body, &signature).expect("the signature of the body");
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(body["id"], header("x-tollgate-event-id"));
    let names = |body: &Value| {
        body.as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&body), names(&documented_message()));
    body
}

/// S10: one message when it begins, one when its level changes, one when it ends; a receiver that fails gets it again.
#[tokio::test]
async fn s10_an_alert_is_sent_once_when_it_begins_and_once_when_it_ends() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let receiver = Upstream::start(|number, _| async move {
        match number {
            0 => reply(500, &[], ""),
            _ => ok(),
        }
    })
    .await;
    let (clock, folder) = (clock(), folder("once"));
    let daemon = daemon(
        "alerts-once",
        &clock,
        (&upstream, receiver.address),
        &folder,
    )
    .await;
    let settings = daemon.request("GET", "/v1/config", "").await.body;
    let host = receiver.address.to_string();
    assert!(
        settings.contains(&host) && !settings.contains("/hook"),
        "its path may be a key"
    );
    let mut events = daemon.daemon.registry().events().subscribe();
    let alerts = Alerts::start(&daemon.daemon, impatient()).await;
    get(daemon.gateway, "/x/a").await;
    alerts.evaluate().await;
    alerts.evaluate().await;
    // The clock of the outbox is the ledger's: the second attempt is due when it says so.
    wait_until(|| receiver.count() == 1).await;
    let pass = || {
        clock.pass(Span::from_millis(2));
        receiver.count() == 2
    };
    wait_until(pass).await;
    for path in ["/x/b", "/x/c", "/x/d"] {
        get(daemon.gateway, path).await;
    }
    alerts.evaluate().await;
    wait_until(|| receiver.count() == 3).await;
    clock.pass(Span::from_secs(7_200));
    alerts.evaluate().await;
    clock.pass(QUIET_FOR);
    alerts.evaluate().await;
    wait_until(|| receiver.count() == 4).await;
    let bodies: Vec<Value> = receiver.requests().iter().map(verified).collect();
    assert_eq!(bodies[0], bodies[1], "the same message again");
    let shown: Vec<Value> = bodies[1..]
        .iter()
        .map(|body| {
            json!([
                body["status"],
                body["level"],
                body["value"],
                body["threshold"]
            ])
        })
        .collect();
    assert_eq!(
        shown,
        [
            json!(["firing", "warning", 4, 5]),
            json!(["firing", "critical", 1, 2]),
            json!(["resolved", "critical", 1, 2]),
        ]
    );
    assert_eq!(bodies[1]["message"], "Warning: x has 4 requests remaining");
    assert_eq!(
        (&bodies[1]["provider"], &bodies[1]["kind"]),
        (&json!("x"), &json!("remaining"))
    );
    let mut emitted = 0;
    while let Some(Notification::Event(event)) = events.try_next() {
        emitted += u32::from(matches!(*event, Event::Alert { .. }));
    }
    assert_eq!(emitted, 3);
    drop(std::fs::remove_dir_all(folder));
}

/// So many rows has a table of the desk.
fn rows(folder: &Path, table: &str) -> i64 {
    let desk = rusqlite::Connection::open(folder.join("desk.db")).unwrap();
    let query = format!("SELECT count(*) FROM {table}");
    desk.query_row(&query, [], |row| row.get(0)).unwrap()
}

fn statuses(receiver: &Upstream) -> Vec<String> {
    let bodies = receiver.requests().iter().map(verified).collect::<Vec<_>>();
    let status = |body: &Value| body["status"].as_str().unwrap().to_owned();
    bodies.iter().map(status).collect()
}

/// S10: nobody calls the provider after a restart, so nothing is known about its limit: "Resolved" was sent after a
/// minute, because the provider was not in the list of those that had been called.
#[tokio::test]
async fn s10_an_alert_of_a_provider_that_nobody_calls_is_not_resolved_by_a_restart() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let receiver = Upstream::start(|_, _| async { ok() }).await;
    let (clock, folder) = (clock(), folder("idle"));
    let place = (&upstream, receiver.address);
    let start = || daemon("alerts-idle", &clock, place, &folder);
    {
        let daemon = start().await;
        let alerts = Alerts::start(&daemon.daemon, impatient()).await;
        get(daemon.gateway, "/x/a").await;
        alerts.evaluate().await;
        wait_until(|| receiver.count() == 1 && rows(&folder, "outbox") == 0).await;
    }
    let daemon = start().await;
    let alerts = Alerts::start(&daemon.daemon, impatient()).await;
    for _ in 0..4 {
        alerts.evaluate().await;
        clock.pass(QUIET_FOR);
    }
    assert_eq!((rows(&folder, "outbox"), rows(&folder, "alerts")), (0, 1));
    // Called again it is known, and the limit has five permits again: a new ledger in memory.
    get(daemon.gateway, "/x/a").await;
    clock.pass(Span::from_secs(7_200));
    alerts.evaluate().await;
    clock.pass(QUIET_FOR);
    alerts.evaluate().await;
    wait_until(|| receiver.count() == 2).await;
    assert_eq!(statuses(&receiver), ["firing", "resolved"]);
    drop(std::fs::remove_dir_all(folder));
}

/// S10: an alert that fires was open on the page only as long as its event was among the last 500, and never after a
/// restart.
#[tokio::test]
async fn s10_an_open_alert_is_in_every_sample_after_many_events_and_a_restart() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let receiver = Upstream::start(|_, _| async { ok() }).await;
    let (clock, folder) = (clock(), folder("open"));
    let place = (&upstream, receiver.address);
    let start = || daemon("alerts-open", &clock, place, &folder);
    {
        let daemon = start().await;
        let alerts = Alerts::start(&daemon.daemon, impatient()).await;
        get(daemon.gateway, "/x/a").await;
        alerts.evaluate().await;
        wait_until(|| receiver.count() == 1 && rows(&folder, "outbox") == 0).await;
        for number in 0..600 {
            let problem = number.to_string().into();
            let events = daemon.daemon.registry().events();
            events.emit(Event::ReloadRejected { problem });
            tokio::task::yield_now().await;
        }
        let mut stream = Stream::open(&daemon, "?kinds=sample").await;
        let sample = stream.find("sample", |_| true).await;
        let open = &sample["alerts"][0];
        assert_eq!(
            (&open["alert"], &open["level"], &open["provider"]),
            (&json!("x remaining"), &json!("warning"), &json!("x"))
        );
        assert_eq!(open["text"], "Warning: x has 4 requests remaining");
        assert!(open["ts"].is_number(), "{open}");
    }
    let daemon = start().await;
    let alerts = Alerts::start(&daemon.daemon, impatient()).await;
    let mut stream = Stream::open(&daemon, "?kinds=sample").await;
    let sample = stream.find("sample", |_| true).await;
    assert_eq!(
        (&sample["alerts"][0]["alert"], &sample["alerts"][0]["ts"]),
        (&json!("x remaining"), &Value::Null)
    );
    // Once it ends it is open no more.
    get(daemon.gateway, "/x/a").await;
    clock.pass(Span::from_secs(7_200));
    alerts.evaluate().await;
    clock.pass(QUIET_FOR);
    alerts.evaluate().await;
    let sample = stream
        .find("sample", |sample| sample["alerts"] == json!([]))
        .await;
    assert_eq!(sample["alerts"], json!([]));
    drop(std::fs::remove_dir_all(folder));
}

/// S10: a daemon with another store and the same state folder does not know the alert, and resolved it; and removed
/// the messages to a webhook that only the other daemon has.
#[tokio::test]
async fn s10_daemons_with_different_stores_leave_each_others_alerts_alone() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (gone, folder) = (socket.local_addr().unwrap(), folder("two"));
    drop(socket); // nobody listens: the message stays in the outbox
    let clock = clock();
    let first = daemon("alerts-two-a", &clock, (&upstream, gone), &folder).await;
    let alerts = Alerts::start(&first.daemon, impatient()).await;
    get(first.gateway, "/x/a").await;
    alerts.evaluate().await;
    wait_until(|| rows(&folder, "outbox") == 1 && rows(&folder, "alerts") == 1).await;
    let receiver = Upstream::start(|_, _| async { ok() }).await;
    let place = (&upstream, receiver.address);
    let other = daemon_on("sqlite:/elsewhere", "alerts-two-b", &clock, place, &folder).await;
    let others = Alerts::start(&other.daemon, impatient()).await;
    for path in ["/x/a", "/x/b"] {
        others.evaluate().await;
        clock.pass(QUIET_FOR);
        others.evaluate().await;
        get(other.gateway, path).await;
    }
    others.evaluate().await;
    wait_until(|| receiver.count() == 1).await;
    assert_eq!(statuses(&receiver), ["firing"], "its own");
    wait_until(|| rows(&folder, "outbox") == 1).await;
    assert_eq!(rows(&folder, "alerts"), 2);
    drop(std::fs::remove_dir_all(folder));
}

/// S10: a receiver that is away is asked after pauses that double, up to the longest one.
#[tokio::test]
async fn s10_the_pauses_between_two_attempts_double() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let receiver = Upstream::start(|_, _| async { reply(500, &[], "") }).await;
    let (clock, folder) = (clock(), folder("doubled"));
    let place = (&upstream, receiver.address);
    let daemon = daemon("alerts-doubled", &clock, place, &folder).await;
    let options = AlertOptions {
        retry_base: Span::from_secs(1),
        retry_max: Span::from_secs(5),
        ..AlertOptions::default()
    };
    let alerts = Alerts::start(&daemon.daemon, options).await;
    get(daemon.gateway, "/x/a").await;
    alerts.evaluate().await;
    let next_at = || -> (i64, i64) {
        let desk = rusqlite::Connection::open(folder.join("desk.db")).unwrap();
        let query = "SELECT attempts, next_at FROM outbox";
        let row = desk.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?)));
        row.unwrap_or_default() // not there yet
    };
    for (attempt, pause) in (1..).zip([1, 2, 4, 5, 5]) {
        wait_until(|| next_at().0 == attempt).await;
        let now = i64::try_from(daemon.daemon.registry().ledger().wall().0).unwrap();
        assert_eq!(next_at().1 - now, pause * 1_000_000, "attempt {attempt}");
        assert_eq!(i64::try_from(receiver.count()).unwrap(), attempt);
        clock.pass(Span::from_secs(pause.unsigned_abs()));
        alerts.evaluate().await;
    }
    drop(std::fs::remove_dir_all(folder));
}

/// S10: a receiver that fails gets the messages in their order; "resolved" overtook the "firing" that waited for its
/// next attempt, and stayed firing at the receiver.
#[tokio::test]
async fn s10_messages_arrive_in_order_although_the_first_ones_fail() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let receiver = Upstream::start(|number, _| async move {
        match number {
            0 | 1 => reply(500, &[], ""),
            _ => ok(),
        }
    })
    .await;
    let (clock, folder) = (clock(), folder("order"));
    let place = (&upstream, receiver.address);
    let daemon = daemon("alerts-order", &clock, place, &folder).await;
    let patient = AlertOptions {
        retry_base: Span::from_secs(100_000),
        retry_max: Span::from_secs(100_000),
        ..AlertOptions::default()
    };
    let alerts = Alerts::start(&daemon.daemon, patient).await;
    get(daemon.gateway, "/x/a").await;
    alerts.evaluate().await;
    wait_until(|| receiver.count() == 1).await;
    clock.pass(Span::from_secs(7_200));
    alerts.evaluate().await;
    clock.pass(QUIET_FOR);
    alerts.evaluate().await;
    wait_until(|| rows(&folder, "outbox") == 2).await;
    drop(alerts);
    clock.pass(Span::from_secs(200_000));
    let _alerts = Alerts::start(&daemon.daemon, impatient()).await;
    let pass = || {
        clock.pass(Span::from_millis(2));
        receiver.count() >= 4
    };
    wait_until(pass).await;
    assert_eq!(
        statuses(&receiver),
        ["firing", "firing", "firing", "resolved"]
    );
    drop(std::fs::remove_dir_all(folder));
}

/// S10: a receiver that accepts connections and says nothing held up the messages to all others for 15 s each.
#[tokio::test]
async fn s10_a_receiver_that_hangs_holds_up_no_other() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let hanging = Upstream::start(|_, _| std::future::pending()).await;
    let receiver = Upstream::start(|_, _| async { ok() }).await;
    let (clock, folder) = (clock(), folder("hangs"));
    let place = (&upstream, hanging.address);
    let daemon = daemon("alerts-hangs", &clock, place, &folder).await;
    let two = format!(
        "providers: [alerts-hangs-x.yaml]\nalerts: {{webhooks: [{{url: 'http://{}/hook', secret: {SECRET}}}, {{url: 'http://{}/hook', secret: {SECRET}}}]}}\n",
        hanging.address, receiver.address
    );
    write_file("alerts-hangs.yaml", &two);
    daemon.reload().await;
    let alerts = Alerts::start(&daemon.daemon, impatient()).await;
    get(daemon.gateway, "/x/a").await;
    alerts.evaluate().await;
    wait_until(|| receiver.count() == 1 && hanging.count() == 1).await;
    for path in ["/x/b", "/x/c", "/x/d"] {
        get(daemon.gateway, path).await;
    }
    alerts.evaluate().await;
    wait_until(|| receiver.count() == 2).await;
    // The first message to the other one is still under way: nobody waited for its 15 s.
    assert_eq!(hanging.count(), 1, "one at a time");
    drop(std::fs::remove_dir_all(folder));
}

/// S10, S13: a message that was not delivered when the daemon ended is delivered by the next one, and the alert is not
/// raised twice.
#[tokio::test]
async fn s10_delivery_survives_a_restart() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    drop(socket); // nobody listens
    let (clock, folder) = (clock(), folder("restart"));
    let failed = Arc::new(Mutex::new(false));
    {
        let daemon = daemon("alerts-restart", &clock, (&upstream, address), &folder).await;
        let mut events = daemon.daemon.registry().events().subscribe();
        let alerts = Alerts::start(&daemon.daemon, impatient()).await;
        get(daemon.gateway, "/x/a").await;
        alerts.evaluate().await;
        let noted = failed.clone();
        while !*noted.lock() {
            if let Some(Notification::Event(event)) = events.next().await {
                *noted.lock() |= matches!(
                    *event,
                    Event::WebhookFailed {
                        gives_up: false,
                        ..
                    }
                );
            }
        }
    }
    clock.pass(Span::from_secs(1));
    let listener = TcpListener::bind(address).await.unwrap();
    let receiver = Upstream::on(listener, |_, _| async { ok() });
    let daemon = daemon("alerts-restart", &clock, (&upstream, address), &folder).await;
    get(daemon.gateway, "/x/a").await;
    let alerts = Alerts::start(&daemon.daemon, impatient()).await;
    wait_until(|| receiver.count() == 1).await;
    alerts.evaluate().await;
    let body = verified(&receiver.requests()[0]);
    assert_eq!(
        (&body["status"], &body["value"]),
        (&json!("firing"), &json!(4))
    );
    assert_eq!(rows(&folder, "alerts"), 1);
    wait_until(|| rows(&folder, "outbox") == 0).await;
    assert_eq!(
        receiver.count(),
        1,
        "the alert was reported before the restart"
    );
    drop(std::fs::remove_dir_all(folder));
}
