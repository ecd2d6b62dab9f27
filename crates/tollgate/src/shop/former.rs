//! Limits over a reload: from whom a limit that is new or has changed its shape takes over what was
//! counted.
//!
//! Promises: a limit with the same per, period, algorithm and unit goes on in its own cell. Any other
//! begins with what is known of the same calls: it takes over from the limit that counted them (same
//! per if there is one, same unit) over the shortest period that is no shorter than its own, so that
//! all that can matter to it is known, or else over the longest. Cells of keys follow when their key
//! is asked for next.
//!
//! Never: starts from zero beside a limit that knows better, and never matches limits by their names
//! or numbers: what a limit has counted does not depend on what it is called.

use std::sync::Arc;

use tollgate_config::provider::Per;
use tollgate_core::ask::{CellId, Settle};
use tollgate_core::limit::Rule;
use tollgate_core::time::{Micros, Span};

use super::meter::{Meter, Who};

/// Changes in a row that are followed back. Each needs a reload within the period of the one before;
/// past this the oldest are left behind.
const CHAIN_MAX: usize = 4;

/// The limit that counted before.
#[derive(Debug)]
pub(crate) struct Former {
    meter: Meter,
    /// Nothing that it counted matters after this.
    until: Micros,
}

/// Gives each limit that is new or has another shape the one that it takes over from. A call of
/// before may still arrive for `on_its_way`.
pub(super) fn succeed(new: &mut [Meter], old: &[Meter], now: Micros, on_its_way: Span) {
    for meter in new {
        if let Some(same) = old.iter().find(|old| old.is_same(meter)) {
            let former = same.former.clone();
            meter.former = former.filter(|former| now < former.until);
            continue;
        }
        let candidates = old.iter().filter(|old| counts_for(old, meter));
        let best = candidates.min_by_key(|old| {
            let (theirs, own) = (old.rule.period(), meter.rule.period());
            let covers = theirs >= own;
            let length = if covers {
                theirs.0
            } else {
                u64::MAX - theirs.0
            };
            (foreign(old, meter), !covers, length)
        });
        meter.former = best.map(|old| {
            let mut old = old.clone();
            cut_chain(&mut old, CHAIN_MAX);
            let until = now + old.rule.longest_hold() + on_its_way;
            Arc::new(Former { meter: old, until })
        });
    }
}

/// Does what the old one counts say something about the new one?
fn counts_for(old: &Meter, new: &Meter) -> bool {
    let same_kind = old.is_concurrency() == new.is_concurrency();
    let all_of_them = old.only().is_none() || old.only() == new.only();
    same_kind && all_of_them && old.unit == new.unit
}

/// How far the keys of the old one are from those of the new one. A count of everybody is above that
/// of each; a count of others is better than none.
fn foreign(old: &Meter, new: &Meter) -> u8 {
    if old.per == new.per {
        0
    } else if old.per == Per::Provider {
        1
    } else {
        2
    }
}

fn cut_chain(meter: &mut Meter, most: usize) {
    match &meter.former {
        Some(former) if most > 1 => {
            let mut older = former.meter.clone();
            cut_chain(&mut older, most - 1);
            let until = former.until;
            meter.former = Some(Arc::new(Former {
                meter: older,
                until,
            }));
        }
        Some(_) | None => meter.former = None,
    }
}

impl Meter {
    /// What must be taken over before this call may ask, oldest first.
    pub(crate) fn carries(&self, who: &Who<'_>, has_shares: bool, now: Micros) -> Vec<Settle> {
        let mut carries = Vec::new();
        self.each_former(now, &mut |old, new| {
            let (from, to) = (old.cell_of(who), new.cell_of(who));
            carries.push(carry((from, &old.rule), (to, &new.rule)));
            if has_shares {
                let (from, to) = (old.share_cell(who), new.share_cell(who));
                carries.push(carry((from, &old.rule), (to, &new.rule)));
            }
        });
        carries
    }

    /// What can be taken over without a call: the cells that are the same for all.
    pub(super) fn shared_carries(&self, now: Micros) -> Vec<Settle> {
        let mut carries = Vec::new();
        self.each_former(now, &mut |old, new| {
            if let (Some(from), Some(to)) = (old.shared(), new.shared()) {
                carries.push(carry((from, &old.rule), (to, &new.rule)));
            }
        });
        carries
    }

