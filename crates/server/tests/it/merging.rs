//! M15 over sockets: waiting calls for parts of one item become one call, and each caller gets the
//! JSON of its own call.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

use crate::client::{ClientResponse, TIMEOUTS, get, get_with, wait_until, within_timeout};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{ReceivedRequest, Reply, Upstream, reply};

pub(crate) const ONE_AT_A_TIME: &str = "merge: tmdb-append\nconcurrency: 1\nlimits: [100/1s]";

/// A small TMDB: an item, what hangs below it, and `append_to_response`.
pub(crate) fn tmdb(received: &ReceivedRequest) -> Reply {
    let (path, query) = received
        .target
        .split_once('?')
        .unwrap_or((&received.target, ""));
    let below = |name: &str| match name {
        "credits" => json!({"cast": [{"id": 819, "order": 0}], "crew": []}),
        "images" => json!({"posters": [{"file_path": "/a.jpg", "vote_average": 5.312}]}),
        _ => Value::Null,
    };
    let item = json!({"id": 550, "title": "Fight Club", "budget": 63_000_000});
    let mut response = match path.strip_prefix("/3/movie/550") {
        Some("") => item,
        Some(name) => {
            let mut response = below(name.trim_start_matches('/'));
            if response.is_null() {
                return reply(404, &[], r#"{"success":false,"status_code":34}"#);
            }
            response["id"] = json!(550);
            response
        }
        None => return reply(200, &[], "{}"),
    };
    let append = query
        .split('&')
        .find_map(|part| part.strip_prefix("append_to_response="));
    for name in append
        .unwrap_or_default()
        .split(',')
        .filter(|name| !name.is_empty())
    {
        response[name] = below(name);
    }
    let headers = [("content-type", "application/json"), ("etag", "\"x\"")];
    reply(200, &headers, &response.to_string())
}

/// A provider whose first response waits for a notification; the others come at once.
pub(crate) async fn held(
    response: fn(&ReceivedRequest) -> Reply,
    rest: &str,
) -> (Upstream, Arc<Notify>, TestGateway) {
    let word = Arc::new(Notify::new());
    let heard = word.clone();
    let upstream = Upstream::start(move |number, received| {
        let heard = heard.clone();
        async move {
            if number == 0 {
                heard.notified().await;
            }
            response(&received)
        }
    })
    .await;
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    (upstream, word, gateway)
}

/// Keeps the only slot busy, sends these calls while they must wait, then releases them.
pub(crate) async fn together(
    (upstream, word, gateway): &(Upstream, Arc<Notify>, TestGateway),
    paths: &[&str],
) -> Vec<ClientResponse> {
    let active = gateway.registry.named("x").unwrap();
    let ask = |path: &str| -> JoinHandle<ClientResponse> {
        let (address, path) = (gateway.address, path.to_owned());
        tokio::spawn(async move { get_with(address, &path, &[("accept-encoding", "gzip")]).await })
    };
    let busy = ask("/x/busy");
    wait_until(|| upstream.count() == 1).await;
    let mut calls = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        calls.push(ask(path));
        // Each call is queued, alone or merged, before the next one is sent.
        let seen =
            || active.waiting() + usize::try_from(active.joined_merge()).unwrap() == index + 1;
        wait_until(seen).await;
    }
    word.notify_one();
    within_timeout(busy).await.unwrap();
    let mut responses = Vec::new();
    for call in calls {
        responses.push(within_timeout(call).await.unwrap());
    }
    responses
}

#[tokio::test]
async fn m15_waiting_calls_for_parts_of_one_item_become_one_call() {
    let paths = [
        "/x/3/movie/550/credits?language=de",
        "/x/3/movie/550?language=de",
        "/x/3/movie/550/images?language=de",
    ];
    let stage = held(tmdb, ONE_AT_A_TIME).await;
    let responses = together(&stage, &paths).await;
    let (upstream, _, gateway) = &stage;
    let targets: Vec<_> = upstream
        .requests()
        .into_iter()
        .map(|received| received.target)
        .collect();
    assert_eq!(
        targets,
        [
            "/busy",
            "/3/movie/550?language=de&append_to_response=credits,images"
        ]
    );
    assert!(
        !upstream.requests()[1]
            .headers
            .contains_key("accept-encoding")
    );
    for (path, response) in paths.iter().zip(&responses) {
        assert_eq!(response.header("x-tollgate-source"), "merged", "{path}");
        assert_eq!(response.header("etag"), "", "a part has no name of its own");
        let own = get(gateway.address, path).await;
        assert_eq!(response.json(), own.json(), "{path}");
        assert_eq!(own.header("x-tollgate-source"), "upstream");
    }
    assert_eq!(
        gateway.registry.named("x").unwrap().merged(),
        2,
        "permits saved"
    );
}

