//! The flight stage: is the same question already on its way?
//!
//! Promises: a call that cannot be shared costs nothing here.
//!
//! Never: shares anything yet. Every call goes alone.

use super::Outcome;
use super::route::Route;

/// Everything that is on its way.
#[derive(Debug, Default)]
pub(crate) struct Flights {}

/// A call's place in a flight.
#[derive(Debug)]
pub(crate) enum Place {
    /// It goes alone.
    Alone,
    /// It asks for everybody.
    #[expect(dead_code, reason = "nothing is shared yet")]
    First(Lead),
    /// Somebody has asked already.
    #[expect(dead_code, reason = "nothing is shared yet")]
    Behind(Follow),
}

/// The right to ask for everybody.
#[derive(Debug)]
pub(crate) struct Lead;

/// A flight to wait for.
#[derive(Debug)]
pub(crate) struct Follow;

/// Finds a call's place.
pub(crate) fn join(_flights: &Flights, _route: &mut Route) -> Place {
    Place::Alone
}

impl Lead {
    /// Makes the call for everybody.
    pub(crate) async fn lead(
        self,
        call: impl Future<Output = Outcome> + Send + 'static,
    ) -> Outcome {
        call.await
    }
}

impl Follow {
    /// The answer, unless it may not be shared or there is none.
    #[expect(clippy::unused_async, reason = "nothing is shared yet")]
    pub(crate) async fn follow(&self, _route: &Route) -> Option<Outcome> {
        None
    }
}
