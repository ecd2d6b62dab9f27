//! Searches texts for a provider's secrets, to find them where they must not appear.
//!
//! Promises: searches for every key of the file as it is, and as URLs, JSON (with any escapes, also
//! JSON inside a string of JSON), `Basic`, hex and base64 encode it, also inside a longer text that
//! was encoded as a whole. The work is bounded: a text that would take longer counts as one that contains a key.
//!
//! Never: shows a secret.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use memchr::memmem;
use percent_encoding::percent_decode;
use tollgate_config::provider::AuthStyle;
use tollgate_config::{Provider, Secret};

use crate::headers::is_keyless_header;
use crate::query::encoded;

/// Shorter keys are not secret: free plans have keys such as `3` and `demo`, which occur in every
/// response.
const LENGTH_MIN: usize = 8;

/// Bytes searched per response, over all keys and layers of escapes: at most some ten milliseconds. The largest cached
/// response can be searched for 24 texts, which are two keys in every encoding; one of 100 KiB for
/// 1 900.
const WORK_MAX: usize = 192 * 1024 * 1024;

/// How many layers of JSON escapes are undone: a log line of a service that repeats a JSON body has
/// two. Each one that a text has is searched once more.
const JSON_LAYERS_MAX: usize = 3;

/// How many layers of `%2F` escapes are undone in each: an URL inside the query of another has two.
const URL_LAYERS_MAX: usize = 2;

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
        let plain = [key.to_owned(), encoded(key).into_owned()];
        for text in plain.into_iter().chain(in_hex(key)).chain(in_base64(key)) {
            if !text.is_empty() && !self.texts.iter().any(|known| known.expose() == text) {
                self.texts.push(Secret::new(text));
            }
        }
    }

    /// The encodings of one token.
    pub(crate) fn of_token(token: &str) -> SecretScan {
        let mut scan = SecretScan::default();
        scan.add(token);
        scan
    }

    /// Are there no secrets to search for?
    pub(crate) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Does this text contain a secret, or is it too large to search?
    pub(crate) fn found_in(&self, text: &[u8]) -> bool {
        if self.texts.is_empty() {
            return false;
        }
        let mut work = WORK_MAX;
        let mut layer = Cow::Borrowed(text);
        for _ in 0..JSON_LAYERS_MAX {
            if self.found_in_layer(&layer, &mut work) {
                return true;
            }
            match without_escapes(&layer) {
                Some(plain) if plain.len() < layer.len() => layer = Cow::Owned(plain),
                Some(_) | None => return false,
            }
        }
        self.found_in_layer(&layer, &mut work)
    }

    /// The same, with the escapes of URLs undone, in whichever case they are written. A text that
    /// would take more than the work that is left counts as one that contains a key.
    fn found_in_layer(&self, text: &[u8], work: &mut usize) -> bool {
        let mut has_any = |text: &[u8]| {
            let Some(left) = work.checked_sub(text.len().saturating_mul(self.texts.len())) else {
                return true;
            };
            *work = left;
            let mut keys = self.texts.iter();
            keys.any(|key| memmem::find(text, key.expose().as_bytes()).is_some())
        };
        let mut layer = Cow::Borrowed(text);
        for _ in 0..URL_LAYERS_MAX {
            if has_any(&layer) {
                return true;
            }
            let decoded: Cow<'_, [u8]> = percent_decode(&layer).into();
            if decoded.len() == layer.len() {
                return false;
            }
            layer = Cow::Owned(decoded.into_owned());
        }
        has_any(&layer)
    }
}

/// A text in hex, in both cases.
fn in_hex(text: &str) -> [String; 2] {
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    let upper = hex.to_ascii_uppercase();
    [hex, upper]
}

/// A text in base64, in both alphabets, behind no, one or two other bytes of a group. Characters
/// that also hold bits of a neighbour are left out.
fn in_base64(text: &str) -> impl Iterator<Item = String> {
    let aligned = (0..3_usize).map(move |before| {
        let mut bytes = vec![0; before];
        bytes.extend_from_slice(text.as_bytes());
        let whole = BASE64.encode(&bytes);
        let (first, end) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
        whole.get(first..end).unwrap_or_default().to_owned()
    });
    aligned.flat_map(|text| [text.replace('+', "-").replace('/', "_"), text])
}

