//! Several processes on one ledger: they sleep, probe and recover together, through the scope
//! that `turn` stores.

use smallvec::smallvec;

use super::harness::{Harness, base, long_sleeps};
use super::{
    Action, Actions, AttemptResult, BasePace, Class, Command, Health, HealthEvent, HealthMode,
    HealthSettings, HealthState, Rate,
};
use crate::ask::{Ask, Evidence, OwnerId, PermitId, Priority, ScopeId, Settle, Verdict};
use crate::scope::ScopeView;
use crate::table::Table;
use crate::time::{Micros, Now, Span, Wall};
use crate::turn::turn;

const SCOPE: ScopeId = ScopeId(1);
const SEC: Span = Span::from_secs(1);

/// State machines that share one scope. Each of them sees every change.
struct Hosts {
    ledger: Table,
    machines: Vec<Health>,
    now: Micros,
    seq: u64,
}

impl Hosts {
    fn new(count: usize) -> Hosts {
        Hosts::with(long_sleeps(), count)
    }

    fn with(settings: HealthSettings, count: usize) -> Hosts {
        let now = Micros(1_000_000);
        let machine = Health::new(settings, base(), now).unwrap();
        Hosts {
            ledger: Table::default(),
            machines: vec![machine; count],
            now,
            seq: 0,
        }
    }

    fn clock(&self) -> Now {
        Now {
            at: self.now,
            wall: Wall(0),
        }
    }

    fn on(&mut self, host: usize, event: HealthEvent) {
        let actions = self.machines[host].on(event, self.now);
        self.apply(&actions);
    }

    fn apply(&mut self, actions: &Actions) {
        let settles: Vec<Settle> = actions.iter().filter_map(|a| a.settle(SCOPE)).collect();
        let now = self.clock();
        let changed = turn(&mut self.ledger, now, &settles, &[]).changed_scopes;
        if changed.is_empty() {
            return;
        }
        let view = self.view();
        for machine in &mut self.machines {
            let echo = machine.on(HealthEvent::ScopeChanged(view), self.now);
            let writes = echo.iter().any(|action| action.settle(SCOPE).is_some());
            assert!(!writes, "a view never makes a machine write");
        }
    }

    fn view(&self) -> ScopeView {
        self.ledger.peek_scope(SCOPE, self.now)
    }

    /// Asks for a permit; `true` = granted.
    fn try_acquire(&mut self, host: usize) -> bool {
        self.seq += 1;
        let ask = Ask {
            id: PermitId {
                owner: OwnerId(u32::try_from(host).unwrap()),
                seq: self.seq,
            },
            terms: smallvec![],
            scopes: smallvec![SCOPE],
            priority: Priority::Normal,
            max_wait: Span::ZERO,
            evidence: Evidence::Report {
                timeout: Span::from_secs(30),
                late: Span::from_secs(5),
            },
        };
        let now = self.clock();
        let verdicts = turn(&mut self.ledger, now, &[], &[ask]).verdicts;
        matches!(verdicts[0], Verdict::Go { .. })
    }

    fn complete(&mut self, host: usize, class: Class) {
        let result = AttemptResult::new(class, self.now);
        self.on(host, HealthEvent::Completed(result));
    }

    fn advance(&mut self, span: Span) {
        self.now += span;
        for host in 0..self.machines.len() {
            self.on(host, HealthEvent::Tick);
        }
    }

    fn states(&self) -> Vec<HealthState> {
        self.machines.iter().map(Health::state).collect()
    }

    fn all(&self, state: HealthState) -> bool {
        self.states().iter().all(|&each| each == state)
    }
}

