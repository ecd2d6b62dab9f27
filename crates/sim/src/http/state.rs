//! The provider's state: counters per scope and limit, and the log for the report.
//!
//! Promises: one request is counted, judged and logged in one step; a limit that changes on
//! schedule changes at its exact instant for every scope, not at the next request; all state is
//! bounded.
//!
//! Never: reads a clock or waits. [`ServerContext`](super::context::ServerContext) holds the lock
//! and the clock.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tollgate_core::time::{Micros, Wall};

use crate::fault::{
    AppliedFaults, Fault, FaultParseError, FaultPlan, PlanFull, PlannedFault, ResponseFault,
};
use crate::rule::{CallId, RuleSpec};

use super::clock::Reading;
use super::request::{ScopeKey, SimRequest};
use super::scope::{CountOutcome, Scope, ScopeRecord};
use super::style::AdvertisedLimit;

/// Scopes with limits of their own; later ones share one named `other`. A thousand entities times
/// keys is more than any provider's catalogue in the tests.
pub const SCOPES_MAX: usize = 1_000;

/// Arrivals judged: 500 000 × about 60 bytes = 30 MB, and at worst 80 MB for their ids. Later ones
/// are still enforced, and the report counts them as `unjudged`.
pub const ARRIVALS_MAX: usize = 500_000;

/// Lines of the readable log, the newest ones: 10 000 × about 200 bytes = 2 MB.
pub const LOG_LINES_MAX: usize = 10_000;

/// Changes of limits remembered for the report; a scenario has a handful.
const CHANGES_MAX: usize = 1_000;

/// Why a fault was not planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// It could not be parsed.
    #[error(transparent)]
    Bad(#[from] FaultParseError),
    /// The plan is full.
    #[error(transparent)]
    Full(#[from] PlanFull),
    /// It names a rule that the provider does not have.
    #[error("fault `{fault}`: there is no rule {rule}; there are {rules}, counted from 0")]
    NoRule {
        /// The fault.
        fault: PlannedFault,
        /// The rule it names.
        rule: usize,
        /// How many there are.
        rules: usize,
    },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ProviderState {
    specs: Vec<RuleSpec>,
    /// Counts resets: requests counted before the last one are no longer known here.
    generation: u64,
    plan: FaultPlan,
    /// The number that each rule enforces now.
    limits: Vec<u64>,
    changes: Vec<RecordedChange>,
    caught_up: Reading,
    scopes: BTreeMap<ScopeKey, Scope>,
    /// Number of each key.
    keys: HashMap<String, usize>,
    calls: HashMap<String, CallId>,
    next_id: u64,
    lines: VecDeque<LogLine>,
    tally: Tally,
}

/// A limit that changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedChange {
    pub(crate) rule: usize,
    pub(crate) at: Micros,
    pub(crate) limit: u64,
}

/// Counters that need no judge.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) arrivals: usize,
    /// Responses handed over to the last byte.
    pub(crate) answered: usize,
    /// Requests that a fault has affected.
    pub(crate) struck: usize,
    /// Counted and not finished, 429s included.
    pub(crate) in_flight: usize,
}

/// One line of the readable log.
#[derive(Clone, Debug)]
pub(crate) struct LogLine {
    pub(crate) at: Wall,
    pub(crate) scope: String,
    pub(crate) call: Option<String>,
    pub(crate) path: String,
    pub(crate) accepted: bool,
    pub(crate) response_fault: ResponseFault,
}

/// The decision about one request.
#[derive(Debug)]
pub(crate) struct CountedRequest {
    pub(crate) ticket: Ticket,
    pub(crate) limited: bool,
    pub(crate) faults: AppliedFaults,
    pub(crate) limits: Vec<AdvertisedLimit>,
    pub(crate) binding: usize,
}

/// Names a counted request until it is finished.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    generation: u64,
    scope: ScopeKey,
    attempt: CallId,
    accepted: bool,
}

impl ProviderState {
    pub(crate) fn new(specs: Vec<RuleSpec>, start: Reading) -> ProviderState {
        ProviderState {
            limits: specs.iter().map(|spec| spec.counting.limit()).collect(),
            specs,
            generation: 0,
            plan: FaultPlan::default(),
            changes: Vec::new(),
            caught_up: start,
            scopes: BTreeMap::new(),
            keys: HashMap::new(),
            calls: HashMap::new(),
            next_id: 0,
            lines: VecDeque::new(),
            tally: Tally::default(),
        }
    }

