//! The scheduler of sources over sockets: capacity first, workers acquire, results are delivered.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Notify;
use tollgate::event::{Event, Notification, Subscription};
use tollgate::providers::Options;
use tollgate_core::schedule::PlanRules;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{Clock, Ledger, ManualClock};
use tollgate_server::desk::{Desk, Source, SourceRun};
use tollgate_server::{Scheduler, SchedulerOptions};
use tollgate_sim::http::{Settings, SimProvider};

use crate::client::{get, wait_until, within_timeout};
use crate::test_daemon::{TestDaemon, from_config, write_file};
use crate::upstream::{Upstream, ok, reply};

/// 2026-03-01 12:00:00 UTC.
const NOON: Wall = Wall(1_772_366_400_000_000);

fn clock() -> Arc<ManualClock> {
    ManualClock::new(Now {
        at: Micros(1_000_000),
        wall: NOON,
    })
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tollgate-sched-{name}-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&folder));
    folder
}

/// A daemon whose provider `x` at `api.example.org` is this address, with a desk in this folder.
async fn daemon(
    name: &str,
    (address, limits): (std::net::SocketAddr, &str),
    clock: Clock,
    folder: &Path,
    scheduler: &str,
) -> TestDaemon {
    let provider = format!("{name}-x.yaml");
    let file = format!(
        "name: x\ndomain: api.example.org\nupstream: http://{address}\nhealth: off\nlimits: [{limits}]\nretry: {{retries: {{high: 0, normal: 0, low: 0}}}}\n"
    );
    write_file(&provider, &file);
    let config = format!("providers: [{provider}]\nscheduler: {scheduler}\n");
    write_file(&format!("{name}.yaml"), &config);
    let sources = from_config(&format!("{name}.yaml"));
    let options = Options {
        private: true,
        ..Options::default()
    };
    let daemon = TestDaemon::start_on(Ledger::memory(clock), sources, options, None).await;
    daemon.daemon.set_desk(Desk::open(folder).unwrap());
    daemon
}

fn source(name: &str, every: Option<&str>, output: Option<&str>) -> Source {
    Source {
        name: name.to_owned(),
        url: format!("http://api.example.org/{name}"),
        every: every.map(str::to_owned),
        output: output.map(str::to_owned),
        ..Source::default()
    }
}

fn add(daemon: &TestDaemon, source: &Source) {
    let desk = daemon.daemon.desk().unwrap();
    assert!(desk.add_source(source).unwrap());
}

fn runs(daemon: &TestDaemon) -> BTreeMap<String, SourceRun> {
    daemon.daemon.desk().unwrap().source_runs().unwrap()
}

/// The next fact about a source.
async fn next_fact(events: &mut Subscription) -> Event {
    within_timeout(async {
        loop {
            if let Some(Notification::Event(event)) = events.next().await
                && matches!(
                    *event,
                    Event::SourceFetched { .. }
                        | Event::SourcePutBack { .. }
                        | Event::SourceFailed { .. }
                )
            {
                return (*event).clone();
            }
        }
    })
    .await
}

/// H6: a scheduler of one's own fetches the sources: the daemon fetches none with `workers: 0`.
#[tokio::test]
async fn h6_without_workers_the_daemon_fetches_nothing() {
    let mut arrived = Vec::new();
    let mut running = Vec::new();
    // The second has as many cycles as the first, or fewer.
    for (name, workers) in [("idle", 0), ("busy", 1)] {
        let upstream = Upstream::start(|_, _| async { ok() }).await;
        let folder = folder(name);
        let scheduler = format!("{{cycle: 100ms, workers: {workers}}}");
        let at = (upstream.address, "100/1s");
        let name = format!("sched-{name}");
        let daemon = daemon(&name, at, Clock::System, &folder, &scheduler).await;
        add(&daemon, &source("s", Some("1s"), None));
        let events = daemon.daemon.registry().events().subscribe();
        let scheduler = Scheduler::start(&daemon.daemon, SchedulerOptions::default());
        running.push((daemon, scheduler, events));
        arrived.push(upstream);
    }
    for _ in 0..2 {
        let (_, _, events) = running.last_mut().unwrap();
        let fact = next_fact(events).await;
        assert!(matches!(fact, Event::SourceFetched { .. }), "{fact:?}");
    }
    assert_eq!(arrived[0].count(), 0);
    assert!(arrived[1].count() >= 2);
    let idle = runs(&running[0].0);
    assert!(idle.values().all(|run| run.result.is_none()), "{idle:?}");
}

