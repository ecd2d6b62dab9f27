//! How long waiting calls wait: those of a provider, and of each caller.
//!
//! Promises: from the limits as the ledger counts them, entities included, cool-downs, estimated limits and sleep, the
//! measured demand of more urgent calls, and the measured latency where the number of calls at a time is what holds
//! them. One peek.
//!
//! Never: takes a permit.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tollgate_config::provider::Per;
use tollgate_core::ask::{CellId, Priority, ScopeId, Term};
use tollgate_core::eta::{EtaArrivals, EtaGroup, EtaLimit, EtaQueue, Refill};
use tollgate_core::gate::{CallerId, Order, WaitingGroup};
use tollgate_core::health::{HealthState, OperatorHold};
use tollgate_core::limit::{Algorithm, CellView, Rule};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::PeekQuery;

use super::ActiveProvider;
use super::arrivals::{asked_by, id_of};
use super::call_counters::{CallCounts, OTHER_CALLERS};
use super::limit_binding::CallAttributes;

/// How long an estimate serves rejections: a full queue may reject thousands of calls a second.
const CACHED_FOR: Span = Span::from_millis(250);

/// How many calls wait, and how long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueEstimate {
    /// How long the last waiting call waits that is served; `None` = until an operator says otherwise, or as long as
    /// more urgent calls take everything.
    pub eta: Option<Span>,
    /// Calls that are not sent while more urgent ones take everything.
    pub starved: u64,
    /// The same for each caller, by name.
    pub callers: BTreeMap<String, CallerQueue>,
}

/// How many calls of a caller wait, and how long the last of them does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallerQueue {
    /// Its waiting calls.
    pub waiting: u64,
    /// Those that are not sent while more urgent ones take everything.
    pub starved: u64,
    /// As [`QueueEstimate::eta`].
    pub eta: Option<Span>,
}

/// An estimate that serves rejections for a moment: the queue, and which of its groups an operator holds.
#[derive(Debug)]
pub(super) struct CachedEta {
    at: Micros,
    queue: Arc<(EtaQueue, Vec<bool>)>,
}

impl ActiveProvider {
    /// How long the last waiting call waits; `None` = until an operator says otherwise, or as long as more urgent
    /// calls take everything.
    pub async fn eta(&self) -> Option<Span> {
        self.queue_estimate().await.eta
    }

    /// How long one more call of this caller and priority would wait behind those that wait now, or waited a moment
    /// ago; `None` = until an operator says otherwise.
    pub(crate) async fn recent_eta(&self, caller: CallerId, priority: Priority) -> Option<Span> {
        let now = self.ledger.at();
        let cached = self.cached_eta.lock().as_ref().and_then(|cached| {
            let is_recent = now.since(cached.at) < CACHED_FOR;
            is_recent.then(|| cached.queue.clone())
        });
        let queue = match cached {
            Some(queue) => queue,
            None => {
                let read = self.read_queue().await;
                let queue = Arc::new((read.queue, read.held));
                *self.cached_eta.lock() = Some(CachedEta {
                    at: now,
                    queue: queue.clone(),
                });
                queue
            }
        };
        let (queue, held) = &*queue;
        // Calls of higher priority take everything: not before those are served that wait now.
        eta_of_next(queue, held, caller, priority).or_else(|| {
            let served = queue
                .groups
                .iter()
                .zip(held)
                .filter(|(_, is_held)| !**is_held);
            served.filter_map(|(one, _)| queue.eta(one)).max()
        })
    }

    /// Measures the demand; the more often, the better the estimate. Once a second is enough.
    pub fn observe_demand(&self) {
        let groups = self.waiting_groups();
        self.demand(&groups, &self.entity_cells(), &self.calls.by_caller());
    }

    /// How many calls wait, and how long.
    pub async fn queue_estimate(&self) -> QueueEstimate {
        let QueueRead {
            queue,
            held,
            counts,
        } = self.read_queue().await;
        if queue.groups.is_empty() {
            return QueueEstimate {
                eta: Some(Span::ZERO),
                ..QueueEstimate::default()
            };
        }
        let names: HashMap<CallerId, &str> = counts
            .iter()
            .map(|(name, _)| (id_of(name), name.as_str()))
            .collect();
        let mut estimate = QueueEstimate::default();
        for (group, is_held) in queue.groups.iter().zip(held) {
            let eta = queue.eta(group).filter(|_| !is_held);
            let starved = if eta.is_none() && !is_held {
                group.calls
            } else {
                0
            };
            let name = names.get(&group.caller).copied().unwrap_or(OTHER_CALLERS);
            let caller = estimate.callers.entry(name.to_owned()).or_default();
            caller.waiting += group.calls;
            caller.starved += starved;
            caller.eta = caller.eta.max(eta);
            estimate.starved += starved;
            estimate.eta = estimate.eta.max(eta);
        }
        estimate
    }

