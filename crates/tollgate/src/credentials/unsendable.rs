//! Settings whose values cannot be sent: keys, companions, headers, logins.
//!
//! `check` rejects most of them in a provider file; a program that builds its providers itself has
//! no such check.
//!
//! Promises: names the setting as the provider file spells it.
//!
//! Never: puts a value into an error.

use http::header::{HeaderMap, HeaderName};
use tollgate_config::Provider;

use super::account::LoginMethod;
use super::attach::{AttachError, HeaderFault, attach_all, secret_value};
use crate::Error;

/// A setting whose value cannot be sent.
#[derive(Clone, Debug)]
pub(crate) struct Unsendable {
    pub(crate) sender: UnsendableIn,
    pub(crate) setting: String,
    pub(crate) why: &'static str,
}

/// The calls that would send the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnsendableIn {
    /// Calls with this key of the pool.
    Key(usize),
    /// Calls that do not send this header themselves.
    Header(String),
}

/// All of a provider; empty for every file that `check` accepts.
pub(crate) fn unsendable_settings(provider: &Provider) -> Vec<Unsendable> {
    let keys = provider.keys.iter().enumerate().filter_map(|(index, key)| {
        let (mut headers, mut query) = (HeaderMap::new(), None);
        let error = attach_all(&provider.auth, Some(key), &mut headers, &mut query).err()?;
        let (setting, why) = attach_setting(provider, index, &error);
        Some(Unsendable {
            sender: UnsendableIn::Key(index),
            setting,
            why,
        })
    });
    let headers = provider.headers.iter().filter_map(|(name, value)| {
        let fault = match HeaderName::try_from(name) {
            Ok(_) => secret_value("", value.expose()).err()?,
            Err(_) => HeaderFault::Name,
        };
        Some(Unsendable {
            sender: UnsendableIn::Header(name.clone()),
            setting: format!("headers.{name}"),
            why: fault.words(),
        })
    });
    keys.chain(headers).collect()
}

/// The setting to fix when a key could not be attached, and why.
pub(crate) fn attach_setting(
    provider: &Provider,
    index: usize,
    error: &AttachError,
) -> (String, &'static str) {
    let setting = match (&error.companion, error.fault) {
        (Some(name), _) => format!("auth.also.{name}"),
        (None, HeaderFault::Name) => "auth.header".to_owned(),
        (None, HeaderFault::Value) => key_setting(provider, index),
    };
    (setting, error.fault.words())
}

/// A key's setting as the provider file spells it.
pub(crate) fn key_setting(provider: &Provider, index: usize) -> String {
    if provider.keys.len() > 1 {
        format!("api_keys[{index}]")
    } else {
        "api_key".to_owned()
    }
}

/// The request of a login cannot be built.
pub(crate) fn login_error(provider: &str, method: &LoginMethod) -> Error {
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

impl HeaderFault {
    fn words(self) -> &'static str {
        match self {
            HeaderFault::Name => "no header can have this name",
            HeaderFault::Value => "it contains a character that a header cannot hold",
        }
    }
}
