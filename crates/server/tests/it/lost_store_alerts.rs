//! Alerts about a store that is lost: in a folder that somebody else holds, and in a Redis that is killed.

use serde_json::{Value, json};
use tollgate::event::{Event, Notification};
use tollgate_core::alert::QUIET_FOR;
use tollgate_core::time::Span;
use tollgate_ledger::redis::RedisAddress;
use tollgate_ledger::{Clock, Ledger, NetworkedOptions};
use tollgate_server::Alerts;
use tollgate_sim::test_servers::RedisServer;

use crate::alerts::{clock, daemon_with, folder, impatient, verified};
use crate::client::{get, wait_until, within_timeout};
use crate::store_loss::LedgerFolder;
use crate::upstream::{Upstream, ok};

/// S10: a store that is lost raises one alert, and its return ends it: the JSON, the event and the webhook say both. The
/// loss is real: somebody else holds the ledger's lock.
#[tokio::test]
async fn s10_a_lost_store_is_an_alert_and_its_return_ends_it() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let receiver = Upstream::start(|_, _| async { ok() }).await;
    let (clock, folder, state) = (clock(), folder("store"), LedgerFolder::new());
    let ledger = Ledger::sqlite(state.path(), Clock::Manual(clock.clone())).unwrap();
    let place = (&upstream, receiver.address);
    let daemon = daemon_with(ledger, "memory:", "alerts-store", place, &folder).await;
    // Not the facts of calls: the loops below make more of them than a subscriber may leave unread.
    let mut events = daemon.daemon.registry().events().subscribe_rare();
    let alerts = Alerts::start(&daemon.daemon, impatient()).await;
    let until = async |status: u16| {
        within_timeout(async {
            while get(daemon.gateway, "/x/a").await.status != status {
                clock.pass(Span::from_millis(50));
            }
        })
        .await;
    };
    let of_store = || {
        let bodies = receiver.requests();
        let bodies = bodies.iter().map(verified);
        let bodies = bodies.filter(|body| body["provider"] == "the store");
        bodies.collect::<Vec<Value>>()
    };
    until(200).await;
    let lock = state.lock();
    until(503).await; // a call must fail before the loss is known
    alerts.evaluate().await;
    alerts.evaluate().await;
    wait_until(|| of_store().len() == 1).await;
    let config = daemon.request("GET", "/v1/config", "").await.json();
    assert_eq!(config["store"]["state"], "lost");
    drop(lock);
    until(200).await;
    alerts.evaluate().await;
    clock.pass(QUIET_FOR);
    alerts.evaluate().await;
    wait_until(|| of_store().len() == 2).await;
    clock.pass(QUIET_FOR);
    alerts.evaluate().await;
    let sent = of_store();
    let said = |field: &str| {
        sent.iter()
            .map(|body| body[field].clone())
            .collect::<Value>()
    };
    assert_eq!(said("status"), json!(["firing", "resolved"]));
    assert_eq!(said("level"), json!(["critical", "critical"]));
    assert_eq!(said("kind"), json!(["store_lost", "store_lost"]));
    assert_ne!(sent[0]["id"], sent[1]["id"]);
    let mut stages = Vec::new();
    while let Some(Notification::Event(event)) = events.try_next() {
        if let Event::Alert {
            provider,
            is_firing,
            ..
        } = &*event
            && &**provider == "the store"
        {
            stages.push(*is_firing);
        }
    }
    assert_eq!(stages, [true, false]);
    drop(std::fs::remove_dir_all(folder));
}

/// S10: the same for a Redis that is killed.
#[tokio::test]
async fn s10_a_lost_redis_is_an_alert() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let receiver = Upstream::start(|_, _| async { ok() }).await;
    let folder = folder("redis");
    let mut redis = RedisServer::start(&[]);
    let address = RedisAddress::parse(&redis.url()).unwrap();
    let options = NetworkedOptions::default();
    let (ledger, why) = Ledger::redis_or_lost(&address, Clock::System, &options).await;
    assert_eq!(why, None);
    let place = (&upstream, receiver.address);
    let daemon = daemon_with(ledger, "memory:", "alerts-redis", place, &folder).await;
    let alerts = Alerts::start(&daemon.daemon, impatient()).await;
    assert_eq!(get(daemon.gateway, "/x/a").await.status, 200);
    alerts.evaluate().await;
    redis.kill();
    within_timeout(async { while get(daemon.gateway, "/x/b").await.status != 503 {} }).await;
    alerts.evaluate().await;
    let of_store = || {
        let bodies = receiver.requests();
        let mut bodies = bodies.iter().map(verified);
        bodies.find(|body| body["provider"] == "the store")
    };
    wait_until(|| of_store().is_some()).await;
    let body = of_store().unwrap();
    assert_eq!(
        (&body["kind"], &body["status"]),
        (&json!("store_lost"), &json!("firing"))
    );
    drop(std::fs::remove_dir_all(folder));
}
