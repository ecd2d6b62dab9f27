//! The probes of closed paths: their place comes free whatever happens, in one process and in
//! several; and what a single path means for the provider.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use smallvec::smallvec;

use super::harness::{Harness, base};
use super::tests_paths::{called, path};
use super::{
    Action, AttemptResult, Class, Health, HealthEvent, HealthSettings, HealthState, PATHS_MAX,
};
use crate::ask::{
    Ask, Evidence, Outcome, OwnerId, PathTag, PermitId, Priority, ScopeId, Settle, Verdict,
};
use crate::scope::ScopeView;
use crate::table::Table;
use crate::time::{Micros, Now, Span, Wall};
use crate::turn::turn;

const SCOPE: ScopeId = ScopeId(1);
const SEC: Span = Span::from_secs(1);
/// The time between two probes.
const GAP: Span = Span(333_334);

/// Processes that share a ledger; each asks with the scope of a path that it knows to fail.
struct Processes {
    ledger: Table,
    machines: Vec<Health>,
    now: Micros,
    seq: u64,
}

impl Processes {
    fn new(count: usize) -> Processes {
        let now = Micros(1_000_000_000);
        let mut machine = Health::new(HealthSettings::default(), base(), now).unwrap();
        let ok = AttemptResult {
            path: path("/ok"),
            ..AttemptResult::new(Class::Success, now)
        };
        let _actions = machine.on(HealthEvent::Completed(ok), now);
        Processes {
            ledger: Table::default(),
            machines: vec![machine; count],
            now,
            seq: 0,
        }
    }

    fn turn(&mut self, settles: &[Settle], asks: &[Ask]) -> Vec<Verdict> {
        let (at, wall) = (self.now, Wall(0));
        let turn = turn(&mut self.ledger, Now { at, wall }, settles, asks);
        for changed in turn.changed_scopes {
            let view = self.ledger.peek_scope(changed, self.now);
            for machine in &mut self.machines {
                let tags: Vec<PathTag> = machine.failing_tags().collect();
                let event = if changed == SCOPE {
                    Some(HealthEvent::ScopeChanged(view))
                } else {
                    let tag = tags.into_iter().find(|tag| tag.scope(SCOPE) == changed);
                    tag.map(|tag| HealthEvent::PathScopeChanged(tag, view))
                };
                if let Some(event) = event {
                    let _echo = machine.on(event, self.now);
                }
            }
        }
        turn.verdicts
    }

    /// A call to the path asks for a permit.
    fn acquire(&mut self, process: usize, to: &str) -> Option<Ask> {
        self.seq += 1;
        let owner = OwnerId(u32::try_from(process).unwrap());
        let failing = self.machines[process].failing_path(path(to));
        let ask = Ask {
            id: PermitId {
                owner,
                seq: self.seq,
            },
            terms: smallvec![],
            scopes: std::iter::once(SCOPE)
                .chain(failing.map(|tag| tag.scope(SCOPE)))
                .collect(),
            priority: Priority::Normal,
            max_wait: Span::ZERO,
            evidence: Evidence::Report {
                timeout: Span::from_secs(30),
                late: Span::from_secs(5),
            },
        };
        let verdicts = self.turn(&[], std::slice::from_ref(&ask));
        if !matches!(verdicts[0], Verdict::Go { .. }) {
            return None;
        }
        self.on(process, HealthEvent::Granted);
        Some(ask)
    }

    fn on(&mut self, process: usize, event: HealthEvent) {
        let actions = self.machines[process].on(event, self.now);
        let settles: Vec<Settle> = actions.iter().filter_map(|one| one.settle(SCOPE)).collect();
        self.turn(&settles, &[]);
    }

    /// The call ends, 10 ms after its permit.
    fn complete(&mut self, process: usize, to: &str, ask: Ask, class: Class) {
        let granted = self.now;
        self.now += Span::from_millis(10);
        self.on(
            process,
            HealthEvent::Completed(AttemptResult {
                path: path(to),
                ..AttemptResult::new(class, granted)
            }),
        );
        let outcome = match class {
            Class::ServerError | Class::Network => Outcome::Failed { age: Span::ZERO },
            Class::Success | Class::Limited | Class::Other => Outcome::Arrived {
                age: Span::ZERO,
                limited: class == Class::Limited,
                readings: Vec::new(),
            },
        };
        let permit = Settle::Permit {
            id: ask.id,
            terms: ask.terms,
            scopes: ask.scopes,
            outcome,
        };
        self.turn(&[permit], &[]);
    }

