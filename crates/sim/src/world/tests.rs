//! The event loop: order, random streams, clocks, and several nodes.

use super::*;
use crate::checker::{OrderBy, Priority};
use crate::latency::Delay;
use crate::rule::RuleDecision;
use crate::rule::{CallId, Cost};

pub(super) const MS: u64 = 1_000;

/// Sends its calls at its first wake, and records every response.
#[derive(Debug, Default)]
pub(super) struct Scripted {
    at_start: Vec<(NodeId, Call)>,
    timer: Option<Micros>,
    wakes: Vec<(NodeId, Now)>,
    pub(super) responses: Vec<(u64, u64, &'static str)>,
    ended: Vec<(u64, u64)>,
}

impl Scripted {
    pub(super) fn sends(count: u64) -> Scripted {
        Scripted {
            at_start: (1..=count).map(|id| (NodeId(0), call(id))).collect(),
            ..Scripted::default()
        }
    }
}

impl Client for Scripted {
    fn on_wake(&mut self, node: NodeId, now: Now, effects: &mut Effects<'_>) {
        self.wakes.push((node, now));
        for (_, call) in self.at_start.extract_if(.., |(from, _)| *from == node) {
            effects.send(call);
        }
        if let Some(at) = self.timer.take() {
            effects.wake_at(at);
        }
    }

    fn on_response(
        &mut self,
        _node: NodeId,
        call: Call,
        outcome: &Outcome,
        now: Now,
        effects: &mut Effects<'_>,
    ) {
        let word = match outcome {
            Outcome::Accepted { .. } => "accepted",
            Outcome::Limited { .. } => "limited",
            Outcome::Unavailable => "unavailable",
            Outcome::NoResponse => "no response",
        };
        self.responses.push((call.id.0, now.at.0 / MS, word));
        effects.done(call.id);
    }

    fn on_response_end(&mut self, _node: NodeId, call: Call, now: Now, _effects: &mut Effects<'_>) {
        self.ended.push((call.id.0, now.at.0 / MS));
    }

