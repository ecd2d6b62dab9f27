//! Limits across a reload: which count a limit inherits when it is new or has changed its shape.
//!
//! Promises: a limit with the same per, period, algorithm and unit keeps its cell. Any other starts
//! with the known count of the same calls: it inherits from the limit that counted them (same per
//! if there is one, same unit) over the shortest period that is no shorter than its own, so that it
//! knows all that can matter, or else over the longest. The cells of a key follow when a call next
//! asks for that key.
//!
//! Never: starts from zero where another limit has the count, and never matches limits by name or
//! number: a count does not depend on the limit's name.

use std::sync::Arc;

use tollgate_config::provider::Per;
use tollgate_core::ask::{CellId, Settle};
use tollgate_core::limit::Rule;
use tollgate_core::time::{Micros, Span};

use super::limit_binding::{CallAttributes, LimitBinding};

/// The longest chain of changes that is followed back. Each needs a reload within the period of the
/// previous one; past this the oldest are dropped.
const CHAIN_MAX: usize = 4;

/// The limit that counted before.
#[derive(Debug)]
pub(crate) struct Predecessor {
    binding: LimitBinding,
    /// After this, nothing that it counted matters.
    until: Micros,
}

/// Sets the predecessor of each limit that is new or has another shape. A call sent before the
/// reload may still arrive for `on_its_way`.
pub(super) fn inherit(
    new: &mut [LimitBinding],
    old: &[LimitBinding],
    now: Micros,
    on_its_way: Span,
) {
    for binding in new {
        if let Some(same) = old.iter().find(|old| old.is_same_limit(binding)) {
            let predecessor = same.predecessor.clone();
            binding.predecessor = predecessor.filter(|predecessor| now < predecessor.until);
            continue;
        }
        let candidates = old.iter().filter(|old| can_inherit(old, binding));
        let best = candidates.min_by_key(|old| {
            let (theirs, own) = (old.rule.period(), binding.rule.period());
            let covers = theirs >= own;
            let length = if covers {
                theirs.0
            } else {
                u64::MAX - theirs.0
            };
            (key_distance(old, binding), !covers, length)
        });
        binding.predecessor = best.map(|old| {
            let mut old = old.clone();
            truncate_chain(&mut old, CHAIN_MAX);
            let until = now + old.rule.longest_hold() + on_its_way;
            Arc::new(Predecessor {
                binding: old,
                until,
            })
        });
    }
}

/// Does the count of the old limit say anything about the new one?
fn can_inherit(old: &LimitBinding, new: &LimitBinding) -> bool {
    let same_kind = old.is_concurrency() == new.is_concurrency();
    let all_of_them = old.only_priority().is_none() || old.only_priority() == new.only_priority();
    same_kind && all_of_them && old.unit == new.unit
}

/// How far the keys of the old limit are from those of the new one. A count of all calls is an
/// upper bound for each key; a count by other keys is better than none.
fn key_distance(old: &LimitBinding, new: &LimitBinding) -> u8 {
    if old.per == new.per {
        0
    } else if old.per == Per::Provider {
        1
    } else {
        2
    }
}

fn truncate_chain(binding: &mut LimitBinding, most: usize) {
    match &binding.predecessor {
        Some(predecessor) if most > 1 => {
            let mut older = predecessor.binding.clone();
            truncate_chain(&mut older, most - 1);
            let until = predecessor.until;
            binding.predecessor = Some(Arc::new(Predecessor {
                binding: older,
                until,
            }));
        }
        Some(_) | None => binding.predecessor = None,
    }
}

impl LimitBinding {
    /// The settles that this call must make before it asks, oldest first.
    pub(crate) fn inherit_settles(
        &self,
        call: &CallAttributes<'_>,
        has_shares: bool,
        now: Micros,
    ) -> Vec<Settle> {
        let mut settles = Vec::new();
        self.each_predecessor(now, &mut |old, new| {
            let (from, to) = (old.cell_of(call), new.cell_of(call));
            settles.push(inherit_settle((from, &old.rule), (to, &new.rule)));
            if has_shares {
                let (from, to) = (old.caller_share_cell(call), new.caller_share_cell(call));
                settles.push(inherit_settle((from, &old.rule), (to, &new.rule)));
            }
        });
        settles
    }

    /// The settles that need no call: those of cells that all calls share.
    pub(super) fn shared_inherit_settles(&self, now: Micros) -> Vec<Settle> {
        let mut settles = Vec::new();
        self.each_predecessor(now, &mut |old, new| {
            if let (Some(from), Some(to)) = (old.shared_cell(), new.shared_cell()) {
                settles.push(inherit_settle((from, &old.rule), (to, &new.rule)));
            }
        });
        settles
    }

