//! The behaviour of every ledger when several owners wait for the same limit.
//!
//! Every handle acts like a separate process. The test advances the clock, so it chooses which
//! process asks first for a freed unit: always the one that should not get it.

use std::sync::Arc;

use smallvec::smallvec;
use tollgate_core::ask::{Ask, BlockedBy, Priority, Verdict, WakeOn};
use tollgate_core::limit::Rule;
use tollgate_core::time::Span;
use tollgate_ledger::Event;

use crate::backend::{Backend, Owner, Permit, assert_waits, term};

/// Defines one test per behaviour for a backend whose handles are owners of their own; `paused`: in
/// tokio's paused time.
macro_rules! fairness {
    ($backend:expr) => {
        crate::fairness::fairness!(tests $backend);
    };
    ($what:ident $backend:expr) => {
        crate::conformance::conformance!($what $backend;
            fairness::an_urgent_call_goes_before_background_calls_of_another_process,
            fairness::processes_take_turns_even_if_one_is_always_quicker,
            fairness::a_process_that_does_not_ask_again_delays_others_by_milliseconds_only,
            fairness::a_new_process_does_not_overtake_one_that_waits,
            fairness::a_costly_urgent_call_does_not_starve_behind_cheap_calls_of_another_process,
            fairness::a_costly_call_gets_its_turn_among_cheap_calls_of_the_same_priority,
            fairness::a_process_that_does_not_fetch_its_saved_permits_loses_them,
            fairness::no_permits_are_saved_for_a_dead_process,
            fairness::waiting_processes_are_notified_when_one_ahead_of_them_gives_up,
            fairness::an_urgent_call_keeps_the_queue_place_of_its_process,
            fairness::a_call_that_does_not_wait_delays_nobody,
            fairness::a_call_that_does_not_wait_keeps_the_queue_place_of_its_process,
            fairness::saving_permits_in_one_limit_does_not_close_another,
        );
    };
}
pub(crate) use fairness;

/// Longer than a permit of these tests is held, whatever becomes of it.
const JOINED_BEFORE: Span = Span::from_secs(40);

/// Two owners that have used the provider for a while. On a networked store, one that joins cannot tell whether the
/// store's clock has stepped since a row was written: it counts the row from when it joined, and
/// so closes what the others could use by now. `an_owner_that_joins_counts_from_then_on` tests that.
pub(crate) async fn owners(backend: &impl Backend) -> (Owner, Owner) {
    let (mut one, mut two) = (Owner::new(backend, 1), Owner::new(backend, 2));
    for owner in [&mut one, &mut two] {
        let other_limit = term("joined", &crate::backend::sliding(9, JOINED_BEFORE));
        let permit = owner.take(smallvec![other_limit]).await.unwrap();
        owner.settle(&permit, crate::backend::arrived());
        owner.wait_settled().await;
    }
    backend.pass(JOINED_BEFORE);
    (one, two)
}

/// One unit every 20 ms, and never two at once.
const TICK: Span = Span::from_millis(20);

fn one_at_a_time() -> Arc<Rule> {
    let rule = Rule::bucket(50, Span::from_secs(1), 1).unwrap();
    Arc::new(rule.drift_ppm(0))
}

fn ask(owner: &mut Owner, rule: &Arc<Rule>, priority: Priority) -> Ask {
    Ask {
        priority,
        ..owner.ask(smallvec![term("x", rule)])
    }
}

pub(crate) async fn try_one(
    owner: &mut Owner,
    rule: &Arc<Rule>,
    priority: Priority,
) -> Result<Permit, Verdict> {
    let ask = ask(owner, rule, priority);
    let taken = owner.take_ask(ask).await;
    if let Ok(permit) = &taken {
        owner.settle(permit, crate::backend::arrived());
        owner.wait_settled().await;
    }
    taken
}

/// The verdict for an ask that must let others go first.
fn ask_again_soon() -> Verdict {
    Verdict::Wait {
        after: Span::from_millis(1),
        on: WakeOn::Time,
        by: BlockedBy::Term(0),
    }
}

