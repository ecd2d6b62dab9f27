//! A limit as decisions name it.
//!
//! Promises: the name is the one of every error; a period is written as in a file (`1m30s`).
//!
//! Never: counts.

use tollgate::path::Rate;
use tollgate::period::period_text;
use tollgate::providers::LimitStatus;
use tollgate_core::time::Span;

use crate::guards::{GuardClass, GuardStatus};

/// One limit, as a decision names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSummary {
    /// Its name in every error: `1000/1d`.
    pub name: String,
    /// N; `None` for a limit of this process or a caller's share.
    pub limit: Option<u64>,
    /// The period; `None` for concurrency.
    pub period: Option<Span>,
    /// What it counts per: `provider`, `entity`, `api_key`, …, `guard`.
    pub scope: &'static str,
}

impl LimitSummary {
    pub(super) fn of_rate(rate: &Rate<'_>) -> LimitSummary {
        LimitSummary {
            name: rate.name.to_owned(),
            limit: Some(rate.limit),
            period: rate.period,
            scope: rate.per.word(),
        }
    }

    /// A limit of the provider file, or one that this process adds: a caller's share, a throttle.
    pub(super) fn of_status(name: &str, known: Option<&LimitStatus>) -> LimitSummary {
        LimitSummary {
            name: name.to_owned(),
            limit: known.map(|known| known.limit),
            period: known
                .map(|known| known.period)
                .filter(|period| *period > Span::ZERO),
            scope: match known {
                Some(known) => known.per.word(),
                None if name.ends_with("(the caller's share)") => "caller",
                None => "process",
            },
        }
    }

    /// The limit of a guard, of which the tokens of one key are known.
    pub(crate) fn of_guard_status(status: &GuardStatus) -> LimitSummary {
        LimitSummary {
            name: format!("{}/{}", status.limit, period_text(status.period)),
            limit: Some(status.limit.into()),
            period: Some(status.period),
            scope: "guard",
        }
    }

    pub(super) fn of_guard(guard: &GuardClass) -> LimitSummary {
        LimitSummary {
            name: guard.limit_name(),
            limit: Some(guard.limit().into()),
            period: Some(guard.period()),
            scope: "guard",
        }
    }
}
