//! A permit in the hands of a program that sends the call itself.
//!
//! Promises: reported, released or dropped, it is settled exactly once. Dropped without a report, it
//! counts as sent.
//!
//! Never: sends anything.

use std::time::Duration;

use tollgate_core::health::{Class, Fault};
use tollgate_core::time::Span;

use super::call::checked_cost;
use super::observed::{Observation, Observed};
use crate::Error;
use crate::decide::{AcquiredPermit, Learned};
use crate::path::Rates;

/// The right to make one call. Send the call within [`CallPermit::use_within`] (30 s), then report what
/// came back.
///
/// ```
/// use tollgate::{Provider, Tollgate};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shop = Provider::new("shop").limit_with("2/1h");
/// let tollgate = Tollgate::builder().provider(shop)?.build().await?;
/// let permit = tollgate.acquire("shop").await?;
/// let limited = http::Response::builder().status(429).header("retry-after", "5").body(())?;
/// permit.report(&limited); // the next call waits for five seconds
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a permit that is dropped counts as sent; `release` gives it back"]
pub struct CallPermit {
    /// Until it is settled.
    acquired: Option<AcquiredPermit>,
    costs: Vec<(String, u64)>,
}

impl CallPermit {
    pub(super) fn new(acquired: AcquiredPermit) -> CallPermit {
        CallPermit {
            acquired: Some(acquired),
            costs: Vec::new(),
        }
    }

    /// The provider that it is for.
    #[must_use]
    pub fn provider(&self) -> &str {
        self.acquired.as_ref().map_or("", AcquiredPermit::provider)
    }

    /// How long after its grant the call may be sent.
    #[must_use]
    pub fn use_within(&self) -> Duration {
        let within = self.acquired.as_ref().map(AcquiredPermit::use_within);
        within.unwrap_or_default().into()
    }

    /// How long the call may still be sent from now on; zero = `release` it and acquire again.
    #[must_use]
    pub fn expires_in(&self) -> Duration {
        let age = |acquired: &AcquiredPermit| acquired.granted_ago();
        let age: Duration = self
            .acquired
            .as_ref()
            .and_then(age)
            .unwrap_or_default()
            .into();
        self.use_within().saturating_sub(age)
    }

    /// How long it waited.
    #[must_use]
    pub fn waited(&self) -> Duration {
        let waited = self.acquired.as_ref().map(AcquiredPermit::waited);
        waited.unwrap_or_default().into()
    }

    /// What remained of each limit.
    #[must_use]
    pub fn rates(&self) -> Option<&Rates> {
        self.acquired.as_ref().map(AcquiredPermit::rates)
    }

    /// What the call has really cost, by unit, where it was estimated before. For the report.
    ///
    /// # Errors
    /// The unit is not known, or the amount is larger than 2^53. The permit is as it was.
    pub fn set_cost(&mut self, unit: &str, amount: u64) -> Result<(), Error> {
        let (unit, amount) = checked_cost(unit, amount).map_err(Error::Malformed)?;
        self.costs.retain(|(named, _)| named != unit);
        self.costs.push((unit.to_owned(), amount));
        Ok(())
    }

    /// Reports what came back: a response or an error of reqwest, of `http`, or of any type that is
    /// [`Observed`]. A call whose connection failed gives the permit back.
    pub fn report(mut self, result: &impl Observed) -> Learned {
        self.settle(result.observed(), &[])
    }

    /// The same with the beginning of the body, for providers that report limits in it.
    pub fn report_with_body(mut self, result: &impl Observed, body: &[u8]) -> Learned {
        self.settle(result.observed(), body)
    }

    /// The permit was not used: others may have it.
    pub fn release(mut self) {
        // Dropped before anything was sent, it is returned.
        drop(self.acquired.take());
    }

    /// The call takes longer: the permit is held for this much longer.
    pub fn keep_alive(&mut self, by: Duration) {
        if let Some(acquired) = &mut self.acquired {
            acquired.keep_alive(Span::from(by));
        }
    }

    fn settle(&mut self, observation: Observation<'_>, body: &[u8]) -> Learned {
        let failed = |fault: Fault| Learned {
            class: Class::of_fault(fault),
            retry_after: None,
        };
        let Some(mut acquired) = self.acquired.take() else {
            return failed(Fault::Reset); // `report` takes it by value, so it is here
        };
        match observation {
            Observation::Response { status, headers } => {
                acquired.count_as_sent();
                acquired.report(status, headers, body, &self.costs)
            }
            Observation::Unsent(fault) => {
                acquired.unreached(fault);
                failed(fault)
            }
            // Dropped before anything was sent, it is returned.
            Observation::NotSent => Learned {
                class: Class::Other,
                retry_after: None,
            },
            Observation::Failed(fault) => {
                acquired.count_as_sent();
                acquired.failed(fault);
                failed(fault)
            }
        }
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        if let Some(mut acquired) = self.acquired.take() {
            acquired.lapse();
        }
    }
}
