//! Faults happen on schedule and look to a client like real ones.

use http_body_util::BodyExt;
use hyper::Method;
use tollgate_sim::http::{Settings, SimProvider, Style};

use crate::client::{Failure, Session, advance, get, until, with_timeout};

async fn start(faults: &[&str]) -> SimProvider {
    let mut settings = Settings::with_rules("sliding 1000/1s").expect("a rule");
    for line in faults {
        settings = settings.fault(line).expect("a fault");
    }
    SimProvider::start(settings).await.expect("a free port")
}

async fn status(provider: &SimProvider) -> u16 {
    get(provider.address(), "/")
        .await
        .expect("a response")
        .status
}

/// The system's error at the bottom of a failure.
fn kind(failure: &Failure) -> Option<std::io::ErrorKind> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(failure.as_ref());
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return Some(io.kind());
        }
        cause = error.source();
    }
    None
}

#[tokio::test(start_paused = true)]
async fn an_outage_begins_and_ends_on_schedule() {
    let provider = start(&["outage 8s..11s 502"]).await;
    let mut seen = vec![status(&provider).await];
    advance(8).await;
    seen.push(status(&provider).await);
    advance(3).await;
    seen.push(status(&provider).await);
    assert_eq!(seen, [200, 502, 200]);
    assert_eq!(provider.stop().await.struck, 1);
}

#[tokio::test]
async fn a_reset_before_reading_is_a_reset_and_nothing_was_counted() {
    let provider = start(&["reset-before next 1"]).await;
    let failure = get(provider.address(), "/").await.expect_err("a reset");
    assert_eq!(
        kind(&failure),
        Some(std::io::ErrorKind::ConnectionReset),
        "{failure:?}"
    );
    assert_eq!(provider.report().arrivals, 0);
    assert_eq!(status(&provider).await, 200);
}

#[tokio::test]
async fn a_reset_before_reading_affects_an_open_connection_too() {
    let provider = start(&[]).await;
    let mut session = Session::open(provider.address())
        .await
        .expect("a connection");
    session.get("/", &[]).await.expect("a response");
    provider.fault("reset-before next 1").expect("a fault");
    session.get("/", &[]).await.expect_err("a reset");
    assert_eq!(provider.report().arrivals, 1);
}

#[tokio::test]
async fn a_reset_after_reading_is_a_reset_and_the_request_was_counted() {
    let provider = start(&["reset-after next 1"]).await;
    let failure = get(provider.address(), "/").await.expect_err("a reset");
    assert_eq!(
        kind(&failure),
        Some(std::io::ErrorKind::ConnectionReset),
        "{failure:?}"
    );
    until(|| provider.report().in_flight == 0).await;
    let report = provider.report();
    assert_eq!((report.arrivals, report.unanswered), (1, 1));
}

