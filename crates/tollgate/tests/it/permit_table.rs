//! Permits that other processes hold, by id: what the decision service hands out. No socket, paused
//! time, and the rule of the simulated provider judges.

use http::HeaderMap;
use tollgate::error::Reason;
use tollgate::event::{CallResult, Event, Notification};
use tollgate::path::{CallOptions, Target};
use tollgate::permit_table::{PermitTable, Released, Report, Reported, USE_WITHIN};
use tollgate::{Error, Options, ProviderRegistry};
use tollgate_config::config::Caller;
use tollgate_config::{Environment, ProviderFile};
use tollgate_core::ask::Priority;
use tollgate_core::health::{Class, Fault};
use tollgate_core::ratio::Ppm;
use tollgate_core::time::{Span, Wall};
use tollgate_ledger::{Clock, Ledger};
use tollgate_sim::rule::{CallId, Cost, Provider, RuleDecision, RuleSpec};

pub(crate) fn registry(rest: &str) -> ProviderRegistry {
    let file = format!("name: x\ndomains: [api.example.org, '*.shop.example']\n{rest}\n");
    let draft = ProviderFile::read("x.yaml", &file).expect("the file can be read");
    let checked = draft.check(&Environment::empty());
    let problems = checked.problems;
    let provider = checked.provider.unwrap_or_else(|| panic!("{problems:?}"));
    let ledger = Ledger::memory(Clock::tokio(Wall(1_772_323_200_000_000)));
    ProviderRegistry::build(vec![provider], ledger, Options::default()).expect("valid")
}

pub(crate) fn table(rest: &str) -> PermitTable {
    PermitTable::new(registry(rest), USE_WITHIN)
}

pub(crate) fn within(seconds: u64) -> CallOptions {
    CallOptions {
        timeout: Some(Span::from_secs(seconds)),
        ..CallOptions::default()
    }
}

fn url(authority: &str, path: &str) -> Target {
    Target::Url {
        tls: true,
        authority: authority.to_owned(),
        path: path.to_owned(),
        query: None,
    }
}

/// A response without anything to learn from.
fn ok(headers: &HeaderMap) -> Report<'_> {
    Report::Response {
        status: 200,
        headers,
        body: b"",
        costs: &[],
    }
}

pub(crate) fn limit_of(rejected: Result<impl std::fmt::Debug, Error>) -> (Option<String>, Reason) {
    match rejected {
        Err(Error::NoPermit { limit, reason, .. }) => (limit, reason),
        other => panic!("{other:?}"),
    }
}

/// A job that ran longer than its permit lost its place to another, and both ran at a time.
#[tokio::test(start_paused = true)]
async fn a_permit_that_is_renewed_is_held_until_it_is_reported() {
    let table = table("concurrency: 1\nlimits: [1/10s]\ntimeout: 30s");
    let headers = HeaderMap::new();
    let permit = table.acquire("x", None, within(1)).await.unwrap();
    for _ in 0..10 {
        tokio::time::advance(Span::from_secs(50).into()).await;
        assert_eq!(table.keep_alive(&permit.id), Some(USE_WITHIN));
        assert!(table.acquire("x", None, within(1)).await.is_err());
    }
    assert!(matches!(
        table.report(&permit.id, ok(&headers)),
        Reported::Now(_)
    ));
    assert_eq!(table.keep_alive(&permit.id), None);
    let next = table.acquire("x", None, within(11)).await.unwrap();
    assert!(next.waited > Span::from_secs(9), "the call may be recent");
    tokio::time::advance(Span::from_secs(100).into()).await;
    assert_eq!(table.keep_alive(&next.id), None, "nobody renewed it");
}

