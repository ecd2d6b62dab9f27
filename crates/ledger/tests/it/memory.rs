//! The memory ledger: conformance, and concurrent threads.

use std::sync::Arc;

use smallvec::smallvec;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{Clock, Ledger, ManualClock, SharedMemory};

use crate::backend::{Backend, Owner, secs, sliding, term};
use crate::conformance::conformance;
use crate::fairness::fairness;

struct Memory {
    clock: Arc<ManualClock>,
    memory: SharedMemory,
}

impl Memory {
    fn new() -> Memory {
        let clock = ManualClock::new(Now {
            at: Micros(1_000_000_000),
            wall: Wall(1_772_323_200_000_000),
        });
        Memory {
            memory: SharedMemory::new(Clock::Manual(clock.clone())),
            clock,
        }
    }
}

impl Backend for Memory {
    fn ledger(&self) -> Ledger {
        Ledger::shared_memory(&self.memory)
    }

    fn pass(&self, span: Span) {
        self.clock.pass(span);
    }
}

conformance!(Memory::new());
fairness!(Memory::new());

/// A12: one bucket per process, for any number of threads.
#[test]
fn a12_threads_together_take_exactly_the_limit() {
    let ledger = Memory::new().ledger();
    let rule = sliding(1_000, secs(10));
    let taken: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let mut owner = Owner::numbered(&ledger, number);
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

/// H7: idle state is swept in the background.
#[tokio::test]
async fn idle_cells_are_evicted_while_others_are_in_use() {
    let backend = Memory::new();
    let mut owner = Owner::new(&backend, 1);
    let rule = sliding(5, secs(1));
    for entity in 0..200 {
        let permit = owner
            .take(smallvec![term(&entity.to_string(), &rule)])
            .await
            .unwrap();
        owner.settle(&permit, crate::backend::arrived());
    }
    backend.pass(secs(60));
    for _ in 0..50 {
        let permit = owner.take(smallvec![term("busy", &rule)]).await;
        drop(permit);
        backend.pass(secs(60));
    }
    let stored = owner.ledger.ledger().cell_count().unwrap();
    assert!(stored <= 2, "{stored} cells are stored");
}
