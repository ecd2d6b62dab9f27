//! Time and priority of a call, including all that wait for it.
//!
//! Promises: no caller waits in the queue longer than it would alone.
//!
//! Never: reads the request.

use tollgate_core::ask::Priority;
use tollgate_core::time::{Micros, Span};

use super::route::Route;
use crate::Error;
use crate::error::Stage;
use crate::flights::{CallDemand, SharedDemand};
use crate::timer::{self, Elapsed};

/// How many failed leaders a follower accepts at most, whatever its retries: each of them makes
/// several attempts.
const FAILED_FLIGHTS_MAX: u32 = 3;

impl Route {
    /// How long to wait for anything before the permit. A stale response now is better than a fresh
    /// one later.
    pub(crate) fn patience(&self, queue: Span) -> Span {
        self.patience_until(self.demand().queue_deadline(queue))
    }

    /// Waits until the priority is raised, while another call fetches the response.
    pub(crate) async fn until_raised(&self) {
        match &self.shared_demand {
            Some(shared) => shared.until_raised().await,
            None => std::future::pending().await,
        }
    }

    /// How long to wait for the permit itself.
    pub(crate) fn queue_patience(&self, queue: Span) -> Span {
        self.patience_until(self.queue_deadline(queue))
    }

    /// Until when to wait in the queue: this caller's own time first; once that is up and the
    /// leader has its error, the time of the most patient follower.
    pub(crate) fn queue_deadline(&self, queue: Span) -> Micros {
        match &self.shared_demand {
            Some(shared) if shared.leader_error().is_some() => {
                shared.demand().queue_deadline(queue)
            }
            Some(_) | None => self.own_demand().queue_deadline(queue),
        }
    }

    fn patience_until(&self, until: Micros) -> Span {
        if self.fallback {
            return Span::ZERO;
        }
        until.since(self.provider.ledger.at())
    }
}

/// Waits for the response of another call, but no longer than a call with this demand would have
/// waited alone: its own deadline or, without one, the queue timeout and then as long as it takes.
pub(crate) async fn wait_as_if_alone<T>(
    route: &Route,
    demand: CallDemand,
    shared: &SharedDemand,
    response: impl Future<Output = T>,
) -> Result<T, Error> {
    let too_late = |at| Error::TooLate {
        provider: route.provider.name.clone(),
        at,
    };
    let now = route.provider.ledger.at();
    if let Some(until) = demand.overall_deadline() {
        let response = timer::within(Some(until.since(now)), response).await;
        return response.map_err(|Elapsed| too_late(Stage::Upstream));
    }
    let until = demand.queue_deadline(route.provider.policy().provider.queue.timeout);
    let stood_too_long = async {
        timer::sleep(Some(until.since(now))).await;
        shared.until_queued().await;
    };
    tokio::select! {
        biased;
        response = response => Ok(response),
        () = stood_too_long => Err(too_late(Stage::Waiting)),
    }
}

/// How many failed leaders a call accepts: as many as it has retries.
pub(crate) fn failed_flights_max(route: &Route) -> u32 {
    let retries = route.provider.policy().retry.retries;
    let most = match route.options.priority {
        Priority::High => retries.high,
        Priority::Normal => retries.normal,
        Priority::Low => retries.low,
    };
    most.min(FAILED_FLIGHTS_MAX)
}
