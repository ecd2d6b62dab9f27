//! Identical calls at the same time are one upstream call, over real sockets.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tollgate::shop::Live;

use crate::client::{Answer, Session, TIMES, get_with, request, soon, until, whole};
use crate::stand::{Stand, file};
use crate::upstream::{Asked, Reply, Upstream, reply};

/// An upstream whose answers wait for a word.
pub(crate) async fn gated(answer: fn(usize, &Asked) -> Reply) -> (Upstream, Arc<Notify>) {
    let word = Arc::new(Notify::new());
    let heard = word.clone();
    let upstream = Upstream::start(move |number, asked| {
        let heard = heard.clone();
        async move {
            heard.notified().await;
            answer(number, &asked)
        }
    })
    .await;
    (upstream, word)
}

pub(crate) fn plain(_: usize, asked: &Asked) -> Reply {
    reply(200, &[("etag", "\"a\"")], &asked.target)
}

pub(crate) fn ask(stand: &Stand, path: &str) -> JoinHandle<Answer> {
    ask_with(stand, path, &[])
}

pub(crate) fn ask_with(
    stand: &Stand,
    path: &str,
    headers: &[(&'static str, &'static str)],
) -> JoinHandle<Answer> {
    let (address, path, headers) = (stand.address, path.to_owned(), headers.to_vec());
    tokio::spawn(async move { get_with(address, &path, &headers).await })
}

/// A provider that takes one call at a time, with one on its way: whoever comes stands in line.
pub(crate) struct Line {
    pub(crate) upstream: Upstream,
    pub(crate) stand: Stand,
    word: Arc<Notify>,
    busy: JoinHandle<Answer>,
}

impl Line {
    pub(crate) async fn with(rest: &str) -> Line {
        let (upstream, word) = gated(plain).await;
        let rest = format!("concurrency: 1\nlimits: [100/1s]\n{rest}");
        let stand = Stand::open(&[file(upstream.address, &rest)]).await;
        let busy = ask(&stand, "/x/busy");
        until(|| upstream.count() == 1).await;
        Line {
            upstream,
            stand,
            word,
            busy,
        }
    }

    pub(crate) fn live(&self) -> Arc<Live> {
        self.stand.shop.named("x").unwrap()
    }

    /// A call that stands in line by itself.
    pub(crate) async fn waiting(
        &self,
        path: &str,
        headers: &[(&'static str, &'static str)],
    ) -> JoinHandle<Answer> {
        let (live, before) = (self.live(), self.live().waiting());
        let call = ask_with(&self.stand, path, headers);
        until(|| live.waiting() == before + 1).await;
        call
    }

    /// A call that joins one that stands there.
    pub(crate) async fn joins(
        &self,
        path: &str,
        headers: &[(&'static str, &'static str)],
    ) -> JoinHandle<Answer> {
        let (live, before) = (self.live(), self.live().joined());
        let call = ask_with(&self.stand, path, headers);
        until(|| live.joined() == before + 1).await;
        call
    }

    /// Lets everybody through, one by one, and says what they were told.
    pub(crate) async fn ends(&self, calls: Vec<JoinHandle<Answer>>) -> Vec<u16> {
        let mut statuses = Vec::new();
        for call in calls {
            until(|| {
                self.word.notify_one();
                call.is_finished()
            })
            .await;
            statuses.push(soon(call).await.unwrap().status);
        }
        assert!(self.busy.is_finished());
        statuses
    }

    /// Lets one through.
    fn next(&self) {
        self.word.notify_one();
    }
}

/// Asks twice, the second while the first is on its way, and says where the answers came from.
async fn twice(
    stand: &Stand,
    (upstream, word): (&Upstream, &Notify),
    first: &[(&'static str, &'static str)],
    second: &[(&'static str, &'static str)],
) -> [String; 2] {
    let before = upstream.count();
    let joined = stand.shop.named("x").unwrap().joined();
    let first = ask_with(stand, "/x/a", first);
    until(|| upstream.count() == before + 1).await;
    let second = ask_with(stand, "/x/a", second);
    let live = stand.shop.named("x").unwrap();
    until(|| live.joined() > joined || upstream.count() == before + 2).await;
    let mut sources = [String::new(), String::new()];
    word.notify_one();
    let mut second = Some(second);
    let first = soon(first).await.unwrap();
    first
        .header("x-tollgate-source")
        .clone_into(&mut sources[0]);
    if upstream.count() == before + 2 {
        word.notify_one();
    }
    // Released at the head, it goes its own way.
    let second = second.take().unwrap();
    until(|| second.is_finished() || upstream.count() == before + 2).await;
    word.notify_one();
    let second = soon(second).await.unwrap();
    assert_eq!(second.status, first.status);
    second
        .header("x-tollgate-source")
        .clone_into(&mut sources[1]);
    sources
}

