//! What the decision service replies.
//!
//! Promises: times are spans and counts are integers; each endpoint writes them in its own form. The limit
//! of a grant is the one with the least left.
//!
//! Never: contains a key.

use std::sync::Arc;

use http::HeaderMap;
use tollgate::ProviderRegistry;
use tollgate::capacity::Capacity;
use tollgate::decide::Learned;
use tollgate::path::Rate;
use tollgate::permit_table::IssuedPermit;
use tollgate_config::config::Task;
use tollgate_core::health::{Class, Fault};
use tollgate_core::time::{Span, Wall};

use super::denial;
use super::error::DecisionError;
use super::limit_summary::LimitSummary;
use crate::guards::{GuardVerdict, GuardView};

/// The reply to a request for a permit or for tokens.
#[derive(Clone, Debug, Default)]
pub struct Acquired {
    /// Whether the call may be made.
    pub is_granted: bool,
    /// By which it is reported; guards have none, because their tokens are not settled.
    pub permit: Option<Arc<str>>,
    /// How long it waited.
    pub waited: Span,
    /// It had to wait, and has what it asked for.
    pub was_queued: bool,
    /// When to come back; `None` where waiting does not help.
    pub retry_in: Option<Span>,
    /// Of a denial: what said no. Of a grant: the limit with the least left.
    pub limit: Option<LimitSummary>,
    /// What remains of it.
    pub remaining: Option<u64>,
    /// Of a grant: all of that limit is available again after this long at the latest.
    pub reset_in: Option<Span>,
    /// Why not, in the words of every rejection.
    pub reason: Option<&'static str>,
    /// Why not, as a sentence.
    pub message: Option<String>,
    /// What to do about it.
    pub hint: Option<&'static str>,
    /// Whose limit it is.
    pub provider: Option<String>,
    /// Which guard it is.
    pub guard: Option<String>,
    /// The id of a guard's denial among the last decisions.
    pub id: Option<Arc<str>>,
    /// How long after now the call may be made.
    pub use_within: Option<Span>,
    /// What the guard that was asked means for tasks.
    pub task: Option<Task>,
    /// The guards that were asked, for rate headers.
    pub guards: Option<GuardVerdict>,
}

/// What came back from the call of a permit.
#[derive(Clone, Debug)]
pub enum ReportedOutcome {
    /// A response.
    Response {
        /// Its status.
        status: u16,
        /// Its headers.
        headers: HeaderMap,
        /// The beginning of its body.
        body: Vec<u8>,
    },
    /// None.
    Failed(Fault),
    /// The report does not say.
    Unsaid,
}

/// What a report has taught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportReply {
    /// Whether this report counted; otherwise an earlier one did.
    pub is_first: bool,
    /// The class of the response.
    pub class: &'static str,
    /// When to come back, if the provider said so.
    pub retry_in: Option<Span>,
}

/// Whether a call would get a permit now.
#[derive(Clone, Debug)]
pub struct CapacityReply {
    /// It would.
    pub is_available: bool,
    /// When it would; `None` where waiting does not help.
    pub retry_in: Option<Span>,
    /// How many such calls could go now; `None` = no limit applies.
    pub remaining: Option<u64>,
    /// The health of the provider.
    pub state: &'static str,
    /// Which provider.
    pub provider: String,
    /// What says no.
    pub limit: Option<LimitSummary>,
    /// Why, in the words of every rejection.
    pub reason: Option<&'static str>,
    /// Why, as a sentence.
    pub message: Option<String>,
}

impl Acquired {
    pub(super) fn granted(permit: &IssuedPermit, wall: Wall) -> Acquired {
        let rates = permit.rates.each(wall);
        let tightest = rates.min_by_key(|rate| rate.state.map_or(u64::MAX, |left| left.remaining));
        Acquired {
            is_granted: true,
            permit: Some(permit.id.clone()),
            waited: permit.waited,
            was_queued: permit.was_queued,
            remaining: tightest.and_then(|rate| Some(rate.state?.remaining)),
            reset_in: tightest.and_then(|rate| rate.state?.reset_after),
            limit: tightest
                .as_ref()
                .map(|rate: &Rate<'_>| LimitSummary::of_rate(rate)),
            use_within: Some(permit.use_within),
            ..Acquired::default()
        }
    }

    pub(super) fn of_guards(verdict: GuardVerdict) -> Acquired {
        let was_queued = verdict.was_queued;
        let Some(denied) = &verdict.denied else {
            let least = verdict.views.iter().min_by_key(|view| view.remaining);
            return Acquired {
                is_granted: true,
                waited: verdict.waited,
                was_queued,
                limit: least.map(|view: &GuardView| LimitSummary::of_guard(&view.class)),
                guard: least.map(|view| view.class.name().to_owned()),
                remaining: least.map(|view| view.remaining),
                guards: Some(verdict),
                ..Acquired::default()
            };
        };
        let seen = verdict.views.get(denied.at);
        Acquired {
            waited: verdict.waited,
            retry_in: denied.retry_in,
            limit: Some(LimitSummary::of_guard(&denied.class)),
            remaining: seen.map(|view| view.remaining),
            reason: Some(denied.reason()),
            message: Some(denied.message().to_owned()),
            hint: Some(denied.hint()),
            guard: Some(denied.class.name().to_owned()),
            id: denied.id.clone(),
            guards: Some(verdict),
            ..Acquired::default()
        }
    }
}

impl ReportReply {
    pub(super) fn new(learned: Learned, is_first: bool) -> ReportReply {
        ReportReply {
            is_first,
            class: match learned.class {
                Class::Success => "success",
                Class::Limited => "limited",
                Class::ServerError => "server_error",
                Class::Network => "network",
                Class::Other => "other",
            },
            retry_in: learned.retry_after,
        }
    }
}

impl CapacityReply {
    pub(super) fn new(
        registry: &ProviderRegistry,
        found: Capacity,
    ) -> Result<CapacityReply, DecisionError> {
        let mut reply = CapacityReply {
            is_available: true,
            retry_in: Some(Span::ZERO),
            remaining: found.remaining,
            state: found.state.as_str(),
            provider: found.provider,
            limit: None,
            reason: None,
            message: None,
        };
        if let Some(error) = found.denied {
            let denial = denial::of(registry, error)?;
            reply.is_available = false;
            reply.retry_in = denial.retry_in;
            reply.limit = denial.limit;
            reply.reason = Some(denial.reason);
            reply.message = Some(denial.message);
        }
        Ok(reply)
    }
}
