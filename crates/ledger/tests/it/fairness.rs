//! Who goes first when several processes wait for the same limit.
//!
//! Every handle is as another process would have it; time passes by hand, so who comes first to a
//! unit that has just come free is the test's choice: the one who should not have it.

use std::sync::Arc;

use smallvec::smallvec;
use tollgate_core::ask::{Ask, By, On, Priority, Verdict};
use tollgate_core::limit::Rule;
use tollgate_core::time::Span;

use crate::bench::{Bench, Owner, Permit, term};
use crate::sqlite::Sqlite;

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

async fn try_one(
    owner: &mut Owner,
    rule: &Arc<Rule>,
    priority: Priority,
) -> Result<Permit, Verdict> {
    let ask = ask(owner, rule, priority);
    let taken = owner.take_ask(ask).await;
    if let Ok(permit) = &taken {
        owner.settle(permit, crate::bench::arrived());
        owner.settled().await;
    }
    taken
}

/// What one hears that is to let others go first.
fn come_back() -> Verdict {
    Verdict::Wait {
        after: Span::from_millis(1),
        on: On::Time,
        by: By::Term(0),
    }
}

#[tokio::test]
async fn an_urgent_call_of_one_process_goes_before_the_background_of_another() {
    let (bench, rule) = (Sqlite::new(), one_at_a_time());
    let (mut one, mut two) = (Owner::new(&bench, 1), Owner::new(&bench, 2));
    try_one(&mut one, &rule, Priority::Low).await.unwrap();
    try_one(&mut two, &rule, Priority::Low).await.unwrap_err();
    try_one(&mut one, &rule, Priority::High).await.unwrap_err();
    for _ in 0..5 {
        bench.pass(TICK);
        let refused = try_one(&mut two, &rule, Priority::Low).await.unwrap_err();
        assert_eq!(refused, come_back());
        try_one(&mut one, &rule, Priority::High).await.unwrap();
        // The next urgent one waits already.
        try_one(&mut one, &rule, Priority::High).await.unwrap_err();
        try_one(&mut two, &rule, Priority::Low).await.unwrap_err();
    }
}

#[tokio::test]
async fn processes_take_turns_even_if_one_is_always_quicker() {
    let (bench, rule) = (Sqlite::new(), one_at_a_time());
    let (mut quick, mut slow) = (Owner::new(&bench, 1), Owner::new(&bench, 2));
    try_one(&mut quick, &rule, Priority::Low).await.unwrap();
    try_one(&mut quick, &rule, Priority::Low).await.unwrap_err();
    try_one(&mut slow, &rule, Priority::Low).await.unwrap_err();
    let (mut by_quick, mut by_slow) = (0, 0);
    for _ in 0..20 {
        bench.pass(TICK);
        // Whoever has something goes on waiting for the next one, as a process in demand does.
        for (owner, got) in [(&mut quick, &mut by_quick), (&mut slow, &mut by_slow)] {
            if try_one(owner, &rule, Priority::Low).await.is_ok() {
                *got += 1;
                try_one(owner, &rule, Priority::Low).await.unwrap_err();
            }
        }
    }
    assert_eq!((by_quick, by_slow), (10, 10));
}

#[tokio::test]
async fn one_that_does_not_come_holds_the_others_up_for_milliseconds_only() {
    let (bench, rule) = (Sqlite::new(), one_at_a_time());
    let (mut gone, mut here) = (Owner::new(&bench, 1), Owner::new(&bench, 2));
    try_one(&mut here, &rule, Priority::Low).await.unwrap();
    try_one(&mut gone, &rule, Priority::High).await.unwrap_err();
    try_one(&mut here, &rule, Priority::Low).await.unwrap_err();
    bench.pass(TICK);
    let mut waited = Span::ZERO;
    while try_one(&mut here, &rule, Priority::Low).await.is_err() {
        bench.pass(Span::from_millis(1));
        waited = waited + Span::from_millis(1);
        assert!(waited < Span::from_millis(10), "still waits for it");
    }
    assert!(waited > Span::ZERO, "it was given a chance");
    // It is not waited for a second time.
    bench.pass(TICK);
    try_one(&mut here, &rule, Priority::Low).await.unwrap();
}

#[tokio::test]
async fn who_comes_anew_does_not_overtake_one_that_waits() {
    let (bench, rule) = (Sqlite::new(), one_at_a_time());
    let (mut waits, mut new) = (Owner::new(&bench, 1), Owner::new(&bench, 2));
    try_one(&mut waits, &rule, Priority::Normal).await.unwrap();
    try_one(&mut waits, &rule, Priority::Normal)
        .await
        .unwrap_err();
    bench.pass(TICK);
    let refused = try_one(&mut new, &rule, Priority::Normal)
        .await
        .unwrap_err();
    assert_eq!(refused, come_back());
    try_one(&mut waits, &rule, Priority::Normal).await.unwrap();
}