/// A5: if one process detects an outage, all sleep; no call is granted until the sleep is over.
#[test]
fn processes_sleep_together() {
    let mut hosts = Hosts::new(3);
    for _ in 0..5 {
        assert!(hosts.try_acquire(0));
        hosts.complete(0, Class::ServerError);
    }
    assert!(hosts.all(HealthState::Sleep), "{:?}", hosts.states());
    for _ in 0..29 {
        hosts.advance(SEC);
        assert!(!hosts.try_acquire(0) && !hosts.try_acquire(1) && !hosts.try_acquire(2));
    }
    hosts.advance(SEC);
    assert!(hosts.all(HealthState::HalfOpen), "{:?}", hosts.states());
}

/// A6: however many processes wait, one call probes at a time; enough successes reopen all.
#[test]
fn processes_probe_once_and_wake_together() {
    let mut hosts = Hosts::new(3);
    (0..5).for_each(|_| hosts.complete(0, Class::ServerError));
    hosts.advance(Span::from_secs(30));
    for probe in 0..5 {
        assert!(hosts.try_acquire(1), "probe {probe}");
        assert!(
            !hosts.try_acquire(0) && !hosts.try_acquire(2),
            "only one at a time"
        );
        hosts.complete(1, Class::Success);
        if probe < 4 {
            assert!(!hosts.try_acquire(1), "not more than three per second");
            hosts.advance(Span::from_millis(334));
        }
    }
    assert!(hosts.all(HealthState::Normal), "{:?}", hosts.states());
    assert!(hosts.try_acquire(0) && hosts.try_acquire(1) && hosts.try_acquire(2));
}

/// A6: a failed probe of one process puts all back to sleep, for twice as long.
#[test]
fn a_failed_probe_counts_for_all() {
    let mut hosts = Hosts::new(2);
    (0..5).for_each(|_| hosts.complete(0, Class::Network));
    hosts.advance(Span::from_secs(30));
    assert!(hosts.try_acquire(1));
    hosts.complete(1, Class::Network);
    assert!(hosts.all(HealthState::Sleep));
    hosts.advance(Span::from_secs(59));
    assert!(!hosts.try_acquire(0));
    hosts.advance(SEC);
    assert!(hosts.try_acquire(0));
    hosts.complete(0, Class::Network);
    let remaining = hosts.machines[1].status(hosts.now).reset_in;
    assert_eq!(remaining, Span::from_secs(120));
}

/// A5: an operator's hold and its end reach every process.
#[test]
fn an_operator_command_reaches_all_processes() {
    let mut hosts = Hosts::new(2);
    hosts.on(0, HealthEvent::Operator(Command::Offline));
    assert!(hosts.all(HealthState::Sleep) && !hosts.try_acquire(1));
    hosts.advance(Span::from_secs(86_400));
    hosts.on(1, HealthEvent::Operator(Command::Resume));
    assert!(hosts.all(HealthState::Normal) && hosts.try_acquire(0));
}

/// A5: a restarted process resumes its sleep, and a hold even with `mode: off`.
#[test]
fn a_restarted_process_resumes_its_sleep() {
    let mut harness = Harness::new(HealthSettings::default());
    let remaining = Some(Span::from_secs(20));
    harness.view(ScopeView::Closed { remaining });
    assert_eq!(harness.log, ["Normal -> Sleep (policy)"]);
    harness.advance_secs(20);
    assert_eq!(harness.state(), HealthState::HalfOpen);
    let mut off = Harness::new(HealthSettings {
        mode: HealthMode::Off,
        ..HealthSettings::default()
    });
    off.view(ScopeView::Closed { remaining });
    assert_eq!(off.state(), HealthState::Normal);
    off.view(ScopeView::Closed { remaining: None });
    assert_eq!(off.log, ["Normal -> Sleep (operator)"]);
    off.command(Command::Resume);
    assert!(off.opens());
}

/// A view of the ledger from before our own closing does not end our sleep.
#[test]
fn an_outdated_view_does_not_end_a_sleep() {
    let mut harness = Harness::asleep(HealthSettings::default());
    harness.view(ScopeView::Open);
    assert_eq!(harness.state(), HealthState::Sleep);
    harness.view(ScopeView::Closed {
        remaining: Some(SEC),
    });
    assert_eq!(harness.last.as_slice(), &[] as &[Action]);
    harness.view(ScopeView::Open);
    assert_eq!(
        harness.state(),
        HealthState::Normal,
        "another process has opened it"
    );
}

