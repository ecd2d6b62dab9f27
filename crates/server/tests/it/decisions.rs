//! The decision service over HTTP: permits for calls that the caller makes itself. The simulated
//! provider's own log judges.

use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{Clock, Ledger, ManualClock};
use tollgate_sim::http::{Settings, SimProvider};

use crate::client::{ClientResponse, get, wait_until, within_timeout};
use crate::test_daemon::{TestDaemon, from_file, write_file};
use crate::upstream::{Upstream, ok};

async fn sim(rules: &str) -> SimProvider {
    let settings = Settings::with_rules(rules).expect("rules");
    SimProvider::start(settings).await.expect("a free port")
}

/// A ledger whose time stands still until the test moves it.
pub(crate) fn frozen_ledger() -> (Ledger, Arc<ManualClock>) {
    let clock = ManualClock::new(Now {
        at: Micros(1_000_000_000),
        wall: Wall(1_772_323_200_000_000),
    });
    (Ledger::memory(Clock::Manual(clock.clone())), clock)
}

/// A daemon with one provider `x`, at a time that stands still, so that times are exact.
pub(crate) async fn frozen(file: &str, rest: &str) -> (TestDaemon, Arc<ManualClock>) {
    write_file(file, &format!("name: x\ndomain: api.example.org\n{rest}\n"));
    let (ledger, clock) = frozen_ledger();
    let daemon = TestDaemon::start_on(ledger, from_file(file), Default::default(), None).await;
    (daemon, clock)
}

async fn post(daemon: &TestDaemon, path: &str, body: &Value) -> ClientResponse {
    daemon.request("POST", path, &body.to_string()).await
}

async fn acquire(daemon: &TestDaemon, body: &Value) -> ClientResponse {
    post(daemon, "/v1/acquire", body).await
}

fn permit(granted: &ClientResponse) -> String {
    assert_eq!(granted.status, 200, "{granted:?}");
    granted.json()["permit"]
        .as_str()
        .expect("a permit")
        .to_owned()
}

/// Twelve callers ask, make their calls themselves and report. Some never report, some give their
/// permit back: the provider counts no call too many.
#[tokio::test]
async fn permits_of_other_processes_keep_the_providers_limit() {
    let provider = sim("sliding 4/1s").await;
    write_file(
        "decide-sim.yaml",
        &crate::test_gateway::file(
            provider.address(),
            "limits: [4/1s]\ntimeout: {first_byte: 1s}",
        ),
    );
    let daemon = Arc::new(TestDaemon::start(from_file("decide-sim.yaml")).await);
    let to = provider.address();
    let mut callers = tokio::task::JoinSet::new();
    for number in 0..12 {
        let daemon = daemon.clone();
        callers.spawn(async move {
            let granted = acquire(&daemon, &json!({"provider": "x", "timeout": 25})).await;
            let permit = permit(&granted);
            if number % 4 == 3 {
                let released = post(&daemon, "/v1/release", &json!({"permit": permit})).await;
                assert_eq!(released.status, 200, "{released:?}");
                return 0;
            }
            let status = get(to, &format!("/{number}")).await.status;
            let report = json!({"permit": permit, "status": status, "latency": 0.012});
            let reported = post(&daemon, "/v1/report", &report).await;
            assert_eq!(reported.status, 200, "{reported:?}");
            1
        });
    }
    let mut made = 0;
    while let Some(done) = within_timeout(callers.join_next()).await {
        made += done.expect("no panic");
    }
    let report = provider.stop().await;
    assert_eq!((report.violations, report.accepted, made), (0, 9, 9));
}

/// A denial after a wait had `retry_in: null`, and the hint to come back after it.
#[tokio::test]
async fn a_denial_after_a_wait_says_when_to_come_back() {
    let rest = "limits: [1/1h]\ntimeout: {first_byte: 5s}";
    write_file(
        "decide-late.yaml",
        &format!("name: x\ndomain: api.example.org\n{rest}\n"),
    );
    let daemon = TestDaemon::start(from_file("decide-late.yaml")).await;
    permit(&acquire(&daemon, &json!({"provider": "x"})).await);
    let late = acquire(&daemon, &json!({"provider": "x", "timeout": 0.2})).await;
    assert_eq!(late.status, 429, "{late:?}");
    let retry_in = late.json()["retry_in"].as_f64().expect("a time");
    assert!(retry_in > 3_600.0, "{late:?}");
    assert!(!late.header("retry-after").is_empty(), "{late:?}");
}

