//! Processes that end after one call, one after the other, on the awkward store: what a process
//! leaves of the store's clock for the next one lets short limits come free, and never early.

use std::sync::Arc;

use fastrand::Rng;
use tollgate_core::ask::{
    Ask, CellId, Evidence, Outcome, OwnerId, PermitId, Priority, Scopes, Settle, Term, Terms,
    Verdict,
};
use tollgate_core::limit::Rule;
use tollgate_core::replica::{ClockRecord, Replica, ReplicaSettings, Rules};
use tollgate_core::time::{Micros, Span};
use tollgate_sim::clock::NodeClock;
use tollgate_sim::row_store::{Delivery, Promotion, SimulatedStore, StorePlan};
use tollgate_sim::world::NodeId;

const LIMIT: usize = 5;
const WINDOW: Span = Span::from_secs(10);
const SEEDS: u32 = 24;

/// A host: its clock, and what its state folder has.
struct Host {
    clock: NodeClock,
    folder: Option<ClockRecord>,
    has_folder: bool,
}

/// The store, the hosts and the provider's own log.
struct ShortLived {
    store: SimulatedStore,
    rules: Rules,
    durable: bool,
    hosts: Vec<Host>,
    truth: Micros,
    processes: usize,
    dice: Rng,
    rule: Arc<Rule>,
    log: Vec<Micros>,
}

impl ShortLived {
    fn new(plan: StorePlan, hosts: usize) -> ShortLived {
        let host = |number: usize| Host {
            clock: NodeClock {
                at_start: Micros(1_000_000_000 * (number as u64 + 1)),
                drift_ppm: [0, 400, -400][number % 3],
                ..NodeClock::default()
            },
            folder: None,
            has_folder: true,
        };
        ShortLived {
            rules: plan.rules,
            durable: plan.durable,
            dice: Rng::with_seed(plan.seed),
            store: SimulatedStore::new(plan),
            hosts: (0..hosts).map(host).collect(),
            truth: Micros(1_000_000),
            processes: 0,
            rule: Arc::new(Rule::sliding(LIMIT as u64, WINDOW).expect("sane")),
            log: Vec::new(),
        }
    }

    /// A process asks for a permit without waiting, makes its call, reports it and ends.
    fn process(&mut self, host: usize) -> bool {
        self.processes += 1;
        let number = u32::try_from(self.processes).expect("few processes");
        let settings = ReplicaSettings {
            owner: OwnerId(number),
            process: self.dice.u64(..),
            deadline: Span::from_millis(500),
            durable: self.durable,
            rules: self.rules,
        };
        let mut replica = Replica::new(settings);
        let known = self.hosts[host].folder.clone();
        if let Some(record) = known.filter(|_| self.hosts[host].has_folder) {
            replica = replica.knows_clock(record);
        }
        let ask = self.ask(number);
        replica.offer(
            vec![ask.clone()],
            self.hosts[host].clock.read(self.truth).at,
        );
        let is_granted = matches!(self.run(&mut replica, host), Some(Verdict::Go { .. }));
        if is_granted {
            self.truth += Span(self.dice.u64(0..20_000));
            self.log.push(self.truth);
            self.truth += Span(self.dice.u64(0..20_000));
            let settle = Settle::Permit {
                id: ask.id,
                terms: ask.terms,
                scopes: Scopes::new(),
                outcome: Outcome::Complete { age: Span::ZERO },
            };
            replica.settle(settle, self.hosts[host].clock.read(self.truth).at);
            self.run(&mut replica, host);
        }
        is_granted
    }

    fn ask(&self, number: u32) -> Ask {
        let term = Term {
            cell: CellId(1),
            rule: self.rule.clone(),
            cost: 1,
            reserve: 0,
        };
        Ask {
            id: PermitId {
                owner: OwnerId(number),
                seq: 1,
            },
            terms: Terms::from_iter([term]),
            scopes: Scopes::new(),
            priority: Priority::Normal,
            max_wait: Span::ZERO,
            evidence: Evidence::Report {
                timeout: Span::from_secs(2),
                late: Span::from_secs(5),
            },
        }
    }

