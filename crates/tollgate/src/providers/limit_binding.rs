//! Limits of a file as terms of an ask: the cell that counts each, and the cost of a call there.
//!
//! Promises: a cell is named by provider, per, period, algorithm, ordinal and key, and by the unit
//! if that is not calls; never by the limit's name or number, so a changed number keeps its count.
//! A limit whose shape has changed has a predecessor (`limit_inheritance.rs`). Keys enter a name
//! only as a fingerprint. A cost that the caller states counts as stated; an estimate is capped at
//! the limit, so that the call can always go.
//!
//! Never: counts. The ledger does.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use tollgate_config::Provider;
use tollgate_config::provider::Per;
use tollgate_core::ask::{CellId, CostUnit, Priority, Term};
use tollgate_core::feedback::{Dialect, LearnedWindow};
use tollgate_core::limit::{Algorithm, HoldUntil, Rule};

use super::limit_inheritance::Predecessor;
use crate::error::Reason;

/// The unit of a limit that names none.
const CALLS: &str = "calls";

/// One limit of a provider, bound to its cells.
#[derive(Clone, Debug)]
pub(crate) struct LimitBinding {
    /// Its name in every error.
    pub(crate) name: String,
    pub(crate) rule: Arc<Rule>,
    pub(crate) per: Per,
    /// The part that only urgent calls may use.
    reserve: u64,
    /// The unit it counts, in the provider's word.
    pub(crate) unit: String,
    /// The one priority it applies to; most limits apply to all.
    only_priority: Option<Priority>,
    /// Provider, per, period, algorithm, ordinal.
    identity: [String; 5],
    /// The cell, if all calls share it.
    shared_cell: Option<CellId>,
    /// The limit whose count it inherits, for a while after a reload.
    pub(super) predecessor: Option<Arc<Predecessor>>,
}

/// The attributes of a call that select its cells and costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallAttributes<'a> {
    pub(crate) entity: Option<&'a str>,
    pub(crate) key: Option<&'a str>,
    pub(crate) caller: &'a str,
    pub(crate) ip: Option<IpAddr>,
    pub(crate) host: &'a str,
    pub(crate) priority: Priority,
    pub(crate) costs: &'a [CallCost],
}

impl<'a> CallAttributes<'a> {
    /// A call of normal priority of which only the entity is known.
    pub(crate) fn of_entity(entity: Option<&'a str>) -> CallAttributes<'a> {
        CallAttributes {
            entity,
            key: None,
            caller: "",
            ip: None,
            host: "",
            priority: Priority::Normal,
            costs: &[],
        }
    }
}

/// What a call costs in one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallCost {
    pub(crate) unit: String,
    pub(crate) amount: u64,
    /// The part of it that is the prompt.
    pub(crate) prompt: u64,
    /// The caller stated it; otherwise it is an estimate.
    pub(crate) explicit: bool,
    /// The request has no bound: it is what calls of its model used before.
    pub(crate) is_from_usage: bool,
}

impl LimitBinding {
    /// Every limit of a provider, concurrency last.
    pub(crate) fn all(provider: &Provider) -> Vec<LimitBinding> {
        let mut bindings: Vec<LimitBinding> = Vec::new();
        for limit in &provider.limits {
            let unit = &limit.unit;
            let binding =
                LimitBinding::new(provider, &bindings, limit.rule.clone(), limit.per, unit);
            bindings.push(LimitBinding {
                name: limit.name.clone(),
                reserve: limit.reserve,
                ..binding
            });
        }
        if let Some(concurrency) = &provider.concurrency {
            let rule = concurrency.rule.clone();
            let binding = LimitBinding::new(provider, &bindings, rule, Per::Provider, CALLS);
            bindings.push(binding);
            if concurrency.low < concurrency.rule.limit()
                && let Ok(rule) = Rule::in_flight(concurrency.low)
            {
                let binding = LimitBinding::new(provider, &bindings, rule, Per::Provider, CALLS);
                bindings.push(LimitBinding {
                    only_priority: Some(Priority::Low),
                    ..binding
                });
            }
        }
        bindings
    }

    /// The limits that the provider's responses state, per key and entity. They come after those of
    /// the file.
    pub(super) fn learned(provider: &Provider, dialect: &Dialect) -> Vec<LimitBinding> {
        let binding = |window: &LearnedWindow| {
            let unit = match window.unit.as_str() {
                CALLS => CostUnit::Calls,
                _ => CostUnit::Tokens,
            };
            let rule = Rule::learned(window.period).ok()?.unit(unit);
            Some(LimitBinding {
                name: format!("{} (learned)", window.name),
                rule: Arc::new(rule.hold_until(HoldUntil::Arrived)),
                per: Per::Entity,
                reserve: 0,
                unit: window.unit.clone(),
                only_priority: None,
                identity: [&provider.name, "learned", &window.name, &window.unit, ""]
                    .map(str::to_owned),
                shared_cell: None,
                predecessor: None,
            })
        };
        dialect.learned().iter().filter_map(binding).collect()
    }

