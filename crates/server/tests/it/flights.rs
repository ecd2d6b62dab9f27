//! Identical calls at the same time are one upstream call, over real sockets.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tollgate::providers::ActiveProvider;

use crate::client::{
    ClientResponse, Session, TIMEOUTS, get_with, read_response, request, wait_until, within_timeout,
};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{ReceivedRequest, Reply, Upstream, reply};

/// An upstream whose responses wait for a notification.
pub(crate) async fn gated(
    response: fn(usize, &ReceivedRequest) -> Reply,
) -> (Upstream, Arc<Notify>) {
    let word = Arc::new(Notify::new());
    let heard = word.clone();
    let upstream = Upstream::start(move |number, received| {
        let heard = heard.clone();
        async move {
            heard.notified().await;
            response(number, &received)
        }
    })
    .await;
    (upstream, word)
}

pub(crate) fn plain(_: usize, received: &ReceivedRequest) -> Reply {
    reply(200, &[("etag", "\"a\"")], &received.target)
}

pub(crate) fn spawn_get(gateway: &TestGateway, path: &str) -> JoinHandle<ClientResponse> {
    spawn_get_with(gateway, path, &[])
}

pub(crate) fn spawn_get_with(
    gateway: &TestGateway,
    path: &str,
    headers: &[(&'static str, &'static str)],
) -> JoinHandle<ClientResponse> {
    let (address, path, headers) = (gateway.address, path.to_owned(), headers.to_vec());
    tokio::spawn(async move { get_with(address, &path, &headers).await })
}

/// A provider with concurrency 1 and one running call: every further call waits in the queue.
pub(crate) struct BusyProvider {
    pub(crate) upstream: Upstream,
    pub(crate) gateway: TestGateway,
    release: Arc<Notify>,
    busy: JoinHandle<ClientResponse>,
}

impl BusyProvider {
    pub(crate) async fn start(rest: &str) -> BusyProvider {
        let (upstream, word) = gated(plain).await;
        let rest = format!("concurrency: 1\nlimits: [100/1s]\n{rest}");
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        let busy = spawn_get(&gateway, "/x/busy");
        wait_until(|| upstream.count() == 1).await;
        BusyProvider {
            upstream,
            gateway,
            release: word,
            busy,
        }
    }

    pub(crate) fn provider(&self) -> Arc<ActiveProvider> {
        self.gateway.registry.named("x").unwrap()
    }

    /// A call that waits in the queue on its own.
    pub(crate) async fn enqueue(
        &self,
        path: &str,
        headers: &[(&'static str, &'static str)],
    ) -> JoinHandle<ClientResponse> {
        let (active, before) = (self.provider(), self.provider().waiting());
        let call = spawn_get_with(&self.gateway, path, headers);
        wait_until(|| active.waiting() == before + 1).await;
        call
    }

    /// A call that joins a waiting one.
    pub(crate) async fn join(
        &self,
        path: &str,
        headers: &[(&'static str, &'static str)],
    ) -> JoinHandle<ClientResponse> {
        let (active, before) = (self.provider(), self.provider().joined());
        let call = spawn_get_with(&self.gateway, path, headers);
        wait_until(|| active.joined() == before + 1).await;
        call
    }

    /// Lets all calls through, one by one, and returns their statuses.
    pub(crate) async fn finish_all(&self, calls: Vec<JoinHandle<ClientResponse>>) -> Vec<u16> {
        let mut statuses = Vec::new();
        for call in calls {
            wait_until(|| {
                self.release.notify_one();
                call.is_finished()
            })
            .await;
            statuses.push(within_timeout(call).await.unwrap().status);
        }
        assert!(self.busy.is_finished());
        statuses
    }

    /// Lets one through.
    fn release_one(&self) {
        self.release.notify_one();
    }
}