    /// A call to the path, if it gets a permit.
    fn call(&mut self, process: usize, to: &str, class: Class) -> bool {
        let ask = self.acquire(process, to);
        let is_granted = ask.is_some();
        if let Some(ask) = ask {
            self.complete(process, to, ask, class);
        }
        is_granted
    }

    fn advance(&mut self, span: Span) {
        self.now += span;
        for process in 0..self.machines.len() {
            self.on(process, HealthEvent::Tick);
        }
    }

    fn view(&self, to: &str) -> ScopeView {
        let scope = PathTag::of(to).scope(SCOPE);
        self.ledger.peek_scope(scope, self.now)
    }
}

/// A4: a process that has seen one failure of a path learns from it that another process has closed
/// the path. Before, its next call took the place of the probe and nobody freed it for 35 s.
#[test]
fn a4_a_failure_tells_a_process_that_its_path_is_closed_elsewhere() {
    let mut both = Processes::new(2);
    let early = both.acquire(1, "/a").unwrap();
    for _ in 0..5 {
        assert!(both.call(0, "/a", Class::ServerError));
    }
    both.complete(1, "/a", early, Class::ServerError);
    let closed = both.machines[1].failing_paths(both.now);
    assert_eq!(closed[0].state, HealthState::Sleep);
    both.advance(Span::from_secs(2));
    assert!(both.call(1, "/a", Class::ServerError), "it probes");
    let failing = ScopeView::Closed {
        remaining: Some(Span::from_millis(2_400)),
    };
    assert_eq!(both.view("/a"), failing);
}

/// A4: the same if it meets the path while it is probed, and if the probe says nothing.
#[test]
fn a4_a_probe_of_a_process_that_does_not_know_of_it_frees_its_place() {
    for class in [
        Class::ServerError,
        Class::Network,
        Class::Other,
        Class::Limited,
    ] {
        let mut both = Processes::new(2);
        for _ in 0..5 {
            assert!(both.call(0, "/a", Class::ServerError));
        }
        both.advance(Span::from_secs(2));
        // Its failure is not known to the ledger as one of a closed path: the store was slow.
        let granted = both.now;
        let failure = AttemptResult {
            path: path("/a"),
            ..AttemptResult::new(Class::ServerError, granted)
        };
        let _lost = both.machines[1].on(HealthEvent::Completed(failure), both.now);
        assert!(both.call(1, "/a", class), "{class:?}");
        both.advance(Span::from_secs(3));
        assert!(both.acquire(0, "/a").is_some(), "{class:?}");
    }
}

/// A11: a 429 and a failure that came too late say nothing about a closed path; the next probe goes.
#[test]
fn a11_a_429_or_a_late_failure_frees_the_place_of_a_path_probe() {
    let probing = || {
        let mut harness = called();
        harness.sends("/a", Class::ServerError, 5).advance_secs(2);
        harness
    };
    let mut harness = probing();
    harness.sends("/a", Class::Limited, 1);
    assert_eq!(harness.closed_path_for("/a"), Some(GAP));
    let mut harness = probing();
    let granted = harness.now;
    harness.on(HealthEvent::CompletedLate(AttemptResult {
        path: path("/a"),
        ..AttemptResult::new(Class::ServerError, granted)
    }));
    assert_eq!(harness.closed_path_for("/a"), Some(GAP));
}

/// Without a threshold no path closes, so a reload opens those that are closed.
#[test]
fn a_reload_without_a_threshold_opens_closed_paths() {
    let mut harness = called();
    harness.sends("/a", Class::ServerError, 5);
    let settings = HealthSettings {
        failure_threshold: None,
        ..HealthSettings::default()
    };
    let now = harness.now;
    let actions = harness.health.configure(settings, base(), now).unwrap();
    assert!(actions.contains(&Action::OpenPath {
        path: PathTag::of("/a")
    }));
    assert!(harness.admits("/a") && !harness.health.has_failing_paths());
}

/// A3: a 429 or a failure to connect is not a second path of an API that has one.
#[test]
fn a3_results_without_a_path_leave_the_ratio_of_a_single_path_alone() {
    for class in [Class::Limited, Class::Network] {
        let mut harness = Harness::new(HealthSettings::default());
        harness.results(class, 1);
        for _ in 0..20 {
            harness.sends("/chat", Class::Success, 1);
            harness.sends("/chat", Class::ServerError, 1);
        }
        assert_eq!(harness.state(), HealthState::Throttle, "{class:?}");
    }
}