    /// Is it learned from responses?
    pub(crate) fn is_learned(&self) -> bool {
        self.rule.is_learned()
    }

    fn new(
        provider: &Provider,
        before: &[LimitBinding],
        rule: Rule,
        per: Per,
        unit: &str,
    ) -> LimitBinding {
        let algorithm = match unit {
            CALLS => algorithm(&rule).to_owned(),
            // Tokens never take over the cell of calls because an earlier limit was removed.
            _ => format!("{} {unit}", algorithm(&rule)),
        };
        let mut identity = [
            provider.name.clone(),
            per.word().to_owned(),
            rule.period().0.to_string(),
            algorithm,
            String::new(),
        ];
        let same = |binding: &&LimitBinding| binding.identity[..4] == identity[..4];
        let ordinal = before.iter().filter(same).count();
        identity[4] = ordinal.to_string();
        let mut binding = LimitBinding {
            name: "concurrency".to_owned(),
            rule: Arc::new(rule),
            per,
            reserve: 0,
            unit: unit.to_owned(),
            only_priority: None,
            identity,
            shared_cell: None,
            predecessor: None,
        };
        if per == Per::Provider {
            binding.shared_cell = Some(binding.cell(""));
        }
        binding
    }

    /// Do both count in the same cells?
    pub(super) fn is_same_limit(&self, other: &LimitBinding) -> bool {
        self.identity == other.identity
    }

    /// Its cell, if all calls share it.
    pub(super) fn shared_cell(&self) -> Option<CellId> {
        self.shared_cell
    }

    /// The one priority whose calls it counts, if it is bound to one.
    pub(super) fn only_priority(&self) -> Option<Priority> {
        self.only_priority
    }

    /// Does it apply to calls of this priority?
    pub(crate) fn applies_to(&self, priority: Priority) -> bool {
        self.only_priority.is_none_or(|only| only == priority)
    }

    /// The term of this limit for a call; `None` if the limit does not apply.
    pub(crate) fn term(&self, call: &CallAttributes<'_>) -> Option<Term> {
        if !self.applies_to(call.priority) {
            return None;
        }
        let leave = match call.priority {
            Priority::High => 0,
            Priority::Normal | Priority::Low => self.reserve,
        };
        Some(Term {
            cell: self.cell_of(call),
            rule: self.rule.clone(),
            cost: self.cost(call, &self.rule, leave),
            reserve: leave,
        })
    }

    /// The part of this limit that one caller may use, in thousandths, as its own limit.
    pub(crate) fn caller_share(&self, call: &CallAttributes<'_>, permille: u16) -> Option<Term> {
        // What is not known yet cannot be shared out.
        self.term(call).filter(|_| !self.is_learned())?;
        let rule = Arc::new(self.rule.fraction(permille));
        Some(Term {
            cell: self.caller_share_cell(call),
            cost: self.cost(call, &rule, 0),
            reserve: 0,
            rule,
        })
    }

    pub(super) fn caller_share_cell(&self, call: &CallAttributes<'_>) -> CellId {
        let [provider, per, period, algorithm, ordinal] = &self.identity;
        let key = self.key(call);
        CellId::named(&[
            provider,
            per,
            period,
            algorithm,
            ordinal,
            &key,
            "caller",
            call.caller,
        ])
    }

    /// The cell that counts a call.
    pub(crate) fn cell_of(&self, call: &CallAttributes<'_>) -> CellId {
        if let Some(cell) = self.shared_cell {
            return cell;
        }
        self.cell(&self.key(call))
    }

    /// The part of a call that selects its cell of this limit.
    fn key<'a>(&self, call: &CallAttributes<'a>) -> Cow<'a, str> {
        if self.is_learned() {
            // A fingerprint has no line break.
            let (key, entity) = (
                call.key.unwrap_or_default(),
                call.entity.unwrap_or_default(),
            );
            return Cow::Owned(format!("{key}\n{entity}"));
        }
        match self.per {
            Per::Provider => Cow::Borrowed(""),
            // Calls without an entity share one cell.
            Per::Entity => Cow::Borrowed(call.entity.unwrap_or_default()),
            Per::ApiKey => Cow::Borrowed(call.key.unwrap_or_default()),
            Per::Caller => Cow::Borrowed(call.caller),
            Per::Ip => Cow::Owned(call.ip.map(|ip| ip.to_string()).unwrap_or_default()),
            Per::Host => Cow::Borrowed(call.host),
        }
    }

    fn cell(&self, key: &str) -> CellId {
        let [provider, per, period, algorithm, ordinal] = &self.identity;
        CellId::named(&[provider, per, period, algorithm, ordinal, key])
    }

    fn cost(&self, call: &CallAttributes<'_>, rule: &Rule, leave: u64) -> u64 {
        let price = call.costs.iter().find(|price| price.unit == self.unit);
        match price {
            Some(price) if price.explicit => price.amount,
            Some(price) => {
                let most = rule.max_cost().saturating_sub(leave).max(1);
                price.amount.min(most)
            }
            None => 1,
        }
    }

    /// The part that only urgent calls may use.
    pub(crate) fn reserve(&self) -> u64 {
        self.reserve
    }

    /// Does it limit concurrency?
    pub(crate) fn is_concurrency(&self) -> bool {
        matches!(self.rule.algorithm(), Algorithm::InFlight)
    }

    /// The reason in the error of a call that this limit rejects.
    pub(crate) fn reason(&self) -> Reason {
        if self.is_concurrency() {
            Reason::Concurrency
        } else {
            Reason::Limit
        }
    }

    /// Does it count calls rather than tokens or bytes?
    pub(crate) fn counts_calls(&self) -> bool {
        self.rule.cost_unit() == CostUnit::Calls
    }
}