/// Sends two requests, the second during the first, and returns the sources of the responses.
async fn sources_of_two(
    gateway: &TestGateway,
    (upstream, word): (&Upstream, &Notify),
    first: &[(&'static str, &'static str)],
    second: &[(&'static str, &'static str)],
) -> [String; 2] {
    let before = upstream.count();
    let joined = gateway.registry.named("x").unwrap().joined();
    let first = spawn_get_with(gateway, "/x/a", first);
    wait_until(|| upstream.count() == before + 1).await;
    let second = spawn_get_with(gateway, "/x/a", second);
    let active = gateway.registry.named("x").unwrap();
    wait_until(|| active.joined() > joined || upstream.count() == before + 2).await;
    let mut sources = [String::new(), String::new()];
    word.notify_one();
    let mut second = Some(second);
    let first = within_timeout(first).await.unwrap();
    first
        .header("x-tollgate-source")
        .clone_into(&mut sources[0]);
    if upstream.count() == before + 2 {
        word.notify_one();
    }
    // A follower released at the head makes its own call.
    let second = second.take().unwrap();
    wait_until(|| second.is_finished() || upstream.count() == before + 2).await;
    word.notify_one();
    let second = within_timeout(second).await.unwrap();
    assert_eq!(second.status, first.status);
    second
        .header("x-tollgate-source")
        .clone_into(&mut sources[1]);
    sources
}

/// S7, S3: a thousand concurrent calls are one upstream call and one permit, and all get the
/// complete response.
#[tokio::test]
async fn s7_a_thousand_identical_calls_make_one_upstream_call() {
    let (upstream, word) = gated(plain).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [1/1h]")]).await;
    let active = gateway.registry.named("x").unwrap();
    let calls: Vec<_> = (0..1_000)
        // The order of parameters does not separate requests.
        .map(|n| spawn_get(&gateway, ["/x/a?b=1&c=2", "/x/a?c=2&b=1"][n % 2]))
        .collect();
    wait_until(|| active.joined() == 999).await;
    word.notify_one();
    let mut sources = [0, 0];
    let mut bodies = std::collections::HashSet::new();
    for call in calls {
        let response = within_timeout(call).await.unwrap();
        assert_eq!(response.status, 200);
        bodies.insert(response.body.clone());
        match response.header("x-tollgate-source") {
            "upstream" => sources[0] += 1,
            "shared" => sources[1] += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!((upstream.count(), sources, bodies.len()), (1, [1, 999], 1));
    assert_eq!(active.shared(), 999);
}

/// S3: cache, then flight, then permit, then the call, and then the cache again.
#[tokio::test]
async fn s3_a_cached_or_in_flight_response_costs_no_permit() {
    let (upstream, word) = gated(plain).await;
    let rest = "cache: {ttl: 1h}\nlimits: [1/1h]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let active = gateway.registry.named("x").unwrap();
    let calls: Vec<_> = (0..10).map(|_| spawn_get(&gateway, "/x/a")).collect();
    wait_until(|| active.joined() == 9).await;
    word.notify_one();
    for call in calls {
        assert_eq!(within_timeout(call).await.unwrap().status, 200);
    }
    let later = within_timeout(spawn_get(&gateway, "/x/a")).await.unwrap();
    assert_eq!(
        (later.status, later.header("x-tollgate-source")),
        (200, "cache")
    );
    let other = spawn_get_with(&gateway, "/x/b", &[("x-tollgate-timeout", "30s")]);
    assert_eq!(
        within_timeout(other).await.unwrap().status,
        429,
        "one permit an hour"
    );
    assert_eq!(upstream.count(), 1);
}

/// S7: a client's conditions are its own, whatever condition the cache sends.
#[tokio::test]
async fn s7_conditional_and_unconditional_requests_do_not_share() {
    let (upstream, word) = gated(plain).await;
    let rest = "cache: {ttl: 1h}\nlimits: [100/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    let condition = [("if-none-match", "\"a\"")];
    let calls = [
        spawn_get_with(&gateway, "/x/a", &condition),
        spawn_get(&gateway, "/x/a"),
    ];
    wait_until(|| upstream.count() == 2).await;
    for call in calls {
        wait_until(|| {
            word.notify_one();
            call.is_finished()
        })
        .await;
    }
    assert_eq!(gateway.registry.named("x").unwrap().joined(), 0);
}

