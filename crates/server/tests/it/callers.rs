//! Configured callers: priorities, shares and tokens.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tollgate_config::Secret;
use tollgate_config::config::Caller;
use tollgate_core::ask::Priority;
use tollgate_core::ratio::Ppm;

use crate::client::{Session, get, get_with, wait_until, within_timeout};
use crate::flights::{gated, plain};
use crate::test_gateway::{TestGateway, file};
use crate::upstream::{Upstream, ok};

const TOKEN: &str = "canary-caller-token-5e";
/// A wait of an hour is known to be longer, so it is rejected at once.
const SOON: (&str, &str) = ("x-tollgate-timeout", "30s");

fn caller(name: &str, priority: Priority) -> Caller {
    Caller {
        name: name.to_owned(),
        priority,
        at_least: None,
        at_most: None,
        token: None,
        guards: None,
    }
}

fn backfill() -> Caller {
    Caller {
        at_most: Some(Ppm::percent(30)),
        token: Some(Secret::new(TOKEN.to_owned())),
        ..caller("backfill", Priority::Low)
    }
}

async fn start(limits: &str, callers: &[Caller]) -> (Upstream, TestGateway) {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let gateway = TestGateway::start(&[file(upstream.address, limits)]).await;
    gateway.registry.set_callers(callers);
    (upstream, gateway)
}

/// A caller with a token is recognised only with it, however it is sent; the token is not
/// forwarded.
#[tokio::test]
async fn a_caller_with_a_token_must_send_it() {
    let (upstream, gateway) = start("limits: [100/1h]", &[backfill()]).await;
    // `backfill:` and the token, as clients of a proxy send it.
    let basic = "Basic YmFja2ZpbGw6Y2FuYXJ5LWNhbGxlci10b2tlbi01ZQ==";
    for (path, headers, status) in [
        ("/x/a", &[][..], 200),
        ("/x@backfill/a", &[], 403),
        ("/x/a", &[("x-tollgate-caller", "backfill")], 403),
        ("/x@backfill/a", &[("x-tollgate-token", "wrong")], 403),
        ("/x@backfill/a", &[("x-tollgate-token", TOKEN)], 200),
        ("/x/a", &[("proxy-authorization", basic)], 200),
        ("/x/a", &[("proxy-authorization", "Basic !")], 200),
        ("/x@other/a", &[("x-tollgate-token", "anything")], 200),
    ] {
        let response = get_with(gateway.address, path, headers).await;
        assert_eq!(
            response.status, status,
            "{path} {headers:?} {}",
            response.body
        );
        if status == 403 {
            assert_eq!(response.json()["error"], "CallerNotAllowed");
        }
        assert!(!response.everything().contains(TOKEN));
    }
    for received in upstream.requests() {
        let sent = format!("{:?} {}", received.headers, received.target);
        assert!(
            !sent.contains("x-tollgate") && !sent.contains("proxy-auth") && !sent.contains(TOKEN)
        );
    }
    assert!(!crate::log::captured().contains(TOKEN));
}

/// A caller that sends only its name, as a proxy user or in the path, gets its share and priority.
#[tokio::test]
async fn a_caller_can_be_named_by_proxy_user_or_address_alone() {
    let (_upstream, at_proxy) = start("limits: [10/1h]", &[backfill()]).await;
    // `backfill:` and the token.
    let basic = "Basic YmFja2ZpbGw6Y2FuYXJ5LWNhbGxlci10b2tlbi01ZQ==";
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let shown = [("proxy-authorization", basic)];
        statuses.push(get_with(at_proxy.address, "/x/a", &shown).await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429]);
    let web = [caller("web", Priority::High)];
    let (_upstream, named) = start("limits: [{limit: 2, period: 1h, reserve: 1}]", &web).await;
    let mut statuses = Vec::new();
    for path in ["/x/a", "/x/a", "/x@web/a"] {
        statuses.push(get(named.address, path).await.status);
    }
    assert_eq!(statuses, [200, 429, 200]);
}

/// `at_most`: a share of every limit and no more, whatever is free.
#[tokio::test]
async fn a_caller_gets_at_most_its_share() {
    let (_upstream, gateway) = start("limits: [10/1h]", &[backfill()]).await;
    let token = ("x-tollgate-token", TOKEN);
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(
            get_with(gateway.address, "/x@backfill/a", &[SOON, token])
                .await
                .status,
        );
    }
    assert_eq!(statuses, [200, 200, 200, 429]);
    let rejected = get_with(gateway.address, "/x@backfill/a", &[SOON, token]).await;
    assert_eq!(rejected.json()["limit"], "10/1h (the caller's share)");
    for _ in 0..7 {
        assert_eq!(get_with(gateway.address, "/x/a", &[SOON]).await.status, 200);
    }
    assert_eq!(get_with(gateway.address, "/x/a", &[SOON]).await.status, 429);
}

