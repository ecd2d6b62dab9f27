//! Accounts: the credentials that tokens are fetched for, and the requests that fetch them.
//!
//! Promises: a key is always written as one value, whatever characters it has. A fingerprint
//! identifies an account, so a reload keeps the token of an account that has not changed. OAuth 2
//! follows RFC 6749.
//!
//! Never: sends anything.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::HeaderMap;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use tollgate_config::Secret;
use tollgate_config::provider::{AuthStyle, Login, OAuth2, Provider};

use super::fingerprint;
use crate::query;

/// The placeholder for the key in the body of a login.
const KEY_PLACEHOLDER: &str = "{api_key}";

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// A credential that tokens are fetched for.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) method: LoginMethod,
    key: Option<Secret>,
    also: Vec<(String, Secret)>,
    /// A fingerprint of all fields: a changed credential is another account.
    id: String,
    /// Identifies the key in limit cells.
    pub(crate) fingerprint: Arc<str>,
}

#[derive(Clone, Debug)]
pub(crate) enum LoginMethod {
    Login(Login),
    OAuth2(OAuth2),
}

/// A request for a token.
pub(crate) struct TokenRequest {
    content_type: &'static str,
    pub(crate) body: String,
    authorization: Option<String>,
}

impl Account {
    /// The accounts of a provider's tokens: one for each key of a pool. Empty if the provider needs
    /// no tokens, or if the key for its login is missing; then the client's own credential is
    /// passed on.
    pub(crate) fn all(provider: &Provider) -> Vec<Arc<Account>> {
        let also = &provider.auth.also;
        match &provider.auth.style {
            AuthStyle::Login(login) if provider.keys.is_empty() => {
                let needs_key = login.body.expose().contains(KEY_PLACEHOLDER);
                let account = || Account::new(LoginMethod::Login(login.clone()), None, also);
                (!needs_key).then(account).into_iter().collect()
            }
            AuthStyle::Login(login) => {
                let account =
                    |key| Account::new(LoginMethod::Login(login.clone()), Some(key), also);
                provider.keys.iter().map(account).collect()
            }
            AuthStyle::OAuth2(oauth2) => {
                vec![Account::new(
                    LoginMethod::OAuth2(oauth2.clone()),
                    None,
                    also,
                )]
            }
            AuthStyle::None
            | AuthStyle::Query { .. }
            | AuthStyle::Header { .. }
            | AuthStyle::Bearer
            | AuthStyle::Basic => Vec::new(),
        }
    }

    fn new(way: LoginMethod, key: Option<&Secret>, also: &[(String, Secret)]) -> Arc<Account> {
        let mut hasher = blake3::Hasher::new_derive_key("tollgate 2026 account of tokens");
        let mut part = |text: &str| {
            hasher.update(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        let who = match &way {
            LoginMethod::Login(login) => {
                part(&format!(
                    "{:?} {} {:?}",
                    login.url, login.token, login.lifetime
                ));
                part(login.body.expose());
                &login.body
            }
            LoginMethod::OAuth2(oauth2) => {
                let OAuth2 {
                    scope,
                    client_auth,
                    token_url,
                    ..
                } = oauth2;
                part(&format!("{token_url:?} {scope:?} {client_auth:?}"));
                part(oauth2.client_id.expose());
                part(oauth2.client_secret.expose());
                part(oauth2.refresh_token.as_ref().map_or("", Secret::expose));
                &oauth2.client_id
            }
        };
        part(key.map_or("", Secret::expose));
        for (name, value) in also {
            part(name);
            part(value.expose());
        }
        Arc::new(Account {
            fingerprint: fingerprint(key.unwrap_or(who).expose()).into(),
            id: hasher.finalize().to_hex().to_string(),
            key: key.cloned(),
            also: also.to_vec(),
            method: way,
        })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The login request: the body of the provider file with the key filled in, plus any further
    /// keys.
    pub(crate) fn login_request(&self, login: &Login) -> TokenRequest {
        let key = self.key.as_ref().map_or("", Secret::expose);
        let template = login.body.expose();
        let Ok(mut json) = serde_json::from_str::<Value>(template) else {
            let mut body = template.replace(KEY_PLACEHOLDER, &query::encoded(key));
            for (name, value) in &self.also {
                push_field(&mut body, name, value.expose());
            }
            return TokenRequest {
                content_type: FORM,
                body,
                authorization: None,
            };
        };
        insert_key(&mut json, key);
        if let Value::Object(fields) = &mut json {
            for (name, value) in &self.also {
                fields.insert(name.clone(), Value::from(value.expose()));
            }
        }
        TokenRequest {
            content_type: JSON,
            body: json.to_string(),
            authorization: None,
        }
    }

    /// RFC 6749, 4.4 and 6; id and secret as in 2.3.1.
    pub(crate) fn oauth2_request(
        &self,
        oauth2: &OAuth2,
        refresh: Option<&Secret>,
        by_form: bool,
    ) -> TokenRequest {
        let (id, secret) = (oauth2.client_id.expose(), oauth2.client_secret.expose());
        let mut body = String::new();
        match refresh {
            Some(refresh) => {
                push_field(&mut body, "grant_type", "refresh_token");
                push_field(&mut body, "refresh_token", refresh.expose());
            }
            None => push_field(&mut body, "grant_type", "client_credentials"),
        }
        if let Some(scope) = &oauth2.scope {
            push_field(&mut body, "scope", scope);
        }
        for (name, value) in &self.also {
            push_field(&mut body, name, value.expose());
        }
        let mut authorization = None;
        if by_form {
            push_field(&mut body, "client_id", id);
            push_field(&mut body, "client_secret", secret);
        } else {
            let pair = format!("{}:{}", query::encoded(id), query::encoded(secret));
            authorization = Some(format!("Basic {}", BASE64.encode(pair)));
        }
        TokenRequest {
            content_type: FORM,
            body,
            authorization,
        }
    }
}

impl TokenRequest {
    /// `None`: the client id or secret cannot be a header.
    pub(crate) fn headers(&self) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(ACCEPT, HeaderValue::from_static(JSON));
        if let Some(authorization) = &self.authorization {
            let mut value = HeaderValue::try_from(authorization).ok()?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Some(headers)
    }
}

/// Replaces the placeholder by the key.
fn insert_key(json: &mut Value, key: &str) {
    match json {
        Value::String(text) if text.contains(KEY_PLACEHOLDER) => {
            *text = text.replace(KEY_PLACEHOLDER, key);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| insert_key(item, key)),
        Value::Object(fields) => fields.values_mut().for_each(|field| insert_key(field, key)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Appends a field to a form.
fn push_field(form: &mut String, name: &str, value: &str) {
    if !form.is_empty() {
        form.push('&');
    }
    form.push_str(&query::encoded(name));
    form.push('=');
    form.push_str(&query::encoded(value));
}
