//! The table of permits on its own: what it remembers, and reports that meet.

use tollgate_core::health::Class;

use super::*;

/// The oldest makes room, whenever it would have expired.
#[test]
fn closed_permits_are_bounded() {
    let mut state = TableState::new();
    let key = |number: usize| (Micros(number as u64), Arc::from(format!("{number}")));
    for number in 0..CLOSED_MAX + 2 {
        state.remember_closed(key(number), None, ClosedPermit::Released);
    }
    let is_known = |number: usize| state.closed.contains_key(&*key(number).1);
    assert_eq!(
        (state.closed.len(), state.closing_order.len()),
        (CLOSED_MAX, CLOSED_MAX)
    );
    assert!(!is_known(1) && is_known(2));
    state.evict_closed(Micros(10));
    assert!(!state.closed.contains_key("10") && state.closed.contains_key("11"));
}

/// Whoever reports a permit while its first report is evaluated got provisional values.
#[test]
fn a_report_during_the_first_gets_its_result() {
    let result = Arc::new(OnceLock::new());
    let learned = |after| Learned {
        class: Class::Limited,
        retry_after: after,
    };
    let in_progress = ReportInProgress {
        result: result.clone(),
        provisional: learned(None),
    };
    let second = std::thread::spawn(move || *result.wait());
    in_progress
        .result
        .get_or_init(|| learned(Some(Span::from_secs(9))));
    drop(in_progress);
    assert_eq!(second.join().unwrap(), learned(Some(Span::from_secs(9))));
    let panicked = ReportInProgress {
        result: Arc::default(),
        provisional: learned(None),
    };
    let again = panicked.result.clone();
    drop(panicked);
    assert_eq!(*again.wait(), learned(None), "nobody waits for ever");
}
