//! `on_store_loss: local-share`: nodes that have lost a networked store use their share of each limit
//! while the others go on, judged by the provider's own log.

use proptest::prelude::*;
use tollgate_core::limit::Rule;
use tollgate_core::store_loss::NodeShare;
use tollgate_core::time::{Micros, Span};
use tollgate_sim::clock::NodeClock;
use tollgate_sim::governed::{Governed, GovernedPlan};
use tollgate_sim::latency::{Delay, Latency};
use tollgate_sim::row_store::{Partition, Promotion, StorePlan, exact_clock};
use tollgate_sim::rule::RuleSpec;
use tollgate_sim::store_table::drifting_clocks;
use tollgate_sim::world::{NodeId, Setup, World};

use crate::scenario::{config, in_flight_pair};

const SECOND: Span = Span::from_secs(1);

/// Every call has arrived by then, and has its response.
const LATE: Span = SECOND;
const GIVE_UP: Span = Span::from_secs(3);

/// Waiting calls per node, always.
const BACKLOG: usize = 20;

/// A world in which nodes lose the store.
#[derive(Clone, Debug)]
struct LossWorld {
    spec: RuleSpec,
    rule: Rule,
    nodes: u32,
    lease: Span,
    up: Span,
    store: StorePlan,
    length: Span,
}

impl LossWorld {
    fn new(spec: &str, rule: Rule, nodes: u32, store: StorePlan) -> LossWorld {
        LossWorld {
            spec: spec.parse().expect("a rule"),
            rule,
            nodes,
            lease: Span::from_secs(5),
            up: Span::from_millis(20),
            store,
            length: Span::from_secs(100),
        }
    }

    fn start(&self) -> World<Governed> {
        let mut plan = GovernedPlan::new(vec![self.rule.clone()]).on_network(self.store.clone());
        (plan.give_up, plan.late_arrival) = (GIVE_UP, LATE);
        plan.local_share = Some(NodeShare {
            nodes: self.nodes,
            lease: self.lease,
        });
        let latency = Latency {
            up: Delay::Uniform {
                least: Span::ZERO,
                most: self.up,
            },
            ..Latency::LAN
        };
        let mut setup = Setup::new(self.store.seed, vec![self.spec], latency);
        setup.clocks = drifting_clocks(self.nodes as usize);
        setup.give_up = Some(GIVE_UP);
        World::new(setup, Governed::new(plan.saturating(BACKLOG)))
    }

    fn run(&self) -> World<Governed> {
        let mut world = self.start();
        world
            .run_until(Micros(0) + self.length)
            .expect("time passes");
        world
    }

    /// What each node has sent in each of these times.
    fn sent_in(&self, times: &[(u64, u64)]) -> Vec<Vec<u64>> {
        let mut world = self.start();
        let mut at = |secs: u64| {
            world
                .run_until(Micros(0) + Span::from_secs(secs))
                .expect("time passes");
            world.client().sent_by_node()
        };
        let between = |&(from, to): &(u64, u64)| {
            let before = at(from);
            let after = at(to);
            after
                .iter()
                .zip(&before)
                .map(|(after, before)| after - before)
                .collect()
        };
        let sent = times.iter().map(between).collect();
        assert_eq!(world.checker().violations(), 0);
        sent
    }
}

fn partition(node: usize, from: u64, to: u64) -> Partition {
    Partition {
        node: NodeId(node),
        from: Micros(0) + Span::from_secs(from),
        to: Micros(0) + Span::from_secs(to),
        is_deaf: false,
    }
}

/// One of four nodes loses the store at 20 s, at the latest at 29 s it has its share, until 60 s.
fn one_of_four() -> LossWorld {
    let mut store = StorePlan::new(5, Span::from_millis(2));
    store.partitions = vec![partition(3, 20, 60)];
    let rule = Rule::sliding(40, SECOND).expect("sane");
    LossWorld::new("sliding 40/1s", rule, 4, store)
}

/// C9: one node of four is cut off, and has a quarter; the others use the rest. All of it is used again
/// after it is back.
#[test]
fn c9_a_node_that_is_cut_off_has_its_share_and_the_others_have_the_rest() {
    let times = [(10, 20), (32, 60), (70, 100)];
    let sent = one_of_four().sent_in(&times);
    let total = |index: usize| sent[index].iter().sum::<u64>();
    assert!(total(0) >= 380, "{sent:?}");
    let (alone, others) = (sent[1][3], total(1) - sent[1][3]);
    assert!(
        (260..=281).contains(&alone),
        "10 a second for 28 s: {sent:?}"
    );
    assert!(
        (780..=841).contains(&others),
        "30 a second for 28 s: {sent:?}"
    );
    assert!(total(2) >= 30 * 38, "{sent:?}");
}

/// C9: without the rule the node adds its share to what the others use.
#[test]
fn c9_a_share_that_is_not_left_alone_exceeds_the_limit() {
    let mut world = one_of_four();
    world.store.rules.leave_shares = false;
    assert!(world.run().checker().violations() > 0);
}

/// C9: all nodes are cut off: together they use the limit, and no more when they come back one by one.
#[test]
fn c9_all_nodes_that_are_cut_off_have_their_shares() {
    let mut world = one_of_four();
    world.store.partitions = (0..4)
        .map(|node| partition(node, 20 + node as u64, 60 + 5 * node as u64))
        .collect();
    let sent = world.sent_in(&[(35, 60), (80, 100)]);
    for node in &sent[0] {
        assert!((230..=251).contains(node), "10 a second for 25 s: {sent:?}");
    }
    // All of it again, not three quarters.
    assert!(sent[1].iter().sum::<u64>() >= 720, "{sent:?}");
}