    fn on_submit(&mut self, _node: NodeId, call: Call, _now: Now, effects: &mut Effects<'_>) {
        effects.send_after(Span::from_millis(5), call);
    }
}

pub(super) fn call(id: u64) -> Call {
    Call {
        id: CallId(id),
        cost: Cost::CALL,
        priority: Priority::Normal,
    }
}

/// 10 ms up, 20 ms of work, 30 ms down.
pub(super) fn setup(rules: &str) -> Setup {
    let ms = Span::from_millis;
    let latency = Latency::constant(ms(10), ms(20), ms(30));
    Setup::new(1, RuleSpec::parse_all(rules).unwrap(), latency)
}

pub(super) fn run(setup: Setup, client: Scripted) -> World<Scripted> {
    let mut world = World::new(setup, client);
    world.run_until(Micros(10_000 * MS)).unwrap();
    world
}

#[test]
fn a_response_takes_the_uplink_the_work_and_the_downlink() {
    let world = run(setup("sliding 1/1s"), Scripted::sends(2));
    assert_eq!(world.checker().arrivals()[0].at, Micros(10 * MS));
    assert_eq!(
        world.client().responses,
        [(2, 40, "limited"), (1, 60, "accepted")]
    );
}

#[test]
fn an_in_flight_slot_is_freed_when_the_body_has_been_sent() {
    let mut setup = setup("in-flight 1");
    setup.latency.body = Delay::Constant(Span::from_millis(500));
    let mut world = World::new(setup, Scripted::sends(1));
    world.run_until(Micros(529 * MS)).unwrap();
    assert_eq!(world.client().responses, [(1, 60, "accepted")]);
    assert_ne!(
        world.provider().peek(Micros(529 * MS), Cost::CALL),
        RuleDecision::Accepted
    );
    world.run_until(Micros(531 * MS)).unwrap();
    assert_eq!(
        world.provider().peek(Micros(531 * MS), Cost::CALL),
        RuleDecision::Accepted
    );
    world.run_until(Micros(1_000 * MS)).unwrap();
    assert_eq!(world.client().ended, [(1, 560)]);
}

#[test]
fn a_429_ends_with_its_head_and_no_response_has_no_end() {
    let world = run(setup("sliding 0/1s"), Scripted::sends(1));
    assert_eq!(world.client().ended, [(1, 40)]);
    let give_up = Some(Span::from_millis(5));
    let world = run(
        Setup {
            give_up,
            ..setup("sliding 1/1s")
        },
        Scripted::sends(1),
    );
    assert!(world.client().ended.is_empty());
}

#[test]
fn the_same_seed_gives_the_same_log_and_another_seed_another() {
    let log = |seed| {
        let wan = Setup {
            seed,
            latency: Latency::WAN,
            ..setup("sliding 40/1s")
        };
        let faults = Faults {
            lost_requests_ppm: 100_000,
            ..Faults::default()
        };
        run(Setup { faults, ..wan }, Scripted::sends(99))
            .checker()
            .arrivals()
            .to_vec()
    };
    assert_eq!(log(7), log(7));
    assert_ne!(log(7), log(8));
}

#[test]
fn a_suspended_node_receives_and_acts_when_it_resumes() {
    let mut setup = setup("sliding 9/1s");
    setup.clocks[0].suspends = vec![(Micros(50 * MS), Micros(700 * MS))];
    let timer = Some(Micros(100 * MS));
    let world = run(
        setup,
        Scripted {
            timer,
            ..Scripted::sends(1)
        },
    );
    assert_eq!(world.client().responses, [(1, 700, "accepted")]);
    let at: Vec<u64> = world
        .client()
        .wakes
        .iter()
        .map(|(_, now)| now.at.0)
        .collect();
    assert_eq!(at, [0, 700 * MS]);
}

#[test]
fn a_timer_runs_on_the_clock_of_its_node() {
    let mut setup = setup("sliding 9/1s");
    setup.clocks[0].drift_ppm = -500_000;
    setup.clocks[0].at_start = Micros(1_000);
    let timer = Some(Micros(2_000));
    let mut world = World::new(
        setup,
        Scripted {
            timer,
            ..Scripted::default()
        },
    );
    world.run_until(Micros(2_000)).unwrap();
    assert_eq!(
        world.client().wakes.len(),
        1,
        "half as fast, so due at 2000 of true time"
    );
    world.run_until(Micros(2_001)).unwrap();
    assert_eq!(world.client().wakes.last().unwrap().1.at, Micros(2_000));
}

#[test]
fn a_submitted_call_reaches_the_judge_and_the_client() {
    let mut world = World::new(setup("sliding 9/1s"), Scripted::default());
    world.submit(Micros(100 * MS), NodeId(0), call(1));
    world.submit(Micros(9_990 * MS), NodeId(0), call(2));
    world.submit(Micros(0), NodeId(1), call(3));
    world.run_until(Micros(10_000 * MS)).unwrap();
    assert_eq!(
        world.checker().waits(Priority::Normal).unwrap().max,
        Span::from_millis(15)
    );
    assert_eq!(
        world.checker().lost(),
        [CallId(2)],
        "still on its way; node 1 does not exist"
    );
}

/// Node 0 is the ledger: it reads its clock for node 1, and wakes it later.
#[derive(Debug, Default)]
struct Shared {
    seen: Vec<(NodeId, Micros, Option<Now>)>,
}

impl Client for Shared {
    fn on_wake(&mut self, node: NodeId, now: Now, effects: &mut Effects<'_>) {
        self.seen.push((node, now.at, effects.clock_of(NodeId(0))));
        if node == NodeId(0) && now.at < Micros(10_000) {
            effects.nudge(NodeId(1), Span(250));
            effects.nudge(NodeId(9), Span(250));
        }
    }