    /// A request reaches the limiter: it is counted, judged and logged.
    pub(crate) fn count(&mut self, request: &SimRequest, now: Reading) -> CountedRequest {
        self.catch_up(now);
        let faults = self.plan.apply_to_request(now.since_start);
        let attempt = self.fresh_id();
        let judging = self.tally.arrivals < ARRIVALS_MAX;
        let call = judging.then(|| self.call_id(request, faults.response_fault));
        let advertised = self.advertised(now.since_start);
        let key = self.scope_key(&request.scope);
        let scope = self.scope(&key);
        let CountOutcome {
            accepted,
            limits,
            binding,
        } = scope.arrive(request, (attempt, call), &advertised, now);
        let name = scope.record().name.clone();
        self.tally.arrivals += 1;
        self.tally.in_flight += 1;
        self.tally.struck += usize::from(faults != AppliedFaults::default());
        self.write_line(request, name, accepted, faults.response_fault, now);
        let ticket = Ticket {
            generation: self.generation,
            scope: key,
            attempt,
            accepted,
        };
        CountedRequest {
            ticket,
            limited: !accepted,
            faults,
            limits,
            binding,
        }
    }

    /// The provider is done with a request; `whole` if its response was handed over to the end.
    pub(crate) fn finish(&mut self, ticket: &Ticket, whole: bool, now: Reading) {
        if ticket.generation != self.generation {
            return;
        }
        self.tally.in_flight = self.tally.in_flight.saturating_sub(1);
        self.tally.answered += usize::from(whole);
        if ticket.accepted {
            self.scope(&ticket.scope).finish(ticket.attempt, now);
        }
    }

    /// Whether bytes that arrive now may cause a reset.
    pub(crate) fn may_reset_unread(&self, now: Reading) -> bool {
        self.plan.may_reset_unread(now.since_start)
    }

    /// Whether they do; uses up one of `next n`.
    pub(crate) fn resets_unread(&mut self, now: Reading) -> bool {
        self.plan.resets_unread(now.since_start)
    }

    /// Plans all of these faults or none.
    pub(crate) fn plan(&mut self, faults: &[PlannedFault], now: Reading) -> Result<(), FaultError> {
        self.replace_plan(self.plan.clone(), faults, now)
    }

    /// The same in place of the current plan; without faults, limits return to the settings.
    pub(crate) fn replan(
        &mut self,
        faults: &[PlannedFault],
        now: Reading,
    ) -> Result<(), FaultError> {
        self.replace_plan(FaultPlan::default(), faults, now)
    }

    /// Clears counters and log; faults stay, time continues.
    pub(crate) fn reset(&mut self, now: Reading) {
        let plan = std::mem::take(&mut self.plan);
        *self = ProviderState {
            plan,
            generation: self.generation + 1,
            ..ProviderState::new(std::mem::take(&mut self.specs), now)
        };
        self.catch_up(now);
    }

    /// The records of all scopes, for the report.
    pub(crate) fn scope_records(&self) -> Vec<ScopeRecord> {
        self.scopes
            .values()
            .map(|scope| scope.record().clone())
            .collect()
    }

    pub(crate) fn specs(&self) -> &[RuleSpec] {
        &self.specs
    }

    /// The number that each rule enforces now.
    pub(crate) fn limits(&self) -> &[u64] {
        &self.limits
    }