#[tokio::test]
async fn m15_calls_that_differ_in_more_than_the_part_are_not_merged() {
    let stage = held(tmdb, ONE_AT_A_TIME).await;
    let paths = [
        "/x/3/movie/550/credits?language=de",
        "/x/3/movie/550/images?language=en",
        "/x/3/movie/551/images?language=de",
        "/x/3/movie/550/keywords?page=1",
    ];
    together(&stage, &paths).await;
    assert_eq!(stage.0.count(), 5);
}

#[tokio::test]
async fn m15_without_the_setting_nothing_is_merged() {
    let rest = "concurrency: 1\nlimits: [100/1s]";
    let stage = held(tmdb, rest).await;
    let paths = ["/x/3/movie/550/credits", "/x/3/movie/550/images"];
    let responses = together(&stage, &paths).await;
    assert_eq!(stage.0.count(), 3);
    assert!(
        responses
            .iter()
            .all(|response| response.header("x-tollgate-source") == "upstream")
    );
}

/// If a merged call fails, is not JSON, or lacks a part, each caller makes its own call.
#[tokio::test]
async fn m15_a_failed_merged_call_falls_back_to_single_calls() {
    type Script = fn(&ReceivedRequest) -> Reply;
    let scripts: [Script; 4] = [
        |_| reply(404, &[], "{}"),
        |_| reply(200, &[], "no json"),
        |_| reply(200, &[("content-encoding", "gzip")], "{}"),
        |_| reply(200, &[], r#"{"id":550,"images":{"posters":[]}}"#),
    ];
    for (number, script) in scripts.into_iter().enumerate() {
        static BROKEN: parking_lot::Mutex<Option<Script>> = parking_lot::Mutex::new(None);
        *BROKEN.lock() = Some(script);
        let response: Script = |received| {
            if received.target.contains("append_to_response") {
                (BROKEN.lock().expect("a script"))(received)
            } else {
                tmdb(received)
            }
        };
        let stage = held(response, ONE_AT_A_TIME).await;
        let paths = ["/x/3/movie/550/credits", "/x/3/movie/550/images"];
        let responses = together(&stage, &paths).await;
        for (path, response) in paths.iter().zip(&responses) {
            assert_eq!(response.status, 200, "{number} {path}");
            // The last one lacks the credits only: the images are in it.
            if number == 3 && path.ends_with("/images") {
                assert_eq!(response.json(), json!({"id": 550, "posters": []}));
                assert_eq!(response.header("x-tollgate-source"), "merged");
                continue;
            }
            let own = get(stage.2.address, path).await;
            assert_eq!(response.json(), own.json(), "{number} {path}");
            assert_eq!(response.header("x-tollgate-source"), "upstream");
        }
    }
}

fn gzipped(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// An unrequested compression is decompressed before the parts are extracted. After a truncated
/// stream each caller makes its own call.
#[tokio::test]
async fn m15_a_compressed_merged_response_is_decompressed() {
    async fn compressed(received: &ReceivedRequest, is_cut: bool) -> Reply {
        let plain = tmdb(received);
        if !received.target.contains("append_to_response") {
            return plain;
        }
        let (mut head, body) = plain.into_parts();
        let mut stream = gzipped(&body.collect().await.unwrap().to_bytes());
        if is_cut {
            stream.truncate(stream.len() / 2);
        }
        head.headers.remove("content-length");
        head.headers
            .insert("content-encoding", "gzip".parse().unwrap());
        Reply::from_parts(head, Full::new(Bytes::from(stream)).boxed())
    }
    for (is_cut, source, calls) in [(false, "merged", 2), (true, "upstream", 4)] {
        let word = Arc::new(Notify::new());
        let heard = word.clone();
        let upstream = Upstream::start(move |number, received| {
            let heard = heard.clone();
            async move {
                if number == 0 {
                    heard.notified().await;
                }
                compressed(&received, is_cut).await
            }
        })
        .await;
        let gateway = TestGateway::start(&[file(upstream.address, ONE_AT_A_TIME)]).await;
        let stage = (upstream, word, gateway);
        let paths = ["/x/3/movie/550/credits", "/x/3/movie/550/images"];
        let responses = together(&stage, &paths).await;
        assert_eq!(stage.0.count(), calls);
        for (path, response) in paths.iter().zip(&responses) {
            assert_eq!(response.header("x-tollgate-source"), source, "{path}");
            assert_eq!(response.header("content-encoding"), "");
            assert_eq!(response.json(), get(stage.2.address, path).await.json());
        }
    }
}

/// The first caller may disconnect, in the queue or after the send: the merged call continues for
/// the others, also if complete responses are not shared.
#[tokio::test]
async fn m15_a_first_caller_that_leaves_does_not_fail_the_others() {
    for (dedup, has_left) in [
        ("off", false),
        ("off", true),
        ("cacheable", false),
        ("cacheable", true),
    ] {
        let word = Arc::new(Semaphore::new(0));
        let heard = word.clone();
        let upstream = Upstream::start(move |_, received| {
            let heard = heard.clone();
            async move {
                heard.acquire().await.unwrap().forget();
                tmdb(&received)
            }
        })
        .await;
        let rest = format!("{ONE_AT_A_TIME}\ndedup: {dedup}");
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        let active = gateway.registry.named("x").unwrap();
        let busy = tokio::spawn(get(gateway.address, "/x/busy"));
        wait_until(|| upstream.count() == 1).await;
        let first = tokio::spawn(get(gateway.address, "/x/3/movie/550/credits"));
        wait_until(|| active.waiting() == 1).await;
        let second = tokio::spawn(get(gateway.address, "/x/3/movie/550/images"));
        wait_until(|| active.joined_merge() == 1).await;
        if has_left {
            word.add_permits(1);
            within_timeout(busy).await.unwrap();
            wait_until(|| upstream.count() == 2).await;
            first.abort();
            let _gone = first.await;
        } else {
            first.abort();
            let _gone = first.await;
            word.add_permits(1);
            within_timeout(busy).await.unwrap();
        }
        // A cancellation would have happened by now.
        let _other = get(gateway.address, "/health").await;
        word.add_permits(3);
        let part = within_timeout(second).await.unwrap();
        assert_eq!(part.header("x-tollgate-source"), "merged", "{dedup}");
        assert_eq!(
            (upstream.count(), active.joined_merge()),
            (2, 1),
            "{dedup} {has_left}"
        );
    }
}

/// The deadline of the first caller is its own: the merged call continues, and the others get their
/// parts without another call.
#[tokio::test]
async fn m15_a_first_caller_past_its_deadline_does_not_fail_the_others() {
    for time in TIMEOUTS {
        let word = Arc::new(Semaphore::new(0));
        let heard = word.clone();
        let upstream = Upstream::start(move |_, received| {
            let heard = heard.clone();
            async move {
                heard.acquire().await.unwrap().forget();
                tmdb(&received)
            }
        })
        .await;
        let gateway = TestGateway::start(&[file(upstream.address, ONE_AT_A_TIME)]).await;
        let active = gateway.registry.named("x").unwrap();
        let busy = tokio::spawn(get(gateway.address, "/x/busy"));
        wait_until(|| upstream.count() == 1).await;
        let first = tokio::spawn(async move {
            let short = [("x-tollgate-timeout", time)];
            get_with(gateway.address, "/x/3/movie/550/credits", &short).await
        });
        wait_until(|| active.waiting() == 1 || first.is_finished()).await;
        let second = tokio::spawn(get(gateway.address, "/x/3/movie/550/images"));
        wait_until(|| active.joined_merge() == 1 || first.is_finished()).await;
        word.add_permits(1);
        within_timeout(busy).await.unwrap();
        wait_until(|| upstream.count() == 2 || first.is_finished()).await;
        if first.is_finished() {
            continue; // its deadline passed before the send: use a longer one
        }
        assert_eq!(within_timeout(first).await.unwrap().status, 504);
        word.add_permits(1);
        let second = within_timeout(second).await.unwrap();
        assert_eq!(
            (second.status, second.header("x-tollgate-source")),
            (200, "merged")
        );
        assert_eq!(upstream.count(), 2);
        return;
    }
    panic!("the call was never sent in time");
}

#[tokio::test]
async fn m15_the_plain_tvdb_record_comes_with_the_extended_one() {
    fn tvdb(received: &ReceivedRequest) -> Reply {
        let mut data = json!({"id": 121_361, "name": "Game of Thrones", "slug": "got"});
        if received.target.ends_with("/extended") {
            data["artworks"] = json!([{"id": 1}]);
        }
        let response = json!({"status": "success", "data": data});
        reply(
            200,
            &[("content-type", "application/json")],
            &response.to_string(),
        )
    }
    let rest = ONE_AT_A_TIME.replace("tmdb-append", "tvdb-extended");
    let stage = held(tvdb, &rest).await;
    let paths = ["/x/v4/series/121361", "/x/v4/series/121361/extended"];
    let responses = together(&stage, &paths).await;
    assert_eq!(stage.0.count(), 2);
    for (path, response) in paths.iter().zip(&responses) {
        assert_eq!(response.header("x-tollgate-source"), "merged");
        assert_eq!(
            response.json(),
            get(stage.2.address, path).await.json(),
            "{path}"
        );
    }
}

/// After an aborted merged call each part is fetched by its own call, not by another merged one.
#[tokio::test]
async fn m15_a_merged_call_without_a_response_is_followed_by_single_calls() {
    fn breaks(received: &ReceivedRequest) -> Reply {
        assert!(!received.target.contains("append_to_response"), "cut off");
        tmdb(received)
    }
    let rest = format!("{ONE_AT_A_TIME}\n{}", crate::cache::NO_RETRY);
    let stage = held(breaks, &rest).await;
    let paths = [
        "/x/3/movie/550",
        "/x/3/movie/550/credits",
        "/x/3/movie/550/images",
    ];
    let responses = together(&stage, &paths).await;
    for response in &responses {
        assert_eq!(response.status, 200, "{response:?}");
    }
    let targets = stage
        .0
        .requests()
        .into_iter()
        .map(|received| received.target);
    let larger = targets.filter(|target| target.contains("append_to_response"));
    assert_eq!(larger.count(), 1);
}

/// A follower of a merged caller raises the merged call to its own priority.
#[tokio::test]
async fn m15_a_follower_raises_the_priority_of_the_merged_call() {
    let stage = held(tmdb, ONE_AT_A_TIME).await;
    let (upstream, word, gateway) = &stage;
    let active = gateway.registry.named("x").unwrap();
    let low = [("x-tollgate-priority", "low")];
    let ask = |path: &'static str, headers: &'static [(&'static str, &'static str)]| {
        crate::flights::spawn_get_with(gateway, path, headers)
    };
    let busy = ask("/x/busy", &[]);
    wait_until(|| upstream.count() == 1).await;
    let mut calls = vec![crate::flights::spawn_get_with(
        gateway,
        "/x/3/movie/550",
        &low,
    )];
    wait_until(|| active.waiting() == 1).await;
    calls.push(crate::flights::spawn_get_with(
        gateway,
        "/x/3/movie/550/credits",
        &low,
    ));
    wait_until(|| active.joined_merge() == 1).await;
    calls.push(ask("/x/other", &[]));
    wait_until(|| active.waiting() == 2).await;
    let joined = active.joined();
    calls.push(ask(
        "/x/3/movie/550/credits",
        &[("x-tollgate-priority", "high")],
    ));
    wait_until(|| active.joined() == joined + 1).await;
    // The word passes from call to call.
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    word.notify_one();
    within_timeout(busy).await.unwrap();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap().status, 200);
    }
    let targets: Vec<_> = upstream
        .requests()
        .into_iter()
        .map(|received| received.target)
        .collect();
    assert!(targets[1].contains("append_to_response"), "{targets:?}");
}
