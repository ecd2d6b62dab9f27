//! Tollgate inside a program: the builder, permits, and errors.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests"
)]

use std::io;
use std::time::Duration;

use http::Response;
use serde_json::json;
use tollgate::{Call, Class, Clock, Error, Priority, Provider, Reason, SetupError, Tollgate, Wall};

const HOUR: Duration = Duration::from_secs(3_600);
const URL: &str = "https://api.example.org/items/1";

/// In virtual time.
pub(crate) async fn tollgate_with(provider: Provider) -> Tollgate {
    let builder = Tollgate::builder().clock(Clock::tokio(Wall(1_772_323_200_000_000)));
    let builder = builder.dice(7).provider(provider).expect("valid");
    builder.build().await.expect("it starts")
}

pub(crate) fn provider() -> Provider {
    Provider::new("x").domain("api.example.org")
}

async fn once_an_hour() -> Tollgate {
    tollgate_with(provider().limit(1, HOUR)).await
}

fn response(status: u16) -> Result<Response<()>, io::Error> {
    let response = Response::builder().status(status).body(());
    Ok(response.expect("a valid status"))
}

/// The error carries the limit, the reason and the time to come back.
#[tokio::test(start_paused = true)]
async fn a_used_up_limit_is_named_with_the_time_to_come_back() {
    let tollgate = once_an_hour().await;
    let permit = tollgate.acquire(URL).await.expect("the first");
    assert_eq!(permit.provider(), "x");
    assert_eq!(permit.report(&response(200)).class, Class::Success);
    let error = tollgate
        .acquire(Call::url(URL).no_wait())
        .await
        .unwrap_err();
    assert_eq!(error.limit(), Some("1/1h"));
    assert_eq!(error.reason(), Some(Reason::Limit));
    let wait = Duration::from(error.retry_in().expect("known"));
    assert!(wait > HOUR - Duration::from_secs(60) && wait <= HOUR + Duration::from_secs(60));
    tokio::time::advance(wait).await;
    assert!(
        tollgate.acquire(Call::url(URL).no_wait()).await.is_ok(),
        "then there is one"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dropped_permit_counts_as_sent_and_a_released_one_does_not() {
    let tollgate = once_an_hour().await;
    tollgate.acquire(URL).await.expect("a permit").release();
    drop(tollgate.acquire(URL).await.expect("it came back"));
    let error = tollgate
        .acquire(Call::url(URL).no_wait())
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Limit));
}

/// A future that is dropped while it waits, or when its permit is on the way, gives it back.
#[tokio::test(start_paused = true)]
async fn a_dropped_acquire_gives_its_permit_back() {
    let tollgate = once_an_hour().await;
    let held = tollgate.acquire(URL).await.expect("a permit");
    let waiting = tollgate.acquire(Call::url(URL).timeout(HOUR * 3));
    let cancelled = tokio::time::timeout(Duration::from_secs(5), waiting).await;
    assert!(cancelled.is_err(), "it waited");
    held.release();
    let next = tollgate.acquire(Call::url(URL).no_wait()).await;
    assert!(next.is_ok(), "nobody else holds it: {next:?}");
}

/// No byte has left: the provider did not count the call.
#[tokio::test(start_paused = true)]
async fn a_failed_connection_gives_its_permit_back() {
    let tollgate = once_an_hour().await;
    let refused: Result<Response<()>, _> = Err(io::Error::from(io::ErrorKind::ConnectionRefused));
    let permit = tollgate.acquire(URL).await.expect("a permit");
    permit.report(&refused);
    let broken: Result<Response<()>, _> = Err(io::Error::from(io::ErrorKind::ConnectionReset));
    let permit = tollgate.acquire(Call::url(URL).no_wait()).await;
    permit.expect("it came back").report(&broken);
    let next = tollgate.acquire(Call::url(URL).no_wait()).await;
    assert!(
        next.is_err(),
        "a broken connection may have carried the call"
    );
}

#[tokio::test(start_paused = true)]
async fn a_reported_429_pauses_the_provider_as_long_as_it_says() {
    let tollgate = tollgate_with(provider().limit(100, HOUR)).await;
    let limited = Response::builder().status(429).header("retry-after", "30");
    let limited = limited.body(()).expect("a response");
    let learned = tollgate
        .acquire(URL)
        .await
        .expect("a permit")
        .report(&limited);
    assert_eq!(learned.class, Class::Limited);
    let error = tollgate
        .acquire(Call::url(URL).no_wait())
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Cooldown));
    let wait = Duration::from(error.retry_in().expect("known"));
    assert!(wait >= Duration::from_secs(29), "{wait:?}");
}

