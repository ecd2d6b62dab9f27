//! The control plane and the report.

use hyper::Method;
use serde_json::Value;
use tollgate_sim::http::{Settings, SimProvider};

use crate::client::{Session, get, get_with, post, read_all};

async fn start(rules: &str) -> SimProvider {
    SimProvider::start(Settings::with_rules(rules).expect("rules"))
        .await
        .expect("a free port")
}

#[tokio::test]
async fn a_call_accepted_twice_is_a_duplicate_and_a_retry_after_429_is_not() {
    let provider = start("fixed 3/1d").await;
    for call in ["a", "b", "a", "c", "c"] {
        get_with(provider.address(), "/", &[("x-call-id", call)])
            .await
            .expect("a response");
    }
    let report = provider.report();
    assert_eq!((report.duplicates, report.violations), (1, 2));
    assert_eq!(report.duplicate_calls, ["a"]);
}

#[tokio::test]
async fn a_retry_is_a_duplicate_after_a_lost_response_and_not_after_an_outage() {
    let provider = start("fixed 9/1d").await;
    provider.fault("outage next 1").expect("a fault");
    let call = async |id: &str| get_with(provider.address(), "/", &[("x-call-id", id)]).await;
    assert_eq!(call("a").await.expect("a response").status, 503);
    assert_eq!(call("a").await.expect("a response").status, 200);
    assert_eq!(provider.report().duplicates, 0);
    provider.fault("reset-after next 1").expect("a fault");
    call("b").await.expect_err("its connection was reset");
    assert_eq!(call("b").await.expect("a response").status, 200);
    let report = provider.report();
    assert_eq!(
        (report.duplicates, report.arrivals, report.accepted),
        (1, 4, 4)
    );
}

#[tokio::test(start_paused = true)]
async fn waits_are_reported_per_priority_from_submission_to_arrival() {
    let provider = start("sliding 9/1s").await;
    let date = get(provider.address(), "/").await.expect("a response");
    let date = httpdate::parse_http_date(date.header("date").expect("a Date")).expect("a date");
    let submitted = date
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs()
        - 5;
    let headers = [
        ("x-submitted-at", format!("{submitted}.5")),
        ("x-priority", "high".to_owned()),
    ];
    let headers = headers
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    get_with(provider.address(), "/", &headers)
        .await
        .expect("a response");
    let waits = provider.report().scopes[0].waits;
    let high = waits.high.expect("one call of high priority");
    assert_eq!(high.calls, 1);
    assert!((4_500.0..=5_600.0).contains(&high.max_ms), "{high:?}");
    assert!(waits.normal.is_none() && waits.low.is_none());
}

#[tokio::test]
async fn the_report_is_served_as_json_and_reset_empties_it() {
    let provider = start("fixed 1/1d").await;
    for _ in 0..2 {
        get(provider.address(), "/x").await.expect("a response");
    }
    let report = get(provider.address(), "/-/report")
        .await
        .expect("a report")
        .json();
    assert_eq!(
        (&report["arrivals"], &report["violations"]),
        (&2.into(), &1.into())
    );
    assert_eq!(report["scopes"][0]["rules"][0]["rule"], "fixed 1/1d");
    post(provider.address(), "/-/reset", "")
        .await
        .expect("a response");
    let report = get(provider.address(), "/-/report")
        .await
        .expect("a report")
        .json();
    assert_eq!(
        (&report["arrivals"], &report["violations"]),
        (&0.into(), &0.into())
    );
    assert_eq!(
        get(provider.address(), "/x")
            .await
            .expect("a response")
            .status,
        200
    );
}