    fn each_former(&self, now: Micros, tell: &mut dyn FnMut(&Meter, &Meter)) {
        let former = self.former.as_ref().filter(|former| now < former.until);
        if let Some(former) = former {
            former.meter.each_former(now, tell);
            tell(&former.meter, self);
        }
    }
}

fn carry((from, former): (CellId, &Arc<Rule>), (to, rule): (CellId, &Arc<Rule>)) -> Settle {
    Settle::Carry {
        from,
        former: former.clone(),
        to,
        rule: rule.clone(),
    }
}

#[cfg(test)]
mod tests {
    use tollgate_config::{Draft, World};

    use super::*;

    fn meters(text: &str) -> Vec<Meter> {
        let text = format!("name: x\ndomain: api.example.org\n{text}");
        let draft = Draft::read("x.yaml", &text).unwrap();
        Meter::all(&draft.check(&World::empty()).provider.unwrap())
    }

    /// The names of those that each limit takes over from.
    fn formers(old: &str, new: &str) -> Vec<Option<String>> {
        let (old, mut new) = (meters(old), meters(new));
        succeed(&mut new, &old, Micros(1), Span::from_secs(35));
        let name = |meter: &Meter| {
            let former = meter.former.as_ref()?;
            Some(former.meter.name.clone())
        };
        new.iter().map(name).collect()
    }

    #[test]
    fn a_limit_of_the_same_shape_goes_on_in_its_own_cell() {
        assert_eq!(formers("limits: [35/1s]", "limits: [70/1s]"), [None]);
    }

    #[test]
    fn a_changed_period_or_algorithm_takes_over() {
        let old = "limits: [35/1s]";
        let took_over = [Some("35/1s".to_owned())];
        assert_eq!(formers(old, "limits: [35/2s]"), took_over);
        let bucket = "limits: [{limit: 35, period: 1s, algorithm: token-bucket}]";
        assert_eq!(formers(old, bucket), took_over);
    }

    #[test]
    fn the_shortest_period_that_covers_the_new_one_is_believed_first() {
        let old = "limits: [35/1s, 900/1h, 5000/1d]";
        let one = |new: &str| formers(old, new).remove(0).unwrap();
        assert_eq!(one("limits: [100/5m]"), "900/1h");
        assert_eq!(one("limits: [100/2h]"), "5000/1d");
        assert_eq!(one("limits: [100/7d]"), "5000/1d");
    }

    #[test]
    fn a_limit_that_moves_up_because_another_is_removed_keeps_its_count() {
        let old = "limits: [{limit: 60, period: 1m}, {limit: 9, period: 1m, unit: tokens}]";
        let new = "limits: [{limit: 9, period: 1m, unit: tokens}]";
        let (old, new) = (meters(old), meters(new));
        assert!(new[0].is_same(&old[1]));
    }

    #[test]
    fn tokens_never_take_over_from_calls_nor_windows_from_calls_at_a_time() {
        let new = "limits: [{limit: 9, period: 1m, unit: tokens}]";
        assert_eq!(formers("limits: [35/1s]", new), [None]);
        let old = "concurrency: 4\nlimits: [{limit: 9, period: 1m, unit: tokens}]";
        assert_eq!(formers(old, "limits: [35/1s]"), [None]);
    }

    #[test]
    fn a_count_of_everybody_is_taken_over_by_each_key() {
        let new = "limits: [{limit: 35, period: 1s, per: entity}]";
        let took_over = formers("limits: [35/1s]", new);
        assert_eq!(took_over, [Some("35/1s".to_owned())]);
    }

    #[test]
    fn a_second_change_before_the_first_is_over_follows_both() {
        let first = meters("limits: [35/1s]");
        let mut second = meters("limits: [35/2s]");
        succeed(&mut second, &first, Micros(1), Span::from_secs(35));
        let mut third = meters("limits: [35/3s]");
        succeed(&mut third, &second, Micros(2), Span::from_secs(35));
        assert_eq!(third[0].shared_carries(Micros(3)).len(), 2);
        assert!(third[0].shared_carries(Micros(u64::MAX)).is_empty());
        let mut same = meters("limits: [50/3s]");
        succeed(&mut same, &third, Micros(3), Span::from_secs(35));
        assert_eq!(same[0].shared_carries(Micros(4)).len(), 2);
    }
}