/// Every field of the contract; the time is exact to the millisecond and rounded up.
#[tokio::test]
async fn a_denial_names_its_limit_and_the_exact_time() {
    let rest = "limits: [{limit: 2, period: 10s, algorithm: fixed-window}, 1000/1d]";
    let (daemon, clock) = frozen("decide-deny.yaml", rest).await;
    let first = acquire(&daemon, &json!({"provider": "x"})).await;
    assert_eq!(first.header("x-tollgate-decision"), "allow");
    let body = first.json();
    let permit = body["permit"].as_str().expect("a permit");
    assert!(permit.len() >= 16, "{body}");
    let expected = json!({
        "granted": true, "permit": permit, "waited": 0.0, "retry_in": null,
        "limit": {"name": "2/10s", "limit": 2, "period": "10s", "scope": "provider"},
        "remaining": 1, "reason": null, "decision": "allow", "use_within": 30.0,
    });
    assert_eq!(body, expected);
    let second = acquire(&daemon, &json!({"url": "https://api.example.org/a"})).await;
    for permit in [permit, &self::permit(&second)] {
        let reported = post(&daemon, "/v1/report", &json!({"permit": permit})).await;
        assert_eq!(reported.json()["class"], "other", "{reported:?}");
    }
    clock.pass(Span(1_000_001));
    let denied = acquire(&daemon, &json!({"provider": "x", "wait": false})).await;
    assert_eq!(denied.status, 429, "{denied:?}");
    let body = denied.json();
    assert_eq!(body["limit"]["name"], "2/10s");
    assert_eq!(body["granted"], false);
    assert_eq!(body["permit"], Value::Null);
    assert_eq!(body["error"], "RateLimitExceeded");
    assert_eq!(body["reason"], "limit");
    assert_eq!(body["decision"], "reject");
    assert_eq!(body["remaining"], 0);
    let retry_in = body["retry_in"].as_f64().expect("a time");
    let millis: f64 = denied.header("retry-after-ms").parse().unwrap();
    assert!((retry_in * 1_000.0 - millis).abs() < 0.001, "{body}");
    let seconds: f64 = denied.header("retry-after").parse().unwrap();
    assert!(
        seconds >= retry_in && seconds < retry_in + 1.0,
        "{denied:?}"
    );
    // One millisecond earlier it is still denied; then it is granted.
    let last = Span::from_millis(denied.header("retry-after-ms").parse().unwrap());
    clock.pass(last - Span::from_millis(1));
    let early = acquire(&daemon, &json!({"provider": "x", "wait": false})).await;
    assert_eq!(early.status, 429, "{early:?}");
    clock.pass(Span::from_millis(1));
    assert_eq!(
        acquire(&daemon, &json!({"provider": "x", "wait": false}))
            .await
            .status,
        200
    );
}

/// A costly call that is denied learns what is left, and what can never be granted has no time.
#[tokio::test]
async fn a_costly_call_learns_what_remains() {
    let rest = "limits: [{name: tpm, limit: 100, period: 1h, unit: tokens}]";
    let (daemon, _) = frozen("decide-costly.yaml", rest).await;
    let cost = |tokens: u64| json!({"provider": "x", "cost": {"tokens": tokens}, "wait": false});
    assert_eq!(acquire(&daemon, &cost(70)).await.json()["remaining"], 30);
    let denied = acquire(&daemon, &cost(31)).await.json();
    assert_eq!(
        (&denied["remaining"], &denied["limit"]["name"]),
        (&30.into(), &"tpm".into())
    );
    let never = acquire(&daemon, &cost(101)).await;
    let body = never.json();
    assert_eq!((never.status, &body["reason"]), (429, &"too_costly".into()));
    assert_eq!(
        (&body["retry_in"], never.header("retry-after")),
        (&Value::Null, "")
    );
    let text = json!({"provider": "x", "tokens": "tokens=30", "wait": false});
    assert_eq!(acquire(&daemon, &text).await.status, 200);
}

