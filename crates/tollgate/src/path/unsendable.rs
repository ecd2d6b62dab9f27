//! Rejects calls that would need a setting whose value cannot be sent.
//!
//! Promises: such a call is rejected as `Misconfigured` before it connects or costs a permit, and
//! the error names the provider and the setting. A caller is never blamed for it.
//!
//! Never: puts a value into an error.

use tollgate_config::provider::AuthStyle;

use super::route::Route;
use crate::Error;
use crate::credentials::{
    AttachError, Credential, CredentialSource, UnsendableIn, attach_setting, key_setting,
};
use crate::error::NoToken;
use crate::headers::is_keyless_header;
use crate::providers::CompiledPolicy;

/// The longest request target that the `http` crate builds.
const TARGET_MAX: usize = u16::MAX as usize - 1;

/// Rejects a call that would need a header that cannot be sent.
pub(super) fn check_headers(route: &Route, policy: &CompiledPolicy) -> Result<(), Error> {
    check(policy, |sender| match sender {
        UnsendableIn::Header(name) => {
            (route.request.is_own_origin || is_keyless_header(name))
                && !route.request.headers.contains_key(name)
        }
        UnsendableIn::Key(_) => false,
    })
}

/// Rejects a call that would need a key that cannot be sent.
pub(super) fn check_key(policy: &CompiledPolicy, index: usize) -> Result<(), Error> {
    check(policy, |sender| *sender == UnsendableIn::Key(index))
}

fn check(policy: &CompiledPolicy, applies: impl Fn(&UnsendableIn) -> bool) -> Result<(), Error> {
    let mut found = policy.unsendable.iter();
    match found.find(|found| applies(&found.sender)) {
        Some(found) => Err(misconfigured(policy, found.setting.clone(), found.why)),
        None => Ok(()),
    }
}

/// A key could not be attached.
pub(super) fn key_error(policy: &CompiledPolicy, index: usize, error: &AttachError) -> Error {
    let (setting, why) = attach_setting(&policy.provider, index, error);
    misconfigured(policy, setting, why)
}

/// The provider's login returned a token that no header can hold.
pub(super) fn token_error(policy: &CompiledPolicy) -> Error {
    Error::NoCredential {
        provider: policy.provider.name.clone(),
        why: NoToken::Missing,
        retry_in: None,
    }
}

/// Path and query are no request target: with the key they may be too long.
pub(super) fn target_error(route: &Route, policy: &CompiledPolicy, used: &Credential) -> Error {
    let own = route.request.path.len() + route.request.query.as_ref().map_or(0, String::len);
    match (&used.source, &policy.provider.auth.style) {
        // Half of what a target may have, so the key has the larger part.
        (CredentialSource::Key(index), AuthStyle::Query { .. }) if own < TARGET_MAX / 2 => {
            let setting = key_setting(&policy.provider, *index);
            misconfigured(policy, setting, "it is too long for a query")
        }
        _caller => Error::Malformed("the path and query are not a valid request target"),
    }
}

/// Rejects a call that needs a token and has none: the provider has no account to fetch one with, and its caller sends
/// none of its own. A caller that logs in itself is let through.
pub(super) fn check_account(route: &Route, policy: &CompiledPolicy) -> Result<(), Error> {
    let request = &route.request;
    // Where keys are withheld, no origin is the provider's own.
    let AuthStyle::Login(login) = &policy.provider.auth.style else {
        return Ok(());
    };
    let login = &*login.url.base;
    let is_login = !login.is_empty() && request.path.ends_with(login);
    let is_needed = policy.accounts.is_empty() && request.is_own_origin && !is_login;
    match is_needed && request.client_credential(policy).is_none() {
        true => Err(account_missing(policy)),
        false => Ok(()),
    }
}

/// A provider with tokens has no account to fetch them with.
pub(super) fn account_missing(policy: &CompiledPolicy) -> Error {
    let why = "the login needs it, and it is missing";
    misconfigured(policy, "api_key".to_owned(), why)
}

fn misconfigured(policy: &CompiledPolicy, setting: String, why: &'static str) -> Error {
    Error::Misconfigured {
        provider: policy.provider.name.clone(),
        setting,
        why,
    }
}
