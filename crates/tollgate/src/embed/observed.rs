//! What a client brought back, in the form that a permit is reported with.
//!
//! Promises: says of a failure whether bytes may have left; where that is not known, they may have.
//!
//! Never: reads a body.

#[cfg(feature = "tower")]
use std::error::Error as StdError;
use std::io;

use http::{HeaderMap, Response};
use tollgate_core::health::Fault;

/// What a client brought back.
#[derive(Clone, Copy, Debug)]
pub enum Observation<'a> {
    /// A response.
    Response {
        /// Its status.
        status: u16,
        /// Its headers, which may report limits.
        headers: &'a HeaderMap,
    },
    /// No connection: no byte has left.
    Unsent(Fault),
    /// No response, and bytes may have left.
    Failed(Fault),
    /// The client did not send the request, and the provider has no part in it: the request or a
    /// setting of the client rules it out.
    NotSent,
}

/// Responses and errors of HTTP clients.
pub trait Observed {
    /// What it was.
    fn observed(&self) -> Observation<'_>;
}

impl<B> Observed for Response<B> {
    fn observed(&self) -> Observation<'_> {
        Observation::Response {
            status: self.status().as_u16(),
            headers: self.headers(),
        }
    }
}

impl Observed for io::Error {
    fn observed(&self) -> Observation<'_> {
        match self.kind() {
            io::ErrorKind::ConnectionRefused => Observation::Unsent(Fault::Connect),
            io::ErrorKind::TimedOut => Observation::Failed(Fault::Timeout),
            _ => Observation::Failed(Fault::Reset),
        }
    }
}

impl<R: Observed, E: Observed> Observed for Result<R, E> {
    fn observed(&self) -> Observation<'_> {
        match self {
            Ok(response) => response.observed(),
            Err(error) => error.observed(),
        }
    }
}

#[cfg(feature = "reqwest")]
impl Observed for ::reqwest::Response {
    fn observed(&self) -> Observation<'_> {
        Observation::Response {
            status: self.status().as_u16(),
            headers: self.headers(),
        }
    }
}

#[cfg(feature = "reqwest")]
impl Observed for ::reqwest::Error {
    fn observed(&self) -> Observation<'_> {
        if self.is_builder() {
            Observation::NotSent
        } else if self.is_connect() {
            Observation::Unsent(Fault::Connect)
        } else if self.is_timeout() {
            Observation::Failed(Fault::Timeout)
        } else {
            Observation::Failed(Fault::Reset)
        }
    }
}

#[cfg(feature = "tower")]
/// The most causes of an error that are searched; real chains have fewer than ten.
const CAUSES_MAX: usize = 32;

#[cfg(feature = "tower")]
/// An error and its causes, outermost first.
pub(crate) fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let mut next = Some(error);
    let cause = std::iter::from_fn(move || {
        let this = next?;
        next = this.source();
        Some(this)
    });
    cause.take(CAUSES_MAX)
}

#[cfg(feature = "tower")]
/// An error of any client: as its causes say, as far as they are errors of the operating system.
pub(crate) fn observed_in_causes(error: &(dyn StdError + 'static)) -> Observation<'static> {
    let mut causes = causes(error);
    let system = causes.find_map(|cause| cause.downcast_ref::<io::Error>());
    match system.map(Observed::observed) {
        Some(Observation::Unsent(fault)) => Observation::Unsent(fault),
        Some(Observation::Failed(fault)) => Observation::Failed(fault),
        Some(Observation::Response { .. } | Observation::NotSent) | None => {
            Observation::Failed(Fault::Reset)
        }
    }
}
