//! The requests to the decision service.
//!
//! Promises: plain, parsed and bounded; an endpoint rejects everything else first.
//!
//! Never: knows the protocol that it came by.

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderMap;
use tollgate::path::Target;
use tollgate_config::Secret;
use tollgate_core::ask::Priority;
use tollgate_core::time::Span;

use super::reply::ReportedOutcome;

/// One permit, or tokens of guards.
#[derive(Clone, Debug)]
pub struct AcquireRequest {
    /// What is asked for.
    pub of: AcquireKind,
    /// Whether to wait; otherwise the reply is immediate.
    pub wait: bool,
    /// How long; `None` = the provider's `queue.timeout`, for guards 60 s.
    pub timeout: Option<Span>,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub enum AcquireKind {
    /// A permit for a call.
    Call(CallRequest),
    /// Tokens of guards, all or none.
    Guards(Vec<GuardRequest>),
}

/// A call that the caller makes itself.
#[derive(Clone, Debug)]
pub struct CallRequest {
    /// Its id in logs.
    pub id: Arc<str>,
    /// The provider, or the URL that is called.
    pub target: Target,
    /// The entity, if the path does not determine it.
    pub entity: Option<String>,
    /// `None` = the caller's own.
    pub priority: Option<Priority>,
    /// What it costs, by unit; empty = one call.
    pub costs: Vec<(String, u64)>,
    /// Who calls.
    pub caller: Option<String>,
    /// The token that proves it.
    pub token: Option<Secret>,
    /// The operator asks: in the name of any caller, with any priority.
    pub is_operator: bool,
    /// The address of who asks.
    pub ip: Option<IpAddr>,
}

/// Tokens of one guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardRequest {
    /// Its name.
    pub guard: String,
    /// For whom; a global guard needs none.
    pub identifier: Option<String>,
    /// How many tokens.
    pub cost: u64,
}

/// What became of the call of a permit.
#[derive(Clone, Debug)]
pub struct ReportRequest {
    /// The permit.
    pub permit: String,
    /// What came back.
    pub outcome: ReportedOutcome,
    /// The real costs by unit, where they were estimated.
    pub costs: Vec<(String, u64)>,
    /// How long the response took; `None` = since the grant.
    pub latency: Option<Span>,
}

impl ReportRequest {
    /// A response with nothing but its status.
    #[must_use]
    pub fn status(permit: &str, status: u16) -> ReportRequest {
        ReportRequest {
            permit: permit.to_owned(),
            outcome: ReportedOutcome::Response {
                status,
                headers: HeaderMap::new(),
                body: Vec::new(),
            },
            costs: Vec::new(),
            latency: None,
        }
    }
}