    /// Exchanges messages until there is nothing to do; a process of this host waits for ten seconds.
    fn run(&mut self, replica: &mut Replica, host: usize) -> Option<Verdict> {
        let node = NodeId(self.processes);
        let started = self.truth;
        let mut verdict = None;
        let mut stored: Option<(u64, ClockRecord)> = None;
        while self.truth < started + Span::from_secs(10) {
            self.store.advance(self.truth);
            let now = self.hosts[host].clock.read(self.truth);
            for delivery in self.store.receive(node, self.truth) {
                if let Delivery::Reply(reply) = delivery {
                    let is_replaced =
                        reply.outcome == tollgate_core::replica::ReplyOutcome::Replaced;
                    if let Some((_, record)) =
                        stored.take_if(|(batch, _)| is_replaced && *batch == reply.batch)
                    {
                        self.hosts[host].folder = Some(record);
                    }
                    replica.reply(reply, now.at);
                }
            }
            let actions = replica.poll(now);
            verdict = actions
                .verdicts
                .into_iter()
                .map(|one| one.1)
                .next()
                .or(verdict);
            let wake_at = actions.wake_at;
            if let Some(request) = actions.send {
                stored = request.clock.clone().map(|record| (request.batch, record));
                self.store.send(node, &request, self.truth);
            } else if replica.is_idle() {
                break;
            }
            let woken = wake_at.map(|at| self.hosts[host].clock.true_time_of(at, self.truth));
            let next = self.store.next_message().into_iter().chain(woken).min();
            // Messages for processes that have ended are never received.
            let soon = self.truth + Span(100);
            self.truth = next.map_or(soon, |at| at.max(soon));
        }
        verdict
    }

    /// Calls that came although `LIMIT` calls were less than a window old.
    fn violations(&self) -> usize {
        let within = |pair: &&[Micros]| pair[LIMIT].since(pair[0]) < WINDOW;
        self.log.windows(LIMIT + 1).filter(within).count()
    }
}

fn plan(seed: u64) -> StorePlan {
    StorePlan::new(seed, Span::from_millis(2))
}

/// Every process distrusted the clock for a window, and moved the row: after five permits nobody ever
/// got one again.
#[test]
fn processes_that_end_after_one_call_use_a_short_limit() {
    for (gap, expected) in [(Span::from_millis(500), 0.95), (Span::from_secs(7), 1.0)] {
        let mut world = ShortLived::new(plan(1), 1);
        let start = world.truth;
        while world.truth < start + Span::from_secs(600) {
            world.process(0);
            world.truth += gap;
        }
        assert_eq!(world.violations(), 0);
        // The first process's row is believed after two windows.
        let possible = (580.0 * LIMIT as f64 / 10.0).min(580_000_000.0 / gap.0 as f64);
        let granted = world.log.len() as f64;
        assert!(
            granted >= expected * possible - 1.0,
            "{gap}: {granted} of {possible}"
        );
    }
}

/// The same for several hosts, of which one has no folder and joins anew each time: now and then, because
/// each time it moves the row for everybody.
#[test]
fn processes_of_several_hosts_share_a_short_limit() {
    let mut world = ShortLived::new(plan(2), 3);
    world.hosts[2].has_folder = false;
    let start = world.truth;
    let mut granted = [0; 3];
    while world.truth < start + Span::from_secs(600) {
        let host = match world.dice.u32(0..40) {
            0 => 2,
            other => usize::from(other % 2 == 0),
        };
        granted[host] += usize::from(world.process(host));
        world.truth += Span::from_millis(700);
    }
    assert_eq!(world.violations(), 0);
    assert!(world.log.len() >= 150, "{granted:?}");
    assert!(granted[0] >= 40 && granted[1] >= 40, "{granted:?}");
}

