//! A token's life by the second, in virtual time.

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
    assert_eq!(renewal.need(at(0)), Need::Renew);
    renewal.got(at(0), DAY, FIVE_MINUTES);
    renewal
}

/// M6: the first call fetches, all others wait for it.
#[test]
fn m6_one_fetches_and_the_others_wait() {
    let mut renewal = Renewal::default();
    assert_eq!(renewal.need(at(0)), Need::Renew);
    assert_eq!(renewal.need(at(0)), Need::Wait);
    assert_eq!(renewal.need(at(9)), Need::Wait);
    assert_eq!(renewal.got(at(9), DAY, FIVE_MINUTES), 1);
    assert_eq!(renewal.need(at(9)), Need::Use);
}

/// M6: renewed five minutes before its end, while the old one serves.
#[test]
fn m6_a_token_is_renewed_before_its_end_and_serves_meanwhile() {
    let mut renewal = fetched();
    let early = 86_400 - 300;
    assert_eq!(renewal.need(at(early - 1)), Need::Use);
    assert_eq!(renewal.need(at(early)), Need::UseAndRenew);
    assert_eq!(renewal.need(at(early)), Need::Use, "somebody is at it");
    assert_eq!(renewal.got(at(early + 1), DAY, FIVE_MINUTES), 2);
    assert_eq!(renewal.need(at(86_400)), Need::Use);
}

#[test]
fn a_dead_token_is_not_used() {
    let mut renewal = fetched();
    assert_eq!(renewal.need(at(86_399)), Need::UseAndRenew);
    assert_eq!(renewal.need(at(86_400)), Need::Wait);
    assert_eq!(fetched().need(at(86_400)), Need::Renew);
}

#[test]
fn a_renewal_that_failed_leaves_the_old_token_in_service() {
    let mut renewal = fetched();
    let early = 86_400 - 300;
    assert_eq!(renewal.need(at(early)), Need::UseAndRenew);
    renewal.failed(at(early), Trouble::Passing { retry_after: None }, LOW);
    assert_eq!(renewal.need(at(early)), Need::Use, "it rests");
    assert_eq!(renewal.need(at(early + 1)), Need::UseAndRenew);
}

#[test]
fn failures_rest_longer_and_longer_up_to_a_minute() {
    let mut renewal = Renewal::default();
    let (mut now, mut pauses) = (at(0), Vec::new());
    for _ in 0..8 {
        assert_eq!(renewal.need(now), Need::Renew);
        renewal.failed(now, Trouble::Passing { retry_after: None }, LOW);
        let Need::Rest {
            left,
            lasting: false,
        } = renewal.need(now)
        else {
            panic!("it rests")
        };
        pauses.push(left.0 / 1_000_000);
        now += left;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    renewal.need(now);
    renewal.got(now, DAY, FIVE_MINUTES);
    renewal.refused(1, now);
    assert_eq!(renewal.need(now), Need::Renew, "a success forgets them");
}

#[test]
fn refused_credentials_rest_long_and_say_so() {
    let mut renewal = Renewal::default();
    renewal.need(at(0));
    renewal.failed(at(0), Trouble::Lasting, LOW);
    let left = Span::from_secs(10);
    assert_eq!(
        renewal.need(at(0)),
        Need::Rest {
            left,
            lasting: true
        }
    );
    assert_eq!(renewal.need(at(10)), Need::Renew);
}

#[test]
fn what_the_provider_asks_for_is_the_least() {
    let mut renewal = Renewal::default();
    renewal.need(at(0));
    let retry_after = Some(Span::from_secs(30));
    renewal.failed(at(0), Trouble::Passing { retry_after }, LOW);
    assert!(matches!(renewal.need(at(29)), Need::Rest { .. }));
    assert_eq!(renewal.need(at(30)), Need::Renew);
}

/// M6: a burst of 401s on one token is one renewal.
#[test]
fn m6_a_burst_of_401s_is_one_renewal() {
    let mut renewal = fetched();
    assert!(renewal.refused(1, at(5)));
    assert_eq!(renewal.need(at(5)), Need::Renew);
    assert!(renewal.refused(1, at(5)), "it knows already");
    assert_eq!(renewal.need(at(5)), Need::Wait);
    renewal.got(at(6), DAY, FIVE_MINUTES);
    assert!(renewal.refused(1, at(7)), "a late one about the old token");
    assert_eq!(renewal.need(at(7)), Need::Use);
}

/// A path that always answers 401 must not cost a login for each call.
#[test]
fn renewals_that_change_nothing_become_rare() {
    let mut renewal = fetched();
    let mut renewals = 0;
    for second in 0..600 {
        let now = at(second);
        let generation = renewal.generation();
        if renewal.refused(generation, now) {
            assert_eq!(renewal.need(now), Need::Renew);
            let new = renewal.got(now, DAY, FIVE_MINUTES);
            renewal.judged(new, true, now, LOW);
            renewals += 1;
        }
    }
    assert!((10..=16).contains(&renewals), "{renewals} in ten minutes");
    let generation = renewal.generation();
    assert!(renewal.refused(generation, at(700)));
    renewal.need(at(700));
    let new = renewal.got(at(700), DAY, FIVE_MINUTES);
    renewal.judged(new, false, at(700), LOW);
    assert!(
        renewal.refused(new, at(700)),
        "one that helped forgets them"
    );
}

#[test]
fn one_token_is_judged_once() {
    let mut renewal = fetched();
    for _ in 0..100 {
        renewal.judged(1, true, at(0), LOW);
    }
    assert!(renewal.refused(1, at(1)));
}

#[test]
fn absurd_lives_are_bounded() {
    for (told, first, last) in [(0, 5, 10), (u64::MAX, 366 * 86_400 - 300, 366 * 86_400)] {
        let mut renewal = Renewal::default();
        renewal.need(at(0));
        renewal.got(at(0), Span(told), FIVE_MINUTES);
        assert_eq!(renewal.need(at(first - 1)), Need::Use);
        assert_eq!(renewal.need(at(first)), Need::UseAndRenew);
        assert_eq!(renewal.need(at(last)), Need::Wait);
    }
}

#[test]
fn only_a_token_that_was_used_is_renewed_by_the_clock() {
    let mut renewal = fetched();
    let early = at(86_400 - 300);
    assert!(!renewal.is_due(early), "nobody wanted it");
    renewal.need(at(1));
    assert!(!renewal.is_due(at(2)));
    assert!(renewal.is_due(early));
    assert!(!renewal.is_due(early), "somebody is at it");
}
