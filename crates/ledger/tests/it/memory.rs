//! The memory ledger: conformance, and threads that race.

use std::sync::Arc;

use smallvec::smallvec;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{Clock, Ledger, ManualClock};

use crate::bench::{Bench, Owner, secs, sliding, term};
use crate::conformance::conformance;

struct Memory {
    clock: Arc<ManualClock>,
    ledger: Ledger,
}

impl Memory {
    fn new() -> Memory {
        let clock = ManualClock::new(Now {
            at: Micros(1_000_000_000),
            wall: Wall(1_772_323_200_000_000),
        });
        Memory {
            ledger: Ledger::memory(Clock::Manual(clock.clone())),
            clock,
        }
    }
}

impl Bench for Memory {
    fn ledger(&self) -> Ledger {
        self.ledger.clone()
    }

    fn pass(&self, span: Span) {
        self.clock.pass(span);
    }
}

conformance!(Memory::new();
    conformance::grants_up_to_the_limit_and_says_when_to_come_back,
    conformance::charges_all_terms_or_none,
    conformance::tells_never_from_not_now,
    conformance::an_unsent_permit_is_as_if_it_had_never_been,
    conformance::settling_twice_changes_nothing,
    conformance::a_permit_that_is_never_settled_comes_back_by_itself,
    conformance::a_dropped_answer_gives_its_permits_back,
    conformance::a_large_cost_is_not_starved_and_blocks_only_its_own_cell,
    conformance::looking_takes_nothing,
    conformance::the_provider_may_lower_what_is_left_and_never_raise_it,
    conformance::a_changed_limit_forgets_nothing,
    conformance::every_algorithm_keeps_its_limit,
    conformance::a_long_limit_grants_one_percent_per_transaction,
    sharing::owners_share_one_count,
    sharing::an_owner_that_waits_hears_of_another_ones_settle,
    sharing::nobody_is_told_when_nobody_was_refused,
    sharing::a_scope_closes_for_everybody_and_opens_by_itself,
    sharing::owners_probe_once,
    sharing::a_probe_that_is_never_heard_of_gives_its_place_back,
    sharing::a_scope_without_end_opens_only_by_hand,
);

/// A12: one bucket per process, whatever the threads.
#[test]
fn a12_threads_together_take_exactly_the_limit() {
    let bench = Memory::new();
    let rule = sliding(1_000, secs(10));
    let taken: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let mut owner = Owner::new(&bench, number);
                let rule = rule.clone();
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .build()
                        .unwrap();
                    runtime.block_on(async { owner.take_all("x", &rule).await.len() })
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(taken, 1_000);
}

#[tokio::test]
async fn idle_cells_are_forgotten_while_others_work() {
    let bench = Memory::new();
    let mut owner = Owner::new(&bench, 1);
    let rule = sliding(5, secs(1));
    for entity in 0..200 {
        let permit = owner
            .take(smallvec![term(&entity.to_string(), &rule)])
            .await
            .unwrap();
        owner.settle(&permit, crate::bench::arrived());
    }
    bench.pass(secs(60));
    for _ in 0..50 {
        let permit = owner.take(smallvec![term("busy", &rule)]).await;
        drop(permit);
        bench.pass(secs(60));
    }
    let Ledger::Memory(memory) = &owner.ledger;
    assert!(memory.cells() <= 2, "{} cells are kept", memory.cells());
}