/// A7: all processes follow the end of a hold by one process's recovery or `resume`.
#[test]
fn a_hold_that_another_process_ends_is_over() {
    let mut harness = Harness::new(HealthSettings::default());
    harness.command(Command::CacheOnly { lasts: None });
    let remaining = Some(Span::from_secs(2));
    harness.view(ScopeView::Closed { remaining });
    assert_eq!(harness.state(), HealthState::CacheOnly, "an outdated view");
    harness.view(ScopeView::CacheOnly { remaining: None });
    harness
        .view(ScopeView::Closed { remaining })
        .advance_secs(2);
    let expected = [
        "CacheOnly -> Sleep (operator)",
        "Sleep -> HalfOpen (sleep_over)",
    ];
    assert_eq!(harness.log[1..], expected);
}

/// Settings that try to recover from CacheOnly every 15 min.
fn recovering() -> HealthSettings {
    HealthSettings {
        auto_recover: Some(Span::from_secs(900)),
        ..HealthSettings::default()
    }
}

/// A7: a CacheOnly with automatic recovery recovers although the process that set it has stopped.
/// Once its hold had no end in the ledger, and other processes took it for an operator's hold.
#[test]
fn a_hold_with_an_end_outlives_its_process() {
    let mut hosts = Hosts::with(recovering(), 2);
    hosts.on(0, HealthEvent::Operator(Command::CacheOnly { lasts: None }));
    assert_eq!(hosts.states(), [HealthState::CacheOnly, HealthState::Sleep]);
    hosts.machines.remove(0);
    hosts.advance(Span::from_secs(899));
    assert!(!hosts.try_acquire(0));
    hosts.advance(SEC);
    assert!(hosts.try_acquire(0), "a probe");
    assert!(hosts.all(HealthState::HalfOpen), "{:?}", hosts.states());
}

/// A5: only `resume` ends offline; the timer of another process's CacheOnly does not.
#[test]
fn offline_is_not_ended_by_another_processs_timer() {
    let mut hosts = Hosts::with(recovering(), 2);
    hosts.on(0, HealthEvent::Operator(Command::CacheOnly { lasts: None }));
    hosts.on(1, HealthEvent::Operator(Command::Offline));
    hosts.advance(Span::from_secs(86_400));
    assert!(!hosts.try_acquire(0) && !hosts.try_acquire(1));
    assert!(hosts.all(HealthState::Sleep), "{:?}", hosts.states());
    hosts.on(0, HealthEvent::Operator(Command::Resume));
    assert!(hosts.all(HealthState::Normal) && hosts.try_acquire(1));
}

/// A7: a hold with an end that another process ends early is over, also with `mode: off`.
#[test]
fn a_hold_with_an_end_can_be_ended_elsewhere() {
    for mode in [HealthMode::Adaptive, HealthMode::Breaker, HealthMode::Off] {
        let mut harness = Harness::new(HealthSettings {
            mode,
            ..recovering()
        });
        harness.command(Command::CacheOnly { lasts: None });
        harness.view(ScopeView::Open);
        assert_eq!(harness.state(), HealthState::CacheOnly, "an outdated view");
        let remaining = Some(Span::from_secs(900));
        harness.view(ScopeView::Closed { remaining });
        assert_eq!(harness.state(), HealthState::CacheOnly, "our own hold");
        harness.view(ScopeView::Open);
        assert_eq!(harness.state(), HealthState::Normal, "{mode:?}");
    }
}