/// S7: what separates two requests.
#[tokio::test]
async fn s7_method_parameters_credentials_and_cookies_separate_flights() {
    let (upstream, word) = gated(plain).await;
    let gateway =
        TestGateway::start(&[file(upstream.address, "dedup: true\nlimits: [100/1s]")]).await;
    let others = [
        ("GET", "/x/a", vec![]),
        ("HEAD", "/x/a", vec![]),
        ("GET", "/x/a?b=1", vec![]),
        ("GET", "/x/a?b=1&b=2", vec![]),
        ("GET", "/x/a?b=2&b=1", vec![]),
        ("GET", "/x/A", vec![]),
        ("GET", "/x/a", vec![("authorization", "Bearer alice")]),
        ("GET", "/x/a", vec![("authorization", "Bearer bob")]),
        ("GET", "/x/a", vec![("cookie", "who=alice")]),
        ("GET", "/x/a", vec![("x-user", "alice")]),
        ("GET", "/x/a", vec![("accept-language", "de")]),
        ("GET", "/x/a", vec![("range", "bytes=0-1")]),
        ("GET", "/x/a", vec![("x-tollgate-dedup", "no")]),
    ];
    let calls: Vec<_> = others
        .iter()
        .map(|(method, path, headers)| {
            let request = request(method, path, headers, "");
            let address = gateway.address;
            tokio::spawn(async move {
                read_response(Session::open(address).await.send(request).await).await
            })
        })
        .collect();
    wait_until(|| upstream.count() == others.len()).await;
    for _ in &others {
        word.notify_one();
        tokio::task::yield_now().await;
    }
    for call in calls {
        wait_until(|| {
            word.notify_one();
            call.is_finished()
        })
        .await;
        assert_eq!(call.await.unwrap().header("x-tollgate-source"), "upstream");
    }
    assert_eq!(gateway.registry.named("x").unwrap().joined(), 0);
}

/// S7: the modes of `dedup`, by provider and by entity.
#[tokio::test]
async fn s7_an_uncacheable_response_is_shared_only_if_configured() {
    fn uncacheable(_: usize, _: &ReceivedRequest) -> Reply {
        reply(200, &[("cache-control", "no-store")], "x")
    }
    for (response, rest, expected) in [
        (plain as fn(usize, &ReceivedRequest) -> Reply, "", "shared"),
        (plain, "dedup: cacheable", "shared"),
        (plain, "dedup: off", "upstream"),
        (plain, "entities: {dedup: {a: off}}", "upstream"),
        (uncacheable, "dedup: cacheable", "upstream"),
        (uncacheable, "dedup: true", "shared"),
        (uncacheable, "entities: {dedup: {a: true}}", "shared"),
    ] {
        let (upstream, word) = gated(response).await;
        let rest = format!("{rest}\nlimits: [100/1s]");
        let gateway = TestGateway::start(&[file(upstream.address, &rest)]).await;
        let [_, second] = sources_of_two(&gateway, (&upstream, &word), &[], &[]).await;
        assert_eq!(second, expected, "{rest}");
    }
}

/// A private response, or one that varies by an uncompared header, releases the followers.
#[tokio::test]
async fn s7_private_cookie_stream_and_variant_responses_are_not_shared() {
    type Script = fn(usize, &ReceivedRequest) -> Reply;
    let scripts: [(&str, Script); 6] = [
        ("private", |_, _| {
            reply(200, &[("cache-control", "private")], "x")
        }),
        ("cookie", |_, _| reply(200, &[("set-cookie", "a=b")], "x")),
        ("stream", |_, _| {
            reply(200, &[("content-type", "text/event-stream")], "x")
        }),
        ("everything", |_, _| reply(200, &[("vary", "*")], "x")),
        ("agent", |_, _| reply(200, &[("vary", "user-agent")], "x")),
        ("too large", |_, _| reply(200, &[], &"x".repeat(9_000_000))),
    ];
    for (name, script) in scripts {
        let (upstream, word) = gated(script).await;
        let gateway =
            TestGateway::start(&[file(upstream.address, "dedup: true\nlimits: [100/1s]")]).await;
        let (one, two) = ([("user-agent", "one")], [("user-agent", "two")]);
        let sources = sources_of_two(&gateway, (&upstream, &word), &one, &two).await;
        assert_eq!(sources, ["upstream", "upstream"], "{name}");
        assert_eq!(upstream.count(), 2, "{name}");
    }
}