/// M3, between processes.
pub(crate) async fn an_urgent_call_goes_before_background_calls_of_another_process(
    backend: &impl Backend,
) {
    let rule = one_at_a_time();
    let (mut one, mut two) = owners(backend).await;
    try_one(&mut one, &rule, Priority::Low).await.unwrap();
    try_one(&mut two, &rule, Priority::Low).await.unwrap_err();
    try_one(&mut one, &rule, Priority::High).await.unwrap_err();
    for _ in 0..5 {
        backend.pass(TICK);
        let rejected = try_one(&mut two, &rule, Priority::Low).await.unwrap_err();
        assert_waits(backend, &rejected, &ask_again_soon());
        try_one(&mut one, &rule, Priority::High).await.unwrap();
        // The next urgent call already waits.
        try_one(&mut one, &rule, Priority::High).await.unwrap_err();
        try_one(&mut two, &rule, Priority::Low).await.unwrap_err();
    }
}

pub(crate) async fn processes_take_turns_even_if_one_is_always_quicker(backend: &impl Backend) {
    let rule = one_at_a_time();
    let (mut quick, mut slow) = owners(backend).await;
    try_one(&mut quick, &rule, Priority::Low).await.unwrap();
    try_one(&mut quick, &rule, Priority::Low).await.unwrap_err();
    try_one(&mut slow, &rule, Priority::Low).await.unwrap_err();
    let (mut by_quick, mut by_slow) = (0, 0);
    for _ in 0..20 {
        backend.pass(TICK);
        // A process that got a unit waits for the next one, like a process with constant demand.
        for (owner, got) in [(&mut quick, &mut by_quick), (&mut slow, &mut by_slow)] {
            if try_one(owner, &rule, Priority::Low).await.is_ok() {
                *got += 1;
                try_one(owner, &rule, Priority::Low).await.unwrap_err();
            }
        }
    }
    assert_eq!((by_quick, by_slow), (10, 10));
}

pub(crate) async fn a_process_that_does_not_ask_again_delays_others_by_milliseconds_only(
    backend: &impl Backend,
) {
    let rule = one_at_a_time();
    let (mut gone, mut here) = owners(backend).await;
    try_one(&mut here, &rule, Priority::Low).await.unwrap();
    try_one(&mut gone, &rule, Priority::High).await.unwrap_err();
    try_one(&mut here, &rule, Priority::Low).await.unwrap_err();
    backend.pass(TICK);
    let mut waited = Span::ZERO;
    while try_one(&mut here, &rule, Priority::Low).await.is_err() {
        backend.pass(Span::from_millis(1));
        waited = waited + Span::from_millis(1);
        assert!(waited < Span::from_millis(10), "still delayed");
    }
    assert!(waited > Span::ZERO, "the other process had time to ask");
    // The absent process causes no second delay.
    backend.pass(TICK);
    try_one(&mut here, &rule, Priority::Low).await.unwrap();
}

pub(crate) async fn a_new_process_does_not_overtake_one_that_waits(backend: &impl Backend) {
    let rule = one_at_a_time();
    let (mut waits, mut new) = owners(backend).await;
    try_one(&mut waits, &rule, Priority::Normal).await.unwrap();
    try_one(&mut waits, &rule, Priority::Normal)
        .await
        .unwrap_err();
    backend.pass(TICK);
    let rejected = try_one(&mut new, &rule, Priority::Normal)
        .await
        .unwrap_err();
    assert_waits(backend, &rejected, &ask_again_soon());
    try_one(&mut waits, &rule, Priority::Normal).await.unwrap();
}

/// One unit every 20 ms, and up to twenty at once.
pub(crate) fn burst_of_twenty() -> Arc<Rule> {
    let rule = Rule::bucket(50, Span::from_secs(1), 20).unwrap();
    Arc::new(rule.drift_ppm(0))
}

/// Takes all free permits, so that every process has to wait.
pub(crate) async fn drain(owner: &mut Owner, rule: &Arc<Rule>) {
    while try_one(owner, rule, Priority::Low).await.is_ok() {}
}

