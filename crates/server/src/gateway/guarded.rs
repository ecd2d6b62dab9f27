//! Guards in front of providers that are the user's own service (C4).
//!
//! Promises: a provider's guards are asked in the order of its file, all or none, before anything of
//! the call is done; calls that only the cache serves count too. Without guards a call pays for one
//! load.
//!
//! Never: lets a call pass because a guard is missing.

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderMap;
use tollgate::Error;
use tollgate::path::Target;
use tollgate::providers::ActiveProvider;

use super::client_connection::ClientConnection;
use crate::guards::{GuardError, GuardVerdict, GuardedRequest, Guards};

/// The address of the caller, behind trusted proxies.
pub(super) fn client_ip(connection: &ClientConnection, headers: &HeaderMap) -> IpAddr {
    match active(connection) {
        Some(guards) => guards.client_ip(connection.peer, headers),
        None => connection.peer,
    }
}

/// Do guards stand in front of this target?
pub(super) fn is_guarded(connection: &ClientConnection, target: &Target) -> bool {
    active(connection).is_some()
        && provider(connection, target).is_some_and(|provider| !provider.guards().is_empty())
}

/// Asks the guards of the target's provider. The verdict is for the headers of the response.
pub(super) async fn check(
    connection: &ClientConnection,
    target: &Target,
    ip: IpAddr,
    headers: &HeaderMap,
    verdict: &mut Option<GuardVerdict>,
) -> Result<(), Error> {
    let Some(guards) = active(connection) else {
        return Ok(());
    };
    let Some(provider) = provider(connection, target) else {
        return Ok(()); // the path says what is wrong
    };
    let names = provider.guards();
    if names.is_empty() {
        return Ok(());
    }
    let (Target::Provider { path, .. } | Target::Url { path, .. }) = target;
    let request = GuardedRequest {
        guards: Some(&names),
        path,
        // A URL may hold the path of the upstream, which is cut off before the call is sent.
        is_exact: matches!(target, Target::Provider { .. }),
        ip,
        headers,
    };
    let decided = match guards.asks_of(&request) {
        // Boxed: every call's future would otherwise grow by its size.
        Ok(asks) => Box::pin(guards.decide_for_call(&asks)).await,
        Err(error) => Err(error),
    };
    let decided = decided.map_err(|error| misconfigured(&provider, &error))?;
    let denied = decided.denied.clone();
    *verdict = Some(decided);
    match denied {
        None => Ok(()),
        Some(denied) => Err(Error::Guarded {
            provider: provider.name().to_owned(),
            guard: denied.class.name().to_owned(),
            limit: denied.class.limit_name(),
            message: denied.message(),
            retry_in: denied.retry_in,
            is_store_lost: denied.is_store_lost,
        }),
    }
}

/// The guards, if there are any.
fn active(connection: &ClientConnection) -> Option<&Guards> {
    let decisions = connection.state.options.decisions.as_ref()?;
    Some(decisions.guards()).filter(|guards| guards.is_active())
}

fn provider(connection: &ClientConnection, target: &Target) -> Option<Arc<ActiveProvider>> {
    let registry = &connection.state.registry;
    match target {
        Target::Provider { name, .. } => registry.named(name).ok(),
        Target::Url { authority, .. } => registry.find_by_authority(authority),
    }
}

/// A guard was removed while its provider's file still names it.
fn misconfigured(provider: &ActiveProvider, error: &GuardError) -> Error {
    Error::Misconfigured {
        provider: provider.name().to_owned(),
        setting: "guards".to_owned(),
        why: match error {
            GuardError::Unknown { .. } => "it names a guard that tollgate.yaml does not have",
            GuardError::NoIdentifier(_) => "a guard has nothing to count by",
            GuardError::TooMany(_) => "more guards than can be decided as one",
            GuardError::Limit(_) => "a guard has a limit that cannot be counted",
        },
    }
}
