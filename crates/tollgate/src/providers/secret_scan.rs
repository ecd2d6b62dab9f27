//! The texts of a provider's keys, to find them where they must not stand.
//!
//! Promises: every key of the file is looked for as it is, and as URLs, JSON and `Basic` write it. How
//! much is searched is bounded: what would take longer counts as if a key stood in it.
//!
//! Never: shows one.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use memchr::memmem;
use tollgate_config::provider::AuthStyle;
use tollgate_config::{Provider, Secret};

use crate::path::encoded;

/// Shorter ones are no secrets: free plans have keys such as `3` and `demo`, which stand in every
/// answer.
const LENGTH_MIN: usize = 8;

/// Bytes that are searched for one answer, over all keys: some ten milliseconds at the very most. The
/// largest answer that is kept can be searched for eight texts, one of 100 KiB for 600.
const WORK_MAX: usize = 64 * 1024 * 1024;

/// The texts of a provider's keys.
#[derive(Debug, Default)]
pub(crate) struct SecretScan {
    texts: Vec<Secret>,
}

impl SecretScan {
    pub(crate) fn of(provider: &Provider) -> SecretScan {
        let auth = &provider.auth;
        let mut found = SecretScan::default();
        let also = auth.also.iter().map(|(_, value)| value);
        for key in provider.keys.iter().chain(also) {
            found.add(key.expose());
        }
        for (name, value) in &provider.headers {
            if !crate::path::is_keyless_header(name) {
                found.add(value.expose());
            }
        }
        match &auth.style {
            AuthStyle::Basic => {
                for key in &provider.keys {
                    found.add(&BASE64.encode(key.expose()));
                }
            }
            AuthStyle::OAuth2(oauth2) => {
                found.add(oauth2.client_secret.expose());
                if let Some(token) = &oauth2.refresh_token {
                    found.add(token.expose());
                }
            }
            AuthStyle::None
            | AuthStyle::Query { .. }
            | AuthStyle::Header { .. }
            | AuthStyle::Bearer
            | AuthStyle::Login(_) => {}
        }
        found
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

    /// There is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Stands a key in this text, or is there too much of it to tell?
    pub(crate) fn found_in(&self, text: &[u8]) -> bool {
        text.len().saturating_mul(self.texts.len()) > WORK_MAX
            || self
                .texts
                .iter()
                .any(|key| secret_found_in(key.expose().as_bytes(), text))
    }
}

/// Stands this token in a text?
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

    /// H3: a key is found however it is written, and so are its companions.
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
