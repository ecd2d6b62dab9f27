//! Questions whose answers could not be shared: how long that is remembered.

use crate::client::{get, soon, until};
use crate::flights::{ask, gated};
use crate::stand::{Stand, file};
use crate::upstream::reply;

/// An answer for one alone makes the next ones go alone; one for everybody ends that.
#[tokio::test]
async fn s7_an_answer_that_may_be_shared_ends_the_memory_of_one_that_may_not() {
    let (upstream, word) = gated(|number, _| match number {
        0..3 => reply(200, &[("cache-control", "private")], "mine"),
        _ => reply(200, &[], "everybody's"),
    })
    .await;
    let stand = Stand::open(&[file(upstream.address, "limits: [100/1s]")]).await;
    let live = stand.shop.named("x").unwrap();
    let calls = [ask(&stand, "/x/a"), ask(&stand, "/x/a")];
    until(|| upstream.count() == 1 && live.joined() == 1).await;
    word.notify_one();
    until(|| upstream.count() == 2).await;
    word.notify_one();
    for call in calls {
        assert_eq!(soon(call).await.unwrap().body, "mine");
    }
    // It is remembered, and an answer like the first one does not change that.
    for (body, count) in [("mine", 3), ("everybody's", 4)] {
        word.notify_one();
        assert_eq!(get(stand.address, "/x/a").await.body, body);
        assert_eq!((upstream.count(), live.joined()), (count, 1));
    }
    let calls = [ask(&stand, "/x/a"), ask(&stand, "/x/a")];
    until(|| upstream.count() == 5 && live.joined() == 2).await;
    word.notify_one();
    for call in calls {
        assert_eq!(soon(call).await.unwrap().body, "everybody's");
    }
    assert_eq!(upstream.count(), 5);
}
