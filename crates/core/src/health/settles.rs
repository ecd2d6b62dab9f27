//! The actions of the health machine as settles for the ledger.
//!
//! Promises: what concerns other processes becomes a settle; what concerns this process alone does not.
//!
//! Never: decides.

use super::Action;
use crate::ask::{Reopen, ScopeId, Settle};
use crate::time::Span;

impl Action {
    /// The settle for the ledger; `None` for an action that concerns this process alone.
    #[must_use]
    pub fn settle(self, scope: ScopeId) -> Option<Settle> {
        match self {
            Action::Close {
                age,
                closed_for,
                reopen,
            } => Some(Settle::Close {
                scope,
                age,
                closed_for,
                reopen,
            }),
            Action::Open => Some(Settle::Open { scope }),
            Action::Failed {
                in_a_row,
                closed_for,
                path,
            } => Some(Settle::Failed {
                scope,
                age: Span::ZERO,
                in_a_row,
                closed_for,
                path,
            }),
            Action::PathFailed {
                path,
                in_a_row,
                closed_for,
            } => Some(Settle::Failed {
                scope: path.scope(scope),
                age: Span::ZERO,
                in_a_row,
                closed_for,
                path: None,
            }),
            Action::ClosePath { path, closed_for } => Some(Settle::Close {
                scope: path.scope(scope),
                age: Span::ZERO,
                closed_for: Some(closed_for),
                reopen: Reopen::Probe,
            }),
            Action::OpenPath { path } => Some(Settle::Open {
                scope: path.scope(scope),
            }),
            Action::Succeeded => Some(Settle::Succeeded { scope }),
            Action::Pace(_) | Action::Transition { .. } => None,
        }
    }
}
