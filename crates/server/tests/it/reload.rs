//! Reloads: all at once, and usage is preserved.

use crate::client::{get, get_with, wait_until};
use crate::test_gateway::{TestGateway, file, providers};
use crate::upstream::{Upstream, ok};

/// R-A13: 1 → 2 allows exactly one more; 2 → 1 allows none.
#[tokio::test]
async fn a_changed_limit_keeps_its_usage() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let limit = |limit: u32| [file(upstream.address, &format!("limits: [{limit}/1h]"))];
    let gateway = TestGateway::start(&limit(1)).await;
    let soon = [("x-tollgate-timeout", "30s")];
    let mut statuses = Vec::new();
    for number in [1, 2, 1] {
        gateway.registry.replace(providers(&limit(number))).unwrap();
        for _ in 0..2 {
            statuses.push(get_with(gateway.address, "/x/a", &soon).await.status);
        }
    }
    assert_eq!(statuses, [200, 429, 200, 429, 429, 429]);
    assert_eq!(upstream.count(), 2);
}

/// A call that waits under the old limit is sent as soon as the new one allows it.
#[tokio::test]
async fn waiting_calls_are_decided_again_under_the_new_limit() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let limit = |limit: u32| [file(upstream.address, &format!("limits: [{limit}/30s]"))];
    let gateway = TestGateway::start(&limit(1)).await;
    get(gateway.address, "/x/a").await;
    let waiting = tokio::spawn(get(gateway.address, "/x/b"));
    let active = gateway.registry.named("x").unwrap();
    wait_until(|| active.waiting() == 1).await;
    gateway.registry.replace(providers(&limit(2))).unwrap();
    assert_eq!(
        crate::client::within_timeout(waiting).await.unwrap().status,
        200
    );
}

#[tokio::test]
async fn an_invalid_configuration_changes_nothing() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let good = [file(upstream.address, "limits: [100/1s]")];
    let gateway = TestGateway::start(&good).await;
    let twice = [good[0].clone(), good[0].clone()];
    gateway.registry.replace(providers(&twice)).unwrap_err();
    assert_eq!(get(gateway.address, "/x/a").await.status, 200);
    gateway.registry.replace(Vec::new()).unwrap();
    assert_eq!(get(gateway.address, "/x/a").await.status, 404);
}