    /// The queue, its limits and its demand.
    async fn read_queue(&self) -> QueueRead {
        let groups = self.waiting_groups();
        let counts = self.calls.by_caller();
        let entities = self.entity_cells();
        let arrivals = self.demand(&groups, &entities, &counts);
        let (queue, mut held) = match groups.is_empty() {
            true => (EtaQueue::default(), Vec::new()),
            false => self.eta_queue(groups, &entities.1).await,
        };
        if self.is_held() {
            held.fill(true);
        }
        QueueRead {
            queue: EtaQueue { arrivals, ..queue },
            held,
            counts,
        }
    }

    fn waiting_groups(&self) -> Vec<WaitingGroup> {
        let mut groups = self.permits.waiting_groups();
        groups.extend(self.local_share.permits.waiting_groups());
        groups
    }

    /// An operator stopped it without an end.
    fn is_held(&self) -> bool {
        let status = self.status();
        let holds = matches!(
            status.hold,
            Some(OperatorHold::Paused | OperatorHold::Offline)
        );
        holds && status.sleep_remaining.is_none()
    }

    /// The limits and pauses of the waiting calls, in one peek; and which of them an operator holds.
    async fn eta_queue(
        &self,
        waiting: Vec<WaitingGroup>,
        parts: &HashMap<CellId, usize>,
    ) -> (EtaQueue, Vec<bool>) {
        let mut cells: BTreeMap<CellId, Term> = BTreeMap::new();
        let mut scopes: BTreeMap<ScopeId, ScopeView> = BTreeMap::new();
        for group in &waiting {
            cells.extend(group.terms.iter().map(|term| (term.cell, term.clone())));
            scopes.extend(group.scopes.iter().map(|scope| (*scope, ScopeView::Open)));
        }
        let reply = self
            .ledger
            .peek_or_closed(PeekQuery {
                cells: cells
                    .values()
                    .map(|term| (term.cell, term.rule.clone()))
                    .collect(),
                scopes: scopes.keys().copied().collect(),
            })
            .await;
        for (known, view) in scopes.values_mut().zip(reply.scopes) {
            *known = view;
        }
        let latency = self.metrics.latency();
        let mean = Span(latency.sum / latency.count().max(1));
        let mut limits = Vec::new();
        let mut numbers: HashMap<CellId, usize> = HashMap::new();
        for (term, view) in cells.into_values().zip(reply.cells) {
            numbers.insert(term.cell, limits.len());
            limits.push(EtaLimit {
                part: parts.get(&term.cell).copied(),
                ..eta_limit(&term.rule, view, term.reserve, mean)
            });
        }
        let slowed = self.slowed();
        let slowed = slowed.map(|limit| push(&mut limits, limit));
        let paced: HashMap<ScopeId, usize> = scopes
            .iter()
            .filter_map(|(scope, view)| match view {
                ScopeView::Paced {
                    rate: Some(rate), ..
                } => Some((*scope, push(&mut limits, EtaLimit::at_rate(*rate)))),
                _ => None,
            })
            .collect();
        let queued = QueuedFor {
            closed: self.status().sleep_remaining.unwrap_or(Span::ZERO),
            scopes,
            numbers,
            paced,
            slowed,
        };
        let (groups, held) = waiting.iter().map(|one| queued.group(one)).unzip();
        let queue = EtaQueue {
            groups,
            limits,
            arrivals: Vec::new(),
            is_fifo: self.permits.order() == Order::Fifo,
        };
        (queue, held)
    }

    /// What health lets through while calls fail.
    fn slowed(&self) -> Option<EtaLimit> {
        let status = self.status();
        let is_slowed = matches!(status.state, HealthState::Throttle | HealthState::HalfOpen);
        status.rate.filter(|_| is_slowed).map(EtaLimit::at_rate)
    }

    /// The entities that were called, and the number of the entity of each of their limits.
    fn entity_cells(&self) -> (Vec<String>, HashMap<CellId, usize>) {
        let (policy, names) = (self.policy(), self.entities());
        let mut parts = HashMap::new();
        for binding in policy.limits.iter().filter(|one| one.per == Per::Entity) {
            for (part, name) in names.iter().enumerate() {
                let cell = binding.cell_of(&CallAttributes::of_entity(Some(name)));
                parts.insert(cell, part);
            }
        }
        (names, parts)
    }

