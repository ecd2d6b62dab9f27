//! Work on the desk for the admin address, and its errors.
//!
//! Promises: an error says what failed, in the reply and in the log; a full desk says what to remove.
//!
//! Never: blocks an async thread.

use axum::http::StatusCode;
use tollgate::event::Event;

use super::commands::run_blocking;
use super::routes::ApiState;
use crate::api::ApiError;
use crate::daemon::Daemon;
use crate::desk::{Desk, DeskError};

/// Runs work on the desk on a blocking thread.
pub(super) async fn on_desk<T: Send + 'static>(
    api: &ApiState,
    work: impl FnOnce(&Desk, &Daemon) -> Result<T, DeskError> + Send + 'static,
) -> Result<T, ApiError> {
    let work = move |daemon: &Daemon| work(&*daemon.desk()?, daemon);
    let done = run_blocking(api.daemon.clone(), work).await;
    let done = done.map_err(|_| ApiError::draining())?;
    done.map_err(|error| failed(&api.daemon, &error))
}

fn failed(daemon: &Daemon, error: &DeskError) -> ApiError {
    if let DeskError::Full(message) = error {
        let hint = "it is accepted as soon as there is room";
        return ApiError::mistake(StatusCode::CONFLICT, "DeskFull", message, hint);
    }
    let message = error.in_words();
    daemon.registry().events().emit(Event::DeskFailed {
        why: message.as_str().into(),
    });
    let hint = "check the state folder and its disk, then try again";
    let status = StatusCode::SERVICE_UNAVAILABLE;
    ApiError::mistake(status, "DeskUnavailable", &message, hint)
}