/// C9: a node whose requests arrive, but which hears nothing, uses its share; that its requests arrive
/// must not say that it does not.
#[test]
fn c9_a_node_that_hears_nothing_does_not_count_as_there() {
    let mut world = one_of_four();
    world.store.partitions[0].is_deaf = true;
    let sent = world.sent_in(&[(32, 60)]);
    assert!(sent[0][3] >= 260, "{sent:?}");
}

fn pair() -> impl Strategy<Value = (RuleSpec, Rule)> {
    let windows = (2_u64..=60, 200_000_u64..3_000_000, 0_u64..7).prop_map(|(n, window, kind)| {
        let (w, span) = (format!("{window}us"), Span(window));
        let sliding = Rule::sliding(n, span);
        let (spec, rule) = match kind {
            0 => (format!("sliding {n}/{w}"), sliding),
            1 => (format!("fixed {n}/{w} phase {}us", window / 3), sliding),
            2 => (
                format!("bucket {n}/{w} burst {n}"),
                Rule::bucket(n, span, n),
            ),
            3 => (
                format!("bucket {n}/{w} burst {}", 3 * n),
                Rule::bucket(n, span, 3 * n),
            ),
            4 => (format!("first-use {n}/{w}"), Rule::fixed(n, span)),
            5 => (format!("sliding {n}/{w}"), Rule::paced(n, span)),
            _ => (format!("first-use {n}/{w}"), sliding),
        };
        (spec.parse().expect("a rule"), rule.expect("sane"))
    });
    prop_oneof![5 => windows, 1 => in_flight_pair()]
}

fn store() -> impl Strategy<Value = StorePlan> {
    let losses = (0_u32..30_000, 0_u32..30_000, 0_u32..100_000, 0_u32..100_000);
    let step = (1_u64..80_000_000, 2_000_000_i64..60_000_000, any::<bool>());
    let steps = prop::collection::vec(step, 0..3);
    let promotion = (1_u64..80_000_000, -30_i64..=30);
    let promotions = prop::collection::vec(promotion, 0..2);
    (0_u64..20_000, losses, steps, promotions, any::<u64>()).prop_map(
        |(one_way, losses, mut steps, promotions, seed)| {
            let mut plan = StorePlan::new(seed, Span::ZERO);
            plan.one_way = (Span(one_way / 2), Span(one_way));
            plan.deadline = Span::from_millis(500);
            (plan.lost_requests_ppm, plan.lost_replies_ppm) = (losses.0, losses.1);
            (plan.lost_pushes_ppm, plan.conflict_ppm) = (losses.2, losses.3);
            steps.sort_unstable();
            let signed = |by: i64, back: bool| if back { -by } else { by };
            plan.clock = NodeClock {
                wall_steps: steps
                    .into_iter()
                    .map(|(at, by, back)| (Micros(at), signed(by, back)))
                    .collect(),
                ..exact_clock()
            };
            // A promotion that loses rows loses registrations, as docs/many-hosts.md says.
            plan.durable = true;
            let promotion = |(at, secs): (u64, i64)| Promotion {
                at: Micros(at),
                behind: Span::ZERO,
                ahead_us: secs * 1_000_000,
                is_wiped: false,
            };
            plan.promotions = promotions.into_iter().map(promotion).collect();
            plan
        },
    )
}

fn worlds() -> impl Strategy<Value = LossWorld> {
    let partition = (0_usize..6, 5_u64..60_000, 500_u64..40_000, any::<bool>());
    let some = prop::collection::vec(partition, 1..5);
    let all = prop::option::of((5_u64..50_000, 500_u64..40_000, 0_u64..8_000));
    let up = 0_u64..400_000;
    (pair(), 1_u32..=6, 1_u64..=5, up, store(), some, all).prop_map(
        |((spec, rule), nodes, lease, up, mut store, some, all)| {
            let ms = |ms: u64| Micros(0) + Span::from_millis(ms);
            let cut = |(node, from, lasts, is_deaf): (usize, u64, u64, bool)| Partition {
                node: NodeId(node % nodes as usize),
                from: ms(from),
                to: ms(from + lasts),
                is_deaf,
            };
            store.partitions = some.into_iter().map(cut).collect();
            if let Some((from, lasts, apart)) = all {
                let each = (0..nodes as usize).map(|node| {
                    let from = from + node as u64 * apart / u64::from(nodes);
                    cut((node, from, lasts, false))
                });
                store.partitions.extend(each);
            }
            LossWorld {
                spec,
                rule,
                nodes,
                lease: Span::from_secs(lease),
                up: Span(up),
                store,
                length: Span::from_secs(110),
            }
        },
    )
}

proptest! {
    #![proptest_config(config(24))]

    /// C9, M1: any nodes lose the store, alone, together and again, and some only hear nothing.
    #[test]
    fn c9_no_request_arrives_above_the_limit_while_nodes_lose_the_store(world in worlds()) {
        let run = world.run();
        prop_assert_eq!(run.client().limited(), [], "above the limit");
        prop_assert_eq!(run.checker().violations(), 0, "above the limit");
    }
}