    fn on_response(&mut self, _: NodeId, _: Call, _: &Outcome, _: Now, _: &mut Effects<'_>) {}
}

#[test]
fn nodes_wake_each_other_and_read_the_clock_of_their_ledger() {
    let mut setup = setup("sliding 9/1s").with_nodes(2);
    setup.clocks[1].at_start = Micros(77);
    let mut world = World::new(setup, Shared::default());
    world.run_until(Micros(1_000)).unwrap();
    let ledger = NodeClock::default().read(Micros(250));
    let last = *world.client().seen.last().unwrap();
    assert_eq!(world.client().seen.len(), 3);
    assert_eq!(last, (NodeId(1), Micros(327), Some(ledger)));
}

/// Asks to be woken at once, forever.
#[derive(Debug)]
struct Restless;

impl Client for Restless {
    fn on_wake(&mut self, _node: NodeId, now: Now, effects: &mut Effects<'_>) {
        effects.wake_at(now.at);
    }

    fn on_response(&mut self, _: NodeId, _: Call, _: &Outcome, _: Now, _: &mut Effects<'_>) {}
}

#[test]
fn a_client_that_never_lets_time_pass_is_stopped() {
    let mut world = World::new(setup("sliding 9/1s"), Restless);
    assert_eq!(world.run_until(Micros(1)), Err(Runaway { at: Micros(0) }));
}

#[test]
fn setting_the_timer_replaces_it() {
    struct Twice(u32);
    impl Client for Twice {
        fn on_wake(&mut self, _node: NodeId, now: Now, effects: &mut Effects<'_>) {
            self.0 += 1;
            if now.at == Micros(0) {
                effects.wake_at(Micros(10));
                effects.wake_at(Micros(20));
            } else {
                effects.wake_at(Micros(30));
                effects.clear_timer();
            }
        }
        fn on_response(&mut self, _: NodeId, _: Call, _: &Outcome, _: Now, _: &mut Effects<'_>) {}
    }
    let mut world = World::new(setup("sliding 9/1s"), Twice(0));
    world.run_until(Micros(1_000)).unwrap();
    assert_eq!(world.client().0, 2);
}

#[test]
fn responses_carry_the_status_of_every_rule() {
    struct Heard(Vec<Outcome>);
    impl Client for Heard {
        fn on_wake(&mut self, _: NodeId, _: Now, effects: &mut Effects<'_>) {
            effects.send(call(1));
        }
        fn on_response(
            &mut self,
            _: NodeId,
            _: Call,
            outcome: &Outcome,
            _: Now,
            _: &mut Effects<'_>,
        ) {
            self.0.push(outcome.clone());
        }
    }
    let mut world = World::new(setup("sliding 5/1s, in-flight 3"), Heard(Vec::new()));
    world.run_until(Micros(1_000 * MS)).unwrap();
    let Outcome::Accepted { statuses } = &world.client().0[0] else {
        panic!("not accepted")
    };
    let remaining: Vec<u64> = statuses.iter().map(|status| status.remaining).collect();
    assert_eq!(remaining, [4, 2]);
}

#[test]
fn jitter_reorders_what_was_sent_in_order() {
    let jitter = Delay::Uniform {
        least: Span(0),
        most: Span::from_millis(50),
    };
    let latency = Latency {
        up: jitter,
        ..Latency::LAN
    };
    let mut world = World::new(
        Setup {
            latency,
            ..setup("sliding 99/1s")
        },
        Scripted::default(),
    );
    for id in 1..=50 {
        world.submit(Micros(id), NodeId(0), call(id));
    }
    world.run_until(Micros(1_000 * MS)).unwrap();
    assert!(world.checker().overtaken(OrderBy::Sent).is_empty());
    assert!(!world.checker().overtaken(OrderBy::Arrived).is_empty());
}