    pub(crate) fn changes(&self) -> &[RecordedChange] {
        &self.changes
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// The text of ids, for the report.
    pub(crate) fn call_names(&self) -> HashMap<CallId, String> {
        self.calls
            .iter()
            .map(|(name, id)| (*id, name.clone()))
            .collect()
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &LogLine> {
        self.lines.iter()
    }

    fn replace_plan(
        &mut self,
        mut plan: FaultPlan,
        faults: &[PlannedFault],
        now: Reading,
    ) -> Result<(), FaultError> {
        for fault in faults {
            self.check_rule(*fault)?;
            plan.add(*fault, now.since_start)?;
        }
        // The old plan holds until now, the new one from now on.
        self.catch_up(now);
        self.plan = plan;
        self.catch_up(now);
        Ok(())
    }

    fn check_rule(&self, planned: PlannedFault) -> Result<(), FaultError> {
        let rules = self.specs.len();
        match planned.fault {
            Fault::Limit { rule, .. } | Fault::ReportLimit { rule, .. } if rule >= rules => {
                Err(FaultError::NoRule {
                    fault: planned,
                    rule,
                    rules,
                })
            }
            _ => Ok(()),
        }
    }

    /// Sets every limit to the plan's value for `now`, applying each planned change at its instant.
    fn catch_up(&mut self, now: Reading) {
        let edges = self
            .plan
            .limit_edges(self.caught_up.since_start, now.since_start);
        for edge in edges {
            let back = now.since_start.since(edge);
            self.set_limits(Reading {
                since_start: edge,
                wall: now.wall - back,
            });
        }
        self.set_limits(now);
        self.caught_up = now;
    }

    fn set_limits(&mut self, now: Reading) {
        for (rule, spec) in self.specs.iter().enumerate() {
            let limit = self
                .plan
                .limit(rule, spec.counting.limit(), now.since_start);
            if self.limits[rule] == limit {
                continue;
            }
            self.limits[rule] = limit;
            if self.changes.len() < CHANGES_MAX {
                self.changes.push(RecordedChange {
                    rule,
                    at: now.at(),
                    limit,
                });
            }
            for scope in self.scopes.values_mut() {
                scope.change(rule, limit, now.at());
            }
        }
    }

    /// The numbers that the headers advertise instead of the enforced ones, rule by rule.
    fn advertised(&self, since_start: Micros) -> Vec<Option<u64>> {
        let limits = self
            .specs
            .iter()
            .map(|spec| spec.counting.limit())
            .enumerate();
        limits
            .map(|(rule, base)| self.plan.advertised(rule, base, since_start))
            .collect()
    }

    /// The key itself, or the key of the shared scope when there are too many.
    fn scope_key(&self, key: &ScopeKey) -> ScopeKey {
        if self.scopes.len() < SCOPES_MAX || self.scopes.contains_key(key) {
            return key.clone();
        }
        ScopeKey {
            entity: Some("other".to_owned()),
            key: None,
        }
    }

    fn scope(&mut self, key: &ScopeKey) -> &mut Scope {
        if !self.scopes.contains_key(key) {
            let name = self.scope_name(key);
            let scope = Scope::new(name, &self.specs, &self.limits, self.caught_up.at());
            self.scopes.insert(key.clone(), scope);
        }
        self.scopes
            .get_mut(key)
            .expect("inserted above if it was not there")
    }

    /// Keys are named by order of arrival, so that no report shows one.
    fn scope_name(&mut self, scope: &ScopeKey) -> String {
        let seen = self.keys.len();
        let number = |key| *self.keys.entry(key).or_insert(seen + 1);
        let key = scope
            .key
            .clone()
            .map(number)
            .map(|number| format!("key{number}"));
        let parts: Vec<String> = scope.entity.clone().into_iter().chain(key).collect();
        if parts.is_empty() {
            "all".to_owned()
        } else {
            parts.join("/")
        }
    }

    fn fresh_id(&mut self) -> CallId {
        self.next_id += 1;
        CallId(self.next_id)
    }

    /// The id of the call in the judge's log. A request during an outage was not processed: it
    /// counts in every window, but its retry is no duplicate, so it gets an id of its own.
    fn call_id(&mut self, request: &SimRequest, response_fault: ResponseFault) -> CallId {
        let named = request
            .call
            .as_ref()
            .filter(|_| !matches!(response_fault, ResponseFault::Outage(_)));
        match named {
            Some(name) if self.calls.contains_key(name) => self.calls[name],
            Some(name) if self.calls.len() < ARRIVALS_MAX => {
                let id = self.fresh_id();
                self.calls.insert(name.clone(), id);
                id
            }
            Some(_) | None => self.fresh_id(),
        }
    }

    fn write_line(
        &mut self,
        request: &SimRequest,
        scope: String,
        accepted: bool,
        response_fault: ResponseFault,
        now: Reading,
    ) {
        if self.lines.len() == LOG_LINES_MAX {
            self.lines.pop_front();
        }
        let (call, path) = (request.call.clone(), request.path.clone());
        self.lines.push_back(LogLine {
            at: now.wall,
            scope,
            call,
            path,
            accepted,
            response_fault,
        });
    }
}
