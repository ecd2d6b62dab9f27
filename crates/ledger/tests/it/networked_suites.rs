//! Every behaviour of the conformance and fairness suites on the simulator's awkward store, with every rule of the
//! protocol: conflicts, lost and repeated messages, latency, epochs that change and clocks that step.

use tollgate_core::time::Span;

use crate::conformance::conformance;
use crate::fairness::fairness;
use crate::networked::Networked;

fn behaving() -> Networked {
    Networked::new(|_| {})
}

fn with_conflicts() -> Networked {
    Networked::new(|plan| plan.conflict_ppm = 300_000)
}

/// Ten milliseconds there and back. What was stamped by the upper bound of time is free by the lower
/// one a few round trips later.
fn far_away() -> Networked {
    let mut store = Networked::new(|plan| {
        plan.one_way = (Span::from_millis(4), Span::from_millis(6));
    });
    store.slack = Span::from_millis(100);
    store.delay = Span::from_millis(50);
    store
}

/// Requests, replies and wake-ups are lost, and requests arrive twice. A lost message costs a deadline
/// of 10 ms, and that again with each one that follows.
fn loses_messages() -> Networked {
    let mut store = Networked::new(|plan| {
        (plan.lost_requests_ppm, plan.lost_replies_ppm) = (150_000, 150_000);
        (plan.lost_pushes_ppm, plan.repeated_ppm) = (200_000, 200_000);
        plan.conflict_ppm = 100_000;
    });
    store.slack = Span::from_millis(300);
    store.deadline = Span::from_millis(10);
    store
}

/// Its epoch changes every few requests. The hosts have all rows, and the same time.
fn promoted() -> Networked {
    Networked::with(&[], Some(0), |_| {})
}

/// The hosts' clocks differ by 30 s, forwards and backwards in turns.
fn promoted_with_other_clocks() -> Networked {
    let mut store = Networked::with(&[], Some(30_000_000), |_| {});
    store.slack = Span::from_millis(300);
    store.delay = Span::from_millis(150);
    store
}

mod on_a_store_whose_epoch_changes {
    use super::*;
    conformance!(each paused, promoted());
    fairness!(paused promoted());
}

/// What a behaviour of the suite cannot show on such a store, and why.
type Exceptions = [(&'static str, &'static str)];

const WHERE_CLOCKS_CHANGE: &Exceptions = &[
    (
        "a_provider_may_lower_remaining_and_never_raise_it",
        "it peeks: for display, a row is compared with the store's clock, which has stepped, and shows \
         less than is used until the next decision",
    ),
    (
        "owners_may_change_a_limit_one_after_another",
        "it peeks too",
    ),
    (
        "an_unreported_probe_frees_its_slot",
        "an owner meets a row for the first time after a step, and counts it from then: the slot is \
         freed later",
    ),
];

mod on_a_store_whose_epoch_and_clock_change {
    use super::*;
    conformance!(each paused_except, (WHERE_CLOCKS_CHANGE, promoted_with_other_clocks()));
}

conformance!(each names, ());

#[test]
fn exceptions_are_behaviours_of_the_suite() {
    for (name, reason) in WHERE_CLOCKS_CHANGE {
        assert!(BEHAVIOURS.contains(name) && !reason.is_empty(), "{name}");
    }
}

mod on_a_store_that_behaves {
    use super::*;
    conformance!(each paused, behaving());
    fairness!(paused behaving());
}

mod on_a_store_with_conflicts {
    use super::*;
    conformance!(each paused, with_conflicts());
    fairness!(paused with_conflicts());
}

mod on_a_store_that_loses_and_repeats_messages {
    use super::*;
    conformance!(each paused, loses_messages());
}

mod on_a_store_that_is_far_away {
    use super::*;
    conformance!(each paused, far_away());
}