/// S7, S3: a thousand at once are one upstream call and one permit, and all get the whole answer.
#[tokio::test]
async fn s7_a_thousand_identical_calls_are_one() {
    let (upstream, word) = gated(plain).await;
    let stand = Stand::open(&[file(upstream.address, "limits: [1/1h]")]).await;
    let live = stand.shop.named("x").unwrap();
    let calls: Vec<_> = (0..1_000)
        // The order of parameters is nobody's question.
        .map(|n| ask(&stand, ["/x/a?b=1&c=2", "/x/a?c=2&b=1"][n % 2]))
        .collect();
    until(|| live.joined() == 999).await;
    word.notify_one();
    let mut sources = [0, 0];
    let mut bodies = std::collections::HashSet::new();
    for call in calls {
        let answer = soon(call).await.unwrap();
        assert_eq!(answer.status, 200);
        bodies.insert(answer.body.clone());
        match answer.header("x-tollgate-source") {
            "upstream" => sources[0] += 1,
            "shared" => sources[1] += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!((upstream.count(), sources, bodies.len()), (1, [1, 999], 1));
    assert_eq!(live.shared(), 999);
}

/// S3: cache, then flight, then permit, then the call, and then the cache again.
#[tokio::test]
async fn s3_what_is_kept_or_on_its_way_costs_no_permit() {
    let (upstream, word) = gated(plain).await;
    let rest = "cache: {ttl: 1h}\nlimits: [1/1h]";
    let stand = Stand::open(&[file(upstream.address, rest)]).await;
    let live = stand.shop.named("x").unwrap();
    let calls: Vec<_> = (0..10).map(|_| ask(&stand, "/x/a")).collect();
    until(|| live.joined() == 9).await;
    word.notify_one();
    for call in calls {
        assert_eq!(soon(call).await.unwrap().status, 200);
    }
    let later = soon(ask(&stand, "/x/a")).await.unwrap();
    assert_eq!(
        (later.status, later.header("x-tollgate-source")),
        (200, "cache")
    );
    let other = ask_with(&stand, "/x/b", &[("x-tollgate-timeout", "30s")]);
    assert_eq!(soon(other).await.unwrap().status, 429, "one permit an hour");
    assert_eq!(upstream.count(), 1);
}

/// S7: a client's conditions are its own, whatever the cache asks the provider.
#[tokio::test]
async fn s7_a_client_with_a_condition_does_not_share_with_one_without() {
    let (upstream, word) = gated(plain).await;
    let rest = "cache: {ttl: 1h}\nlimits: [100/1s]";
    let stand = Stand::open(&[file(upstream.address, rest)]).await;
    let condition = [("if-none-match", "\"a\"")];
    let calls = [ask_with(&stand, "/x/a", &condition), ask(&stand, "/x/a")];
    until(|| upstream.count() == 2).await;
    for call in calls {
        until(|| {
            word.notify_one();
            call.is_finished()
        })
        .await;
    }
    assert_eq!(stand.shop.named("x").unwrap().joined(), 0);
}

/// S7: what tells two questions apart.
#[tokio::test]
async fn s7_another_method_parameter_credential_or_cookie_is_another_question() {
    let (upstream, word) = gated(plain).await;
    let stand = Stand::open(&[file(upstream.address, "dedup: true\nlimits: [100/1s]")]).await;
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
            let address = stand.address;
            tokio::spawn(
                async move { whole(Session::open(address).await.send(request).await).await },
            )
        })
        .collect();
    until(|| upstream.count() == others.len()).await;
    for _ in &others {
        word.notify_one();
        tokio::task::yield_now().await;
    }
    for call in calls {
        until(|| {
            word.notify_one();
            call.is_finished()
        })
        .await;
        assert_eq!(call.await.unwrap().header("x-tollgate-source"), "upstream");
    }
    assert_eq!(stand.shop.named("x").unwrap().joined(), 0);
}

