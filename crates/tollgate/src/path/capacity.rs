//! Capacity: would a call get a permit now? The same check as `decide::acquire`, without taking
//! anything.
//!
//! Promises: a provider with room is only looked at. Where there is none, or calls wait that go first, the ask is made and
//! rejected, which counts nothing and tells the exact time; should it be granted because something
//! came free meanwhile, the permit is returned unused.
//!
//! Never: waits, emits a decision, or takes a permit that stays counted.

use tollgate_core::ask::Priority;
use tollgate_core::gate::Order;
use tollgate_core::health::HealthState;
use tollgate_core::scope::ScopeView;
use tollgate_core::time::Span;
use tollgate_ledger::PeekQuery;

use super::call::{CallOptions, Target};
use super::permit::{self, PermitHistory};
use super::requested_limits::RequestedLimits;
use super::subject::Subject;
use super::{decide, permit_table};
use crate::Error;
use crate::providers::ProviderRegistry;

/// What a call would find now.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// The provider that would be asked.
    pub provider: String,
    /// Its health.
    pub state: HealthState,
    /// How many such calls all limits together allow now; `None` = no limit applies.
    pub remaining: Option<u64>,
    /// Why a call would get no permit now; `None` = it would get one.
    pub denied: Option<Error>,
}

/// What a call to this provider or URL would find now. The options mean the same as for a permit;
/// `timeout` means nothing, because nobody waits.
///
/// # Errors
/// The call itself is wrong: an unknown provider, a wrong token, an invalid path.
pub async fn capacity(
    registry: &ProviderRegistry,
    target: impl Into<Target>,
    options: CallOptions,
) -> Result<Capacity, Error> {
    capacity_of_key(registry, target.into(), None, options).await
}

/// The same for a call that carries this credential, for limits per key.
pub(crate) async fn capacity_of_key(
    registry: &ProviderRegistry,
    target: Target,
    key: Option<&str>,
    options: CallOptions,
) -> Result<Capacity, Error> {
    let options = CallOptions {
        timeout: Some(Span::ZERO),
        ..options
    };
    let mut subject = decide::subject(registry, target, options)?;
    subject.use_within = permit_table::USE_WITHIN;
    let provider = subject.provider.clone();
    provider.health.sync_once().await;
    let key = decide::key_of(&subject, key);
    let (remaining, is_open, is_spread) = peek(&subject, key.as_deref()).await;
    let has_room = is_open && remaining.is_none_or(|remaining| remaining > 0);
    let has_room = has_room && !is_spread && !is_behind(&subject);
    let denied = if has_room {
        None
    } else {
        // Dropped unsent, a permit is returned.
        let mut history = PermitHistory::default();
        let asked = permit::decide(&subject, key.as_deref(), &mut history);
        Box::pin(asked).await.err()
    };
    Ok(Capacity {
        provider: provider.name().to_owned(),
        state: provider.status().state,
        remaining: match &denied {
            Some(_) => Some(remaining.filter(|_| is_open).unwrap_or(0)),
            None => remaining.map(|remaining| remaining.max(1)),
        },
        denied,
    })
}

/// Do calls wait that may go before this one?
fn is_behind(subject: &Subject) -> bool {
    let (provider, priority) = (&subject.provider, subject.demand().priority);
    let levels = [Priority::High, Priority::Normal, Priority::Low];
    let is_fifo = provider.permits.order() == Order::Fifo;
    let mut before = levels
        .into_iter()
        .filter(|level| is_fifo || *level >= priority);
    before.any(|level| provider.waiting_at(level) > 0)
}

/// How many such calls all limits together allow, whether nothing closes the provider, and whether it is not
/// the time of calls of this priority. A store that is lost counts as closed: `on_store_loss` decides.
async fn peek(subject: &Subject, key: Option<&str>) -> (Option<u64>, bool, bool) {
    let provider = &subject.provider;
    let (policy, health) = (provider.policy(), provider.health.view(subject.path));
    let order = (0, provider.permits.edition());
    let (request, _) = RequestedLimits::new(subject, &policy, key, &health, order);
    let terms = request.terms.iter();
    let query = PeekQuery {
        cells: terms.map(|term| (term.cell, term.rule.clone())).collect(),
        scopes: request.scopes.to_vec(),
    };
    let reply = provider.ledger.peek_or_closed(query).await;
    let calls = request.terms.iter().zip(&reply.cells).map(|(term, view)| {
        let free = view
            .remaining
            .saturating_sub(term.reserve_for(request.priority));
        free / term.cost.max(1)
    });
    // Low priority may be spread over what is free. With a reserve it has less room than the view counts with.
    let is_spread =
        request.priority == Priority::Low
            && request.terms.iter().zip(&reply.cells).any(|(term, view)| {
                view.low_in > Span::ZERO || (view.spreads_low && term.reserve > 0)
            });
    let is_open = |view: &ScopeView| matches!(view, ScopeView::Open);
    let is_lost = provider.ledger.loss().is_some();
    let is_free = policy.zero_limit.is_none() && !is_lost && reply.scopes.iter().all(is_open);
    (calls.min(), is_free, is_spread)
}