#[tokio::test(start_paused = true)]
async fn a_second_report_says_so_and_changes_nothing() {
    let table = table("limits: [2/10s]");
    let headers = HeaderMap::new();
    let permit = table.acquire("x", None, within(1)).await.unwrap();
    assert_eq!(permit.use_within, USE_WITHIN);
    let Reported::Now(learned) = table.report(&permit.id, ok(&headers)) else {
        panic!("it is the first");
    };
    assert_eq!(learned.class, Class::Success);
    let limited = Report::Response {
        status: 429,
        headers: &headers,
        body: b"",
        costs: &[],
    };
    assert_eq!(table.report(&permit.id, limited), Reported::Before(learned));
    assert_eq!(table.release(&permit.id), Released::Used);
    let next = table.acquire("x", None, within(1)).await;
    assert!(next.is_ok(), "the second report would have cooled it down");
    assert_eq!(table.report("ffff", ok(&headers)), Reported::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_released_permit_is_free_for_others() {
    let table = table("limits: [1/10s]");
    let permit = table.acquire("x", None, within(1)).await.unwrap();
    assert_eq!(table.release(&permit.id), Released::Now);
    assert_eq!(table.release(&permit.id), Released::Before);
    let headers = HeaderMap::new();
    assert_eq!(table.report(&permit.id, ok(&headers)), Reported::Released);
    assert!(table.acquire("x", None, within(1)).await.is_ok());
}

/// Nobody knows whether it was used, and when: it is held until its call can no longer arrive, and
/// counts from then on.
#[tokio::test(start_paused = true)]
async fn an_unreported_permit_counts_as_sent() {
    let table = table("limits: [1/10s]\ntimeout: {first_byte: 5s}\nlate_arrival: 1s");
    let permit = table.acquire("x", None, within(1)).await.unwrap();
    assert_eq!(table.open_permits(), 1);
    // 30 s to use it, 5 s for the response, 1 s on its way, and the window.
    tokio::time::advance(std::time::Duration::from_secs(44)).await;
    assert_eq!(table.open_permits(), 0);
    assert!(table.acquire("x", None, within(1)).await.is_err());
    let headers = HeaderMap::new();
    assert_eq!(table.report(&permit.id, ok(&headers)), Reported::Unknown);
    assert_eq!(table.release(&permit.id), Released::Unknown);
    tokio::time::advance(std::time::Duration::from_secs(4)).await;
    assert!(table.acquire("x", None, within(1)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_reported_once() {
    let table = table("limits: [5/1s]");
    let permit = table.acquire("x", None, within(1)).await.unwrap();
    let reported = table.report(&permit.id, Report::Failed(Fault::Timeout));
    let Reported::Now(learned) = reported else {
        panic!("{reported:?}");
    };
    assert!(learned.class.is_failure());
    let again = table.report(&permit.id, Report::Failed(Fault::Timeout));
    assert_eq!(again, Reported::Before(learned));
}

/// Entities are read from the path, as for a call that Tollgate makes itself.
#[tokio::test(start_paused = true)]
async fn the_path_determines_the_entity() {
    let table =
        table("limits: [{limit: 1, period: 10s, per: entity, name: each}]\nentities: {from: path}");
    let call = |path: &str| table.acquire(url("api.example.org", path), None, within(0));
    assert!(call("/odds/1").await.is_ok());
    assert!(call("/teams/1").await.is_ok());
    assert_eq!(limit_of(call("/odds/2").await).0.as_deref(), Some("each"));
    let named = Target::Provider {
        name: "x".to_owned(),
        path: "/cups/1".to_owned(),
        query: None,
    };
    assert!(table.acquire(named, None, within(0)).await.is_ok());
    assert_eq!(limit_of(call("/cups/2").await).1, Reason::Limit);
}

#[tokio::test(start_paused = true)]
async fn hosts_of_a_provider_have_limits_of_their_own() {
    let table = table("limits: [{limit: 1, period: 10s, per: host}]");
    let call = |host: &str| table.acquire(url(host, "/"), None, within(0));
    assert!(call("a.shop.example").await.is_ok());
    assert!(call("b.shop.example").await.is_ok());
    assert_eq!(limit_of(call("a.shop.example").await).1, Reason::Limit);
}

#[tokio::test(start_paused = true)]
async fn a_caller_gets_no_more_than_its_share_and_needs_its_token() {
    let registry = registry("limits: [10/10s]");
    registry.set_callers(&[Caller {
        name: "batch".to_owned(),
        priority: Priority::Low,
        at_least: None,
        at_most: Some(Ppm(200_000)),
        token: Some(tollgate_config::Secret::new("t".to_owned())),
        guards: None,
    }]);
    let table = PermitTable::new(registry, USE_WITHIN);
    let batch = |token: Option<&str>| CallOptions {
        caller: Some("batch".to_owned()),
        token: token.map(|token| tollgate_config::Secret::new(token.to_owned())),
        ..within(0)
    };
    let nameless = table.acquire("x", None, batch(None)).await;
    assert!(
        matches!(nameless, Err(Error::WrongCallerToken { .. })),
        "{nameless:?}"
    );
    for _ in 0..2 {
        assert!(table.acquire("x", None, batch(Some("t"))).await.is_ok());
    }
    let (limit, _) = limit_of(table.acquire("x", None, batch(Some("t"))).await);
    assert_eq!(limit.as_deref(), Some("10/10s (the caller's share)"));
    assert!(
        table.acquire("x", None, within(1)).await.is_ok(),
        "others have the rest"
    );
}

/// A full table takes no permit that nobody could report.
#[tokio::test(start_paused = true)]
async fn a_full_table_rejects_before_it_asks_for_a_permit() {
    let table = table("limits: [1000000/1s]");
    for _ in 0..tollgate::permit_table::PERMITS_MAX {
        table.acquire("x", None, within(1)).await.unwrap();
    }
    let (limit, reason) = limit_of(table.acquire("x", None, within(1)).await);
    assert_eq!((limit, reason), (None, Reason::PermitsOpen));
    tokio::time::advance(std::time::Duration::from_secs(3_600)).await;
    assert!(table.acquire("x", None, within(1)).await.is_ok());
}

/// Calls are sent at any moment within `use_within`, reported late, twice or never.
/// The provider's own rule never limits one.
#[tokio::test(start_paused = true)]
async fn the_rule_of_the_provider_holds_whenever_permits_are_used() {
    let file = "limits: [4/10s]\ntimeout: {first_byte: 5s}\nlate_arrival: 1s\nretry: {retries: {high: 0, normal: 0, low: 0}}";
    let registry = registry(file);
    let use_within = Span::from_secs(8);
    let table = PermitTable::new(registry.clone(), use_within);
    let mut provider = Provider::new(RuleSpec::parse_all("sliding 4/10s").expect("a rule"));
    // A fixed sequence instead of chance: delays to the sending, and what becomes of the report.
    let (mut sends, mut granted) = (std::collections::BTreeSet::new(), 0_u64);
    let headers = HeaderMap::new();
    for round in 0_u64..400 {
        if let Ok(permit) = table.acquire("x", None, within(0)).await {
            granted += 1;
            let delay = Span::from_millis(round * 7_919 % 8_000);
            sends.insert((registry.ledger().at() + delay, granted, permit.id));
        }
        tokio::time::advance(std::time::Duration::from_millis(500)).await;
        let now = registry.ledger().at();
        while let Some((at, number, id)) = sends.first().cloned()
            && at <= now
        {
            sends.pop_first();
            let decision = provider.arrive(CallId(number), at, Cost::CALL);
            assert!(
                matches!(decision, RuleDecision::Accepted),
                "call {number}: {decision:?}"
            );
            for _ in 0..number % 3 {
                let _twice = table.report(&id, ok(&headers));
            }
        }
    }
    assert!(
        granted >= 40,
        "{granted} of 80 that the provider allows in 200 s"
    );
}

/// Each permit has one end, whatever becomes of it.
#[tokio::test(start_paused = true)]
async fn every_permit_has_one_end_event() {
    let registry = registry("limits: [3/10s]");
    let mut subscription = registry.events().subscribe();
    let table = PermitTable::new(registry, USE_WITHIN);
    let named = |id: &str| CallOptions {
        id: id.into(),
        ..within(0)
    };
    let headers = HeaderMap::new();
    let mut permits = Vec::new();
    for id in ["reported", "released", "forgotten"] {
        permits.push(table.acquire("x", None, named(id)).await.unwrap());
    }
    assert!(table.acquire("x", None, named("rejected")).await.is_err());
    let _now = table.report(&permits[0].id, ok(&headers));
    let _again = table.report(&permits[0].id, ok(&headers));
    let _now = table.release(&permits[1].id);
    tokio::time::advance(std::time::Duration::from_secs(3_600)).await;
    assert_eq!(table.open_permits(), 0);
    let mut ends = Vec::new();
    while let Some(Notification::Event(event)) = subscription.try_next() {
        if let Event::CallEnded(end) = &*event {
            let (status, reason) = (end.result.status(), end.result.reason());
            ends.push((end.id.to_string(), status, reason, end.attempts));
        }
    }
    let expected = [
        ("rejected", Some(429), Some("limit"), 0),
        ("reported", Some(200), None, 1),
        ("released", None, Some("unused"), 0),
        ("forgotten", None, Some("unreported"), 1),
    ];
    let expected = expected.map(|(id, status, reason, made)| (id.to_owned(), status, reason, made));
    assert_eq!(ends, expected);
}

/// A graceful shutdown gave all of them back, while those who hold them went on to use them.
#[tokio::test(start_paused = true)]
async fn permits_that_are_open_when_the_table_goes_stay_counted() {
    let registry = registry("limits: [1/10s]\ntimeout: {first_byte: 5s}\nlate_arrival: 1s");
    let table = PermitTable::new(registry.clone(), USE_WITHIN);
    table.acquire("x", None, within(1)).await.unwrap();
    drop(table);
    let table = PermitTable::new(registry, USE_WITHIN);
    assert!(table.acquire("x", None, within(1)).await.is_err());
    // It may be used at the end of its 30 s; 5 s for the response, 1 s on its way, and the window.
    tokio::time::advance(std::time::Duration::from_secs(44)).await;
    assert!(table.acquire("x", None, within(1)).await.is_err());
    tokio::time::advance(std::time::Duration::from_secs(4)).await;
    assert!(table.acquire("x", None, within(1)).await.is_ok());
}

/// Permits that were reported filled the table until they would have expired.
#[tokio::test(start_paused = true)]
async fn closed_permits_take_no_place_of_open_ones() {
    let table = table("limits: [1000000/1s]");
    let headers = HeaderMap::new();
    let first = table.acquire("x", None, within(1)).await.unwrap();
    let Reported::Now(learned) = table.report(&first.id, ok(&headers)) else {
        panic!("it is the first");
    };
    for number in 0..tollgate::permit_table::PERMITS_MAX {
        let permit = table.acquire("x", None, within(1)).await.unwrap();
        if number % 2 == 0 {
            let _released = table.release(&permit.id);
        } else {
            let _reported = table.report(&permit.id, ok(&headers));
        }
    }
    assert!(table.acquire("x", None, within(1)).await.is_ok());
    let again = table.report(&first.id, ok(&headers));
    assert_eq!(again, Reported::Before(learned), "remembered");
}

/// Before, the end of an unreported permit waited for the next one who used the table.
#[tokio::test(start_paused = true)]
async fn a_permit_expires_although_nobody_uses_the_table() {
    let registry = registry("limits: [3/10s]\ntimeout: {first_byte: 5s}");
    let mut subscription = registry.events().subscribe();
    let table = PermitTable::new(registry.clone(), USE_WITHIN);
    for seconds in [0, 10] {
        tokio::time::advance(std::time::Duration::from_secs(seconds)).await;
        table.acquire("x", None, within(1)).await.unwrap();
    }
    let started = registry.ledger().at();
    for after in [25, 35] {
        let reason = loop {
            if let Notification::Event(event) = subscription.next().await.unwrap()
                && let Event::CallEnded(end) = &*event
            {
                break end.result.reason();
            }
        };
        assert_eq!(reason, Some("unreported"));
        let waited = registry.ledger().at().since(started);
        assert_eq!(waited.0 / 1_000_000, after, "seconds");
    }
}

/// A timer that ended with its runtime while no permit was open was never started again.
#[test]
fn a_permit_expires_in_the_next_runtime_too() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap()
    };
    let first = runtime();
    let (registry, table) = first.block_on(async {
        let registry = registry("limits: [3/10s]\ntimeout: {first_byte: 5s}");
        let table = PermitTable::new(registry.clone(), USE_WITHIN);
        let permit = table.acquire("x", None, within(1)).await.unwrap();
        tokio::task::yield_now().await; // its timer waits now
        let _reported = table.report(&permit.id, ok(&HeaderMap::new()));
        (registry, table)
    });
    drop(first);
    runtime().block_on(async {
        let mut subscription = registry.events().subscribe();
        table.acquire("x", None, within(1)).await.unwrap();
        let ended = async {
            loop {
                if let Notification::Event(event) = subscription.next().await.unwrap()
                    && let Event::CallEnded(end) = &*event
                {
                    break end.result.reason();
                }
            }
        };
        let ended = tokio::time::timeout(std::time::Duration::from_secs(100), ended).await;
        assert_eq!(ended.unwrap(), Some("unreported"));
    });
}

fn ends(subscription: &mut tollgate::event::Subscription) -> Vec<tollgate::event::CallEnd> {
    let mut ends = Vec::new();
    while let Some(Notification::Event(event)) = subscription.try_next() {
        if let Event::CallEnded(end) = &*event {
            ends.push((**end).clone());
        }
    }
    ends
}

/// Errors before the permit stage, and callers that leave while they wait, had no end event.
#[tokio::test(start_paused = true)]
async fn a_permit_that_is_never_granted_has_one_end_event_too() {
    let registry = registry("limits: [1/10s]");
    let mut subscription = registry.events().subscribe();
    let table = PermitTable::new(registry.clone(), USE_WITHIN);
    let named = |id: &str| CallOptions {
        id: id.into(),
        caller: Some("batch".to_owned()),
        ..within(60)
    };
    assert!(table.acquire("none", None, named("a")).await.is_err());
    let decided = tollgate::decide::acquire(&registry, "none", None, named("b")).await;
    assert!(decided.is_err());
    for end in ends(&mut subscription) {
        assert_eq!((end.decision.as_str(), end.attempts), ("reject", 0));
        assert_eq!(end.caller.as_deref(), Some("batch"));
        assert!(matches!(end.result, CallResult::Rejected(_)), "{end:?}");
    }
    let held = table.acquire("x", None, named("c")).await.unwrap();
    let second = std::time::Duration::from_secs(2);
    let left = tokio::time::timeout(second, table.acquire("x", None, named("d"))).await;
    assert!(left.is_err());
    let decide = tollgate::decide::acquire(&registry, "x", None, named("e"));
    assert!(tokio::time::timeout(second, decide).await.is_err());
    let gone = ends(&mut subscription);
    assert_eq!(gone.len(), 2, "{gone:?}");
    for (end, id) in gone.iter().zip(["d", "e"]) {
        assert_eq!((&*end.id, end.result.reason()), (id, Some("client_gone")));
        assert_eq!((end.result.status(), end.attempts), (None, 0));
        assert_eq!(
            (end.decision.as_str(), end.waited),
            ("queue", Span::from_secs(2))
        );
        assert_eq!(end.provider.as_deref(), Some("x"));
    }
    drop((held, table));
    assert_eq!(ends(&mut subscription).len(), 1);
}

/// What a permit had waited for was lost with its report.
#[tokio::test(start_paused = true)]
async fn a_permit_that_has_waited_ends_with_what_it_waited_for() {
    let registry = registry("limits: [1/1s]");
    let mut subscription = registry.events().subscribe();
    let headers = HeaderMap::new();
    for id in ["first", "second"] {
        let options = CallOptions {
            id: id.into(),
            ..within(60)
        };
        let mut decision = tollgate::decide::acquire(&registry, "x", None, options)
            .await
            .unwrap();
        decision.sent().unwrap();
        decision.report(200, &headers, b"", &[]);
    }
    let ends = ends(&mut subscription);
    let told = ends.iter().map(|end| {
        (
            end.decision.as_str(),
            end.result.reason(),
            end.limit.as_deref(),
        )
    });
    let expected = [
        ("allow", None, None),
        ("queue", Some("limit"), Some("1/1s")),
    ];
    assert_eq!(told.collect::<Vec<_>>(), expected);
}