/// S7: the modes of `dedup`, by provider and by entity.
#[tokio::test]
async fn s7_what_may_not_be_cached_is_shared_only_where_the_file_says_so() {
    fn unkept(_: usize, _: &Asked) -> Reply {
        reply(200, &[("cache-control", "no-store")], "x")
    }
    for (answer, rest, expected) in [
        (plain as fn(usize, &Asked) -> Reply, "", "shared"),
        (plain, "dedup: cacheable", "shared"),
        (plain, "dedup: off", "upstream"),
        (plain, "entities: {dedup: {a: off}}", "upstream"),
        (unkept, "dedup: cacheable", "upstream"),
        (unkept, "dedup: true", "shared"),
        (unkept, "entities: {dedup: {a: true}}", "shared"),
    ] {
        let (upstream, word) = gated(answer).await;
        let rest = format!("{rest}\nlimits: [100/1s]");
        let stand = Stand::open(&[file(upstream.address, &rest)]).await;
        let [_, second] = twice(&stand, (&upstream, &word), &[], &[]).await;
        assert_eq!(second, expected, "{rest}");
    }
}

/// What is one user's, or varies by what is not compared, releases those who wait.
#[tokio::test]
async fn s7_private_answers_cookies_streams_and_other_variants_are_not_shared() {
    type Script = fn(usize, &Asked) -> Reply;
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
        let stand = Stand::open(&[file(upstream.address, "dedup: true\nlimits: [100/1s]")]).await;
        let (one, two) = ([("user-agent", "one")], [("user-agent", "two")]);
        let sources = twice(&stand, (&upstream, &word), &one, &two).await;
        assert_eq!(sources, ["upstream", "upstream"], "{name}");
        assert_eq!(upstream.count(), 2, "{name}");
    }
}

/// Callers do not wait for an answer that was not for them the last time.
#[tokio::test]
async fn s7_a_question_whose_answer_was_not_shared_is_not_waited_for_again() {
    let script = |_: usize, _: &Asked| reply(200, &[("cache-control", "private")], "x");
    let (upstream, word) = gated(script).await;
    let stand = Stand::open(&[file(upstream.address, "limits: [100/1s]")]).await;
    twice(&stand, (&upstream, &word), &[], &[]).await;
    let calls = [ask(&stand, "/x/a"), ask(&stand, "/x/a")];
    until(|| upstream.count() == 4).await;
    for call in calls {
        until(|| {
            word.notify_one();
            call.is_finished()
        })
        .await;
    }
}

/// S7, R-C7: who asked first may leave; those who wait get the one answer all the same.
#[tokio::test]
async fn s7_a_first_caller_that_leaves_takes_nobody_with_it() {
    let (upstream, word) = gated(plain).await;
    let stand = Stand::open(&[file(upstream.address, "limits: [1/1h]")]).await;
    let live = stand.shop.named("x").unwrap();
    let first = ask(&stand, "/x/a");
    until(|| upstream.count() == 1).await;
    let others: Vec<_> = (0..5).map(|_| ask(&stand, "/x/a")).collect();
    until(|| live.joined() == 5).await;
    first.abort();
    assert!(first.await.is_err());
    others[0].abort();
    word.notify_one();
    for other in others.into_iter().skip(1) {
        assert_eq!(soon(other).await.unwrap().status, 200);
    }
    assert_eq!(upstream.count(), 1);
}

/// The same while it waits for a permit: the others get its place in line.
#[tokio::test]
async fn s7_a_first_caller_that_leaves_the_line_leaves_its_place() {
    let line = Line::with("").await;
    let first = line.waiting("/x/a", &[]).await;
    let second = line.joins("/x/a", &[]).await;
    first.abort();
    assert!(first.await.is_err());
    line.next();
    until(|| line.upstream.count() == 2).await;
    assert_eq!(line.ends(vec![second]).await, [200]);
    assert_eq!(line.upstream.count(), 2);
}

/// A flight that everybody has left is never sent.
#[tokio::test]
async fn s7_a_flight_that_everybody_leaves_is_not_sent() {
    let line = Line::with("").await;
    let first = line.waiting("/x/a", &[]).await;
    let second = line.joins("/x/a", &[]).await;
    for call in [first, second] {
        call.abort();
        assert!(call.await.is_err());
    }
    let live = line.live();
    until(|| live.waiting() == 0).await;
    line.next();
    until(|| line.busy.is_finished()).await;
    assert_eq!(line.upstream.count(), 1);
}

