//! M15: a private response is not shared with merged callers, and a call past its deadline makes no
//! further calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::client::{TIMEOUTS, get, get_with, wait_until, within_timeout};
use crate::flights::spawn_get_with;
use crate::merging::{ONE_AT_A_TIME, held, tmdb, together};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{ReceivedRequest, Reply, Upstream};

/// Numbers its responses and adds this header to each.
fn numbered(received: &ReceivedRequest, name: &'static str, value: &'static str) -> Reply {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
    let mut response = tmdb(received);
    let headers = response.headers_mut();
    headers.insert("x-number", number.try_into().unwrap());
    headers.insert(name, value.try_into().unwrap());
    response
}

/// A response with a cookie, `private` or `Vary` is for its own caller only.
#[tokio::test]
async fn m15_a_private_response_is_not_shared_with_merged_callers() {
    let responses: [fn(&ReceivedRequest) -> Reply; 3] = [
        |received| numbered(received, "set-cookie", "sid=1"),
        |received| numbered(received, "cache-control", "private"),
        |received| numbered(received, "vary", "*"),
    ];
    for response in responses {
        let stage = held(response, ONE_AT_A_TIME).await;
        let paths = [
            "/x/3/movie/550",
            "/x/3/movie/550/credits",
            "/x/3/movie/550/images",
        ];
        let responses = together(&stage, &paths).await;
        let mut numbers: Vec<_> = responses.iter().map(|one| one.header("x-number")).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 3, "{responses:?}");
        for (path, response) in paths.iter().zip(&responses) {
            assert_eq!(response.json(), get(stage.2.address, path).await.json());
        }
    }
}

/// A response that varies by `User-Agent` is shared only with callers of the same one.
#[tokio::test]
async fn m15_a_response_that_varies_by_user_agent_is_shared_only_within_it() {
    let stage = held(
        |received| {
            let mut response = tmdb(received);
            let agent = received.headers.get("user-agent").cloned();
            let headers = response.headers_mut();
            headers.insert("vary", "User-Agent".parse().unwrap());
            headers.insert("x-agent", agent.unwrap_or("none".parse().unwrap()));
            response
        },
        ONE_AT_A_TIME,
    )
    .await;
    let (upstream, word, gateway) = &stage;
    let active = gateway.registry.named("x").unwrap();
    let busy = spawn_get_with(gateway, "/x/busy", &[]);
    wait_until(|| upstream.count() == 1).await;
    let mut calls = Vec::new();
    for (index, (path, agent)) in [
        ("/x/3/movie/550", &[("user-agent", "phone")]),
        ("/x/3/movie/550/credits", &[("user-agent", "desk")]),
        ("/x/3/movie/550/images", &[("user-agent", "phone")]),
    ]
    .into_iter()
    .enumerate()
    {
        calls.push((agent[0].1, spawn_get_with(gateway, path, agent)));
        let seen =
            || active.waiting() + usize::try_from(active.joined_merge()).unwrap() == index + 1;
        wait_until(seen).await;
    }
    word.notify_one();
    within_timeout(busy).await.unwrap();
    for (agent, call) in calls {
        assert_eq!(within_timeout(call).await.unwrap().header("x-agent"), agent);
    }
    assert_eq!(upstream.count(), 3, "one larger call and one single one");
}

/// If no caller of a merged call has time remaining, no further call follows: its callers get the
/// deadline error.
#[tokio::test]
async fn m15_a_merged_call_past_its_deadline_makes_no_further_calls() {
    for time in TIMEOUTS {
        let word = Arc::new(Notify::new());
        let heard = word.clone();
        let upstream = Upstream::start(move |number, received| {
            let heard = heard.clone();
            async move {
                if number == 0 {
                    heard.notified().await;
                } else {
                    std::future::pending::<()>().await;
                }
                tmdb(&received)
            }
        })
        .await;
        let rest = format!("{ONE_AT_A_TIME}\ndedup: off\n{}", crate::cache::NO_RETRY);
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        let active = gateway.registry.named("x").unwrap();
        let busy = tokio::spawn(get(gateway.address, "/x/busy"));
        wait_until(|| upstream.count() == 1).await;
        let call = |path: &'static str| {
            let to = gateway.address;
            tokio::spawn(async move { get_with(to, path, &[("x-tollgate-timeout", time)]).await })
        };
        let first = call("/x/3/movie/550/credits");
        wait_until(|| active.waiting() == 1 || first.is_finished()).await;
        let second = call("/x/3/movie/550/images");
        wait_until(|| active.joined_merge() == 1 || first.is_finished()).await;
        word.notify_one();
        within_timeout(busy).await.unwrap();
        wait_until(|| upstream.count() == 2 || first.is_finished()).await;
        if upstream.count() < 2 {
            continue; // its deadline passed before the send: use a longer one
        }
        for call in [first, second] {
            let late = within_timeout(call).await.unwrap();
            assert_eq!(late.status, 504, "{late:?}");
            assert_eq!(late.json()["error"], "DeadlineExceeded", "{late:?}");
        }
        assert_eq!(upstream.count(), 2);
        return;
    }
    panic!("the call was never sent in time");
}