/// One process asks each millisecond, while another waits for ten units at once. Returns how long
/// the second one waited and how many units the first one got until then.
async fn wait_for_ten(
    backend: &impl Backend,
    (costly, mine): (&mut Owner, Priority),
    (cheap, theirs): (&mut Owner, Priority),
    rule: &Arc<Rule>,
) -> (Span, u32) {
    let mut ten = ask(costly, rule, mine);
    ten.terms[0].cost = 10;
    let (mut due, mut got) = (Span::ZERO, 0);
    for ms in 0..2_000 {
        let waited = Span::from_millis(ms);
        got += u32::from(try_one(cheap, rule, theirs).await.is_ok());
        if waited >= due {
            match costly.take_ask(ten.clone()).await {
                Ok(_) => return (waited, got),
                Err(Verdict::Wait { after, .. }) => due = waited + after,
                Err(other) => panic!("{other:?}"),
            }
        }
        backend.pass(Span::from_millis(1));
    }
    panic!("the costly call starves; the other process got {got}");
}

/// M3, a former bug: an ask for more units than are free did not count as waiting until its time
/// had come, and by then other processes had taken the units freed since.
pub(crate) async fn a_costly_urgent_call_does_not_starve_behind_cheap_calls_of_another_process(
    backend: &impl Backend,
) {
    let rule = burst_of_twenty();
    let (mut urgent, mut other) = owners(backend).await;
    drain(&mut other, &rule).await;
    let urgent = (&mut urgent, Priority::High);
    let other = (&mut other, Priority::Low);
    let (waited, got) = wait_for_ten(backend, urgent, other, &rule).await;
    assert!(waited <= Span::from_millis(202), "waited {waited:?}");
    assert_eq!(got, 0, "all units go to the urgent call");
}

pub(crate) async fn a_costly_call_gets_its_turn_among_cheap_calls_of_the_same_priority(
    backend: &impl Backend,
) {
    let rule = burst_of_twenty();
    let (mut one, mut other) = owners(backend).await;
    drain(&mut other, &rule).await;
    let costly = (&mut one, Priority::Low);
    let cheap = (&mut other, Priority::Low);
    let (waited, got) = wait_for_ten(backend, costly, cheap, &rule).await;
    assert!(waited <= Span::from_millis(450), "waited {waited:?}");
    assert!(got <= 10, "more than the costly call: {got}");
}

/// Asks for ten units at once and waits as long as needed.
pub(crate) async fn want_ten(owner: &mut Owner, rule: &Arc<Rule>, priority: Priority) -> Verdict {
    let mut ten = ask(owner, rule, priority);
    ten.terms[0].cost = 10;
    owner.take_ask(ten).await.unwrap_err()
}

/// All free units are saved for another process: the ask waits until that process leaves or its
/// time has come.
pub(crate) fn is_saved_up(verdict: &Verdict) -> bool {
    matches!(
        verdict,
        Verdict::Wait {
            on: WakeOn::Event,
            ..
        }
    )
}

pub(crate) async fn a_process_that_does_not_fetch_its_saved_permits_loses_them(
    backend: &impl Backend,
) {
    let rule = burst_of_twenty();
    let (mut stopped, mut here) = owners(backend).await;
    drain(&mut stopped, &rule).await;
    want_ten(&mut stopped, &rule, Priority::High).await;
    backend.pass(Span::from_millis(190));
    let rejected = try_one(&mut here, &rule, Priority::Low).await.unwrap_err();
    assert!(is_saved_up(&rejected), "{rejected:?}");
    backend.pass(Span::from_millis(17));
    // The stopped process is signalled once more and gets time to ask.
    let (mut got, mut waited) = (0, 0);
    while got < 10 {
        match try_one(&mut here, &rule, Priority::Low).await {
            Ok(_) => got += 1,
            Err(_) => {
                backend.pass(Span::from_millis(1));
                waited += 1;
            }
        }
        assert!(waited < 10, "still delayed after {got} permits");
    }
}

pub(crate) async fn no_permits_are_saved_for_a_dead_process(backend: &impl Backend) {
    let rule = burst_of_twenty();
    let (mut dead, mut here) = owners(backend).await;
    drain(&mut dead, &rule).await;
    want_ten(&mut dead, &rule, Priority::High).await;
    drop(dead);
    backend.pass(Span::from_millis(100));
    // The first process that saves units for the dead one detects it.
    let rejected = try_one(&mut here, &rule, Priority::Low).await.unwrap_err();
    assert!(is_saved_up(&rejected), "{rejected:?}");
    try_one(&mut here, &rule, Priority::Low).await.unwrap();
}

