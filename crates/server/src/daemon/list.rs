//! The list of all providers, and the problems of the whole process.
//!
//! Promises: a provider that an operator holds or that cools down is not shown as one whose calls
//! flow. A provider that cannot send because of the store says so.
//!
//! Never: starts a provider.

use serde::Serialize;
use tollgate::providers::{ProviderOverview, UNKNOWN};
use tollgate_core::health::{HealthState, OperatorHold};
use tollgate_core::time::Now;
use tollgate_ledger::Ledger;

use super::Daemon;
use super::live::was_called;
use super::view::{Cooldown, cooldown, domains, epoch_after, store_word};

/// A provider in a list.
#[derive(Clone, Debug, Serialize)]
pub struct ProviderSummary {
    /// Its name.
    pub name: String,
    /// The file that defines it; `preset NAME` for a built-in one.
    pub source: String,
    /// Its domains.
    pub domains: Vec<String>,
    /// One of the five states.
    pub state: &'static str,
    /// The operator's command that holds it: `paused`, `offline` or `cache_only`.
    pub hold: Option<&'static str>,
    /// What cools down.
    pub(super) cooldowns: Vec<Cooldown>,
    /// Only the cache responds, because little of a quota remains.
    pub degraded: bool,
    /// A limit of a minute or longer of which nothing remains.
    pub(super) used_up: Option<UsedUp>,
    /// `up`, or `lost`: then the ledger counts nothing, and `on_store_loss` applies.
    pub store: &'static str,
    /// Waiting calls.
    pub waiting: usize,
    /// It has been called since the start.
    pub started: bool,
    /// The problems of a newer version of its file.
    pub problems: Vec<String>,
}

/// A limit that is used up.
#[derive(Clone, Debug, Serialize)]
pub(super) struct UsedUp {
    limit: String,
    reset_at: Option<f64>,
}

impl Daemon {
    /// The configured providers, and the built-in ones that were called.
    pub async fn list(&self) -> Vec<ProviderSummary> {
        let state = self.snapshot();
        let registry = &self.shared.registry;
        let started = registry.started();
        let find = |name: &str| started.iter().find(|active| active.name() == name);
        let own = state.loaded.config.providers.len();
        let store = store_word(registry.ledger().loss_reason().as_ref());
        let now = registry.ledger().now();
        let shown = state.loaded.providers.iter().enumerate();
        let shown = shown.filter(|(index, one)| *index < own || find(&one.provider.name).is_some());
        let mut list = Vec::new();
        for (_, one) in shown {
            let active = find(&one.provider.name);
            let overview = registry.overview_of(&one.provider.name).await;
            list.push(ProviderSummary {
                name: one.provider.name.clone(),
                source: one.source.clone(),
                domains: domains(one),
                state: overview.state.as_str(),
                hold: overview.hold.map(OperatorHold::as_str),
                degraded: overview.is_degraded,
                used_up: overview.used_up.clone().map(|(limit, reset)| UsedUp {
                    limit,
                    reset_at: reset.map(|reset| epoch_after(now, reset)),
                }),
                cooldowns: cooldowns(overview, now),
                store,
                waiting: active.map_or(0, |active| active.waiting()),
                started: active.is_some_and(|active| was_called(active)),
                problems: state.problems_of(one),
            });
        }
        list.extend(self.blocked_unknown_domains());
        list
    }

    /// An entry for all domains without a provider while they are not `normal`, so that operators
    /// see why calls are rejected.
    fn blocked_unknown_domains(&self) -> Option<ProviderSummary> {
        let registry = &self.shared.registry;
        let active = registry.named_or_unknown(UNKNOWN).ok()?;
        let health = active.status();
        let is_blocked = registry.named(UNKNOWN).is_err() && health.state != HealthState::Normal;
        is_blocked.then(|| ProviderSummary {
            name: UNKNOWN.to_owned(),
            source: "domains without a provider".to_owned(),
            domains: Vec::new(),
            state: health.state.as_str(),
            hold: health.hold.map(OperatorHold::as_str),
            cooldowns: Vec::new(),
            degraded: false,
            used_up: None,
            store: store_word(registry.ledger().loss_reason().as_ref()),
            waiting: active.waiting(),
            started: true,
            problems: Vec::new(),
        })
    }

    /// All problems: of the stores while they are lost, of stored rows that were damaged since the
    /// start, of a log that grows, then of the configuration.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let state = self.snapshot();
        let lost = self.shared.registry.ledger().loss_reason();
        let lost = lost.map(|why| format!("error: the store is lost: {why}"));
        let guards = self.decisions().guards().store_loss();
        let guards = guards.map(|why| format!("error: the store of guards is lost: {why}"));
        let loaded = state.loaded.problems.iter().map(ToString::to_string);
        let listen_errors = state.listen_errors.into_iter().map(|error| error.message);
        let damaged = damaged_rows(self.shared.registry.ledger());
        let held = held_log(self.shared.registry.ledger());
        let started = self.shared.registry.started();
        let absent = started
            .iter()
            .filter_map(|active| absent_nodes(active.name(), active.absent_nodes()));
        let problems = lost
            .into_iter()
            .chain(guards)
            .chain(absent)
            .chain(damaged)
            .chain(held)
            .chain(loaded);
        problems
            .chain(state.build_error)
            .chain(listen_errors)
            .collect()
    }
}

/// Nodes whose share of the limits nobody else uses meanwhile.
fn absent_nodes(provider: &str, nodes: u32) -> Option<String> {
    (nodes > 0).then(|| {
        format!(
            "warning: {nodes} of the gateways that share the limits of {provider} cannot reach the store or ended without notice; \
             the others leave the share of each alone until it is back, at most for a day; start a gateway that was killed again \
             with its state folder"
        )
    })
}

fn cooldowns(overview: ProviderOverview, now: Now) -> Vec<Cooldown> {
    let cooldowns = overview.cooldowns.into_iter();
    cooldowns.map(|one| cooldown(one, now)).collect()
}

/// The log of the store cannot be shortened.
fn held_log(ledger: &Ledger) -> Option<String> {
    let megabytes = ledger.held_log_bytes()? / 1_000_000;
    Some(format!(
        "error: the log of the ledger has grown to {megabytes} MB, because another program reads ledger.db in a transaction that stays open (a backup, sqlite3, a stopped `tollgate status`); end that program"
    ))
}

/// Stored limits that could not be read since the start.
pub(super) fn damaged_rows(ledger: &Ledger) -> Option<String> {
    let rows = ledger.damaged_rows();
    (rows > 0).then(|| {
        format!(
            "error: stored rows of the ledger were damaged ({rows} since the start); their limits count as used up for one period; check the disk of the state folder"
        )
    })
}
