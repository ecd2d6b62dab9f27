//! The lifetime of a token, second by second, in virtual time.

use super::*;

const DAY: Span = Span::from_secs(86_400);
const FIVE_MINUTES: Span = Span::from_secs(300);
const LOW: Dice = Dice(0);

fn at(secs: u64) -> Micros {
    Micros::default() + Span::from_secs(secs)
}

/// A token for a day, fetched at 0.
fn fetched() -> Renewal {
    let mut renewal = Renewal::default();
    assert_eq!(renewal.next_action(at(0)), TokenAction::Renew);
    renewal.on_token(at(0), DAY, FIVE_MINUTES);
    renewal
}

/// M6: the first call fetches, all others wait for it.
#[test]
fn m6_one_call_fetches_and_the_others_wait() {
    let mut renewal = Renewal::default();
    assert_eq!(renewal.next_action(at(0)), TokenAction::Renew);
    assert_eq!(renewal.next_action(at(0)), TokenAction::Wait);
    assert_eq!(renewal.next_action(at(9)), TokenAction::Wait);
    assert_eq!(renewal.on_token(at(9), DAY, FIVE_MINUTES), 1);
    assert_eq!(renewal.next_action(at(9)), TokenAction::Use);
}

/// M6: renewed five minutes before it expires, while the old one stays in use.
#[test]
fn m6_a_token_is_renewed_before_it_expires_and_stays_in_use() {
    let mut renewal = fetched();
    let early = 86_400 - 300;
    assert_eq!(renewal.next_action(at(early - 1)), TokenAction::Use);
    assert_eq!(renewal.next_action(at(early)), TokenAction::UseAndRenew);
    assert_eq!(
        renewal.next_action(at(early)),
        TokenAction::Use,
        "a renewal is running"
    );
    assert_eq!(renewal.on_token(at(early + 1), DAY, FIVE_MINUTES), 2);
    assert_eq!(renewal.next_action(at(86_400)), TokenAction::Use);
}

#[test]
fn an_expired_token_is_not_used() {
    let mut renewal = fetched();
    assert_eq!(renewal.next_action(at(86_399)), TokenAction::UseAndRenew);
    assert_eq!(renewal.next_action(at(86_400)), TokenAction::Wait);
    assert_eq!(fetched().next_action(at(86_400)), TokenAction::Renew);
}

#[test]
fn a_failed_renewal_leaves_the_old_token_in_use() {
    let mut renewal = fetched();
    let early = 86_400 - 300;
    assert_eq!(renewal.next_action(at(early)), TokenAction::UseAndRenew);
    renewal.on_failure(
        at(early),
        RenewalError::Transient { retry_after: None },
        LOW,
    );
    assert_eq!(
        renewal.next_action(at(early)),
        TokenAction::Use,
        "it backs off"
    );
    assert_eq!(renewal.next_action(at(early + 1)), TokenAction::UseAndRenew);
}