/// Callers do not wait for a response that was not shared the last time.
#[tokio::test]
async fn s7_a_request_whose_response_was_not_shared_does_not_wait_again() {
    let script = |_: usize, _: &ReceivedRequest| reply(200, &[("cache-control", "private")], "x");
    let (upstream, word) = gated(script).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [100/1s]")]).await;
    sources_of_two(&gateway, (&upstream, &word), &[], &[]).await;
    let calls = [spawn_get(&gateway, "/x/a"), spawn_get(&gateway, "/x/a")];
    wait_until(|| upstream.count() == 4).await;
    for call in calls {
        wait_until(|| {
            word.notify_one();
            call.is_finished()
        })
        .await;
    }
}

/// S7, R-C7: the leader may disconnect; its followers still get the one response.
#[tokio::test]
async fn s7_a_leader_that_leaves_does_not_fail_its_followers() {
    let (upstream, word) = gated(plain).await;
    let gateway = TestGateway::start(&[file(upstream.address, "limits: [1/1h]")]).await;
    let active = gateway.registry.named("x").unwrap();
    let first = spawn_get(&gateway, "/x/a");
    wait_until(|| upstream.count() == 1).await;
    let others: Vec<_> = (0..5).map(|_| spawn_get(&gateway, "/x/a")).collect();
    wait_until(|| active.joined() == 5).await;
    first.abort();
    assert!(first.await.is_err());
    others[0].abort();
    word.notify_one();
    for other in others.into_iter().skip(1) {
        assert_eq!(within_timeout(other).await.unwrap().status, 200);
    }
    assert_eq!(upstream.count(), 1);
}

/// The same while it waits for a permit: the followers get its position in the queue.
#[tokio::test]
async fn s7_followers_inherit_the_queue_position_of_a_leader_that_leaves() {
    let busy = BusyProvider::start("").await;
    let first = busy.enqueue("/x/a", &[]).await;
    let second = busy.join("/x/a", &[]).await;
    first.abort();
    assert!(first.await.is_err());
    busy.release_one();
    wait_until(|| busy.upstream.count() == 2).await;
    assert_eq!(busy.finish_all(vec![second]).await, [200]);
    assert_eq!(busy.upstream.count(), 2);
}

/// A flight that all callers have left is never sent.
#[tokio::test]
async fn s7_a_flight_without_callers_is_not_sent() {
    let busy = BusyProvider::start("").await;
    let first = busy.enqueue("/x/a", &[]).await;
    let second = busy.join("/x/a", &[]).await;
    for call in [first, second] {
        call.abort();
        assert!(call.await.is_err());
    }
    let active = busy.provider();
    wait_until(|| active.waiting() == 0).await;
    busy.release_one();
    wait_until(|| busy.busy.is_finished()).await;
    assert_eq!(busy.upstream.count(), 1);
}

/// S7: a follower with a higher priority raises the waiting call to it.
#[tokio::test]
async fn s7_a_high_priority_follower_promotes_a_background_call() {
    let busy = BusyProvider::start("").await;
    let background = busy
        .enqueue("/x/a", &[("x-tollgate-priority", "low")])
        .await;
    let normal = busy.enqueue("/x/normal", &[]).await;
    let urgent = busy.join("/x/a", &[("x-tollgate-priority", "high")]).await;
    let calls = vec![background, urgent, normal];
    assert_eq!(busy.finish_all(calls).await, [200; 3]);
    let received = busy.upstream.requests().into_iter();
    let targets: Vec<_> = received.map(|received| received.target).collect();
    assert_eq!(targets, ["/busy", "/a", "/normal"]);
}

