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

use crate::{Error, query};

/// The headers of a key and its companions, built once and not for every call; `None` where they
/// are not sent as headers.
pub(crate) fn auth_headers(auth: &Auth, key: &Secret) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let (mut headers, mut query) = (HeaderMap::new(), None);
    attach_all(auth, Some(key), &mut headers, &mut query).ok()?;
    let each = headers.iter();
    let each = each.map(|(name, value)| (name.clone(), value.clone()));
    query.is_none().then(|| each.collect())
}

/// Adds a key and its companions.
pub(crate) fn attach_all(
    auth: &Auth,
    key: Option<&Secret>,
    headers: &mut HeaderMap,
    query: &mut Option<String>,
) -> Result<(), Error> {
    if let Some(key) = key {
        attach(&auth.style, None, key.expose(), headers, query)?;
    }
    for (name, key) in &auth.also {
        attach(&auth.style, Some(name), key.expose(), headers, query)?;
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
) -> Result<(), Error> {
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
    let at = HeaderName::try_from(at)
        .map_err(|_| Error::Malformed("the name of the key's header is not valid"))?;
    headers.insert(at, value);
    Ok(())
}

/// A value that no debug output shows.
pub(crate) fn secret_value(prefix: &str, secret: &str) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::try_from(format!("{prefix}{secret}"))
        .map_err(|_| Error::Malformed("the key contains a character that a header cannot hold"))?;
    value.set_sensitive(true);
    Ok(value)
}