#[tokio::test]
async fn the_log_has_one_line_of_json_per_arrival_without_the_query() {
    let provider = start("fixed 1/1d").await;
    for path in ["/a?api_key=s3cret", "/b"] {
        get_with(provider.address(), path, &[("x-call-id", "7")])
            .await
            .expect("a response");
    }
    let log = get(provider.address(), "/-/log").await.expect("a log").body;
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(
        (&lines[0]["path"], &lines[0]["accepted"]),
        (&"/a".into(), &true.into())
    );
    assert_eq!(
        (&lines[1]["call"], &lines[1]["accepted"]),
        (&"7".into(), &false.into())
    );
    assert!(!log.contains("s3cret"));
}

#[tokio::test]
async fn faults_are_planned_over_http_whole_or_not_at_all() {
    let provider = start("fixed 9/1d").await;
    let bad = post(provider.address(), "/-/fault", "outage now 500\nhang soon")
        .await
        .expect("a response");
    assert_eq!(bad.status, 400);
    assert!(
        bad.body.contains("`soon` is not a time; write `8s..11s`"),
        "{}",
        bad.body
    );
    assert_eq!(
        get(provider.address(), "/")
            .await
            .expect("a response")
            .status,
        200
    );
    post(provider.address(), "/-/fault", "outage now 500")
        .await
        .expect("a response");
    assert_eq!(
        get(provider.address(), "/")
            .await
            .expect("a response")
            .status,
        500
    );
    post(provider.address(), "/-/fault", "clear")
        .await
        .expect("a response");
    assert_eq!(
        get(provider.address(), "/")
            .await
            .expect("a response")
            .status,
        200
    );
}

#[tokio::test]
async fn a_separate_control_address_works_while_every_connection_is_reset() {
    let control = Some("127.0.0.1:0".parse().expect("an address"));
    let settings = Settings {
        control,
        ..Settings::default()
    };
    let provider = SimProvider::start(settings).await.expect("free ports");
    provider.fault("reset-before now").expect("a fault");
    let control = provider.control_address().expect("it is configured");
    get(provider.address(), "/-/report")
        .await
        .expect_err("the clients' port resets");
    assert_eq!(get(control, "/").await.expect("a response").status, 404);
    post(control, "/-/fault", "clear")
        .await
        .expect("a response");
    assert_eq!(
        get(provider.address(), "/")
            .await
            .expect("a response")
            .status,
        200
    );
}

#[tokio::test]
async fn wrong_paths_and_methods_name_the_right_ones() {
    let provider = start("fixed 9/1d").await;
    let lost = get(provider.address(), "/-/nothing")
        .await
        .expect("a response");
    assert_eq!(lost.status, 404);
    assert!(lost.body.contains("GET /-/report"), "{}", lost.body);
    assert_eq!(
        get(provider.address(), "/-/fault")
            .await
            .expect("a response")
            .status,
        405
    );
    let large = "x".repeat(20_000);
    assert_eq!(
        post(provider.address(), "/-/fault", &large)
            .await
            .expect("a response")
            .status,
        413
    );
    assert_eq!(provider.report().arrivals, 0);
}

#[tokio::test]
async fn stopping_closes_idle_connections_and_the_port() {
    let provider = start("fixed 9/1d").await;
    let address = provider.address();
    let mut session = Session::open(address).await.expect("a connection");
    session.get("/", &[]).await.expect("a response");
    let report = provider.stop().await;
    assert_eq!((report.answered, report.unanswered), (1, 0));
    session
        .get("/", &[])
        .await
        .expect_err("the connection is closed");
    Session::open(address)
        .await
        .map(|_| ())
        .expect_err("the port is closed");
}

#[tokio::test]
async fn a_head_request_gets_no_body_and_counts_as_completed() {
    let provider = start("fixed 9/1d").await;
    let mut session = Session::open(provider.address())
        .await
        .expect("a connection");
    let response = session
        .send(Method::HEAD, "/", &[], "")
        .await
        .expect("a response");
    assert_eq!(read_all(response).await.expect("an end").body, "");
    let report = provider.stop().await;
    assert_eq!((report.answered, report.unanswered), (1, 0));
}
