//! Requests whose responses could not be shared: how long that is remembered.

use crate::client::{get, wait_until, within_timeout};
use crate::flights::{gated, spawn_get};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::reply;

/// After an unshareable response the next calls are not coalesced; a shareable one ends that.
#[tokio::test]
async fn s7_a_shareable_response_clears_the_unshareable_mark() {
    let (upstream, word) = gated(|number, _| match number {
        0..3 => reply(200, &[("cache-control", "private")], "mine"),
        _ => reply(200, &[], "everybody's"),
    })
    .await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    let active = gateway.registry.named("x").unwrap();
    let calls = [spawn_get(&gateway, "/x/a"), spawn_get(&gateway, "/x/a")];
    wait_until(|| upstream.count() == 1 && active.joined() == 1).await;
    word.notify_one();
    wait_until(|| upstream.count() == 2).await;
    word.notify_one();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap().body, "mine");
    }
    // The mark stays, and a response like the first one does not change it.
    for (body, count) in [("mine", 3), ("everybody's", 4)] {
        word.notify_one();
        assert_eq!(get(gateway.address, "/x/a").await.body, body);
        assert_eq!((upstream.count(), active.joined()), (count, 1));
    }
    let calls = [spawn_get(&gateway, "/x/a"), spawn_get(&gateway, "/x/a")];
    wait_until(|| upstream.count() == 5 && active.joined() == 2).await;
    word.notify_one();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap().body, "everybody's");
    }
    assert_eq!(upstream.count(), 5);
}
