//! `grpc.health.v1.Health`: `Check` and `Watch`.
//!
//! Promises: serving as long as decisions are made: not while the daemon shuts down, and not while the
//! store is lost and calls are rejected for it. `Watch` says at once how it is, and when the shutdown begins.
//!
//! Never: needs a token, like `/health`.

use bytes::Bytes;

use super::body::GrpcBody;
use super::messages::{ServingStatus, health_service};
use super::rate_limit::SERVICE;
use super::status::{GrpcCode, GrpcStatus};
use crate::accept_loop::ShutdownSignal;
use crate::daemon::Daemon;

const OWN_SERVICE: &str = "grpc.health.v1.Health";

pub(super) fn check(daemon: &Daemon, message: &[u8]) -> Result<GrpcBody, GrpcStatus> {
    match status(daemon, message)? {
        ServingStatus::Unknown => Err(GrpcStatus::new(
            GrpcCode::NotFound,
            format!("there is no such service; ask for `{SERVICE}`, or leave the name empty"),
        )),
        known @ (ServingStatus::Serving | ServingStatus::NotServing) => {
            Ok(GrpcBody::of(known.into_frame()))
        }
    }
}

pub(super) fn watch(
    daemon: &Daemon,
    message: &[u8],
    mut shutdown: ShutdownSignal,
) -> Result<GrpcBody, GrpcStatus> {
    let now = status(daemon, message)?;
    let last = async move {
        shutdown.requested().await;
        Bytes::from(ServingStatus::NotServing.into_frame())
    };
    Ok(GrpcBody::stream(now.into_frame(), Box::pin(last)))
}

fn status(daemon: &Daemon, message: &[u8]) -> Result<ServingStatus, GrpcStatus> {
    let is_closed = || daemon.is_draining() || daemon.registry().closed_reason().is_some();
    Ok(match health_service(message)? {
        "" | SERVICE | OWN_SERVICE if is_closed() => ServingStatus::NotServing,
        "" | SERVICE | OWN_SERVICE => ServingStatus::Serving,
        _ => ServingStatus::Unknown,
    })
}
