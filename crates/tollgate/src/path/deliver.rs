//! A POST of our own to an address that the operator named: alerts to webhooks.
//!
//! It takes the stages of an attempt, without limits, cache and credentials.
//!
//! Promises: sends to that address only, also if it is private; follows no redirect, and sends once.
//!
//! Never: counts as a call of a caller.

use bytes::Bytes;
use http::HeaderMap;
use tollgate_config::provider::Upstream;
use tollgate_core::health::Fault;

use super::login;
use super::response::{AttemptError, discard};
use super::retry::{FREE_RETRIES_MAX, RetryState};
use super::route::Route;
use crate::Error;
use crate::credentials::{Credential, CredentialSource};
use crate::providers::ProviderRegistry;

/// Posts a body. Returns the status of the response.
pub async fn post(
    registry: &ProviderRegistry,
    to: &Upstream,
    headers: HeaderMap,
    body: Bytes,
) -> Result<u16, Error> {
    let provider = registry.own_calls();
    let no_response = |fault| Error::NoResponse {
        provider: to.host.to_string(),
        fault,
    };
    let mut route = Route::post(provider, to, headers, body);
    route.subject.id = "webhook".into();
    let credential = Credential {
        source: CredentialSource::Client,
        fingerprint: None,
    };
    let mut retries = RetryState::default();
    for _ in 0..FREE_RETRIES_MAX {
        match login::attempt(&mut route, &credential, &mut retries).await {
            Ok(response) => {
                let status = response.head.status.as_u16();
                discard(response).await;
                return Ok(status);
            }
            Err(AttemptError::Again | AttemptError::OtherKey) => {}
            Err(AttemptError::Fault { fault, .. }) => return Err(no_response(fault)),
            Err(AttemptError::Stop(error)) => return Err(error),
        }
    }
    Err(no_response(Fault::Reset))
}