/// The name of an algorithm in a cell's name.
fn algorithm(rule: &Rule) -> &'static str {
    match rule.algorithm() {
        Algorithm::Sliding { .. } => "sliding",
        Algorithm::Bucket { .. } => "bucket",
        Algorithm::Fixed { .. } => "fixed",
        Algorithm::Calendar(_) => "calendar",
        Algorithm::Paced { .. } => "paced",
        Algorithm::InFlight => "in_flight",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_config::{Environment, ProviderFile};

    fn bindings(text: &str) -> Vec<LimitBinding> {
        let text = format!("name: x\ndomain: api.example.org\n{text}");
        let draft = ProviderFile::read("x.yaml", &text).unwrap();
        LimitBinding::all(&draft.check(&Environment::empty()).provider.unwrap())
    }

    fn call(costs: &[CallCost]) -> CallAttributes<'_> {
        CallAttributes {
            entity: None,
            key: None,
            caller: "",
            ip: None,
            host: "api.example.org",
            priority: Priority::Normal,
            costs,
        }
    }

    #[test]
    fn a_changed_number_keeps_its_cell_and_a_changed_period_does_not() {
        let cell = |text: &str| bindings(text)[0].cell_of(&call(&[]));
        assert_eq!(cell("limits: [35/1s]"), cell("limits: [40/1s]"));
        assert_ne!(cell("limits: [35/1s]"), cell("limits: [35/2s]"));
    }

    #[test]
    fn two_limits_of_the_same_shape_have_separate_cells() {
        let bindings = bindings("limits: [35/1s, {name: b, limit: 40, period: 1s}]");
        assert_ne!(
            bindings[0].cell_of(&call(&[])),
            bindings[1].cell_of(&call(&[]))
        );
    }

    #[test]
    fn entities_are_counted_separately() {
        let bindings = bindings("limits: [{limit: 5, period: 1h, per: entity}]");
        let cell = |entity| {
            bindings[0].cell_of(&CallAttributes {
                entity,
                ..call(&[])
            })
        };
        assert_ne!(cell(Some("odds")), cell(Some("fixtures")));
        assert_ne!(cell(Some("odds")), cell(None));
    }

    /// M2: only high-priority calls use the reserve.
    #[test]
    fn m2_only_high_priority_calls_use_the_reserve() {
        let bindings = bindings("limits: [{limit: 50, period: 10s, reserve: 40}]");
        let leave = |priority| {
            bindings[0]
                .term(&CallAttributes {
                    priority,
                    ..call(&[])
                })
                .unwrap()
                .reserve
        };
        assert_eq!(leave(Priority::High), 0);
        assert_eq!((leave(Priority::Normal), leave(Priority::Low)), (40, 40));
    }

    #[test]
    fn low_priority_calls_have_their_own_concurrency_limit() {
        let bindings = bindings("limit: 5\nperiod: 1s\nconcurrency: {normal: 4, low: 2}");
        let limits = |priority| -> Vec<u64> {
            let terms = bindings.iter().filter_map(|binding| {
                binding.term(&CallAttributes {
                    priority,
                    ..call(&[])
                })
            });
            terms.map(|term| term.rule.limit()).collect()
        };
        assert_eq!(limits(Priority::Normal), [5, 4]);
        assert_eq!(limits(Priority::Low), [5, 4, 2]);
    }

    #[test]
    fn an_estimate_is_capped_and_an_explicit_cost_is_not() {
        let bindings = bindings("limits: [{name: tpm, limit: 100, period: 1m, unit: tokens}]");
        let cost = |explicit| {
            let prices = [CallCost {
                unit: "tokens".to_owned(),
                amount: 700,
                prompt: 0,
                explicit,
                is_from_usage: false,
            }];
            bindings[0].term(&call(&prices)).unwrap().cost
        };
        assert_eq!((cost(true), cost(false)), (700, 100));
    }
}