/// A6: the ledger's clock is a little ahead of ours, so a probe starts and ends before our own
/// timer. It still counts as a probe: once its slot stayed taken until the permit expired, 35 s.
#[test]
fn a_probe_that_ends_before_our_timer_frees_its_slot() {
    let granted_before = |event: fn(Micros) -> HealthEvent| {
        let mut harness = Harness::asleep(long_sleeps());
        harness.advance(Span::from_millis(29_990));
        let granted = harness.now;
        harness.advance(Span::from_millis(5)).on(event(granted));
        harness
    };
    let harness = granted_before(|granted| {
        HealthEvent::Completed(AttemptResult::new(Class::Success, granted))
    });
    assert_eq!(harness.log[1..], ["Sleep -> HalfOpen (sleep_over)"]);
    assert_eq!(
        harness.closed_for(),
        Some(Some(Span(333_334))),
        "the next probe may follow"
    );
    let harness = granted_before(|granted| HealthEvent::Dropped {
        granted,
        path: None,
    });
    assert_eq!(harness.closed_for(), Some(Some(Span(333_334))));
    let harness = granted_before(|_| HealthEvent::Granted);
    assert_eq!(harness.state(), HealthState::HalfOpen);
    let harness = granted_before(|granted| {
        HealthEvent::Completed(AttemptResult::new(Class::Network, granted))
    });
    assert_eq!(harness.log[2..], ["HalfOpen -> Sleep (probe_failed)"]);
    assert_eq!(harness.closed_for(), Some(Some(Span::from_secs(60))));
}

/// A5: every process sees the Sleep of a slow provider as a Sleep, although the gap between its
/// probes is longer.
#[test]
fn a_slow_providers_sleep_is_not_taken_for_a_probe_gap() {
    let daily = BasePace {
        rate: Some(Rate::of(1_000, Span::from_secs(86_400))),
        concurrency: None,
    };
    let now = Micros(1_000_000);
    let mut machine = Health::new(HealthSettings::default(), daily, now).unwrap();
    let remaining = Some(Span::from_secs(30));
    let actions = machine.on(
        HealthEvent::ScopeChanged(ScopeView::Closed { remaining }),
        now,
    );
    assert_eq!(machine.state(), HealthState::Sleep, "{actions:?}");
}

/// A7: a restarted process finds a CacheOnly without an end as CacheOnly, not as offline.
#[test]
fn a7_a_restart_finds_cache_only_and_not_offline() {
    for before in [Command::Offline, Command::Resume] {
        let mut hosts = Hosts::new(2);
        hosts.on(0, HealthEvent::Operator(before));
        hosts.on(0, HealthEvent::Operator(Command::CacheOnly { lasts: None }));
        assert!(hosts.all(HealthState::CacheOnly), "{:?}", hosts.states());
        let mut restarted = Health::new(HealthSettings::default(), base(), hosts.now).unwrap();
        let _pace = restarted.on(HealthEvent::ScopeChanged(hosts.view()), hosts.now);
        assert_eq!(restarted.state(), HealthState::CacheOnly);
        assert!(!hosts.try_acquire(1));
        hosts.on(1, HealthEvent::Operator(Command::Offline));
        assert!(hosts.all(HealthState::Sleep), "{:?}", hosts.states());
        hosts.on(0, HealthEvent::Operator(Command::Resume));
        assert!(hosts.all(HealthState::Normal), "{:?}", hosts.states());
        assert!(hosts.try_acquire(0));
    }
}

/// A7: a restarted process finds `cache-only --for 10m` as CacheOnly; it ends on time in every
/// process.
#[test]
fn a7_a_restart_finds_cache_only_with_its_end() {
    let mut hosts = Hosts::new(2);
    let lasts = Some(Span::from_secs(600));
    hosts.on(0, HealthEvent::Operator(Command::CacheOnly { lasts }));
    assert!(hosts.all(HealthState::CacheOnly), "{:?}", hosts.states());
    hosts.advance(Span::from_secs(100));
    let mut restarted = Health::new(HealthSettings::default(), base(), hosts.now).unwrap();
    let _pace = restarted.on(HealthEvent::ScopeChanged(hosts.view()), hosts.now);
    assert_eq!(restarted.state(), HealthState::CacheOnly);
    assert_eq!(
        restarted.next_tick(),
        Some(hosts.now + Span::from_secs(500))
    );
    hosts.machines.clear();
    hosts.machines.push(restarted);
    hosts.advance(Span::from_secs(499));
    assert!(!hosts.try_acquire(0));
    hosts.advance(SEC);
    assert!(hosts.all(HealthState::Normal), "{:?}", hosts.states());
    assert!(hosts.try_acquire(0));
}