/// A6: probes that fail on several paths end the recovery, although one path has succeeded.
#[test]
fn a6_failures_on_several_paths_end_half_open() {
    let mut harness = called();
    harness.sends("/a", Class::ServerError, 4);
    harness.sends("/b", Class::ServerError, 1).advance_secs(2);
    harness.sends("/ok", Class::Success, 1);
    for _ in 0..2 {
        harness.sends("/a", Class::ServerError, 1);
        harness.sends("/b", Class::ServerError, 1);
    }
    assert_eq!(harness.state(), HealthState::HalfOpen);
    harness.sends("/a", Class::ServerError, 1);
    assert_eq!(harness.state(), HealthState::Sleep);
}

/// A6: without calls to other paths nobody can probe first, so the path is not held any longer.
#[test]
fn a6_a_path_has_no_head_start_without_other_paths() {
    let mut harness = Harness::new(HealthSettings::default());
    harness.results(Class::Network, 4);
    harness.sends("/a", Class::ServerError, 1);
    assert_eq!(harness.state(), HealthState::Sleep);
    assert_eq!(harness.closed_path_for("/a"), None);
}

/// Closed paths that nobody calls make room after ten minutes, the oldest first.
#[test]
fn closed_paths_without_callers_make_room() {
    let name = |number: usize| format!("/{}", "x".repeat(number + 1));
    let mut harness = called();
    for number in 0..PATHS_MAX {
        harness.sends(&name(number), Class::ServerError, 5);
        harness.sends("/ok", Class::Success, 1);
    }
    harness.advance_secs(700);
    harness.sends("/late", Class::ServerError, 1);
    let opened = Action::OpenPath {
        path: PathTag::of(&name(0)),
    };
    assert!(harness.last.contains(&opened), "{:?}", harness.last);
    let tags: Vec<PathTag> = harness.health.failing_tags().collect();
    assert!(tags.contains(&PathTag::of("/late")) && tags.len() == PATHS_MAX);
}

/// Scopes that nobody uses any more are forgotten: closed ones that nobody probes, and failures that
/// nothing followed.
#[test]
fn scopes_of_paths_are_swept_when_nobody_calls() {
    let mut one = Processes::new(1);
    for _ in 0..5 {
        one.call(0, "/closed", Class::ServerError);
        one.call(0, "/ok", Class::Success);
    }
    one.call(0, "/failed", Class::ServerError);
    one.now += Span::from_secs(300);
    one.ledger.sweep(one.now, 100);
    assert_eq!(
        one.view("/closed"),
        ScopeView::Probing,
        "it is still closed"
    );
    one.now += Span::from_secs(700);
    one.ledger.sweep(one.now, 100);
    assert_eq!(one.view("/closed"), ScopeView::Open);
    assert_eq!(one.ledger.scopes_stored(), 0);
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![
        1 => Just(Class::Success),
        2 => Just(Class::Limited),
        4 => Just(Class::ServerError),
        1 => Just(Class::Network),
        2 => Just(Class::Other),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        rng_seed: RngSeed::Fixed(0x7061_7468),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A11: whatever the results, the place of a path's probe comes free within a second of its
    /// outcome, and its closed time is at most the longest sleep.
    #[test]
    fn the_place_of_a_path_probe_comes_free(
        steps in prop::collection::vec((0..2_usize, 0..3_usize, class(), 0..4_000_u64), 1..80),
    ) {
        let names = ["/a", "/b", "/ok"];
        let mut both = Processes::new(2);
        for (process, to, class, gap) in steps {
            both.call(process, names[to], class);
            both.advance(Span::from_millis(gap));
        }
        both.advance(SEC);
        for to in names {
            let wait = |view| match view {
                ScopeView::Closed { remaining } => remaining.unwrap_or(Span::ZERO),
                ScopeView::Open | ScopeView::Paced { .. } | ScopeView::Probing | ScopeView::CacheOnly { .. }
                | ScopeView::Paused { .. } => Span::ZERO,
            };
            let provider = wait(both.ledger.peek_scope(SCOPE, both.now));
            let closed = provider.max(wait(both.view(to)));
            prop_assert!(closed <= HealthSettings::default().sleep_max + SEC);
            both.advance(closed);
            let ask = both.acquire(0, to);
            prop_assert!(ask.is_some(), "{to}: {:?}", both.view(to));
            if let Some(ask) = ask {
                both.complete(0, to, ask, Class::Other);
            }
            both.advance(SEC);
        }
    }
}