/// A former bug: others waited for a caller that had given up until the time of its turn.
pub(crate) async fn waiting_processes_are_notified_when_one_ahead_of_them_gives_up(
    backend: &impl Backend,
) {
    let rule = burst_of_twenty();
    let (mut leaves, mut here) = owners(backend).await;
    drain(&mut leaves, &rule).await;
    want_ten(&mut leaves, &rule, Priority::High).await;
    backend.pass(Span::from_millis(100));
    let rejected = try_one(&mut here, &rule, Priority::Low).await.unwrap_err();
    assert!(is_saved_up(&rejected), "{rejected:?}");
    let mut events = here.ledger.events();
    leaves.ledger.stopped_waiting(&[term("x", &rule).cell]);
    let freed = Event::Freed(Arc::from([term("x", &rule).cell]));
    // The same event comes each second, so it may come before the other has left.
    loop {
        assert_eq!(events.next().await, Some(freed.clone()));
        if try_one(&mut here, &rule, Priority::Low).await.is_ok() {
            break;
        }
    }
}

pub(crate) async fn an_urgent_call_keeps_the_queue_place_of_its_process(backend: &impl Backend) {
    let rule = burst_of_twenty();
    let (mut one, mut other) = owners(backend).await;
    drain(&mut one, &rule).await;
    want_ten(&mut one, &rule, Priority::Low).await;
    backend.pass(Span::from_millis(100));
    try_one(&mut one, &rule, Priority::High).await.unwrap();
    let rejected = try_one(&mut other, &rule, Priority::Low).await.unwrap_err();
    assert!(is_saved_up(&rejected), "{rejected:?}");
}

/// A call with a stale response to fall back to asks once. It delayed others by 6 ms.
pub(crate) async fn a_call_that_does_not_wait_delays_nobody(backend: &impl Backend) {
    let rule = one_at_a_time();
    let (mut hasty, mut here) = owners(backend).await;
    try_one(&mut here, &rule, Priority::Low).await.unwrap();
    let now = Ask {
        max_wait: Span::ZERO,
        ..ask(&mut hasty, &rule, Priority::High)
    };
    hasty.take_ask(now).await.unwrap_err();
    try_one(&mut here, &rule, Priority::Low).await.unwrap_err();
    backend.pass(TICK);
    try_one(&mut here, &rule, Priority::Low).await.unwrap();
}

pub(crate) async fn a_call_that_does_not_wait_keeps_the_queue_place_of_its_process(
    backend: &impl Backend,
) {
    let rule = one_at_a_time();
    let (mut waits, mut new) = owners(backend).await;
    try_one(&mut waits, &rule, Priority::Normal).await.unwrap();
    try_one(&mut waits, &rule, Priority::Normal)
        .await
        .unwrap_err();
    let now = Ask {
        max_wait: Span::ZERO,
        ..ask(&mut waits, &rule, Priority::High)
    };
    waits.take_ask(now).await.unwrap_err();
    backend.pass(TICK);
    let rejected = try_one(&mut new, &rule, Priority::Normal).await;
    assert_waits(backend, &rejected.unwrap_err(), &ask_again_soon());
}

pub(crate) async fn saving_permits_in_one_limit_does_not_close_another(backend: &impl Backend) {
    let (deep, shallow) = (burst_of_twenty(), one_at_a_time());
    let (mut saves, mut here) = owners(backend).await;
    drain(&mut saves, &deep).await;
    want_ten(&mut saves, &deep, Priority::High).await;
    let other_limit = term("y", &shallow);
    let taken = here.take(smallvec![other_limit.clone()]).await.unwrap();
    here.settle(&taken, crate::backend::arrived());
    saves
        .take(smallvec![other_limit.clone()])
        .await
        .unwrap_err();
    backend.pass(Span::from_millis(100));
    let both = here.ask(smallvec![term("x", &deep), other_limit.clone()]);
    let one = here.ask(smallvec![other_limit]);
    let verdicts = here.offer(vec![both, one]).await;
    assert!(is_saved_up(&verdicts[0]), "{verdicts:?}");
    assert_waits(backend, &verdicts[1], &ask_again_soon());
}
