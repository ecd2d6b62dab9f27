//! What is said about permits that other processes hold: the grant, the report, and what they led to.
//!
//! Promises: plain data.
//!
//! Never: decides.

use std::sync::Arc;

use http::HeaderMap;
use tollgate_core::health::{Class, Fault};
use tollgate_core::time::Span;

use super::decide::Learned;
use super::rates::Rates;

/// A permit for another process.
#[derive(Clone, Debug)]
pub struct IssuedPermit {
    /// By which it is reported.
    pub id: Arc<str>,
    /// How long it waited.
    pub waited: Span,
    /// It had to wait for a limit, a scope or a time.
    pub was_queued: bool,
    /// What remained of each limit.
    pub rates: Rates,
    /// How long after now the call may reach the provider.
    pub use_within: Span,
}

/// What became of a call.
#[derive(Clone, Copy, Debug)]
pub enum Report<'a> {
    /// A response.
    Response {
        /// Its status.
        status: u16,
        /// Its headers.
        headers: &'a HeaderMap,
        /// The beginning of its body, where the provider reports limits in it; may be empty.
        body: &'a [u8],
        /// The real costs, by unit, where they were estimated before.
        costs: &'a [(String, u64)],
    },
    /// No response.
    Failed(Fault),
}

/// What a report has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// It counts.
    Now(Learned),
    /// It was reported before, with this result; nothing has changed.
    Before(Learned),
    /// It was released before; nothing has changed.
    Released,
    /// There is no such permit: it expired and counts as sent, or it never was.
    Unknown,
}

/// The permits of one provider that other processes hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProviderPermits {
    /// Handed out, and neither reported nor released.
    pub open: usize,
    /// Expired since the start without a report: they counted as sent.
    pub unreported: u64,
}

/// What a release has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The permit is free for others.
    Now,
    /// It was released before.
    Before,
    /// It was reported as used.
    Used,
    /// There is no such permit: it expired and counts as sent, or it never was.
    Unknown,
}

impl Report<'_> {
    pub(super) fn class(&self) -> Class {
        match self {
            Report::Response { status, .. } => Class::of_status(*status, None),
            Report::Failed(fault) => Class::of_fault(*fault),
        }
    }
}