/// A world in which the store's clock does everything that a clock does, and hosts reboot, lose
/// their folders and find copies of old ones.
fn random_world(seed: u64, rules: Rules) -> ShortLived {
    let mut dice = Rng::with_seed(seed);
    let mut plan = plan(seed);
    plan.rules = rules;
    plan.durable = dice.bool();
    plan.clock.drift_ppm = dice.i32(-500..=500);
    (plan.lost_requests_ppm, plan.lost_replies_ppm) = (20_000, 20_000);
    (plan.conflict_ppm, plan.repeated_ppm) = (20_000, 20_000);
    let mut at = Micros(1_000_000);
    let mut off: i64 = 0;
    for _ in 0..20 {
        at += Span(dice.u64(1_000_000..90_000_000));
        // It returns to the true time as often as it leaves it.
        let by = match off {
            0 => {
                [20_000, 300_000, 5_000_000, 60_000_000][dice.usize(0..4)]
                    * [1, -1][dice.usize(0..2)]
            }
            off => -off,
        };
        off += by;
        plan.clock.wall_steps.push((at, by));
    }
    plan.promotions = (1..4)
        .map(|number| Promotion {
            at: Micros(number * 150_000_000),
            behind: Span::ZERO,
            ahead_us: dice.i64(-400_000..400_000),
            is_wiped: false,
        })
        .collect();
    let mut world = ShortLived::new(plan, 3);
    let mut old = world.hosts[0].folder.clone();
    while world.truth < Micros(600_000_000) {
        let host = world.dice.usize(0..3);
        match world.dice.u32(0..200) {
            // A reboot: the clock begins anew, and the file names another boot.
            0 => {
                world.hosts[host].clock.at_start = Micros(world.dice.u64(0..2_000_000_000));
                world.hosts[host].folder = None;
            }
            1 => old = world.hosts[host].folder.clone(),
            // Two processes at once: the slower one stores what it knew last.
            2 if host == 0 => world.hosts[0].folder = old.clone(),
            _ => {}
        }
        if world.dice.u32(0..60) == 1 {
            old = world.hosts[0].folder.clone();
        }
        world.process(host);
        let gap = [100_000, 1_000_000, 3_000_000, 30_000_000][world.dice.usize(0..4)];
        world.truth += Span(world.dice.u64(0..gap));
    }
    world
}

#[test]
fn no_step_promotion_reboot_or_old_file_frees_a_permit_early() {
    let mut granted = 0;
    for seed in 0..SEEDS {
        let world = random_world(u64::from(seed), Rules::default());
        assert_eq!(world.violations(), 0, "seed {seed}");
        granted += world.log.len();
    }
    assert!(
        granted > 40 * usize::try_from(SEEDS).expect("few seeds"),
        "the worlds stand still: {granted}"
    );
}

#[test]
fn a_stored_clock_that_is_believed_unseen_exceeds_the_limit() {
    let rules = Rules {
        compare_clock_record: false,
        ..Rules::default()
    };
    let violations = |seed| random_world(u64::from(seed), rules).violations();
    assert!((0..SEEDS).map(violations).sum::<usize>() > 0);
}

/// The clock leaves and comes back between two processes of a host, and another host without a folder
/// writes meanwhile: only the number of changes in the provider's row shows it.
#[test]
fn a_clock_that_was_away_and_came_back_is_noticed_by_who_joined_meanwhile() {
    let mut plan = plan(5);
    let (away, back) = (Micros(100_000_000), Micros(101_000_000));
    plan.clock.wall_steps = vec![(away, -40_000_000), (back, 40_000_000)];
    let mut world = ShortLived::new(plan, 2);
    for at in [1_000_000, 50_000_000] {
        world.truth = Micros(at);
        assert!(world.process(0));
    }
    world.truth = away + Span::from_millis(100);
    while world.process(1) {}
    let before = world.log.len();
    assert!(before > 3, "the other host gets permits meanwhile");
    world.truth = back + Span::from_millis(500);
    while world.process(0) {}
    assert_eq!(world.violations(), 0);
    // It costs a window, not more.
    world.truth += WINDOW;
    world.process(0);
    world.truth += WINDOW + Span::from_secs(5);
    assert!(world.process(0));
}

/// A host whose last reading of the clock is a minute old cannot tell a step of 50 ms from drift.
#[test]
fn a_step_that_hides_in_the_drift_of_a_silence_frees_nothing_early() {
    let mut plan = plan(6);
    plan.clock.wall_steps = vec![(Micros(65_000_000), 50_000)];
    let mut world = ShortLived::new(plan, 2);
    // Both have joined, and know of each other.
    for host in [0, 1, 0] {
        assert!(world.process(host));
    }
    world.truth = Micros(60_000_000);
    while world.process(1) {}
    assert_eq!(world.log.len(), 3 + LIMIT);
    world.truth = Micros(69_900_000);
    while world.log.len() == 3 + LIMIT {
        world.process(0);
        world.truth += Span::from_millis(5);
    }
    assert_eq!(world.violations(), 0);
    assert!(world.truth < Micros(70_300_000), "{:?}", world.truth);
}