    fn each_predecessor(&self, now: Micros, visit: &mut dyn FnMut(&LimitBinding, &LimitBinding)) {
        let predecessor = self
            .predecessor
            .as_ref()
            .filter(|predecessor| now < predecessor.until);
        if let Some(predecessor) = predecessor {
            predecessor.binding.each_predecessor(now, visit);
            visit(&predecessor.binding, self);
        }
    }
}

fn inherit_settle(
    (from, predecessor): (CellId, &Arc<Rule>),
    (to, rule): (CellId, &Arc<Rule>),
) -> Settle {
    Settle::Inherit {
        from,
        old_rule: predecessor.clone(),
        to,
        rule: rule.clone(),
    }
}

#[cfg(test)]
mod tests {
    use tollgate_config::{Environment, ProviderFile};

    use super::*;

    fn bindings(text: &str) -> Vec<LimitBinding> {
        let text = format!("name: x\ndomain: api.example.org\n{text}");
        let draft = ProviderFile::read("x.yaml", &text).unwrap();
        LimitBinding::all(&draft.check(&Environment::empty()).provider.unwrap())
    }

    /// The name of each limit's predecessor.
    fn predecessors(old: &str, new: &str) -> Vec<Option<String>> {
        let (old, mut new) = (bindings(old), bindings(new));
        inherit(&mut new, &old, Micros(1), Span::from_secs(35));
        let name = |binding: &LimitBinding| {
            let predecessor = binding.predecessor.as_ref()?;
            Some(predecessor.binding.name.clone())
        };
        new.iter().map(name).collect()
    }

    #[test]
    fn a_limit_of_the_same_shape_keeps_its_cell() {
        assert_eq!(predecessors("limits: [35/1s]", "limits: [70/1s]"), [None]);
    }

    #[test]
    fn a_changed_period_or_algorithm_inherits_the_count() {
        let old = "limits: [35/1s]";
        let inherited = [Some("35/1s".to_owned())];
        assert_eq!(predecessors(old, "limits: [35/2s]"), inherited);
        let bucket = "limits: [{limit: 35, period: 1s, algorithm: token-bucket}]";
        assert_eq!(predecessors(old, bucket), inherited);
    }

    #[test]
    fn a_limit_inherits_from_the_shortest_period_that_covers_it() {
        let old = "limits: [35/1s, 900/1h, 5000/1d]";
        let one = |new: &str| predecessors(old, new).remove(0).unwrap();
        assert_eq!(one("limits: [100/5m]"), "900/1h");
        assert_eq!(one("limits: [100/2h]"), "5000/1d");
        assert_eq!(one("limits: [100/7d]"), "5000/1d");
    }

    #[test]
    fn a_limit_that_moves_up_because_another_is_removed_keeps_its_count() {
        let old = "limits: [{limit: 60, period: 1m}, {limit: 9, period: 1m, unit: tokens}]";
        let new = "limits: [{limit: 9, period: 1m, unit: tokens}]";
        let (old, new) = (bindings(old), bindings(new));
        assert!(new[0].is_same_limit(&old[1]));
    }

    #[test]
    fn tokens_do_not_inherit_from_calls_nor_windows_from_concurrency() {
        let new = "limits: [{limit: 9, period: 1m, unit: tokens}]";
        assert_eq!(predecessors("limits: [35/1s]", new), [None]);
        let old = "concurrency: 4\nlimits: [{limit: 9, period: 1m, unit: tokens}]";
        assert_eq!(predecessors(old, "limits: [35/1s]"), [None]);
    }

    #[test]
    fn each_key_inherits_the_provider_wide_count() {
        let new = "limits: [{limit: 35, period: 1s, per: entity}]";
        let inherited = predecessors("limits: [35/1s]", new);
        assert_eq!(inherited, [Some("35/1s".to_owned())]);
    }

    #[test]
    fn two_changes_in_a_row_inherit_from_both_predecessors() {
        let first = bindings("limits: [35/1s]");
        let mut second = bindings("limits: [35/2s]");
        inherit(&mut second, &first, Micros(1), Span::from_secs(35));
        let mut third = bindings("limits: [35/3s]");
        inherit(&mut third, &second, Micros(2), Span::from_secs(35));
        assert_eq!(third[0].shared_inherit_settles(Micros(3)).len(), 2);
        assert!(third[0].shared_inherit_settles(Micros(u64::MAX)).is_empty());
        let mut same = bindings("limits: [50/3s]");
        inherit(&mut same, &third, Micros(3), Span::from_secs(35));
        assert_eq!(same[0].shared_inherit_settles(Micros(4)).len(), 2);
    }
}