/// H6: ten sources are due at once and three calls a second are allowed: no more arrive, all are fetched in the next windows,
/// and no retry is used. The oracle is the provider's own log.
#[tokio::test]
async fn h6_more_sources_than_capacity_are_fetched_in_the_next_windows() {
    let settings = Settings::with_rules("sliding 3/1s").unwrap();
    let provider = SimProvider::start(settings).await.unwrap();
    let folder = folder("windows");
    let daemon = daemon(
        "sched-windows",
        (provider.address(), "3/1s"),
        Clock::System,
        &folder,
        "{cycle: 100ms, workers: 4}",
    )
    .await;
    for number in 0..10 {
        let name = format!("s{number}");
        add(&daemon, &source(&name, None, Some("all/{name}.{ext}")));
    }
    let mut events = daemon.daemon.registry().events().subscribe();
    let scheduler = Scheduler::start(&daemon.daemon, SchedulerOptions::default());
    let mut fetched = 0;
    while fetched < 10 {
        match next_fact(&mut events).await {
            Event::SourceFetched { status: 200, .. } => fetched += 1,
            Event::SourcePutBack { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    scheduler.drain().await;
    let report = provider.stop().await;
    assert_eq!((report.violations, report.accepted), (0, 10), "{report:?}");
    assert!(report.seconds > 3.0, "four windows: {}", report.seconds);
    let runs = runs(&daemon);
    assert_eq!(runs.len(), 10);
    for (name, run) in runs {
        let result = run.result.expect("it was fetched");
        assert_eq!((result.outcome.as_str(), result.status), ("ok", Some(200)));
        assert_eq!(
            (run.state.failures, run.state.next, run.is_queued),
            (0, None, false)
        );
        let path = folder.join(result.output.expect("a file"));
        assert_eq!(
            std::fs::metadata(path).unwrap().len(),
            result.bytes,
            "{name}"
        );
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// H6: a call takes the last permit between queue and worker. The worker's denial is `RateLimitExceeded`: no failure, no retry
/// used, and the source is fetched when the window is over.
#[tokio::test]
async fn h6_a_denied_worker_puts_its_source_back() {
    let held = Arc::new(Notify::new());
    let release = held.clone();
    let upstream = Upstream::start(move |_, request| {
        let held = held.clone();
        async move {
            if request.target == "/first" {
                held.notified().await;
            }
            ok()
        }
    })
    .await;
    let (clock, folder) = (clock(), folder("denied"));
    let daemon = daemon(
        "sched-denied",
        (upstream.address, "2/1h"),
        Clock::Manual(clock.clone()),
        &folder,
        "{cycle: 100ms, workers: 1}",
    )
    .await;
    add(&daemon, &source("first", None, None));
    add(&daemon, &source("second", Some("1h"), None));
    let mut events = daemon.daemon.registry().events().subscribe();
    let scheduler = Scheduler::start(&daemon.daemon, SchedulerOptions::default());
    // One worker: the first is under way, the second is queued.
    wait_until(|| upstream.count() == 1).await;
    wait_until(|| runs(&daemon).get("second").is_some_and(|run| run.is_queued)).await;
    assert_eq!(get(daemon.gateway, "/x/other").await.status, 200);
    release.notify_one();
    assert!(matches!(
        next_fact(&mut events).await,
        Event::SourceFetched { .. }
    ));
    let fact = next_fact(&mut events).await;
    let Event::SourcePutBack {
        source,
        reason,
        retry_in,
    } = &fact
    else {
        panic!("{fact:?}");
    };
    assert_eq!((&**source, *reason), ("second", "limit"));
    assert!(
        retry_in.is_some_and(|wait| wait > Span::from_secs(3_000)),
        "{fact:?}"
    );
    let run = runs(&daemon).remove("second").expect("it is stored");
    assert_eq!((run.state.failures, run.state.next), (0, Some(NOON)));
    assert_eq!(run.result, None, "a denial is no result");
    let listed = daemon.request("GET", "/v1/sources", "").await.json();
    assert_eq!(listed["sources"][1]["failures"], 0);
    assert_eq!(listed["sources"][1]["queued"], false);
    // While the window is full no cycle queues it. Then it is fetched, and its next time is on its grid.
    clock.pass(Span::from_secs(3_700));
    let fact = next_fact(&mut events).await;
    assert!(matches!(fact, Event::SourceFetched { .. }), "{fact:?}");
    let run = runs(&daemon).remove("second").expect("it is stored");
    assert_eq!(run.state.next, Some(NOON + Span::from_secs(7_200)));
    scheduler.drain().await;
    assert_eq!(upstream.count(), 3);
    std::fs::remove_dir_all(folder).unwrap();
}

/// H6: another failure uses a retry, with backoff; then it is reported and the source waits for its next time.
#[tokio::test]
async fn h6_a_failing_source_uses_its_retries_and_waits_for_its_next_time() {
    let upstream = Upstream::start(|number, _| async move {
        match number {
            0 | 1 => reply(500, &[], ""),
            _ => ok(),
        }
    })
    .await;
    let (clock, folder) = (clock(), folder("failing"));
    let daemon = daemon(
        "sched-failing",
        (upstream.address, "100/1h"),
        Clock::Manual(clock.clone()),
        &folder,
        "{cycle: 100ms, workers: 4}",
    )
    .await;
    add(&daemon, &source("news", Some("10m"), None));
    let mut events = daemon.daemon.registry().events().subscribe();
    let options = SchedulerOptions {
        rules: PlanRules {
            retries: 1,
            base: Span::from_secs(5),
            max: Span::from_secs(5),
        },
    };
    let scheduler = Scheduler::start(&daemon.daemon, options);
    for retry_in in [Some(Span::from_secs(5)), None] {
        let fact = next_fact(&mut events).await;
        let Event::SourceFailed {
            retry_in: said,
            why,
            ..
        } = &fact
        else {
            panic!("{fact:?}");
        };
        assert_eq!(
            (*said, &**why),
            (retry_in, "the provider responded with 500")
        );
        clock.pass(Span::from_secs(5));
    }
    let listed = daemon.request("GET", "/v1/sources", "").await.json();
    let last = &listed["sources"][0]["last"];
    assert_eq!(
        (&last["result"], &last["status"]),
        (&"failed".into(), &500.into())
    );
    assert_eq!(listed["sources"][0]["next_run"], 1_772_367_000.0);
    clock.pass(Span::from_secs(600));
    let fact = next_fact(&mut events).await;
    assert!(matches!(fact, Event::SourceFetched { .. }), "{fact:?}");
    assert_eq!(upstream.count(), 3, "it was not fetched in between");
    scheduler.drain().await;
    std::fs::remove_dir_all(folder).unwrap();
}

/// H5: a source with `cron` is fetched at its times in UTC and at no other; times that are missed while the daemon is stopped are
/// made up for once.
#[tokio::test]
async fn h5_a_source_with_cron_is_fetched_at_its_times() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let (clock, folder) = (clock(), folder("cron"));
    let start = async |name: &str| {
        daemon(
            name,
            (upstream.address, "100/1h"),
            Clock::Manual(clock.clone()),
            &folder,
            "{cycle: 100ms, workers: 1}",
        )
        .await
    };
    let hours = |hours: u64| Span::from_secs(hours * 3_600);
    let next = |daemon: &TestDaemon| runs(daemon).get("daily").and_then(|run| run.state.next);
    let first = start("sched-cron").await;
    let daily = Source {
        cron: Some("0 13 * * *".to_owned()),
        ..source("daily", None, None)
    };
    add(&first, &daily);
    let mut events = first.daemon.registry().events().subscribe();
    let scheduler = Scheduler::start(&first.daemon, SchedulerOptions::default());
    wait_until(|| runs(&first).contains_key("daily")).await;
    assert_eq!(next(&first), Some(NOON + hours(1)));
    assert_eq!(upstream.count(), 0, "it is noon");
    clock.pass(hours(1));
    let fact = next_fact(&mut events).await;
    assert!(matches!(fact, Event::SourceFetched { .. }), "{fact:?}");
    assert_eq!(next(&first), Some(NOON + hours(25)));
    scheduler.drain().await;
    assert_eq!(upstream.count(), 1);
    first.daemon.set_desk(Desk::in_memory().unwrap()); // gives its place up, as the end of the process does
    // Stopped tomorrow and the day after at 13:00.
    clock.pass(hours(49));
    let second = start("sched-cron-again").await;
    let mut events = second.daemon.registry().events().subscribe();
    let scheduler = Scheduler::start(&second.daemon, SchedulerOptions::default());
    let fact = next_fact(&mut events).await;
    assert!(matches!(fact, Event::SourceFetched { .. }), "{fact:?}");
    assert_eq!(next(&second), Some(NOON + hours(73)));
    scheduler.drain().await;
    assert_eq!(upstream.count(), 2, "once for both missed times");
    std::fs::remove_dir_all(folder).unwrap();
}

/// H5: a webhook gets the body of the response; a receiver that fails gets it again, and the provider is not called again.
#[tokio::test]
async fn h5_a_result_is_posted_to_a_webhook_until_it_is_taken() {
    let kind = [("content-type", "application/json")];
    let upstream = Upstream::start(move |_, _| async move { reply(200, &kind, "{\"a\":1}") }).await;
    let receiver = Upstream::start(|number, _| async move {
        match number {
            0 => reply(503, &[], ""),
            _ => ok(),
        }
    })
    .await;
    let folder = folder("webhook");
    let daemon = daemon(
        "sched-webhook",
        (upstream.address, "100/1h"),
        Clock::System,
        &folder,
        "{cycle: 100ms, workers: 4}",
    )
    .await;
    let to = format!("http://{}/in", receiver.address);
    add(&daemon, &source("news", None, Some(&to)));
    let mut events = daemon.daemon.registry().events().subscribe();
    let scheduler = Scheduler::start(&daemon.daemon, SchedulerOptions::default());
    let fact = next_fact(&mut events).await;
    assert!(matches!(fact, Event::SourceFetched { .. }), "{fact:?}");
    scheduler.drain().await;
    assert_eq!((upstream.count(), receiver.count()), (1, 2));
    let received = &receiver.requests()[1];
    assert_eq!(&*received.body, b"{\"a\":1}");
    assert_eq!(received.target, "/in");
    for (name, value) in [
        ("x-tollgate-source-name", "news"),
        ("x-tollgate-source-status", "200"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(received.headers[name], value);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// H5: a source that is removed is not fetched again, and a result that cannot be delivered is reported without a second fetch.
#[tokio::test]
async fn h5_a_result_that_cannot_be_delivered_is_reported_and_not_fetched_again() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let (clock, folder) = (clock(), folder("undelivered"));
    let daemon = daemon(
        "sched-undelivered",
        (upstream.address, "100/1h"),
        Clock::Manual(clock.clone()),
        &folder,
        "{cycle: 100ms, workers: 4}",
    )
    .await;
    // A folder where the file should be.
    std::fs::create_dir_all(folder.join("results/news/in-the-way")).unwrap();
    add(&daemon, &source("news", Some("10m"), Some("{name}")));
    let mut events = daemon.daemon.registry().events().subscribe();
    let scheduler = Scheduler::start(&daemon.daemon, SchedulerOptions::default());
    let fact = next_fact(&mut events).await;
    assert!(
        matches!(fact, Event::SourceFailed { retry_in: None, .. }),
        "{fact:?}"
    );
    let run = runs(&daemon).remove("news").expect("it is stored");
    assert_eq!(
        run.result.map(|result| result.outcome).as_deref(),
        Some("undelivered")
    );
    assert_eq!(run.state.next, Some(NOON + Span::from_secs(600)));
    assert_eq!(upstream.count(), 1);
    assert!(daemon.daemon.desk().unwrap().remove_source("news").unwrap());
    add(&daemon, &source("other", None, None));
    clock.pass(Span::from_secs(86_400));
    assert!(matches!(
        next_fact(&mut events).await,
        Event::SourceFetched { .. }
    ));
    assert_eq!(upstream.count(), 2, "the removed one is gone");
    assert_eq!(runs(&daemon).keys().collect::<Vec<_>>(), ["other"]);
    scheduler.drain().await;
    std::fs::remove_dir_all(folder).unwrap();
}

/// H6: of two processes with one state folder one runs the sources, and the other takes over when it is gone.
#[tokio::test]
async fn h6_one_process_of_a_state_folder_runs_the_sources() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let folder = folder("two");
    let start = async |name: &str| {
        daemon(
            name,
            (upstream.address, "100/1h"),
            Clock::System,
            &folder,
            "{cycle: 100ms, workers: 4}",
        )
        .await
    };
    let (one, two) = (start("sched-one").await, start("sched-two").await);
    add(&one, &source("a", None, None));
    let mut events = one.daemon.registry().events().subscribe();
    let first = Scheduler::start(&one.daemon, SchedulerOptions::default());
    assert!(matches!(
        next_fact(&mut events).await,
        Event::SourceFetched { .. }
    ));
    add(&two, &source("b", None, None));
    let second = Scheduler::start(&two.daemon, SchedulerOptions::default());
    let mut taken_over = two.daemon.registry().events().subscribe();
    first.drain().await;
    assert_eq!(upstream.count(), 1, "the second one waits");
    one.daemon.set_desk(Desk::in_memory().unwrap()); // gives its place up, as the end of the process does
    add(&two, &source("c", None, None)); // it looks again
    for _ in ["b", "c"] {
        let fact = next_fact(&mut taken_over).await;
        assert!(matches!(fact, Event::SourceFetched { .. }), "{fact:?}");
    }
    second.drain().await;
    assert_eq!(upstream.count(), 3);
    std::fs::remove_dir_all(folder).unwrap();
}