/// Bad input gets a typed error with a remedy, and nothing is counted.
#[tokio::test(start_paused = true)]
async fn a_wrong_call_is_a_typed_error_and_counts_nothing() {
    let tollgate = tollgate_with(provider().limit(1, HOUR)).await;
    for (call, words) in [
        (Call::url("api.example.org/items"), "absolute"),
        (Call::url("ftp://api.example.org/items"), "absolute"),
        (Call::unaddressed(), "Call::url"),
        (Call::url(URL).cost("bananas", 2), "tokens"),
        (Call::url(URL).cost("calls", 0), "from 1"),
        (Call::url(URL).cost("calls", u64::MAX), "2^53"),
        (Call::url(URL).caller(""), "1 to 64"),
        (Call::url(URL).caller("a\nb"), "letters"),
        (Call::url(URL).caller("x".repeat(65)), "1 to 64"),
    ] {
        let error = tollgate.acquire(call).await.unwrap_err();
        assert!(matches!(error, Error::Malformed(_)), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let error = tollgate.acquire("xx").await.unwrap_err();
    let Error::UnknownProvider { nearest, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(nearest.as_deref(), Some("x"));
    let two = Call::url(URL).cost("calls", 2);
    let error = tollgate.acquire(two).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::TooCostly));
    assert!(
        tollgate.acquire(Call::url(URL).no_wait()).await.is_ok(),
        "the one is still there"
    );
}

/// S11: the entity of a call decides which limit it counts against.
#[tokio::test(start_paused = true)]
async fn s11_a_call_can_name_its_entity_priority_and_caller() {
    let limit = json!({ "limit": 1, "period": "1h", "per": "entity" });
    let tollgate = tollgate_with(provider().limit_with(limit)).await;
    let of = |entity: &str| {
        let call = Call::provider("x").entity(entity).caller("web");
        call.priority(Priority::High).no_wait()
    };
    drop(tollgate.acquire(of("odds")).await.expect("a permit"));
    assert!(tollgate.acquire(of("odds")).await.is_err());
    assert!(
        tollgate.acquire(of("teams")).await.is_ok(),
        "another entity"
    );
}

/// The same checks as for a file: each problem names the field and the remedy.
#[tokio::test]
async fn a_provider_in_code_is_checked_as_a_file_is() {
    let wrong = provider()
        .limit_with("40/10x")
        .set("qeue", json!({ "max": 3 }));
    let error = Tollgate::builder().provider(wrong).unwrap_err();
    let words = error.to_string();
    assert!(words.contains("qeue") && words.contains("queue"), "{words}");
    assert!(words.contains("limits"), "{words}");
    let error = Tollgate::builder().preset("tmbd").unwrap_err();
    let SetupError::Preset { nearest, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(nearest.as_deref(), Some("tmdb"));
    let nameless = || Provider::new("x").limit(1, HOUR);
    let twice = Tollgate::builder().provider(nameless()).expect("valid");
    let twice = twice.provider(nameless()).expect("valid");
    let error = twice.build().await.unwrap_err();
    assert!(error.to_string().contains("two providers"), "{error}");
}

#[tokio::test]
async fn a_store_that_cannot_be_used_is_named_without_its_password() {
    for store in [
        "sqlite:",
        "mysql://u:secret@h",
        "redis://u:secret@127.0.0.1:1",
        "postgres://u:secret@127.0.0.1:1/d",
        "redis-cluster://u:secret@h",
    ] {
        let error = Tollgate::builder().store(store).build().await.unwrap_err();
        let words = error.to_string();
        assert!(matches!(error, SetupError::Store { .. }), "{error:?}");
        assert!(
            !words.contains("secret") && words.contains("store"),
            "{words}"
        );
    }
}

#[test]
fn without_a_runtime_it_says_so() {
    let mut build = std::pin::pin!(Tollgate::builder().build());
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    let std::task::Poll::Ready(Err(error)) = build.as_mut().poll(&mut context) else {
        panic!("it cannot start");
    };
    assert!(matches!(error, SetupError::NoRuntime));
}

/// The same dice, the same delays: a test of a user repeats.
#[tokio::test(start_paused = true)]
async fn the_same_dice_give_the_same_delays() {
    let mut delays = Vec::new();
    for seed in [7, 7, 8] {
        let builder = Tollgate::builder().clock(Clock::tokio(Wall(1_772_323_200_000_000)));
        let builder = builder.dice(seed).provider(provider().limit(100, HOUR));
        let tollgate = builder.expect("valid").build().await.expect("it starts");
        tollgate
            .acquire(URL)
            .await
            .expect("a permit")
            .report(&response(429));
        let error = tollgate
            .acquire(Call::url(URL).no_wait())
            .await
            .unwrap_err();
        delays.push(error.retry_in().expect("a cool-down"));
    }
    assert_eq!(delays[0], delays[1]);
    assert_ne!(delays[0], delays[2]);
}

/// What a call costs in another unit is settled with what it really cost.
#[tokio::test(start_paused = true)]
async fn real_costs_replace_estimates() {
    let limit = json!({ "name": "tpm", "limit": 1_000, "period": "1h", "unit": "tokens" });
    let tollgate = tollgate_with(provider().limit_with(limit)).await;
    let call = || {
        let call = Call::url(URL).cost("tokens", 900);
        call.timeout(Duration::from_secs(1))
    };
    let permit = tollgate.acquire(call()).await.expect("a permit");
    assert!(tollgate.acquire(call()).await.is_err(), "900 are held");
    let mut permit = permit;
    for (unit, amount) in [("miles", 50), ("tokens", u64::MAX)] {
        let error = permit.set_cost(unit, amount).unwrap_err();
        assert!(matches!(error, Error::Malformed(_)), "{error:?}");
    }
    permit.set_cost("tokens", 800).expect("a cost");
    permit.set_cost("tokens", 50).expect("the last one counts");
    permit.report(&response(200));
    let next = tollgate.acquire(call()).await;
    assert!(next.is_ok(), "950 remain: {next:?}");
}

/// A limit per key is that of the key of the call, for a permit and for what it would find.
#[tokio::test(start_paused = true)]
async fn capacity_is_that_of_the_key_of_the_call() {
    let per_key = json!({ "limit": 2, "period": "1h", "per": "api_key" });
    let tollgate = tollgate_with(provider().limit_with(per_key)).await;
    let call = |key: &str| Call::provider("x").key(key);
    let left = async |key: &str| {
        let capacity = tollgate.capacity(call(key)).await.expect("a valid call");
        capacity.remaining
    };
    drop(tollgate.acquire(call("a")).await.expect("a permit"));
    assert_eq!((left("a").await, left("b").await), (Some(1), Some(2)));
    drop(tollgate.acquire(call("a")).await.expect("a permit"));
    assert_eq!((left("a").await, left("b").await), (Some(0), Some(2)));
}

/// A permit says how long it may be used.
#[tokio::test(start_paused = true)]
async fn a_permit_says_how_long_it_may_be_used() {
    let tollgate = once_an_hour().await;
    let permit = tollgate.acquire("x").await.expect("a permit");
    let whole = Duration::from_secs(30);
    assert_eq!((permit.use_within(), permit.expires_in()), (whole, whole));
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(permit.expires_in(), Duration::from_secs(18));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(permit.expires_in(), Duration::ZERO);
    permit.release();
}

/// An error and its causes say each thing once.
#[test]
fn an_error_of_the_setup_does_not_repeat_its_cause() {
    use std::error::Error;
    let wrong = Tollgate::builder().provider(Provider::new("x").limit_with("none"));
    let wrong = wrong.unwrap_err();
    assert!(wrong.source().is_none(), "{wrong}");
    let client = reqwest::Client::builder().user_agent("\n");
    let tollgate = Tollgate::builder().build();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let tollgate = runtime
        .expect("a runtime")
        .block_on(tollgate)
        .expect("it starts");
    let wrong = tollgate::reqwest::Governed::new(&tollgate, client).unwrap_err();
    let cause = wrong.source().expect("reqwest's own").to_string();
    assert!(!wrong.to_string().contains(&cause), "{wrong}: {cause}");
}
