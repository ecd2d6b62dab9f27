//! Writes keys into requests, each as its provider wants it.
//!
//! Promises: a key replaces whatever the client sent in its place. No debug output shows it.
//!
//! Never: decides which key is sent, or where to.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use tollgate_config::Secret;
use tollgate_config::provider::{Auth, AuthStyle};

use crate::query;

/// The headers of a key and its companions, built once and not for every call; `None` where they
/// are not sent as headers.
pub(crate) fn auth_headers(auth: &Auth, key: &Secret) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let (mut headers, mut query) = (HeaderMap::new(), None);
    attach_all(auth, Some(key), &mut headers, &mut query).ok()?; // `unsendable` says why
    let each = headers.iter();
    let each = each.map(|(name, value)| (name.clone(), value.clone()));
    query.is_none().then(|| each.collect())
}

/// A key or a companion that cannot be sent.
#[derive(Debug)]
pub(crate) struct AttachError {
    /// The name of the companion in `auth.also`; `None` = the key itself.
    pub(super) companion: Option<String>,
    pub(super) fault: HeaderFault,
}

/// Why a name and a value are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    /// The name is none.
    Name,
    /// The value has a character that a header cannot hold.
    Value,
}

/// Adds a key and its companions.
pub(crate) fn attach_all(
    auth: &Auth,
    key: Option<&Secret>,
    headers: &mut HeaderMap,
    query: &mut Option<String>,
) -> Result<(), AttachError> {
    let keys = key.map(|key| (None, key)).into_iter();
    let companions = auth.also.iter().map(|(name, key)| (Some(name), key));
    for (name, key) in keys.chain(companions) {
        let written = name.map(String::as_str);
        attach(&auth.style, written, key.expose(), headers, query).map_err(|fault| {
            AttachError {
                companion: name.cloned(),
                fault,
            }
        })?;
    }
    Ok(())
}

/// Adds a key, in place of the client's own. A further key is added the same way under its own
/// name.
fn attach(
    style: &AuthStyle,
    name: Option<&str>,
    key: &str,
    headers: &mut HeaderMap,
    query: &mut Option<String>,
) -> Result<(), HeaderFault> {
    let (at, value) = match style {
        AuthStyle::Query { name: own } => {
            *query = Some(query::with_parameter(
                query.as_deref(),
                name.unwrap_or(own),
                key,
            ));
            return Ok(());
        }
        AuthStyle::Header { name: own, prefix } => {
            (name.unwrap_or(own), secret_value(prefix, key)?)
        }
        AuthStyle::Bearer => match name {
            Some(name) => (name, secret_value("", key)?),
            None => (AUTHORIZATION.as_str(), secret_value("Bearer ", key)?),
        },
        AuthStyle::Basic => match name {
            Some(name) => (name, secret_value("", key)?),
            None => (
                AUTHORIZATION.as_str(),
                secret_value("Basic ", &BASE64.encode(key))?,
            ),
        },
        AuthStyle::None | AuthStyle::OAuth2(_) | AuthStyle::Login(_) => return Ok(()),
    };
    let at = HeaderName::try_from(at).map_err(|_| HeaderFault::Name)?;
    headers.insert(at, value);
    Ok(())
}

/// A value that no debug output shows.
pub(crate) fn secret_value(prefix: &str, secret: &str) -> Result<HeaderValue, HeaderFault> {
    let mut value =
        HeaderValue::try_from(format!("{prefix}{secret}")).map_err(|_| HeaderFault::Value)?;
    value.set_sensitive(true);
    Ok(value)
}