/// S7: one more urgent that joins makes the waiting call as urgent.
#[tokio::test]
async fn s7_an_urgent_joiner_promotes_a_background_call() {
    let line = Line::with("").await;
    let background = line
        .waiting("/x/a", &[("x-tollgate-priority", "low")])
        .await;
    let normal = line.waiting("/x/normal", &[]).await;
    let urgent = line.joins("/x/a", &[("x-tollgate-priority", "high")]).await;
    let calls = vec![background, urgent, normal];
    assert_eq!(line.ends(calls).await, [200; 3]);
    let asked = line.upstream.asked().into_iter();
    let targets: Vec<_> = asked.map(|asked| asked.target).collect();
    assert_eq!(targets, ["/busy", "/a", "/normal"]);
}

/// S7: each has its own time. One that is short neither ends the flight nor waits for it.
#[tokio::test]
async fn s7_each_caller_has_its_own_time() {
    for time in TIMES {
        let (upstream, word) = gated(plain).await;
        let stand = Stand::open(&[file(upstream.address, "limits: [1/1h]")]).await;
        let live = stand.shop.named("x").unwrap();
        let short = [("x-tollgate-timeout", time)];
        let first = ask_with(&stand, "/x/a", &short);
        until(|| upstream.count() == 1 || first.is_finished()).await;
        let patient = ask_with(&stand, "/x/a", &[("x-tollgate-timeout", "30s")]);
        let short = ask_with(&stand, "/x/a", &short);
        until(|| live.joined() == 2 || first.is_finished() || short.is_finished()).await;
        if live.joined() < 2 {
            continue; // its time was up before the others were there: a longer one
        }
        assert_eq!(soon(first).await.unwrap().status, 504);
        assert_eq!(soon(short).await.unwrap().status, 504);
        assert!(!patient.is_finished());
        word.notify_one();
        assert_eq!(soon(patient).await.unwrap().status, 200);
        assert_eq!(upstream.count(), 1);
        return;
    }
    panic!("the three never met");
}

const RETRY: &str = "limits: [100/1s]\nhealth: off\nretry: {base: 1ms, max: 1ms, jitter: none, retries: {high: 0, normal: 1, low: 5}}";

/// S7, R-C7: if the first one fails, one of the others goes next, once.
#[tokio::test]
async fn s7_a_first_caller_that_fails_is_followed_by_one_that_may_try_again() {
    fn down_at_first(number: usize, _: &Asked) -> Reply {
        reply(if number == 0 { 503 } else { 200 }, &[], "x")
    }
    let (upstream, word) = gated(down_at_first).await;
    let stand = Stand::open(&[file(upstream.address, RETRY)]).await;
    let live = stand.shop.named("x").unwrap();
    let first = ask_with(&stand, "/x/a", &[("x-tollgate-priority", "high")]);
    until(|| upstream.count() == 1).await;
    let others: Vec<_> = (0..4).map(|_| ask(&stand, "/x/a")).collect();
    until(|| live.joined() == 4).await;
    word.notify_one();
    assert_eq!(soon(first).await.unwrap().status, 503);
    until(|| upstream.count() == 2 && live.joined() == 7).await;
    word.notify_one();
    for other in others {
        assert_eq!(soon(other).await.unwrap().status, 200);
    }
    assert_eq!(upstream.count(), 2);
}

/// A provider that stays down is not asked by everybody in turn.
#[tokio::test]
async fn s7_a_failure_that_stays_is_shared() {
    let (upstream, word) = gated(|_, _| reply(500, &[], "down")).await;
    let stand = Stand::open(&[file(upstream.address, RETRY)]).await;
    let live = stand.shop.named("x").unwrap();
    let calls: Vec<_> = (0..50).map(|_| ask(&stand, "/x/a")).collect();
    // The first tries twice, then one of the others for all that are left; each of them has one retry.
    for (asked, joined) in [(1, 49), (2, 49), (3, 97), (4, 97)] {
        until(|| upstream.count() == asked && live.joined() == joined).await;
        word.notify_one();
    }
    for call in calls {
        let answer = soon(call).await.unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (500, "down"));
    }
    assert_eq!(upstream.count(), 4);
}