    /// How many calls come.
    fn demand(
        &self,
        waiting: &[WaitingGroup],
        (names, parts): &(Vec<String>, HashMap<CellId, usize>),
        counts: &[(String, CallCounts)],
    ) -> Vec<EtaArrivals> {
        let mut asked = match names.is_empty() {
            true => asked_by(counts),
            false => self.entity_demand.asked(names),
        };
        for group in waiting {
            let part = group.terms.iter().find_map(|term| parts.get(&term.cell));
            let source = (group.caller, group.priority, part.copied());
            *asked.entry(source).or_default() += group.calls;
        }
        self.arrivals.lock().rates(self.ledger.at(), asked)
    }
}

/// The queue as it was read, which groups an operator holds, and the calls of each caller.
struct QueueRead {
    queue: EtaQueue,
    held: Vec<bool>,
    counts: Vec<(String, CallCounts)>,
}

/// How long the next call of a caller and priority waits. If none of them waits, it needs what a waiting call needs,
/// of the same priority if there is one.
fn eta_of_next(
    queue: &EtaQueue,
    held: &[bool],
    caller: CallerId,
    priority: Priority,
) -> Option<Span> {
    let groups = || queue.groups.iter().zip(held);
    let own = groups().filter(|(one, _)| one.caller == caller && one.priority == priority);
    let own: Vec<Option<Span>> = own
        .map(|(one, is_held)| queue.eta(one).filter(|_| !is_held))
        .collect();
    if !own.is_empty() {
        return own.into_iter().max().flatten();
    }
    let like = groups().min_by_key(|(one, _)| one.priority != priority);
    let (like, is_held) = like?;
    let next = EtaGroup {
        caller,
        priority,
        calls: 1,
        at_least_permille: 0,
        ..like.clone()
    };
    queue.eta(&next).filter(|_| !is_held)
}

/// What waiting calls wait for: pauses, and the numbers of limits.
struct QueuedFor {
    /// The whole provider sleeps.
    closed: Span,
    scopes: BTreeMap<ScopeId, ScopeView>,
    numbers: HashMap<CellId, usize>,
    paced: HashMap<ScopeId, usize>,
    slowed: Option<usize>,
}

impl QueuedFor {
    /// A group of the estimate; and whether an operator holds it.
    fn group(&self, one: &WaitingGroup) -> (EtaGroup, bool) {
        let terms = one.terms.iter();
        let mut uses: Vec<(usize, u64)> = terms
            .filter_map(|term| Some((*self.numbers.get(&term.cell)?, term.cost)))
            .collect();
        uses.extend(self.slowed.map(|number| (number, 1)));
        let paced = one.scopes.iter().filter_map(|scope| self.paced.get(scope));
        uses.extend(paced.map(|number| (*number, 1)));
        let views = one.scopes.iter().filter_map(|scope| self.scopes.get(scope));
        let (mut closed_for, mut is_held) = (self.closed, false);
        for pause in views.map(pause) {
            is_held |= pause.is_none();
            closed_for = closed_for.max(pause.unwrap_or(Span::ZERO));
        }
        let group = EtaGroup {
            caller: one.caller,
            priority: one.priority,
            calls: one.calls,
            at_least_permille: one.at_least_permille,
            closed_for,
            uses,
        };
        (group, is_held)
    }
}

fn push(limits: &mut Vec<EtaLimit>, limit: EtaLimit) -> usize {
    limits.push(limit);
    limits.len() - 1
}

/// How long a scope holds calls; `None` = until an operator says otherwise.
fn pause(view: &ScopeView) -> Option<Span> {
    match view {
        ScopeView::Open | ScopeView::Probing | ScopeView::Paced { .. } => Some(Span::ZERO),
        ScopeView::Closed { remaining }
        | ScopeView::CacheOnly { remaining }
        | ScopeView::Paused { remaining } => *remaining,
    }
}

fn eta_limit(rule: &Arc<Rule>, view: CellView, reserve: u64, latency: Span) -> EtaLimit {
    let refill = match rule.algorithm() {
        Algorithm::InFlight => Refill::CallEnds(latency),
        Algorithm::Fixed { .. } | Algorithm::Calendar(_) => Refill::AtOnce,
        Algorithm::Sliding { .. } => Refill::Sliding,
        Algorithm::Bucket { .. } | Algorithm::Paced { .. } => Refill::Gradual,
    };
    // A paced limit never grants two at once, and spaces them as if it were smaller by two (`core/src/limit/paced.rs`).
    let (limit, remaining) = match rule.algorithm() {
        Algorithm::Paced { .. } if view.limit > 2 => (view.limit - 2, 0),
        Algorithm::Paced { .. } => (view.limit, 0),
        _ => (view.limit, view.remaining),
    };
    EtaLimit {
        limit,
        remaining,
        period: rule.display_period(),
        reset_after: view.reset_after,
        refill,
        reserve,
        spreads_low: view.spreads_low,
        part: None,
    }
}
