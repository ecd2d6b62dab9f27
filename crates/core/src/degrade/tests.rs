//! S6: when a scope is served from the cache only, and that this always ends. S2: the two counts of
//! an entity.

use std::sync::Arc;

use smallvec::smallvec;

use super::{Degrade, DegradeChange, DegradeSettings, LocalQuota, ProviderQuota};
use crate::ask::{
    Ask, BlockedBy, CellId, Evidence, Outcome, OwnerId, PermitId, Priority, ScopeId, Settle, Term,
    Terms, Verdict,
};
use crate::limit::{HoldUntil, Rule};
use crate::scope::ScopeView;
use crate::table::Table;
use crate::time::{Micros, Now, Span, Wall};
use crate::turn::turn;

const NOW: Micros = Micros(1_000_000_000);
const HOUR: Span = Span::from_secs(3_600);

fn local(remaining: u64) -> LocalQuota {
    let used = 3_000_u64.saturating_sub(remaining);
    LocalQuota {
        remaining,
        limit: 3_000,
        full_after: Some(HOUR.scale_up(used, 3_000)),
        period: HOUR,
    }
}

fn provider(remaining: u64, reset_secs: Option<u64>) -> ProviderQuota {
    ProviderQuota {
        remaining,
        reset_after: reset_secs.map(Span::from_secs),
    }
}

fn evaluate(degrade: &mut Degrade, remaining: u64, now: Micros) -> DegradeChange {
    degrade.evaluate(&DegradeSettings::default(), local(remaining), now)
}

/// S6: begins below 200, ends at 400 or more, nothing in between.
#[test]
fn degrade_begins_below_200_and_ends_at_400() {
    let mut degrade = Degrade::default();
    assert_eq!(evaluate(&mut degrade, 200, NOW), DegradeChange::None);
    assert!(matches!(
        evaluate(&mut degrade, 199, NOW),
        DegradeChange::Degraded { .. }
    ));
    assert!(degrade.is_on(NOW));
    assert_eq!(evaluate(&mut degrade, 399, NOW), DegradeChange::None);
    assert_eq!(evaluate(&mut degrade, 400, NOW), DegradeChange::Recovered);
    assert!(!degrade.is_on(NOW));
    assert_eq!(evaluate(&mut degrade, 399, NOW), DegradeChange::None);
}

/// S6: the smaller of our count and the provider's, while its reset lies ahead.
#[test]
fn the_smaller_of_both_counts_decides() {
    let mut degrade = Degrade::default();
    degrade.on_provider_quota(provider(2_900, Some(600)), HOUR, NOW);
    assert!(matches!(
        evaluate(&mut degrade, 150, NOW),
        DegradeChange::Degraded { .. }
    ));
    let mut degrade = Degrade::default();
    degrade.on_provider_quota(provider(150, Some(600)), HOUR, NOW);
    assert_eq!(degrade.remaining(local(2_900), NOW), 150);
    let rest = Span::from_secs(600);
    assert_eq!(
        evaluate(&mut degrade, 2_900, NOW),
        DegradeChange::Degraded { closed_for: rest }
    );
    let mut degrade = Degrade::default();
    degrade.on_provider_quota(provider(150, Some(0)), HOUR, NOW);
    assert_eq!(
        evaluate(&mut degrade, 2_900, NOW),
        DegradeChange::None,
        "its reset has passed"
    );
}

/// S6: the provider's reset ends it, even without calls.
#[test]
fn the_providers_reset_ends_degrade() {
    let mut degrade = Degrade::default();
    degrade.on_provider_quota(provider(10, Some(600)), HOUR, NOW);
    evaluate(&mut degrade, 250, NOW);
    let reset = NOW + Span::from_secs(600);
    assert_eq!(
        evaluate(&mut degrade, 250, reset - Span(1)),
        DegradeChange::None
    );
    assert_eq!(
        evaluate(&mut degrade, 250, reset),
        DegradeChange::Recovered,
        "250 is not below 200"
    );
}

/// S6: a provider count without a reset, or with one in the year 9999, is valid for one period.
#[test]
fn a_provider_quota_without_reset_expires() {
    for reset in [None, Some(u64::MAX / 1_000_000), Some(40 * 86_400)] {
        let mut degrade = Degrade::default();
        degrade.on_provider_quota(provider(0, reset), HOUR, NOW);
        assert!(matches!(
            evaluate(&mut degrade, 3_000, NOW),
            DegradeChange::Degraded { .. }
        ));
        assert_eq!(degrade.next_tick(), Some(NOW + HOUR));
        assert_eq!(
            evaluate(&mut degrade, 3_000, NOW + HOUR),
            DegradeChange::Recovered
        );
    }
}

