//! Settings whose values cannot be sent: keys, companions, headers, logins.
//!
//! `check` rejects most of them in a provider file; a program that builds its providers itself has
//! no such check.
//!
//! Promises: such a call is rejected as `Misconfigured` before it connects or costs a permit, and
//! the error names the provider and the setting. A caller is never blamed for it.
//!
//! Never: puts a value into an error.

use http::header::{HeaderMap, HeaderName};
use tollgate_config::Provider;
use tollgate_config::provider::AuthStyle;

use super::account::LoginMethod;
use super::credential::{Credential, CredentialSource};
use super::route::Route;
use super::send::{self, AttachError, HeaderFault};
use crate::Error;
use crate::error::NoToken;
use crate::providers::CompiledPolicy;

/// A setting whose value cannot be sent.
#[derive(Clone, Debug)]
pub(crate) struct Unsendable {
    applies_to: AppliesTo,
    setting: String,
    why: &'static str,
}

/// The calls that would send the value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AppliesTo {
    /// Calls with this key of the pool.
    Key(usize),
    /// Calls that do not send this header themselves.
    Header(String),
}

/// All of a provider; empty for every file that `check` accepts.
pub(crate) fn unsendable_settings(provider: &Provider) -> Vec<Unsendable> {
    let keys = provider.keys.iter().enumerate().filter_map(|(index, key)| {
        let (mut headers, mut query) = (HeaderMap::new(), None);
        let error = send::attach_all(&provider.auth, Some(key), &mut headers, &mut query).err()?;
        Some(Unsendable {
            applies_to: AppliesTo::Key(index),
            setting: attach_setting(provider, index, &error),
            why: error.fault.words(),
        })
    });
    let headers = provider.headers.iter().filter_map(|(name, value)| {
        let name_fault = HeaderName::try_from(name).err().map(|_| HeaderFault::Name);
        let value_fault = || send::secret_value("", value.expose()).err();
        Some(Unsendable {
            applies_to: AppliesTo::Header(name.clone()),
            setting: format!("headers.{name}"),
            why: name_fault.or_else(value_fault)?.words(),
        })
    });
    keys.chain(headers).collect()
}

/// Rejects a call that would need a header that cannot be sent.
pub(super) fn check_headers(route: &Route, policy: &CompiledPolicy) -> Result<(), Error> {
    check(policy, |applies_to| match applies_to {
        AppliesTo::Header(name) => {
            (route.is_own_origin || send::is_keyless_header(name))
                && !route.headers.contains_key(name)
        }
        AppliesTo::Key(_) => false,
    })
}

/// Rejects a call that would need a key that cannot be sent.
pub(super) fn check_key(policy: &CompiledPolicy, index: usize) -> Result<(), Error> {
    check(policy, |applies_to| *applies_to == AppliesTo::Key(index))
}

fn check(policy: &CompiledPolicy, applies: impl Fn(&AppliesTo) -> bool) -> Result<(), Error> {
    let mut found = policy.unsendable.iter();
    match found.find(|found| applies(&found.applies_to)) {
        Some(found) => Err(misconfigured(policy, found.setting.clone(), found.why)),
        None => Ok(()),
    }
}

/// A key could not be attached.
pub(super) fn key_error(policy: &CompiledPolicy, index: usize, error: &AttachError) -> Error {
    let setting = attach_setting(&policy.provider, index, error);
    misconfigured(policy, setting, error.fault.words())
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
    let own = route.path.len() + route.query.as_ref().map_or(0, String::len);
    match (&used.source, &policy.provider.auth.style) {
        // Half of what a target may have, so the key has the larger part.
        (CredentialSource::Key(index), AuthStyle::Query { .. }) if own < TARGET_MAX / 2 => {
            let setting = key_setting(&policy.provider, *index);
            misconfigured(policy, setting, "it is too long for a query")
        }
        _caller => Error::Malformed("the path and query are not a valid request target"),
    }
}

/// A provider with tokens has no account to fetch them with.
pub(super) fn account_missing(policy: &CompiledPolicy) -> Error {
    let why = "the login needs it, and it is missing";
    misconfigured(policy, "api_key".to_owned(), why)
}

/// The request of a login cannot be built.
pub(super) fn login_error(provider: &str, method: &LoginMethod) -> Error {
    let setting = match method {
        LoginMethod::Login(_) => "auth.login.url",
        LoginMethod::OAuth2(_) => "auth.oauth2.token_url",
    };
    Error::Misconfigured {
        provider: provider.to_owned(),
        setting: setting.to_owned(),
        why: "it is not a valid request target",
    }
}

/// The longest request target that the `http` crate builds.
const TARGET_MAX: usize = u16::MAX as usize - 1;

fn misconfigured(policy: &CompiledPolicy, setting: String, why: &'static str) -> Error {
    Error::Misconfigured {
        provider: policy.provider.name.clone(),
        setting,
        why,
    }
}

/// The setting to fix, as the provider file spells it.
fn attach_setting(provider: &Provider, index: usize, error: &AttachError) -> String {
    match (&error.companion, error.fault) {
        (Some(name), _) => format!("auth.also.{name}"),
        (None, HeaderFault::Name) => "auth.header".to_owned(),
        (None, HeaderFault::Value) => key_setting(provider, index),
    }
}

/// A key's setting as the provider file spells it.
fn key_setting(provider: &Provider, index: usize) -> String {
    if provider.keys.len() > 1 {
        format!("api_keys[{index}]")
    } else {
        "api_key".to_owned()
    }
}

impl HeaderFault {
    fn words(self) -> &'static str {
        match self {
            HeaderFault::Name => "no header can have this name",
            HeaderFault::Value => "it contains a character that a header cannot hold",
        }
    }
}
