//! Searches texts for a provider's secrets, to find them where they must not appear.
//!
//! Promises: searches for every key of the file as it is, and as URLs, JSON and `Basic` encode it.
//! The work is bounded: a text that would take longer counts as one that contains a key.
//!
//! Never: shows a secret.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use memchr::memmem;
use tollgate_config::provider::AuthStyle;
use tollgate_config::{Provider, Secret};

use crate::headers::is_keyless_header;
use crate::query::encoded;

/// Shorter keys are not secret: free plans have keys such as `3` and `demo`, which occur in every
/// response.
const LENGTH_MIN: usize = 8;

/// Bytes searched per response, over all keys: at most some ten milliseconds. The largest cached
/// response can be searched for eight texts, one of 100 KiB for 600.
const WORK_MAX: usize = 64 * 1024 * 1024;

/// The secrets of a provider, in every encoding.
#[derive(Debug, Default)]
pub(crate) struct SecretScan {
    texts: Vec<Secret>,
}

impl SecretScan {
    pub(crate) fn of(provider: &Provider) -> SecretScan {
        let auth = &provider.auth;
        let mut scan = SecretScan::default();
        let also = auth.also.iter().map(|(_, value)| value);
        for key in provider.keys.iter().chain(also) {
            scan.add(key.expose());
        }
        for (name, value) in &provider.headers {
            if !is_keyless_header(name) {
                scan.add(value.expose());
            }
        }
        match &auth.style {
            AuthStyle::Basic => {
                for key in &provider.keys {
                    scan.add(&BASE64.encode(key.expose()));
                }
            }
            AuthStyle::OAuth2(oauth2) => {
                scan.add(oauth2.client_secret.expose());
                if let Some(token) = &oauth2.refresh_token {
                    scan.add(token.expose());
                }
            }
            AuthStyle::None
            | AuthStyle::Query { .. }
            | AuthStyle::Header { .. }
            | AuthStyle::Bearer
            | AuthStyle::Login(_) => {}
        }
        scan
    }

    fn add(&mut self, key: &str) {
        if key.len() < LENGTH_MIN {
            return;
        }
        let in_json = serde_json::to_string(key).unwrap_or_default();
        let in_json = in_json.trim_matches('"').to_owned();
        for text in [key.to_owned(), encoded(key).into_owned(), in_json] {
            if !text.is_empty() && !self.texts.iter().any(|known| known.expose() == text) {
                self.texts.push(Secret::new(text));
            }
        }
    }

    /// Are there no secrets to search for?
    pub(crate) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Does this text contain a secret, or is it too large to search?
    pub(crate) fn found_in(&self, text: &[u8]) -> bool {
        text.len().saturating_mul(self.texts.len()) > WORK_MAX
            || self
                .texts
                .iter()
                .any(|key| secret_found_in(key.expose().as_bytes(), text))
    }
}

/// Does a text contain this token?
pub(crate) fn secret_found_in(key: &[u8], text: &[u8]) -> bool {
    key.len() >= LENGTH_MIN && memmem::find(text, key).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_config::{Environment, ProviderFile};

    fn scan(file: &str) -> SecretScan {
        let file = format!("domain: api.example.org\nlimit: 5\nperiod: 1s\n{file}");
        let draft = ProviderFile::read("x.yaml", &file).unwrap();
        SecretScan::of(&draft.check(&Environment::empty()).provider.unwrap())
    }

    /// H3: a key is found in every encoding, and so are its companions.
    #[test]
    fn h3_keys_are_found_in_every_spelling() {
        let keys = scan(
            "api_key: 'ab/cd+\"efgh'\nauth: {query: k, also: {second: other-key-9}}\nheaders: {x-app: third-key-7}",
        );
        for text in [
            "...ab/cd+\"efgh...",
            "?k=ab%2Fcd%2B%22efgh&a=b",
            r#"{"k":"ab/cd+\"efgh"}"#,
            "other-key-9",
            "x third-key-7",
        ] {
            assert!(keys.found_in(text.as_bytes()), "{text}");
        }
        assert!(!keys.found_in(b"ab/cd+efgh other-key-8"));
    }

    #[test]
    fn a_password_is_found_in_basic_encoding() {
        let keys = scan("api_key: 'me:password'\nauth: {basic: true}");
        assert!(keys.found_in(b"Authorization: Basic bWU6cGFzc3dvcmQ="));
    }

    #[test]
    fn short_and_public_values_are_not_searched_for() {
        assert!(scan("api_key: demo\nauth: {query: k}").is_empty());
        assert!(scan("headers: {user-agent: a-program-of-ours}").is_empty());
    }

    #[test]
    fn a_text_too_large_to_search_counts_as_found() {
        let texts = vec![Secret::new("long-enough".to_owned()); 9];
        assert!(SecretScan { texts }.found_in(&vec![0; 8 * 1024 * 1024]));
    }
}