#[test]
fn failures_back_off_up_to_a_minute() {
    let mut renewal = Renewal::default();
    let (mut now, mut pauses) = (at(0), Vec::new());
    for _ in 0..8 {
        assert_eq!(renewal.next_action(now), TokenAction::Renew);
        renewal.on_failure(now, RenewalError::Transient { retry_after: None }, LOW);
        let TokenAction::BackOff {
            remaining,
            permanent: false,
        } = renewal.next_action(now)
        else {
            panic!("it must back off")
        };
        pauses.push(remaining.0 / 1_000_000);
        now += remaining;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    renewal.next_action(now);
    renewal.on_token(now, DAY, FIVE_MINUTES);
    renewal.on_unauthorized(1, now);
    assert_eq!(
        renewal.next_action(now),
        TokenAction::Renew,
        "a success resets the failures"
    );
}

#[test]
fn rejected_credentials_back_off_longer_and_are_permanent() {
    let mut renewal = Renewal::default();
    renewal.next_action(at(0));
    renewal.on_failure(at(0), RenewalError::Permanent, LOW);
    let remaining = Span::from_secs(10);
    assert_eq!(
        renewal.next_action(at(0)),
        TokenAction::BackOff {
            remaining,
            permanent: true
        }
    );
    assert_eq!(renewal.next_action(at(10)), TokenAction::Renew);
}

#[test]
fn retry_after_is_the_minimum_backoff() {
    let mut renewal = Renewal::default();
    renewal.next_action(at(0));
    let retry_after = Some(Span::from_secs(30));
    renewal.on_failure(at(0), RenewalError::Transient { retry_after }, LOW);
    assert!(matches!(
        renewal.next_action(at(29)),
        TokenAction::BackOff { .. }
    ));
    assert_eq!(renewal.next_action(at(30)), TokenAction::Renew);
}

/// M6: a burst of 401s on one token is one renewal.
#[test]
fn m6_a_burst_of_401s_is_one_renewal() {
    let mut renewal = fetched();
    assert!(renewal.on_unauthorized(1, at(5)));
    assert_eq!(renewal.next_action(at(5)), TokenAction::Renew);
    assert!(
        renewal.on_unauthorized(1, at(5)),
        "the token is rejected already"
    );
    assert_eq!(renewal.next_action(at(5)), TokenAction::Wait);
    renewal.on_token(at(6), DAY, FIVE_MINUTES);
    assert!(
        renewal.on_unauthorized(1, at(7)),
        "a late 401 about the old token"
    );
    assert_eq!(renewal.next_action(at(7)), TokenAction::Use);
}

/// A path that always responds 401 must not cost a login for each call.
#[test]
fn useless_renewals_back_off() {
    let mut renewal = fetched();
    let mut renewals = 0;
    for second in 0..600 {
        let now = at(second);
        let generation = renewal.generation();
        if renewal.on_unauthorized(generation, now) {
            assert_eq!(renewal.next_action(now), TokenAction::Renew);
            let new = renewal.on_token(now, DAY, FIVE_MINUTES);
            renewal.on_retry_result(new, true, now, LOW);
            renewals += 1;
        }
    }
    assert!((10..=16).contains(&renewals), "{renewals} in ten minutes");
    let generation = renewal.generation();
    assert!(renewal.on_unauthorized(generation, at(700)));
    renewal.next_action(at(700));
    let new = renewal.on_token(at(700), DAY, FIVE_MINUTES);
    renewal.on_retry_result(new, false, at(700), LOW);
    assert!(
        renewal.on_unauthorized(new, at(700)),
        "a renewal that helped resets the back-off"
    );
}

#[test]
fn each_token_is_judged_once() {
    let mut renewal = fetched();
    for _ in 0..100 {
        renewal.on_retry_result(1, true, at(0), LOW);
    }
    assert!(renewal.on_unauthorized(1, at(1)));
}

#[test]
fn token_lifetimes_are_bounded() {
    for (lifetime, first, last) in [(0, 5, 10), (u64::MAX, 366 * 86_400 - 300, 366 * 86_400)] {
        let mut renewal = Renewal::default();
        renewal.next_action(at(0));
        renewal.on_token(at(0), Span(lifetime), FIVE_MINUTES);
        assert_eq!(renewal.next_action(at(first - 1)), TokenAction::Use);
        assert_eq!(renewal.next_action(at(first)), TokenAction::UseAndRenew);
        assert_eq!(renewal.next_action(at(last)), TokenAction::Wait);
    }
}

#[test]
fn only_a_used_token_is_renewed_by_timer() {
    let mut renewal = fetched();
    let early = at(86_400 - 300);
    assert!(!renewal.is_due(early), "no call used it");
    renewal.next_action(at(1));
    assert!(!renewal.is_due(at(2)));
    assert!(renewal.is_due(early));
    assert!(!renewal.is_due(early), "a renewal is running");
}