/// A text with its JSON escapes undone: `\\u0041`, `\\/`. `None`: it has none. Escapes of characters
/// that no key has are left as they are.
fn without_escapes(text: &[u8]) -> Option<Vec<u8>> {
    let mut rest = text;
    let mut plain = Vec::new();
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let (before, escape) = rest.split_at(at);
        plain.extend_from_slice(before);
        let (byte, length) = unescaped(escape);
        plain.push(byte);
        rest = escape.get(length..).unwrap_or_default();
    }
    (!plain.is_empty()).then(|| {
        plain.extend_from_slice(rest);
        plain
    })
}

/// The character of the escape that a text begins with, and the length of the escape.
fn unescaped(escape: &[u8]) -> (u8, usize) {
    match escape {
        [_, b'u' | b'U', digits @ ..] => {
            let digits = digits
                .get(..4)
                .and_then(|digits| str::from_utf8(digits).ok());
            let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            code.map_or((b'\\', 1), |code| (code, 6))
        }
        [_, plain @ (b'/' | b'"' | b'\\'), ..] => (*plain, 2),
        _ => (b'\\', 1),
    }
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
            "?k=ab%2fcd%2b%22efgh&a=b",
            "?k=%61b/cd+%22efgh",
            "?next=%2Fa%3Fk%3Dab%252fcd%252B%2522efgh",
            r#"{"log":"{\"k\":\"ab\\/cd+\\\"efgh\"}"}"#,
            r#"{"log":"{\"k\":\"ab\\u002fcd+\\u0022efgh\"}"}"#,
            r#"{"url":"\/?k=ab%2fcd%2b%22efgh"}"#,
            r#"{"k":"ab/cd+\"efgh"}"#,
            r#"{"k":"ab\/cd+\"efgh"}"#,
            r#"{"k":"\u0061b\u002fcd\u002B\u0022efgh"}"#,
            r#"\u0061b/cd+\"efgh"#,
            "61622f63642b2265666768",
            "x61622F63642B2265666768x",
            "other-key-9",
            "x third-key-7",
        ] {
            assert!(keys.found_in(text.as_bytes()), "{text}");
        }
        assert!(!keys.found_in(b"ab/cd+efgh other-key-8"));
    }

    /// A provider that repeats the request in base64 repeats the key at any alignment.
    #[test]
    fn h3_keys_are_found_in_base64_at_every_alignment() {
        let keys = scan("api_key: 'sk-?>~ab>>??cd'\nauth: {query: k}");
        for before in ["", "a", "ab", "abc"] {
            let text = format!("{before}sk-?>~ab>>??cd&more");
            let standard = BASE64.encode(&text);
            let url_safe = standard.replace('+', "-").replace('/', "_");
            assert_ne!(standard, url_safe);
            for coded in [standard, url_safe] {
                assert!(keys.found_in(coded.as_bytes()), "{coded}");
            }
        }
        assert!(!keys.found_in(BASE64.encode("sk-?>~ab>>??Xd&more").as_bytes()));
    }

    #[test]
    fn a_password_is_found_in_basic_encoding() {
        let keys = scan("api_key: 'me:password'\nauth: {basic: true}");
        assert!(keys.found_in(b"Authorization: Basic bWU6cGFzc3dvcmQ="));
    }

    /// H3: what an issuer of tokens got from us is as secret as a key.
    #[test]
    fn h3_the_secrets_of_oauth2_are_found() {
        let keys = scan(
            "auth: {oauth2: {token_url: 'https://issuer.example.org/t', client_id: public-id-1, \
             client_secret: hidden-secret-2, refresh_token: refresh-token-3}}",
        );
        for secret in ["hidden-secret-2", "refresh-token-3"] {
            assert!(
                keys.found_in(format!("x {secret} y").as_bytes()),
                "{secret}"
            );
        }
        assert!(!keys.found_in(b"x hidden-secret-3 refresh-token-2 y"));
    }

    #[test]
    fn short_and_public_values_are_not_searched_for() {
        assert!(scan("api_key: demo\nauth: {query: k}").is_empty());
        assert!(scan("headers: {user-agent: a-program-of-ours}").is_empty());
    }

    #[test]
    fn a_text_too_large_to_search_counts_as_found() {
        let texts = vec![Secret::new("long-enough".to_owned()); 25];
        assert!(SecretScan { texts }.found_in(&vec![0; 8 * 1024 * 1024]));
        // Layers of escapes count as well.
        let texts = vec![Secret::new("long-enough".to_owned()); 20];
        let scan = SecretScan { texts };
        let plain = vec![b'x'; 8 * 1024 * 1024];
        let escaped = [&plain[..], b"%41"].concat();
        assert!(!scan.found_in(&plain) && scan.found_in(&escaped));
    }
}