/// S7: each caller has its own deadline. A short one neither ends the flight nor waits for it.
#[tokio::test]
async fn s7_each_caller_has_its_own_deadline() {
    for time in TIMEOUTS {
        let (upstream, word) = gated(plain).await;
        let gateway = TestGateway::start(&[file(upstream.address, "limits: [1/1h]")]).await;
        let active = gateway.registry.named("x").unwrap();
        let short = [("x-tollgate-timeout", time)];
        let first = spawn_get_with(&gateway, "/x/a", &short);
        wait_until(|| upstream.count() == 1 || first.is_finished()).await;
        let patient = spawn_get_with(&gateway, "/x/a", &[("x-tollgate-timeout", "30s")]);
        let short = spawn_get_with(&gateway, "/x/a", &short);
        wait_until(|| active.joined() == 2 || first.is_finished() || short.is_finished()).await;
        if active.joined() < 2 {
            continue; // its time was up before the others were there: a longer one
        }
        assert_eq!(within_timeout(first).await.unwrap().status, 504);
        assert_eq!(within_timeout(short).await.unwrap().status, 504);
        assert!(!patient.is_finished());
        word.notify_one();
        assert_eq!(within_timeout(patient).await.unwrap().status, 200);
        assert_eq!(upstream.count(), 1);
        return;
    }
    panic!("the three never met");
}

const RETRY: &str = "limits: [100/1s]\nhealth: off\nretry: {base: 1ms, max: 1ms, jitter: none, retries: {high: 0, normal: 1, low: 5}}";

/// S7, R-C7: if the leader fails, one of the followers retries, once.
#[tokio::test]
async fn s7_after_a_failed_leader_one_follower_retries() {
    fn down_at_first(number: usize, _: &ReceivedRequest) -> Reply {
        reply(if number == 0 { 503 } else { 200 }, &[], "x")
    }
    let (upstream, word) = gated(down_at_first).await;
    let gateway = TestGateway::start(&[file(upstream.address, RETRY)]).await;
    let active = gateway.registry.named("x").unwrap();
    let first = spawn_get_with(&gateway, "/x/a", &[("x-tollgate-priority", "high")]);
    wait_until(|| upstream.count() == 1).await;
    let others: Vec<_> = (0..4).map(|_| spawn_get(&gateway, "/x/a")).collect();
    wait_until(|| active.joined() == 4).await;
    word.notify_one();
    assert_eq!(within_timeout(first).await.unwrap().status, 503);
    wait_until(|| upstream.count() == 2 && active.joined() == 7).await;
    word.notify_one();
    for other in others {
        assert_eq!(within_timeout(other).await.unwrap().status, 200);
    }
    assert_eq!(upstream.count(), 2);
}

/// A provider that stays down is not called by each follower in turn.
#[tokio::test]
async fn s7_a_persistent_failure_is_shared() {
    let (upstream, word) = gated(|_, _| reply(500, &[], "down")).await;
    let gateway = TestGateway::start(&[file(upstream.address, RETRY)]).await;
    let active = gateway.registry.named("x").unwrap();
    let calls: Vec<_> = (0..50).map(|_| spawn_get(&gateway, "/x/a")).collect();
    // The leader tries twice, then one follower for all that remain; each of them has one retry.
    for (received, joined) in [(1, 49), (2, 49), (3, 97), (4, 97)] {
        wait_until(|| upstream.count() == received && active.joined() == joined).await;
        word.notify_one();
    }
    for call in calls {
        let response = within_timeout(call).await.unwrap();
        assert_eq!((response.status, response.body.as_str()), (500, "down"));
    }
    assert_eq!(upstream.count(), 4);
}
