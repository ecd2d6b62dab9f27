//! `cache: {mode: rfc9111}` over sockets: the rules that need two messages.

use serde_json::json;

use crate::cache::{Still, is};
use crate::client::{get_with, until};
use crate::upstream::{Asked, Reply, Upstream, reply};

const MODE: &str = "limits: [1000/1s]\ncache: {mode: rfc9111, stale: 0s}\nhealth: off\nretry: {retries: {high: 0, normal: 0, low: 0}}";

/// The answer says what its request asked it to say.
async fn obedient(number: usize, asked: Asked) -> Reply {
    let said = asked
        .headers
        .get("say")
        .map(|line| line.to_str().unwrap().to_owned());
    let said = said.unwrap_or_default();
    let headers = [("cache-control", said.as_str()), ("connection", "close")];
    reply(200, &headers, &number.to_string())
}

#[tokio::test]
async fn freshness_is_what_the_answer_says() {
    let upstream = Upstream::start(obedient).await;
    let still = Still::open(&upstream, MODE).await;
    let say = |line| [("say", line)];
    is(
        &still.get("/x/a", &say("max-age=10")).await,
        200,
        "upstream",
        "0",
    );
    still.pass(9);
    is(
        &still.get("/x/a", &say("max-age=10")).await,
        200,
        "cache",
        "0",
    );
    still.pass(1);
    is(
        &still.get("/x/a", &say("max-age=10")).await,
        200,
        "upstream",
        "1",
    );
    is(
        &still.get("/x/b", &say("no-store")).await,
        200,
        "upstream",
        "2",
    );
    is(
        &still.get("/x/b", &say("no-store")).await,
        200,
        "upstream",
        "3",
    );
}

#[tokio::test]
async fn a_request_may_insist_on_a_new_answer_or_on_none_at_all() {
    let upstream = Upstream::start(obedient).await;
    let still = Still::open(&upstream, MODE).await;
    let with = |line| [("say", "max-age=60"), ("cache-control", line)];
    is(
        &still.get("/x/a", &with("max-age=60")).await,
        200,
        "upstream",
        "0",
    );
    is(
        &still.get("/x/a", &with("max-age=60")).await,
        200,
        "cache",
        "0",
    );
    is(
        &still.get("/x/a", &with("no-cache")).await,
        200,
        "upstream",
        "1",
    );
    is(
        &still.get("/x/a", &with("only-if-cached")).await,
        200,
        "cache",
        "1",
    );
    let missing = get_with(still.stand.address, "/x/b", &with("only-if-cached")).await;
    assert_eq!(
        (missing.status, &missing.json()["error"]),
        (504, &json!("NotInCache"))
    );
}

/// An old answer is used while a new one is fetched beside it, once for all who ask.
#[tokio::test]
async fn stale_while_revalidate_fetches_beside_the_old_answer() {
    let upstream = Upstream::start(obedient).await;
    let still = Still::open(&upstream, MODE).await;
    let say = [("say", "max-age=10, stale-while-revalidate=60")];
    is(&still.get("/x/a", &say).await, 200, "upstream", "0");
    still.pass(11);
    is(&still.get("/x/a", &say).await, 200, "stale", "0");
    until(|| upstream.count() == 2).await;
    let mut answer = still.get("/x/a", &say).await;
    while answer.1 == "stale" {
        answer = still.get("/x/a", &say).await;
    }
    is(&answer, 200, "cache", "1");
}

#[tokio::test]
async fn an_answer_that_must_be_asked_for_is_not_used_when_the_provider_is_gone() {
    for (line, status) in [
        ("max-age=1, stale-if-error=100", 200),
        ("max-age=1", 502),
        ("max-age=1, stale-if-error=100, must-revalidate", 502),
        ("s-maxage=1, stale-if-error=100", 502),
    ] {
        let upstream = Upstream::start(obedient).await;
        let still = Still::open(&upstream, MODE).await;
        still.get("/x/a", &[("say", line)]).await;
        drop(upstream);
        still.pass(10);
        assert_eq!(still.get("/x/a", &[]).await.0, status, "{line}");
    }
}

#[tokio::test]
async fn answers_vary_on_what_they_say() {
    let upstream = Upstream::start(|number, _| async move {
        let headers = [("cache-control", "max-age=60"), ("vary", "Foo, Bar")];
        reply(200, &headers, &number.to_string())
    })
    .await;
    let still = Still::open(&upstream, MODE).await;
    is(
        &still.get("/x/a", &[("foo", "1")]).await,
        200,
        "upstream",
        "0",
    );
    is(
        &still.get("/x/a", &[("foo", "2")]).await,
        200,
        "upstream",
        "1",
    );
    is(
        &still.get("/x/a", &[("foo", "1"), ("bar", "")]).await,
        200,
        "upstream",
        "2",
    );
    is(
        &still.get("/x/a", &[("foo", "1"), ("baz", "9")]).await,
        200,
        "cache",
        "0",
    );
    is(&still.get("/x/a", &[("foo", "2")]).await, 200, "cache", "1");
}