#[tokio::test]
async fn a_report_is_idempotent_and_a_release_gives_the_permit_back() {
    let (daemon, _) = frozen("decide-report.yaml", "limits: [1/10s]").await;
    let ask = json!({"provider": "x", "wait": false});
    let first = permit(&acquire(&daemon, &ask).await);
    let shown = async || {
        let status = daemon.request("GET", "/v1/providers/x", "").await.json();
        status["permits"].clone()
    };
    assert_eq!(
        shown().await,
        json!({"open": 1, "unreported": 0}),
        "held, and shown"
    );
    assert_eq!(acquire(&daemon, &ask).await.status, 429);
    for _ in 0..2 {
        let released = post(&daemon, "/v1/release", &json!({"permit": first})).await;
        assert_eq!(released.status, 200, "{released:?}");
    }
    let late = post(
        &daemon,
        "/v1/report",
        &json!({"permit": first, "status": 200}),
    )
    .await;
    assert_eq!(
        (late.status, &late.json()["error"]),
        (409, &"AlreadyReleased".into())
    );
    let second = permit(&acquire(&daemon, &ask).await);
    let limited = json!({"permit": second, "status": 429, "headers": {"Retry-After": 30}});
    let reported = post(&daemon, "/v1/report", &limited).await.json();
    assert_eq!(
        reported,
        json!({"reported": true, "first": true, "class": "limited", "retry_in": 30.0})
    );
    let again = post(
        &daemon,
        "/v1/report",
        &json!({"permit": second, "status": 200}),
    )
    .await
    .json();
    assert_eq!(
        (&again["first"], &again["class"]),
        (&false.into(), &"limited".into())
    );
    let used = post(&daemon, "/v1/release", &json!({"permit": second})).await;
    assert_eq!(
        (used.status, &used.json()["error"]),
        (409, &"AlreadyReported".into())
    );
    let cooling = acquire(&daemon, &ask).await.json();
    assert_eq!(
        cooling["reason"], "cooldown",
        "what was reported holds for everybody: {cooling}"
    );
    assert_eq!(shown().await, json!({"open": 0, "unreported": 0}));
}

/// Nobody knows whether it was used: it counts as sent, and the status says so.
#[tokio::test]
async fn an_unreported_permit_counts_as_sent_and_is_shown() {
    let rest = "limits: [1/10s]\ntimeout: {first_byte: 5s}\nlate_arrival: 1s";
    let (daemon, clock) = frozen("decide-unreported.yaml", rest).await;
    let ask = json!({"provider": "x", "wait": false});
    let lost = permit(&acquire(&daemon, &ask).await);
    clock.pass(Span::from_secs(35)); // 30 s to use it, 5 s for the response
    let status = daemon.request("GET", "/v1/providers/x", "").await.json();
    assert_eq!(status["permits"], json!({"open": 0, "unreported": 1}));
    clock.pass(Span::from_secs(9));
    assert_eq!(acquire(&daemon, &ask).await.status, 429);
    let late = post(
        &daemon,
        "/v1/report",
        &json!({"permit": lost, "status": 200}),
    )
    .await;
    assert_eq!(
        (late.status, &late.json()["error"]),
        (404, &"UnknownPermit".into())
    );
    clock.pass(Span::from_secs(14)); // it can no longer arrive, and the window is over
    let next = acquire(&daemon, &ask).await;
    assert_eq!(next.status, 200, "{next:?}");
}

/// H6: the scheduler asks as often as it likes, and nothing is consumed.
#[tokio::test]
async fn h6_capacity_consumes_nothing_and_says_when() {
    let rest = "limits: [{limit: 3, period: 10s, reserve: 1}]";
    let (daemon, _) = frozen("decide-capacity.yaml", rest).await;
    let capacity = async |query: &str| {
        let path = format!("/v1/capacity?{query}");
        daemon.request("GET", &path, "").await.json()
    };
    for _ in 0..5 {
        let found = capacity("provider=x").await;
        assert_eq!(
            (
                &found["available"],
                &found["retry_in"],
                &found["remaining"],
                &found["state"]
            ),
            (&true.into(), &json!(0.0), &2.into(), &"normal".into()),
            "{found}"
        );
    }
    let url = "url=https%3A%2F%2Fapi.example.org%2Fa&priority=high";
    assert_eq!(
        capacity(url).await["remaining"],
        3,
        "the reserve is for high priority"
    );
    assert_eq!(
        capacity("provider=x&cost=2").await["remaining"],
        1,
        "calls of this cost"
    );
    for _ in 0..2 {
        assert_eq!(
            acquire(&daemon, &json!({"provider": "x"})).await.status,
            200
        );
    }
    let full = capacity("provider=x").await;
    assert_eq!(
        (
            &full["available"],
            &full["remaining"],
            &full["limit"]["name"]
        ),
        (&false.into(), &0.into(), &"3/10s".into()),
        "{full}"
    );
    assert!(full["retry_in"].as_f64().unwrap() > 9.0, "{full}");
    assert_eq!(
        capacity("provider=x&priority=high").await["available"],
        true
    );
    daemon.request("POST", "/v1/providers/x/offline", "").await;
    let asleep = capacity("provider=x").await;
    assert_eq!(
        (&asleep["available"], &asleep["state"]),
        (&false.into(), &"sleep".into())
    );
    let denied = acquire(&daemon, &json!({"provider": "x", "wait": false})).await;
    assert_eq!(
        (denied.status, &denied.json()["reason"]),
        (429, &"sleep".into())
    );
}

