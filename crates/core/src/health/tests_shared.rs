//! Several processes on one ledger: they sleep, probe and wake together, through the very scope
//! rows that `turn` keeps.

use smallvec::smallvec;

use super::bench::{Bench, base};
use super::{
    Action, Actions, Answer, Base, Class, Command, Event, Health, HealthSettings, Mode, Rate, State,
};
use crate::ask::{Ask, Evidence, OwnerId, PermitId, Priority, ScopeId, Settle, Verdict};
use crate::scope::ScopeView;
use crate::table::Table;
use crate::time::{Micros, Now, Span, Wall};
use crate::turn::turn;

const SCOPE: ScopeId = ScopeId(1);
const SEC: Span = Span::from_secs(1);

/// Machines that share one scope. Every change is shown to all of them.
struct Hosts {
    ledger: Table,
    machines: Vec<Health>,
    now: Micros,
    seq: u64,
}

impl Hosts {
    fn new(count: usize) -> Hosts {
        Hosts::with(HealthSettings::default(), count)
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

    fn on(&mut self, host: usize, event: Event) {
        let actions = self.machines[host].on(event, self.now);
        self.apply(&actions);
    }

    fn apply(&mut self, actions: &Actions) {
        let settles: Vec<Settle> = actions.iter().filter_map(|a| a.settle(SCOPE)).collect();
        let now = self.clock();
        let changed = turn(&mut self.ledger, now, &settles, &[]).scopes;
        if changed.is_empty() {
            return;
        }
        let view = self.view();
        for machine in &mut self.machines {
            let echo = machine.on(Event::Shared(view), self.now);
            let writes = echo.iter().any(|action| action.settle(SCOPE).is_some());
            assert!(!writes, "a view never makes a machine write");
        }
    }

    fn view(&self) -> ScopeView {
        self.ledger.look_scope(SCOPE, self.now)
    }

    /// Asks for a permit; `true` = granted.
    fn goes(&mut self, host: usize) -> bool {
        self.seq += 1;
        let ask = Ask {
            id: PermitId {
                owner: OwnerId(u32::try_from(host).unwrap()),
                seq: self.seq,
            },
            terms: smallvec![],
            scopes: smallvec![SCOPE],
            priority: Priority::Normal,
            patience: Span::ZERO,
            evidence: Evidence::Report {
                by: Span::from_secs(30),
                late: Span::from_secs(5),
            },
        };
        let now = self.clock();
        let verdicts = turn(&mut self.ledger, now, &[], &[ask]).verdicts;
        matches!(verdicts[0], Verdict::Go { .. })
    }

    fn answer(&mut self, host: usize, class: Class) {
        let answer = Answer {
            class,
            granted: self.now,
            retry_after: None,
        };
        self.on(host, Event::Answered(answer));
    }

    fn pass(&mut self, span: Span) {
        self.now += span;
        for host in 0..self.machines.len() {
            self.on(host, Event::Tick);
        }
    }

    fn states(&self) -> Vec<State> {
        self.machines.iter().map(Health::state).collect()
    }

    fn all(&self, state: State) -> bool {
        self.states().iter().all(|&each| each == state)
    }
}

/// A5: one process finds out, all sleep; nobody is granted until the rest is over.
#[test]
fn processes_sleep_together() {
    let mut hosts = Hosts::new(3);
    for _ in 0..5 {
        assert!(hosts.goes(0));
        hosts.answer(0, Class::ServerError);
    }
    assert!(hosts.all(State::Sleep), "{:?}", hosts.states());
    for _ in 0..29 {
        hosts.pass(SEC);
        assert!(!hosts.goes(0) && !hosts.goes(1) && !hosts.goes(2));
    }
    hosts.pass(SEC);
    assert!(hosts.all(State::HalfOpen), "{:?}", hosts.states());
}

/// A6: however many processes wait, one call probes at a time; enough successes of one open all.
#[test]
fn processes_probe_once_and_wake_together() {
    let mut hosts = Hosts::new(3);
    (0..5).for_each(|_| hosts.answer(0, Class::ServerError));
    hosts.pass(Span::from_secs(30));
    for probe in 0..5 {
        assert!(hosts.goes(1), "probe {probe}");
        assert!(!hosts.goes(0) && !hosts.goes(2), "only one at a time");
        hosts.answer(1, Class::Success);
        if probe < 4 {
            assert!(!hosts.goes(1), "not more than three per second");
            hosts.pass(Span::from_millis(334));
        }
    }
    assert!(hosts.all(State::Normal), "{:?}", hosts.states());
    assert!(hosts.goes(0) && hosts.goes(1) && hosts.goes(2));
}

/// A6: a failed probe of one process puts all back to sleep, for twice as long.
#[test]
fn a_failed_probe_counts_for_all() {
    let mut hosts = Hosts::new(2);
    (0..5).for_each(|_| hosts.answer(0, Class::Network));
    hosts.pass(Span::from_secs(30));
    assert!(hosts.goes(1));
    hosts.answer(1, Class::Network);
    assert!(hosts.all(State::Sleep));
    hosts.pass(Span::from_secs(59));
    assert!(!hosts.goes(0));
    hosts.pass(SEC);
    assert!(hosts.goes(0));
    hosts.answer(0, Class::Network);
    let left = hosts.machines[1].status(hosts.now).reset_in;
    assert_eq!(left, Span::from_secs(120));
}

/// A5: an operator's hold and its end reach every process.
#[test]
fn an_operators_word_reaches_all() {
    let mut hosts = Hosts::new(2);
    hosts.on(0, Event::Operator(Command::Offline));
    assert!(hosts.all(State::Sleep) && !hosts.goes(1));
    hosts.pass(Span::from_secs(86_400));
    hosts.on(1, Event::Operator(Command::Resume));
    assert!(hosts.all(State::Normal) && hosts.goes(0));
}

/// A5: a process that starts finds the sleep it left, and a hold even with `mode: off`.
#[test]
fn a_restart_finds_the_sleep_it_left() {
    let mut bench = Bench::new(HealthSettings::default());
    let left = Some(Span::from_secs(20));
    bench.saw(ScopeView::Closed { left });
    assert_eq!(bench.log, ["Normal -> Sleep (policy)"]);
    bench.secs(20);
    assert_eq!(bench.state(), State::HalfOpen);
    let mut off = Bench::new(HealthSettings {
        mode: Mode::Off,
        ..HealthSettings::default()
    });
    off.saw(ScopeView::Closed { left });
    assert_eq!(off.state(), State::Normal);
    off.saw(ScopeView::Closed { left: None });
    assert_eq!(off.log, ["Normal -> Sleep (operator)"]);
    off.order(Command::Resume);
    assert!(off.opens());
}

/// A picture of the ledger from before our own closing does not wake us.
#[test]
fn an_old_picture_does_not_wake_a_sleeper() {
    let mut bench = Bench::asleep(HealthSettings::default());
    bench.saw(ScopeView::Open);
    assert_eq!(bench.state(), State::Sleep);
    bench.saw(ScopeView::Closed { left: Some(SEC) });
    assert_eq!(bench.last.as_slice(), &[] as &[Action]);
    bench.saw(ScopeView::Open);
    assert_eq!(
        bench.state(),
        State::Normal,
        "another process has opened it"
    );
}

/// A7: the end of a hold by one process's trial or resume is followed by all.
#[test]
fn a_hold_that_another_process_ends_is_over() {
    let mut bench = Bench::new(HealthSettings::default());
    bench.order(Command::CacheOnly { lasts: None });
    let left = Some(Span::from_secs(2));
    bench.saw(ScopeView::Closed { left });
    assert_eq!(bench.state(), State::CacheOnly, "a picture from before");
    bench.saw(ScopeView::CacheOnly { left: None });
    bench.saw(ScopeView::Closed { left }).secs(2);
    let expected = [
        "CacheOnly -> Sleep (operator)",
        "Sleep -> HalfOpen (sleep_over)",
    ];
    assert_eq!(bench.log[1..], expected);
}

/// Machines that try to leave CacheOnly every 15 min.
fn recovering() -> HealthSettings {
    HealthSettings {
        auto_recover: Some(Span::from_secs(900)),
        ..HealthSettings::default()
    }
}

/// A7: a CacheOnly that recovers by itself does so although the process that began it is gone. Its
/// hold had no end in the ledger once, and the others took it for an operator's: for ever.
#[test]
fn a_hold_with_an_end_outlives_its_process() {
    let mut hosts = Hosts::with(recovering(), 2);
    hosts.on(0, Event::Operator(Command::CacheOnly { lasts: None }));
    assert_eq!(hosts.states(), [State::CacheOnly, State::Sleep]);
    hosts.machines.remove(0);
    hosts.pass(Span::from_secs(899));
    assert!(!hosts.goes(0));
    hosts.pass(SEC);
    assert!(hosts.goes(0), "a probe");
    assert!(hosts.all(State::HalfOpen), "{:?}", hosts.states());
}

/// A5: only `resume` ends offline; the timer of another process's CacheOnly does not.
#[test]
fn offline_is_not_ended_by_another_processs_timer() {
    let mut hosts = Hosts::with(recovering(), 2);
    hosts.on(0, Event::Operator(Command::CacheOnly { lasts: None }));
    hosts.on(1, Event::Operator(Command::Offline));
    hosts.pass(Span::from_secs(86_400));
    assert!(!hosts.goes(0) && !hosts.goes(1));
    assert!(hosts.all(State::Sleep), "{:?}", hosts.states());
    hosts.on(0, Event::Operator(Command::Resume));
    assert!(hosts.all(State::Normal) && hosts.goes(1));
}

/// A7: a hold with an end that another process ends early is over, also with `mode: off`.
#[test]
fn a_hold_with_an_end_can_be_ended_elsewhere() {
    for mode in [Mode::Adaptive, Mode::Breaker, Mode::Off] {
        let mut bench = Bench::new(HealthSettings {
            mode,
            ..recovering()
        });
        bench.order(Command::CacheOnly { lasts: None });
        bench.saw(ScopeView::Open);
        assert_eq!(bench.state(), State::CacheOnly, "a picture from before");
        let left = Some(Span::from_secs(900));
        bench.saw(ScopeView::Closed { left });
        assert_eq!(bench.state(), State::CacheOnly, "our own hold");
        bench.saw(ScopeView::Open);
        assert_eq!(bench.state(), State::Normal, "{mode:?}");
    }
}

/// A6: the ledger's clock is a little ahead of ours, so its probe goes and comes back before our own
/// timer. It is a probe all the same: its place was once taken until the permit ran out, 35 s.
#[test]
fn a_probe_that_is_back_before_our_timer_frees_its_place() {
    let granted_before = |event: fn(Micros) -> Event| {
        let mut bench = Bench::asleep(HealthSettings::default());
        bench.pass(Span::from_millis(29_990));
        let granted = bench.now;
        bench.pass(Span::from_millis(5)).on(event(granted));
        bench
    };
    let bench = granted_before(|granted| {
        Event::Answered(Answer {
            class: Class::Success,
            granted,
            retry_after: None,
        })
    });
    assert_eq!(bench.log[1..], ["Sleep -> HalfOpen (sleep_over)"]);
    assert_eq!(
        bench.rest(),
        Some(Some(Span(333_334))),
        "the next probe may follow"
    );
    let bench = granted_before(|granted| Event::Dropped { granted });
    assert_eq!(bench.rest(), Some(Some(Span(333_334))));
    let bench = granted_before(|_| Event::Granted);
    assert_eq!(bench.state(), State::HalfOpen);
    let bench = granted_before(|granted| {
        Event::Answered(Answer {
            class: Class::Network,
            granted,
            retry_after: None,
        })
    });
    assert_eq!(bench.log[2..], ["HalfOpen -> Sleep (probe_failed)"]);
    assert_eq!(bench.rest(), Some(Some(Span::from_secs(60))));
}

/// A5: the Sleep of a slow provider is a Sleep to every process, although its probes are further
/// apart than it lasts.
#[test]
fn the_sleep_of_a_slow_provider_is_no_space_between_probes() {
    let daily = Base {
        rate: Some(Rate::of(1_000, Span::from_secs(86_400))),
        concurrency: None,
    };
    let now = Micros(1_000_000);
    let mut machine = Health::new(HealthSettings::default(), daily, now).unwrap();
    let left = Some(Span::from_secs(30));
    let actions = machine.on(Event::Shared(ScopeView::Closed { left }), now);
    assert_eq!(machine.state(), State::Sleep, "{actions:?}");
}

/// A7: a hold from the cache only without an end is found as what it is, not as offline.
#[test]
fn a7_a_restart_finds_cache_only_and_not_offline() {
    for before in [Command::Offline, Command::Resume] {
        let mut hosts = Hosts::new(2);
        hosts.on(0, Event::Operator(before));
        hosts.on(0, Event::Operator(Command::CacheOnly { lasts: None }));
        assert!(hosts.all(State::CacheOnly), "{:?}", hosts.states());
        let mut restarted = Health::new(HealthSettings::default(), base(), hosts.now).unwrap();
        let _pace = restarted.on(Event::Shared(hosts.view()), hosts.now);
        assert_eq!(restarted.state(), State::CacheOnly);
        assert!(!hosts.goes(1));
        hosts.on(1, Event::Operator(Command::Offline));
        assert!(hosts.all(State::Sleep), "{:?}", hosts.states());
        hosts.on(0, Event::Operator(Command::Resume));
        assert!(hosts.all(State::Normal), "{:?}", hosts.states());
        assert!(hosts.goes(0));
    }
}

/// A7: `cache-only --for 10m` is found as what it is, and ends when it was to end, by whoever is there.
#[test]
fn a7_a_restart_finds_cache_only_with_its_end() {
    let mut hosts = Hosts::new(2);
    let lasts = Some(Span::from_secs(600));
    hosts.on(0, Event::Operator(Command::CacheOnly { lasts }));
    assert!(hosts.all(State::CacheOnly), "{:?}", hosts.states());
    hosts.pass(Span::from_secs(100));
    let mut restarted = Health::new(HealthSettings::default(), base(), hosts.now).unwrap();
    let _pace = restarted.on(Event::Shared(hosts.view()), hosts.now);
    assert_eq!(restarted.state(), State::CacheOnly);
    assert_eq!(
        restarted.next_tick(),
        Some(hosts.now + Span::from_secs(500))
    );
    hosts.machines.clear();
    hosts.machines.push(restarted);
    hosts.pass(Span::from_secs(499));
    assert!(!hosts.goes(0));
    hosts.pass(SEC);
    assert!(hosts.all(State::Normal), "{:?}", hosts.states());
    assert!(hosts.goes(0));
}

/// A7: another order moves the end for everybody, and `resume` ends it for everybody.
#[test]
fn a7_the_end_of_cache_only_can_be_moved_and_forestalled() {
    let mut hosts = Hosts::new(2);
    let order = |secs| {
        let lasts = Some(Span::from_secs(secs));
        Event::Operator(Command::CacheOnly { lasts })
    };
    hosts.on(0, order(600));
    hosts.on(1, order(60));
    hosts.pass(Span::from_secs(60));
    assert!(hosts.all(State::Normal), "{:?}", hosts.states());
    hosts.on(0, order(600));
    hosts.on(1, Event::Operator(Command::Resume));
    assert!(hosts.all(State::Normal), "{:?}", hosts.states());
}

/// A cool-down of a process that has not heard of the hold yet takes nothing from it.
#[test]
fn a_rest_that_ends_does_not_end_a_hold_from_the_cache_only() {
    let mut hosts = Hosts::new(1);
    hosts.on(0, Event::Operator(Command::CacheOnly { lasts: None }));
    let late = Settle::Close {
        scope: SCOPE,
        age: Span::ZERO,
        rest: Some(SEC),
        then: crate::ask::Reopen::Probe,
    };
    let now = hosts.clock();
    turn(&mut hosts.ledger, now, &[late], &[]);
    hosts.pass(Span::from_secs(2));
    assert_eq!(hosts.view(), ScopeView::CacheOnly { left: None });
    assert!(!hosts.goes(0));
}

/// A4, A5, W4: failures in a row are counted by all together: five of five processes are enough, and
/// nobody goes after the fifth, whoever has heard of it.
#[test]
fn a5_failures_in_a_row_of_several_processes_are_one_row() {
    let mut hosts = Hosts::new(5);
    for host in 0..5 {
        assert!(hosts.goes(host), "{host}");
        hosts.answer(host, Class::ServerError);
    }
    assert!(hosts.all(State::Sleep), "{:?}", hosts.states());
    assert!(!hosts.goes(0));
    hosts.pass(Span::from_secs(30));
    assert!(hosts.goes(3), "then one of them probes");
    assert!(!hosts.goes(4));
}

/// A process that had failed itself and then went well ends the row for all, even if the provider
/// does not count that answer.
#[test]
fn a_success_after_a_failure_ends_the_row_of_all() {
    let mut hosts = Hosts::new(4);
    for _ in 0..3 {
        for host in 0..4 {
            hosts.answer(host, Class::ServerError);
        }
        hosts.answer(2, Class::Success);
        assert!(hosts.all(State::Normal), "{:?}", hosts.states());
        for host in 0..4 {
            hosts.answer(host, Class::Success);
        }
    }
}

/// Without a threshold, or with the machine off, nobody is told of failures.
#[test]
fn a_machine_without_a_threshold_tells_nobody_of_failures() {
    for settings in [
        HealthSettings {
            failure_threshold: None,
            ..HealthSettings::default()
        },
        HealthSettings {
            mode: Mode::Off,
            ..HealthSettings::default()
        },
    ] {
        let mut bench = Bench::new(settings);
        bench.answers(Class::ServerError, 3);
        let told = |action: &Action| matches!(action, Action::Failed { .. } | Action::Well);
        assert!(!bench.all.iter().any(told), "{:?}", bench.all);
    }
}