#[tokio::test]
async fn a_hanging_request_is_counted_and_gets_no_response() {
    let provider = start(&["hang next 1"]).await;
    let request = tokio::spawn(get(provider.address(), "/"));
    until(|| provider.report().in_flight == 1).await;
    assert_eq!(status(&provider).await, 200);
    assert!(!request.is_finished());
    let report = provider.stop().await;
    with_timeout(request)
        .await
        .expect("no panic")
        .expect_err("stopping broke its connection");
    assert_eq!(
        (report.arrivals, report.answered, report.unanswered),
        (2, 1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_dripping_body_comes_byte_by_byte() {
    let provider = start(&["drip next 1 1s"]).await;
    let mut session = Session::open(provider.address())
        .await
        .expect("a connection");
    let response = session
        .send(Method::GET, "/", &[], "")
        .await
        .expect("a head");
    let mut body = response.into_body();
    let mut sizes = Vec::new();
    while let Some(frame) = body.frame().await {
        sizes.push(frame.expect("a frame").into_data().expect("data").len());
    }
    assert!(
        sizes.len() > 10 && sizes.iter().all(|size| *size == 1),
        "{sizes:?}"
    );
    // n bytes have n − 1 gaps.
    let gaps = sizes.len() as f64 - 1.0;
    let seconds = provider.report().seconds;
    assert!(
        (gaps..gaps + 0.9).contains(&seconds),
        "{seconds} s for {gaps} gaps"
    );
}

#[tokio::test]
async fn an_endless_body_goes_on_until_the_client_leaves() {
    let provider = start(&["endless next 1"]).await;
    let mut session = Session::open(provider.address())
        .await
        .expect("a connection");
    let response = session
        .send(Method::GET, "/", &[], "")
        .await
        .expect("a head");
    let mut body = response.into_body();
    let mut read = 0;
    while read < 4 * 1024 * 1024 {
        let frame = body.frame().await.expect("no end").expect("a frame");
        read += frame.into_data().expect("data").len();
    }
    drop((body, session));
    until(|| provider.report().in_flight == 0).await;
    assert_eq!(provider.report().unanswered, 1);
}

#[tokio::test]
async fn huge_headers_are_64_kib() {
    let provider = start(&["huge-headers next 1"]).await;
    let response = get(provider.address(), "/").await.expect("a response");
    let padding: usize = response
        .headers
        .get_all("x-padding")
        .iter()
        .map(|value| value.len())
        .sum();
    assert_eq!(padding, 64 * 1024);
}

#[tokio::test]
async fn a_truncated_body_breaks_off_after_its_first_half() {
    let provider = start(&["truncate next 1"]).await;
    let mut session = Session::open(provider.address())
        .await
        .expect("a connection");
    let response = session
        .send(Method::GET, "/", &[], "")
        .await
        .expect("a head");
    let announced = response.headers()["content-length"]
        .to_str()
        .expect("text")
        .to_owned();
    let announced: usize = announced.parse().expect("a number");
    let mut body = response.into_body();
    let first = body
        .frame()
        .await
        .expect("the first half")
        .expect("a frame");
    assert_eq!(first.into_data().expect("data").len(), announced / 2);
    body.frame()
        .await
        .expect("not the end")
        .expect_err("a break");
    until(|| provider.report().in_flight == 0).await;
    assert_eq!(provider.report().unanswered, 1);
}

#[tokio::test(start_paused = true)]
async fn a_skewed_clock_sends_the_wrong_date_and_waits_stay_right() {
    let settings = Settings::with_rules("sliding 1/10s")
        .expect("a rule")
        .style(Style::XRateLimit);
    let provider = SimProvider::start(settings).await.expect("a free port");
    let epoch = |response: &crate::client::FullResponse| {
        let date =
            httpdate::parse_http_date(response.header("date").expect("a Date")).expect("a date");
        date.duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970")
            .as_secs()
    };
    let before = epoch(&get(provider.address(), "/").await.expect("a response"));
    provider.fault("skew now -2h").expect("a fault");
    let limited = get(provider.address(), "/").await.expect("a response");
    assert!(
        (7_199..=7_200).contains(&(before - epoch(&limited))),
        "{limited:?}"
    );
    let reset: u64 = limited
        .header("x-ratelimit-reset")
        .expect("a time")
        .parse()
        .expect("epoch");
    assert!(
        (10..=11).contains(&(reset - epoch(&limited))),
        "{limited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_limit_halves_at_its_time_and_what_was_counted_stays_counted() {
    let settings = Settings::with_rules("sliding 4/10s").expect("a rule");
    let settings = settings.fault("limit 0 halve at 5s").expect("a fault");
    let provider = SimProvider::start(settings).await.expect("a free port");
    let mut seen = vec![status(&provider).await, status(&provider).await];
    advance(5).await;
    seen.push(status(&provider).await);
    advance(5).await;
    seen.extend([
        status(&provider).await,
        status(&provider).await,
        status(&provider).await,
    ]);
    assert_eq!(seen, [200, 200, 429, 200, 200, 429]);
    let rule = provider.stop().await.scopes[0].rules[0].clone();
    assert_eq!((rule.limit, rule.most_accepted), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_limit_advertised_only_in_headers_is_not_enforced() {
    let settings = Settings::with_rules("sliding 4/10s")
        .expect("a rule")
        .style(Style::XRateLimit);
    let provider = SimProvider::start(settings).await.expect("a free port");
    provider.fault("tell 0 as 1 now").expect("a fault");
    let first = get(provider.address(), "/").await.expect("a response");
    let advertised = ["x-ratelimit-limit", "x-ratelimit-remaining"].map(|name| first.header(name));
    assert_eq!(advertised, [Some("1"), Some("0")]);
    assert_eq!(status(&provider).await, 200);
}