/// A limit per key counts calls of the gateway and permits together: both use the configured key.
#[tokio::test]
async fn a_permit_counts_with_the_gateways_calls_under_one_key() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let rest = "api_key: canary-decide-key-1\nauth: {query: k}\nlimits: [{limit: 1, period: 1h, per: api_key}]"; // tidy:canary
    write_file(
        "decide-key.yaml",
        &crate::test_gateway::file(upstream.address, rest),
    );
    let daemon = TestDaemon::start(from_file("decide-key.yaml")).await;
    assert_eq!(get(daemon.gateway, "/x/a").await.status, 200);
    let found = daemon
        .request("GET", "/v1/capacity?provider=x", "")
        .await
        .json();
    assert_eq!(found["available"], false, "{found}");
    let denied = acquire(&daemon, &json!({"provider": "x", "wait": false})).await;
    assert_eq!(denied.status, 429, "{denied:?}");
    assert_eq!(denied.json()["limit"]["scope"], "api_key");
    assert!(!denied.everything().contains("canary"), "{denied:?}");
}

/// A caller that leaves while it waits takes no permit, and one that waits gets the next.
#[tokio::test]
async fn a_waiting_caller_that_leaves_takes_no_permit() {
    let (daemon, clock) = frozen("decide-leave.yaml", "limits: [1/10s]").await;
    let daemon = Arc::new(daemon);
    let first = permit(&acquire(&daemon, &json!({"provider": "x"})).await);
    let active = daemon.daemon.registry().named("x").unwrap();
    let leaves = tokio::spawn({
        let daemon = daemon.clone();
        async move {
            acquire(&daemon, &json!({"provider": "x", "timeout": "1h"}))
                .await
                .status
        }
    });
    wait_until(|| active.waiting() == 1).await;
    leaves.abort();
    wait_until(|| active.waiting() == 0).await;
    let stays = tokio::spawn({
        let daemon = daemon.clone();
        async move {
            acquire(&daemon, &json!({"provider": "x", "timeout": "1h"}))
                .await
                .json()
        }
    });
    wait_until(|| active.waiting() == 1).await;
    clock.pass(Span::from_millis(250));
    post(&daemon, "/v1/release", &json!({"permit": first})).await;
    let granted = within_timeout(stays).await.unwrap();
    assert_eq!(
        (&granted["decision"], &granted["waited"]),
        (&"queue".into(), &json!(0.25))
    );
}

/// A denial that no limit caused named only a reason.
#[tokio::test]
async fn every_denial_names_what_said_no_and_until_when() {
    let entities = "limits: [100/1h]\nentities: { ttl: { odds: 1m } }";
    let (daemon, _) = frozen("decide-named.yaml", entities).await;
    let denied = async |entity: Option<&str>| {
        let body = json!({"provider": "x", "entity": entity, "wait": false});
        let denied = acquire(&daemon, &body).await;
        assert_eq!(denied.status, 429, "{denied:?}");
        let capacity = daemon.request("GET", "/v1/capacity?provider=x", "").await;
        assert_eq!(capacity.json()["available"], false);
        let shown = capacity.json()["message"].as_str().map(str::to_owned);
        assert!(
            shown.is_some_and(|text| text.contains("`x`")),
            "{capacity:?}"
        );
        let (denied, is_held) = (denied.json(), entity.is_none());
        let hint = denied["hint"].as_str().unwrap();
        assert_eq!(hint.starts_with("`tollgate resume`"), is_held, "{denied}");
        denied["message"].as_str().unwrap().to_owned()
    };
    let command = async |path: &str| {
        let path = format!("/v1/providers/x/{path}");
        assert_eq!(
            daemon.request("POST", &path, "").await.status,
            200,
            "{path}"
        );
    };
    for (order, parts) in [
        (
            "pause?for=30m",
            ["paused by an operator", "for another 30 min"],
        ),
        (
            "offline",
            ["set offline by an operator", "until `tollgate resume x`"],
        ),
        (
            "cache-only",
            ["served from the cache only", "until an operator ends it"],
        ),
    ] {
        command(order).await;
        let text = denied(None).await;
        let names = |part: &&str| text.contains(*part);
        assert!(["`x`"].iter().chain(&parts).all(names), "{order}: {text}");
        command("resume").await;
    }
    let granted = acquire(&daemon, &json!({"provider": "x", "entity": "odds"})).await;
    let report =
        json!({"permit": permit(&granted), "status": 429, "headers": {"retry-after": "90"}});
    assert_eq!(post(&daemon, "/v1/report", &report).await.status, 200);
    let text = denied(Some("odds")).await;
    assert!(text.contains("cools down for another 1 min 30 s"), "{text}");
    // The same words once the pause is over, while calls go one by one.
    assert!(text.contains("and after it calls go one by one"), "{text}");
}

