//! Calls that a provider rejected because of what they asked for.
//!
//! Promises: nothing of a request but its id.
//!
//! Never: counts a limit, or a failure of the provider.

use std::sync::Arc;

/// Responses 400 to 499 that are no limit; at most one a second for each provider.
#[derive(Clone, Debug)]
pub struct ClientErrors {
    /// The last of these calls.
    pub id: Arc<str>,
    /// Whose.
    pub provider: Arc<str>,
    /// The status of the last.
    pub status: u16,
    /// How many since the last event.
    pub count: u64,
}
