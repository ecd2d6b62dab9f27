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
use crate::test_daemon::{TestDaemon, from_config, write_file};
use crate::upstream::{ReceivedRequest, Upstream, ok, reply};

const SECRET: &str = "webhook-secret"; // tidy:canary

fn clock() -> Arc<ManualClock> {
    ManualClock::new(Now {
        at: Micros(1_000_000),
        wall: Wall(1_772_366_400_000_000),
    })
}

/// A daemon whose provider allows five calls an hour and warns below five, with one webhook.
async fn daemon(
    name: &str,
    clock: &Arc<ManualClock>,
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
    let sources = from_config(&format!("{name}.yaml"));
    let options = Options {
        private: true,
        ..Options::default()
    };
    let ledger = Ledger::memory(Clock::Manual(clock.clone()));
    let daemon = TestDaemon::start_on(ledger, sources, options, None).await;
    daemon.daemon.set_desk(Desk::open(folder).unwrap());
    daemon
}

/// Tries again at once.
fn impatient() -> AlertOptions {
    AlertOptions {
        retry_base: Span(1_000),
        retry_max: Span(1_000),
        ..AlertOptions::default()
    }
}

fn folder(name: &str) -> PathBuf {
    let folder =
        std::env::temp_dir().join(format!("tollgate-alerts-{name}-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&folder));
    folder
}

/// The body of a message whose signature is right.
fn verified(request: &ReceivedRequest) -> Value {
    let header = |name: &str| request.headers[name].to_str().unwrap().to_owned();
    let signature = header("x-tollgate-signature");
    let hex = signature.strip_prefix("sha256=").unwrap();
    let bytes = |at| u8::from_str_radix(hex.get(at..at + 2).unwrap(), 16).unwrap();
    let signature: Vec<u8> = (0..hex.len()).step_by(2).map(bytes).collect();
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    hmac::verify(&key, &request.body, &signature).expect("the signature of the body");
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(body["id"], header("x-tollgate-event-id"));
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
    assert_eq!(
        Desk::open(&folder).unwrap().active_alerts().unwrap().len(),
        1
    );
    wait_until(|| Desk::open(&folder).unwrap().messages().unwrap().is_empty()).await;
    assert_eq!(
        receiver.count(),
        1,
        "the alert was reported before the restart"
    );
    drop(std::fs::remove_dir_all(folder));
}