/// A provider that sleeps and calls that may run at a time are named too.
#[tokio::test]
async fn a_denial_by_sleep_or_by_calls_at_a_time_names_it() {
    let rest = "limits: [100/1h]\nconcurrency: 1\nhealth: {scope: provider, count: attempt, failure_threshold: 2}";
    let (daemon, clock) = frozen("decide-asleep.yaml", rest).await;
    let ask = json!({"provider": "x", "wait": false});
    let mut open = permit(&acquire(&daemon, &ask).await);
    let denied = acquire(&daemon, &ask).await.json();
    assert_eq!(
        (&denied["reason"], &denied["limit"]["name"]),
        (&"concurrency".into(), &"concurrency".into()),
        "{denied}"
    );
    for number in 1..=2 {
        let report = json!({"permit": open, "status": 503});
        assert_eq!(post(&daemon, "/v1/report", &report).await.status, 200);
        clock.pass(Span::from_millis(10)); // until its slot is free
        if number == 1 {
            open = permit(&acquire(&daemon, &ask).await);
        }
    }
    let denied = acquire(&daemon, &ask).await;
    let body = denied.json();
    assert_eq!((denied.status, &body["reason"]), (429, &"sleep".into()));
    let text = body["message"].as_str().unwrap();
    assert!(
        text.contains("`x` sleeps after 2 failures for another 2 s"),
        "{text}"
    );
}

/// A call took what its holder says, not what lay between the grant and the report.
#[tokio::test]
async fn the_latency_of_a_report_is_what_the_call_took() {
    let (daemon, clock) = frozen("decide-latency.yaml", "limits: [9/1h]").await;
    for latency in [json!(0.25), json!(null)] {
        let permit = permit(&acquire(&daemon, &json!({"provider": "x"})).await);
        clock.pass(Span::from_secs(2));
        let report = json!({"permit": permit, "status": 200, "latency": latency});
        assert_eq!(post(&daemon, "/v1/report", &report).await.status, 200);
    }
    let active = daemon.daemon.registry().named("x").unwrap();
    let (sum, count) = {
        let latency = active.metrics().latency();
        (latency.sum, latency.count())
    };
    assert_eq!(
        (sum, count),
        (2_250_000, 2),
        "250 ms, and 2 s since the grant"
    );
}

/// C3: a permit for longer work than `use_within` is renewed while it is held.
#[tokio::test]
async fn a_renewed_permit_is_held_as_long_as_a_new_one() {
    let rest = "limits: [1/1h]\ntimeout: {first_byte: 5s}";
    let (daemon, clock) = frozen("decide-renew.yaml", rest).await;
    let permit = permit(&acquire(&daemon, &json!({"provider": "x"})).await);
    let body = json!({"permit": permit});
    clock.pass(Span::from_secs(25));
    let renewed = post(&daemon, "/v1/renew", &body).await;
    assert_eq!(renewed.status, 200, "{renewed:?}");
    assert_eq!(renewed.json(), json!({"renewed": true, "use_within": 30.0}));
    clock.pass(Span::from_secs(25));
    let released = post(&daemon, "/v1/release", &body).await;
    assert_eq!(released.status, 200, "{released:?}");
    let too_late = post(&daemon, "/v1/renew", &body).await;
    assert_eq!(
        (too_late.status, &too_late.json()["error"]),
        (409, &"AlreadyReleased".into())
    );
    let next = acquire(&daemon, &json!({"provider": "x", "wait": false})).await;
    assert_eq!(next.status, 200, "it was given back: {next:?}");
    // Without it, the permit is over: 30 s to use it, 5 s for the response.
    let other = json!({"permit": next.json()["permit"]});
    clock.pass(Span::from_secs(36));
    let late = post(&daemon, "/v1/renew", &other).await;
    assert_eq!(
        (late.status, &late.json()["error"]),
        (404, &"UnknownPermit".into())
    );
}
