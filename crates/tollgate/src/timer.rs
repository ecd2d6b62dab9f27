//! Timers for the stages of the path.
//!
//! Promises: time passes by tokio's clock, so that tests can pause it.
//!
//! Never: waits for anything but time; nothing here is polled.

use std::future::Future;

use tollgate_core::time::Span;

/// The time of the call, or of a stage, was up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elapsed;

/// Sleeps for this long; `None` = for ever.
#[expect(clippy::disallowed_methods, reason = "a timer of a stage")]
pub(crate) async fn sleep(pause: Option<Span>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits for a future, but no longer than this; `None` = as long as it takes.
pub(crate) async fn within<T>(
    most: Option<Span>,
    what: impl Future<Output = T>,
) -> Result<T, Elapsed> {
    match most {
        Some(most) => tokio::time::timeout(most.into(), what)
            .await
            .map_err(|_| Elapsed),
        None => Ok(what.await),
    }
}