/// S6: a local refill past the threshold ends it, at the announced time, with few evaluations.
#[test]
fn a_local_refill_ends_degrade() {
    let mut degrade = Degrade::default();
    let level = |now: Micros| 100 + now.since(NOW).0 / 1_200_000;
    let mut looks = 0;
    let mut now = NOW;
    assert!(matches!(
        evaluate(&mut degrade, level(now), now),
        DegradeChange::Degraded { .. }
    ));
    while degrade.is_on(now) || looks == 0 {
        now = degrade.next_tick().unwrap();
        if evaluate(&mut degrade, level(now), now) == DegradeChange::Recovered {
            break;
        }
        looks += 1;
        assert!(looks < 5);
    }
    let waited = now.since(NOW).0 / 1_000_000;
    assert!(
        (360..=363).contains(&waited),
        "300 tokens at 0.83/s: {waited}"
    );
}

/// S6: a window frees its slots when they leave it. It is evaluated again at guessed times, closer to the exact one
/// each time, and stays closed meanwhile.
#[test]
fn a_window_degrades_until_its_slots_have_left() {
    let all_at_once = |now: Micros| {
        let left = HOUR - now.since(NOW);
        LocalQuota {
            remaining: if left == Span::ZERO { 3_000 } else { 100 },
            limit: 3_000,
            full_after: Some(left),
            period: HOUR,
        }
    };
    let mut degrade = Degrade::default();
    let settings = DegradeSettings::default();
    degrade.evaluate(&settings, all_at_once(NOW), NOW);
    let (mut now, mut looks) = (NOW, 0);
    while degrade.is_active() {
        now = degrade.next_tick().unwrap();
        let change = degrade.evaluate(&settings, all_at_once(now), now);
        assert_eq!(change == DegradeChange::Recovered, now >= NOW + HOUR);
        looks += 1;
        assert!(looks < 100, "{now:?}");
    }
    assert!(now < NOW + HOUR + Span::from_secs(2));
}

/// S6: never stuck, whatever the provider reports: the close in the ledger is finite, and an
/// operator ends it.
#[test]
fn an_operator_ends_degrade() {
    let mut degrade = Degrade::default();
    degrade.on_provider_quota(provider(0, Some(86_400)), HOUR, NOW);
    let change = evaluate(&mut degrade, 3_000, NOW);
    let scope = ScopeId(3);
    assert!(matches!(
        change.settle(scope),
        Some(Settle::Close {
            closed_for: Some(_),
            ..
        })
    ));
    assert_eq!(degrade.reset(), DegradeChange::Recovered);
    assert_eq!(degrade.reset(), DegradeChange::None);
    assert_eq!(
        DegradeChange::Recovered.settle(scope),
        Some(Settle::Open { scope })
    );
    assert_eq!(
        evaluate(&mut degrade, 3_000, NOW),
        DegradeChange::None,
        "its count is cleared"
    );
}

/// S15: a restarted process is still degraded, and follows the end in another process.
#[test]
fn a_restarted_process_is_still_degraded() {
    let mut degrade = Degrade::default();
    let remaining = Some(Span::from_secs(100));
    degrade.on_scope_view(ScopeView::Closed { remaining }, NOW);
    assert!(degrade.is_on(NOW + Span::from_secs(99)));
    assert!(
        !degrade.is_on(NOW + Span::from_secs(100)),
        "and cannot get stuck"
    );
    degrade.on_scope_view(ScopeView::Open, NOW);
    assert!(!degrade.is_on(NOW));
}

/// S6: the end in another process clears the state: a reset that passed before does not shorten
/// the next degrade.
#[test]
fn ending_in_another_process_clears_the_passed_reset() {
    let mut degrade = Degrade::default();
    degrade.on_provider_quota(provider(10, Some(600)), HOUR, NOW);
    evaluate(&mut degrade, 150, NOW);
    let reset = NOW + Span::from_secs(600);
    evaluate(&mut degrade, 150, reset);
    assert!(degrade.is_on(reset), "our own count is below too");
    degrade.on_scope_view(ScopeView::Open, reset);
    evaluate(&mut degrade, 199, reset);
    assert_eq!(evaluate(&mut degrade, 399, reset), DegradeChange::None);
    assert_eq!(evaluate(&mut degrade, 400, reset), DegradeChange::Recovered);
}