/// A7: another command moves the end for all processes, and `resume` ends it for all.
#[test]
fn a7_cache_only_can_be_shortened_or_ended_by_another_process() {
    let mut hosts = Hosts::new(2);
    let order = |secs| {
        let lasts = Some(Span::from_secs(secs));
        HealthEvent::Operator(Command::CacheOnly { lasts })
    };
    hosts.on(0, order(600));
    hosts.on(1, order(60));
    hosts.advance(Span::from_secs(60));
    assert!(hosts.all(HealthState::Normal), "{:?}", hosts.states());
    hosts.on(0, order(600));
    hosts.on(1, HealthEvent::Operator(Command::Resume));
    assert!(hosts.all(HealthState::Normal), "{:?}", hosts.states());
}

/// A sleep of a process that does not know of the hold yet does not shorten it.
#[test]
fn the_end_of_a_sleep_does_not_end_cache_only() {
    let mut hosts = Hosts::new(1);
    hosts.on(0, HealthEvent::Operator(Command::CacheOnly { lasts: None }));
    let late = Settle::Close {
        scope: SCOPE,
        age: Span::ZERO,
        closed_for: Some(SEC),
        reopen: crate::ask::Reopen::Probe,
    };
    let now = hosts.clock();
    turn(&mut hosts.ledger, now, &[late], &[]);
    hosts.advance(Span::from_secs(2));
    assert_eq!(hosts.view(), ScopeView::CacheOnly { remaining: None });
    assert!(!hosts.try_acquire(0));
}

/// A4, A5, W4: all processes count failures in a row together: one failure in each of five
/// processes is enough, and no call is granted after the fifth.
#[test]
fn a5_consecutive_failures_are_counted_across_processes() {
    let mut hosts = Hosts::new(5);
    for host in 0..5 {
        assert!(hosts.try_acquire(host), "{host}");
        hosts.complete(host, Class::ServerError);
    }
    assert!(hosts.all(HealthState::Sleep), "{:?}", hosts.states());
    assert!(!hosts.try_acquire(0));
    hosts.advance(Span::from_secs(30));
    assert!(hosts.try_acquire(3), "then one of them probes");
    assert!(!hosts.try_acquire(4));
}

/// A success of a process that failed before resets the count for all processes, even if the
/// provider does not count that response.
#[test]
fn a_success_resets_the_shared_failure_count() {
    let mut hosts = Hosts::new(4);
    for _ in 0..3 {
        for host in 0..4 {
            hosts.complete(host, Class::ServerError);
        }
        hosts.complete(2, Class::Success);
        assert!(hosts.all(HealthState::Normal), "{:?}", hosts.states());
        for host in 0..4 {
            hosts.complete(host, Class::Success);
        }
    }
}

/// Without a threshold, or with `mode: off`, failures are not reported to the ledger.
#[test]
fn without_a_threshold_failures_are_not_reported() {
    for settings in [
        HealthSettings {
            failure_threshold: None,
            ..HealthSettings::default()
        },
        HealthSettings {
            mode: HealthMode::Off,
            ..HealthSettings::default()
        },
    ] {
        let mut harness = Harness::new(settings);
        harness.results(Class::ServerError, 3);
        let reported =
            |action: &Action| matches!(action, Action::Failed { .. } | Action::Succeeded);
        assert!(!harness.all.iter().any(reported), "{:?}", harness.all);
    }
}
