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

// Without three behaviours. Two of them read what is used (a peek compares the row with the store's clock, which has
// stepped: it is for display, and shows less than is used until the next decision), and in
// `an_unreported_probe_frees_its_slot` an owner meets a row for the first time after a step, so that it counts from then.
mod on_a_store_whose_epoch_and_clock_change {
    use super::*;
    conformance!(paused promoted_with_other_clocks();
        conformance::grants_up_to_the_limit_and_says_when_to_ask_again,
        conformance::charges_all_terms_or_none,
        conformance::distinguishes_never_from_not_yet,
        conformance::an_unsent_permit_is_not_counted,
        conformance::settling_twice_changes_nothing,
        conformance::an_unsettled_permit_expires_by_itself,
        conformance::a_dropped_offer_returns_its_permits,
        conformance::a_large_cost_is_not_starved_and_blocks_only_its_own_cell,
        conformance::peeking_takes_nothing,
        conformance::a_changed_limit_keeps_its_count,
        conformance::every_algorithm_keeps_its_limit,
        conformance::a_long_limit_grants_one_percent_per_transaction,
        changes::a_limit_that_changes_its_algorithm_is_kept,
        sharing::owners_share_one_count,
        sharing::a_waiting_owner_is_notified_of_another_owners_settle,
        sharing::no_event_is_sent_when_nobody_waits,
        sharing::a_scope_closes_for_all_owners_and_opens_by_itself,
        sharing::owners_probe_once,
        sharing::failures_of_several_owners_are_one_streak,
        sharing::a_scope_without_end_opens_only_on_request,
    );
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