/// `check` rejects `below` ≥ the smallest limit it applies to.
#[test]
fn every_invalid_threshold_is_reported() {
    assert_eq!(DegradeSettings::default().check(3_000), []);
    let problems = DegradeSettings::default().check(200);
    assert_eq!(problems[0].setting, "degrade.below");
    let wrong = DegradeSettings {
        below: 200,
        recover: 100,
    };
    assert_eq!(wrong.check(3_000)[0].setting, "degrade.recover");
}

/// The two limits of an entity in profile S: 3 per hour here, so that a test can use them up.
fn both(entity: &str) -> Terms {
    let term = |name, rule: Rule| Term {
        cell: CellId::named(&["sports", entity, name]),
        rule: Arc::new(rule.hold_until(HoldUntil::Send).drift_ppm(0)),
        cost: 1,
        reserve: 0,
    };
    smallvec![
        term("bucket", Rule::bucket(3, HOUR, 3).unwrap()),
        term("window", Rule::sliding(3, HOUR).unwrap()),
    ]
}

/// The ledger of one provider with such entities.
#[derive(Default)]
struct EntityLedger(Table);

impl EntityLedger {
    fn call(&mut self, entity: &str, seq: u64, secs: u64) -> Verdict {
        let now = Now {
            at: NOW + Span::from_secs(secs),
            wall: Wall(0),
        };
        let (owner, terms) = (OwnerId(1), both(entity));
        let ask = Ask {
            id: PermitId { owner, seq },
            terms: terms.clone(),
            scopes: smallvec![],
            priority: Priority::High,
            max_wait: Span::ZERO,
            evidence: Evidence::Report {
                timeout: Span::from_secs(30),
                late: Span::ZERO,
            },
        };
        let verdict = turn(&mut self.0, now, &[], std::slice::from_ref(&ask))
            .verdicts
            .remove(0);
        let outcome = Outcome::Arrived {
            age: Span::ZERO,
            limited: false,
            readings: vec![],
        };
        let settle = Settle::Permit {
            id: ask.id,
            terms,
            scopes: smallvec![],
            outcome,
        };
        turn(&mut self.0, now, &[settle], &[]);
        verdict
    }

    /// The remaining count of the bucket and the used count of the window.
    fn counts(&self, entity: &str, secs: u64) -> (u64, u64) {
        let now = Now {
            at: NOW + Span::from_secs(secs),
            wall: Wall(0),
        };
        let terms = both(entity);
        let view = |term: &Term| self.0.peek(term.cell, &term.rule, now);
        (view(&terms[0]).remaining, view(&terms[1]).used)
    }
}

/// S2: the bucket refills in proportion to time, the window counts the calls actually made; both
/// must allow a call, and a rejection by one takes nothing from the other.
#[test]
fn both_counts_of_an_entity_must_allow() {
    let mut ledger = EntityLedger::default();
    for seq in 1..=3 {
        assert!(matches!(
            ledger.call("fixtures", seq, 0),
            Verdict::Go { .. }
        ));
    }
    assert_eq!(ledger.counts("fixtures", 0), (0, 3));
    assert_eq!(
        ledger.counts("fixtures", 1_200),
        (1, 3),
        "a third of an hour, a third of it"
    );
    let verdict = ledger.call("fixtures", 4, 1_200);
    let Verdict::Wait { after, by, .. } = verdict else {
        panic!("{verdict:?}");
    };
    assert_eq!(
        (after, by),
        (Span::from_secs(2_400), BlockedBy::Term(1)),
        "the window rejects it"
    );
    assert_eq!(
        ledger.counts("fixtures", 1_200),
        (1, 3),
        "and nothing was taken"
    );
    assert!(
        matches!(ledger.call("odds", 5, 1_200), Verdict::Go { .. }),
        "its own counts"
    );
    assert!(matches!(
        ledger.call("fixtures", 6, 3_600),
        Verdict::Go { .. }
    ));
    assert_eq!(ledger.counts("fixtures", 3_600), (2, 1));
}
