//! What decisions on a networked store cost: round trips, by how many callers ask. On the simulator's store, in virtual time.

use std::sync::Arc;

use smallvec::smallvec;
use tollgate_core::limit::Rule;
use tollgate_core::time::{Micros, Span};

use crate::backend::{Backend, Owner, arrived, secs, sliding, term};
use crate::networked::Networked;

const ONE_WAY: Span = Span::from_millis(5);

fn backend() -> Networked {
    Networked::new(|plan| plan.one_way = (ONE_WAY, ONE_WAY))
}

/// More than anybody asks for: nobody waits for quota.
fn plenty() -> Arc<Rule> {
    sliding(1_000_000, secs(10))
}

async fn ask_until(mut owner: Owner, until: Micros) -> u64 {
    let rule = plenty();
    let mut decided = 0;
    while owner.ledger.at() < until {
        let permit = owner.take(smallvec![term("x", &rule)]).await.unwrap();
        owner.settle(&permit, arrived());
        decided += 1;
    }
    decided
}

/// Decisions and requests of so many callers of one node in ten seconds.
async fn decisions_and_requests(callers: u32) -> (u64, u64) {
    let backend = backend();
    let ledger = backend.ledger();
    let until = ledger.at() + secs(10);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..callers {
        // Each caller is another handle of the same process, with permits of its own numbers.
        tasks.spawn(ask_until(Owner::numbered(&ledger, number + 1), until));
    }
    let decided: u64 = tasks.join_all().await.into_iter().sum();
    (decided, backend.requests())
}

/// Callers that wait share round trips: with more of them more is decided, by as many requests.
#[tokio::test(start_paused = true)]
async fn decisions_grow_with_callers_at_constant_round_trips() {
    let (alone, requests) = decisions_and_requests(1).await;
    assert!((900..=1_010).contains(&alone), "{alone} decisions");
    for callers in [16, 256] {
        let (decided, sent) = decisions_and_requests(callers).await;
        let grows = decided >= alone * u64::from(callers) * 9 / 10;
        assert!(
            grows,
            "{callers} callers: {decided} decisions, one: {alone}"
        );
        let is_constant = sent <= requests * 11 / 10;
        assert!(
            is_constant,
            "{callers} callers: {sent} requests, one: {requests}"
        );
    }
}
