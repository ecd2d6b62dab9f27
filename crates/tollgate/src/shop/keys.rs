//! The texts of a provider's keys, to find them where they must not stand.
//!
//! Promises: every key of the file is looked for as it is, and as URLs, JSON and `Basic` write it. How
//! much is searched is bounded: what would take longer counts as if a key stood in it.
//!
//! Never: shows one.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use memchr::memmem;
use tollgate_config::provider::Style;
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
pub(crate) struct KeyTexts {
    texts: Vec<Secret>,
}

impl KeyTexts {
    pub(crate) fn of(provider: &Provider) -> KeyTexts {
        let auth = &provider.auth;
        let mut found = KeyTexts::default();
        let also = auth.also.iter().map(|(_, value)| value);
        for key in provider.keys.iter().chain(also) {
            found.add(key.expose());
        }
        for (name, value) in &provider.headers {
            if !crate::path::is_no_key(name) {
                found.add(value.expose());
            }
        }
        match &auth.style {
            Style::Basic => {
                for key in &provider.keys {
                    found.add(&BASE64.encode(key.expose()));
                }
            }
            Style::OAuth2(oauth2) => {
                found.add(oauth2.client_secret.expose());
                if let Some(token) = &oauth2.refresh_token {
                    found.add(token.expose());
                }
            }
            Style::Nothing
            | Style::Query { .. }
            | Style::Header { .. }
            | Style::Bearer
            | Style::Login(_) => {}
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
    pub(crate) fn are_in(&self, text: &[u8]) -> bool {
        text.len().saturating_mul(self.texts.len()) > WORK_MAX
            || self
                .texts
                .iter()
                .any(|key| is_in(key.expose().as_bytes(), text))
    }
}

/// Stands this token in a text?
pub(crate) fn is_in(key: &[u8], text: &[u8]) -> bool {
    key.len() >= LENGTH_MIN && memmem::find(text, key).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_config::{Draft, World};

    fn keys(file: &str) -> KeyTexts {
        let file = format!("domain: api.example.org\nlimit: 5\nperiod: 1s\n{file}");
        let draft = Draft::read("x.yaml", &file).unwrap();
        KeyTexts::of(&draft.check(&World::empty()).provider.unwrap())
    }

    /// H3: a key is found however it is written, and so are its companions.
    #[test]
    fn h3_keys_are_found_in_every_spelling() {
        let keys = keys(
            "api_key: 'ab/cd+\"efgh'\nauth: {query: k, also: {second: other-key-9}}\nheaders: {x-app: third-key-7}",
        );
        for text in [
            "...ab/cd+\"efgh...",
            "?k=ab%2Fcd%2B%22efgh&a=b",
            r#"{"k":"ab/cd+\"efgh"}"#,
            "other-key-9",
            "x third-key-7",
        ] {
            assert!(keys.are_in(text.as_bytes()), "{text}");
        }
        assert!(!keys.are_in(b"ab/cd+efgh other-key-8"));
    }

    #[test]
    fn a_password_is_found_as_basic_writes_it() {
        let keys = keys("api_key: 'me:password'\nauth: {basic: true}");
        assert!(keys.are_in(b"Authorization: Basic bWU6cGFzc3dvcmQ="));
    }

    #[test]
    fn a_key_that_is_no_secret_is_not_looked_for() {
        assert!(keys("api_key: demo\nauth: {query: k}").is_empty());
        assert!(keys("headers: {user-agent: a-program-of-ours}").is_empty());
    }

    #[test]
    fn what_cannot_be_searched_in_time_counts_as_found() {
        let texts = vec![Secret::new("long-enough".to_owned()); 9];
        assert!(KeyTexts { texts }.are_in(&vec![0; 8 * 1024 * 1024]));
    }
}
