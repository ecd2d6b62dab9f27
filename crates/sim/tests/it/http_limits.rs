//! Limits are enforced over sockets, when a request has arrived.

use tollgate_core::time::Span;
use tollgate_sim::http::{KeyLocation, Settings, SimProvider};
use tollgate_sim::latency::Latency;
use tollgate_sim::rule::Unit;

use crate::client::{advance, get, get_with, until, with_timeout};

async fn start(rules: &str) -> SimProvider {
    SimProvider::start(Settings::with_rules(rules).expect("rules"))
        .await
        .expect("a free port")
}

async fn status(provider: &SimProvider, path: &str) -> u16 {
    get(provider.address(), path)
        .await
        .expect("a response")
        .status
}

#[tokio::test(start_paused = true)]
async fn a_window_admits_its_limit_and_opens_when_the_first_request_leaves_it() {
    let provider = start("sliding 3/10s").await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(status(&provider, "/").await);
    }
    advance(9).await;
    seen.push(status(&provider, "/").await);
    advance(1).await;
    seen.push(status(&provider, "/").await);
    assert_eq!(seen, [200, 200, 200, 429, 429, 200]);
    let report = provider.stop().await;
    assert_eq!(
        (report.arrivals, report.accepted, report.violations),
        (6, 4, 2)
    );
    let rule = &report.scopes[0].rules[0];
    assert_eq!((rule.most_arrived, rule.most_accepted), (Some(5), 3));
}

#[tokio::test]
async fn fifty_clients_at_once_get_no_more_than_the_limit() {
    let provider = start("fixed 20/1d").await;
    let requests = (0..50).map(|_| tokio::spawn(get(provider.address(), "/")));
    let mut accepted = 0;
    for request in requests.collect::<Vec<_>>() {
        let response = request.await.expect("no panic").expect("a response");
        accepted += usize::from(response.status == 200);
    }
    assert_eq!(accepted, 20);
    let report = provider.stop().await;
    assert_eq!(
        (report.accepted, report.violations, report.answered),
        (20, 30, 50)
    );
}

#[tokio::test]
async fn a_request_in_transit_is_not_counted_yet() {
    let hour = Span::from_secs(3_600);
    let latency = Latency::constant(hour, Span::ZERO, Span::ZERO);
    let settings = Settings {
        latency,
        ..Settings::with_rules("sliding 1/1s").expect("a rule")
    };
    let provider = SimProvider::start(settings).await.expect("a free port");
    let request = tokio::spawn(get(provider.address(), "/"));
    until(|| provider.report().on_the_way == 1).await;
    assert_eq!(provider.report().arrivals, 0);
    let report = provider.stop().await;
    assert_eq!((report.arrivals, report.on_the_way), (0, 0));
    with_timeout(request)
        .await
        .expect("no panic")
        .expect_err("stopping broke its connection");
}

#[tokio::test(start_paused = true)]
async fn a_request_counts_after_the_uplink_delay_and_responds_after_the_downlink() {
    let secs = Span::from_secs;
    let latency = Latency::constant(secs(2), secs(3), secs(4));
    let provider = SimProvider::start(Settings {
        latency,
        ..Settings::default()
    })
    .await
    .expect("a port");
    get(provider.address(), "/").await.expect("a response");
    let (_, checker) = provider.judges().remove(0);
    let counted_at = checker.arrivals()[0].at;
    let seconds = provider.report().seconds;
    assert!((9.0..9.1).contains(&seconds), "{seconds}");
    get(provider.address(), "/").await.expect("a response");
    let (_, checker) = provider.judges().remove(0);
    let apart = checker.arrivals()[1].at.since(counted_at);
    assert!(
        (9_000_000..9_100_000).contains(&apart.0),
        "7 s until the response and 2 s up: {apart}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_429_does_no_work() {
    let latency = Latency::constant(Span::ZERO, Span::from_secs(5), Span::ZERO);
    let settings = Settings {
        latency,
        ..Settings::with_rules("sliding 0/1s").expect("a rule")
    };
    let provider = SimProvider::start(settings).await.expect("a free port");
    assert_eq!(status(&provider, "/").await, 429);
    assert!(provider.report().seconds < 1.0);
}

#[tokio::test]
async fn a_call_in_flight_keeps_its_slot_until_the_client_disconnects() {
    let provider = start("in-flight 1").await;
    provider.fault("hang next 1").expect("a fault");
    let hanging = tokio::spawn(get(provider.address(), "/"));
    until(|| provider.report().in_flight == 1).await;
    assert_eq!(status(&provider, "/").await, 429);
    hanging.abort();
    until(|| provider.report().in_flight == 0).await;
    assert_eq!(status(&provider, "/").await, 200);
    assert_eq!(provider.report().scopes[0].rules[0].most_accepted, 1);
}

#[tokio::test]
async fn a_complete_response_is_no_longer_counted_as_in_flight() {
    let provider = start("in-flight 1").await;
    for _ in 0..200 {
        assert_eq!(status(&provider, "/").await, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn entities_and_keys_have_limits_of_their_own_and_keys_are_not_shown() {
    let key = Some(KeyLocation::Query("key".to_owned()));
    let rules = Settings::with_rules("fixed 1/1d").expect("a rule");
    let settings = Settings {
        per_entity: true,
        key,
        ..rules
    };
    let provider = SimProvider::start(settings).await.expect("a free port");
    let mut seen = Vec::new();
    for path in [
        "/odds?key=s3cret",
        "/odds?key=s3cret",
        "/teams?key=s3cret",
        "/odds?key=other",
    ] {
        seen.push(status(&provider, path).await);
    }
    assert_eq!(seen, [200, 429, 200, 200]);
    let log = get(provider.address(), "/-/log").await.expect("a log").body;
    let json = provider.stop().await.to_json();
    for scope in ["odds/key1", "teams/key1", "odds/key2"] {
        assert!(json.contains(scope) && log.contains(scope), "{json}");
    }
    assert!(
        !json.contains("s3cret") && !log.contains("s3cret"),
        "{json}\n{log}"
    );
}

#[tokio::test]
async fn costs_are_counted_in_the_unit_of_the_rule() {
    let provider = start("fixed 1000/1d unit tokens").await;
    let mut seen = Vec::new();
    for cost in ["tokens=600", "tokens=600", "tokens=400"] {
        let response = get_with(provider.address(), "/", &[("x-cost", cost)]).await;
        seen.push(response.expect("a response").status);
    }
    assert_eq!(seen, [200, 429, 200]);
    let (_, checker) = provider.judges().remove(0);
    assert_eq!(checker.arrivals()[0].cost.of(Unit::Tokens), 600);
}
