//! The name of a bucket: in this process a fingerprint, in Redis a key that other programs can read.
//!
//! Promises: keys are those of the inbound document, `ratelimit:ip:203.0.113.7`. What may be a secret, is
//! long, or is made of several values is a fingerprint in Redis too.
//!
//! Never: chooses who counts as the same caller; the guard does.

use std::sync::Arc;

use tollgate_guard::GuardKey;

/// The longest identifier that a key shows: twice a session id, so that keys stay small.
const SHOWN_MAX: usize = 128;

/// Parts of names of headers whose values may be secrets.
const SECRET: [&str; 7] = [
    "auth", "token", "key", "secret", "cookie", "session", "password",
];

/// The name of a bucket.
#[derive(Clone, Debug)]
pub(super) struct BucketKey {
    /// In the table of this process.
    pub(super) local: GuardKey,
    /// In Redis, if that is where the guard counts.
    pub(super) shared: Option<Arc<[u8]>>,
}

/// The key of an identifier below a prefix.
pub(super) fn shared_key(prefix: &str, identifier: &[u8], may_be_secret: bool) -> Arc<[u8]> {
    let mut key = prefix.as_bytes().to_vec();
    let is_plain = identifier.len() <= SHOWN_MAX && !identifier.iter().any(u8::is_ascii_control);
    if may_be_secret || !is_plain {
        let fingerprint = blake3::hash(identifier).to_hex();
        key.extend_from_slice(b"blake3:");
        key.extend_from_slice(fingerprint.get(..32).unwrap_or_default().as_bytes());
    } else {
        key.extend_from_slice(identifier);
    }
    key.into()
}

/// Whether the values of this header may be secrets.
pub(super) fn is_secret_header(name: &str) -> bool {
    SECRET.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C3: the keys of the document.
    #[test]
    fn c3_keys_are_readable_unless_they_may_be_secret() {
        let text = |key: Arc<[u8]>| String::from_utf8(key.to_vec()).unwrap();
        let plain = shared_key("ratelimit:ip:", b"203.0.113.7", false);
        assert_eq!(text(plain), "ratelimit:ip:203.0.113.7");
        let secret = text(shared_key("ratelimit:user:", b"CANARY", true));
        assert!(secret.starts_with("ratelimit:user:blake3:") && !secret.contains("CANARY"));
        let long = text(shared_key("ratelimit:user:", &[b'a'; 9_000], false));
        assert!(long.len() < 64, "{long}");
        for (name, is_secret) in [
            ("x-user-id", false),
            ("x-tenant", false),
            ("authorization", true),
            ("x-api-key", true),
            ("cookie", true),
        ] {
            assert_eq!(is_secret_header(name), is_secret, "{name}");
        }
    }
}