/// R-C2: the configuration caps the priority of a caller: the reserve is for high-priority calls.
#[tokio::test]
async fn r_c2_the_configuration_caps_the_priority_of_a_caller() {
    let callers = [
        caller("web", Priority::High),
        caller("job", Priority::Normal),
    ];
    let (_upstream, gateway) =
        start("limits: [{limit: 3, period: 1h, reserve: 2}]", &callers).await;
    assert_eq!(get_with(gateway.address, "/x/a", &[SOON]).await.status, 200);
    let high = ("x-tollgate-priority", "high");
    for path in ["/x/a", "/x@job/a", "/x@stranger/a"] {
        assert_eq!(
            get_with(gateway.address, path, &[SOON, high]).await.status,
            429,
            "{path}"
        );
    }
    for _ in 0..2 {
        // It sends no priority: the configuration sets it.
        assert_eq!(
            get_with(gateway.address, "/x@web/a", &[SOON]).await.status,
            200
        );
    }
}

/// `at_least` reaches the gate: under load the guaranteed half holds, and a reload removes it.
#[tokio::test]
async fn a_caller_gets_at_least_its_share_under_load() {
    let word = Arc::new(Semaphore::new(0));
    let heard = word.clone();
    let upstream = Upstream::start(move |_, _| {
        let heard = heard.clone();
        async move {
            drop(heard.acquire().await.unwrap());
            ok()
        }
    })
    .await;
    let rest = "dedup: off\nconcurrency: 1\nlimits: [1000/1s]";
    let gateway = TestGateway::start(&[file(upstream.address, rest)]).await;
    gateway.registry.set_callers(&[
        Caller {
            at_least: Some(Ppm::percent(50)),
            ..caller("web", Priority::Normal)
        },
        caller("flood", Priority::High),
    ]);
    let address = gateway.address;
    let call = |path: &'static str| tokio::spawn(async move { get(address, path).await });
    let first = call("/x/first");
    wait_until(|| upstream.count() == 1).await;
    let flood: Vec<_> = (0..12).map(|_| call("/x@flood/f")).collect();
    let web: Vec<_> = (0..4).map(|_| call("/x@web/w")).collect();
    let active = gateway.registry.named("x").unwrap();
    // No call gets a response before all are queued, however long that takes.
    wait_until(|| active.waiting() == 16).await;
    word.add_permits(1);
    for call in flood.into_iter().chain(web).chain([first]) {
        assert_eq!(within_timeout(call).await.unwrap().status, 200);
    }
    let order: Vec<String> = upstream
        .requests()
        .iter()
        .map(|received| received.target.clone())
        .collect();
    let among_first = order
        .iter()
        .take(12)
        .filter(|target| *target == "/w")
        .count();
    assert!(
        among_first >= 3,
        "lower priority, with a guaranteed half: {order:?}"
    );
}

/// S7, R-C2: a caller with its own limits waits under them, not under those of another caller with
/// the same request: a share of every limit, a limit per caller, a limit per address.
#[tokio::test]
async fn s7_callers_with_their_own_limits_do_not_share_a_permit() {
    let own = |per| format!("limits: [1000/1s, {{limit: 1000, period: 1s, per: {per}}}]");
    let token = ("x-tollgate-token", TOKEN);
    let elsewhere = [127, 0, 0, 2];
    let here = [127, 0, 0, 1];
    for (limits, calls, expected) in [
        ("limits: [1000/1s]".to_owned(), [("/x/a", here); 2], 1),
        (
            "limits: [1000/1s]".to_owned(),
            [("/x/a", here), ("/x@web/a", elsewhere)],
            1,
        ),
        (
            "limits: [1000/1s]".to_owned(),
            [("/x/a", here), ("/x@backfill/a", here)],
            2,
        ),
        (own("caller"), [("/x@web/a", here), ("/x@job/a", here)], 2),
        (own("caller"), [("/x@web/a", here); 2], 1),
        (own("ip"), [("/x/a", here), ("/x/a", elsewhere)], 2),
        (own("ip"), [("/x/a", here); 2], 1),
    ] {
        let (upstream, word) = gated(plain).await;
        let gateway = TestGateway::start(&[file(upstream.address, &limits)]).await;
        gateway.registry.set_callers(&[backfill()]);
        let active = gateway.registry.named("x").unwrap();
        let received = calls.map(|(path, from)| {
            let to = gateway.address;
            tokio::spawn(async move {
                Session::from(from.into(), to)
                    .await
                    .get(path, &[token])
                    .await
            })
        });
        wait_until(|| upstream.count() + usize::try_from(active.joined()).unwrap() == 2).await;
        assert_eq!(upstream.count(), expected, "{limits} {calls:?}");
        for call in received {
            wait_until(|| {
                word.notify_one();
                call.is_finished()
            })
            .await;
            assert_eq!(call.await.unwrap().status, 200, "{limits} {calls:?}");
        }
    }
}
