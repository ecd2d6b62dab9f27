//! The key of a cached response: the request and its caller.
//!
//! Promises: contains scheme, host, port, path, sorted query, entity, and the caller. If the file
//! sets lifetimes, it also contains every header except noise and those that the cache itself
//! applies. If the responses set them, their `Vary` names what they depend on, and the key contains
//! only headers that look like a credential, a user, or another URL, address or version. GET and
//! HEAD have one key.
//!
//! Never: is reversible. It is a hash with a salt that no other store has, so that neither the
//! database nor memory holds a credential.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use http::HeaderMap;
use smallvec::SmallVec;
use tollgate_core::fresh::{FreshnessMode, Headers, variant_text};

use crate::headers::is_ignored_header;
use crate::query::parameters;

/// A hash of the request and its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CacheKey(pub(crate) [u8; 32]);

impl Hash for CacheKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // It is a hash already.
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    }
}

impl CacheKey {
    /// An identifier of one response under this key, in the form of a URL hash. Both are hashes, so
    /// no URL has the same.
    pub(super) fn response_id(&self, variant: Variant) -> UrlHash {
        let mut name = variant.0;
        for (to, from) in name.iter_mut().zip(self.0) {
            *to ^= from;
        }
        UrlHash(name)
    }
}

/// A hash of a URL alone, for any caller: the unit that an unsafe method invalidates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct UrlHash(pub(crate) [u8; 16]);

/// A hash of the values of the headers that a response varies on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Variant(pub(crate) [u8; 16]);

/// The salt that makes the hashes of one store differ from those of every other.
#[derive(Clone)]
pub(crate) struct Salt(pub(crate) [u8; 32]);

impl std::fmt::Debug for Salt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Salt(hidden)")
    }
}

impl Salt {
    /// A salt for this process. The standard library seeds its hash maps from the system's random
    /// source, which is enough for a salt.
    pub(super) fn random() -> Salt {
        let mut salt = [0; 32];
        for (index, part) in salt.chunks_mut(8).enumerate() {
            let random = RandomState::new().hash_one(index);
            part.copy_from_slice(&random.to_le_bytes());
        }
        Salt(salt)
    }
}

/// The requested URL, without our own key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestUrl<'a> {
    pub(crate) tls: bool,
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
}

impl RequestUrl<'_> {
    pub(crate) fn hash(&self, salt: &Salt) -> UrlHash {
        let mut hasher = PartsHasher(blake3::Hasher::new_keyed(&salt.0));
        hasher.add(if self.tls { b"https" } else { b"http" });
        hasher.add(self.host.as_bytes());
        hasher.add(&self.port.to_le_bytes());
        hasher.add(self.path.as_bytes());
        for parameter in parameters(self.query) {
            hasher.add(parameter.as_bytes());
        }
        UrlHash(hasher.first_16_bytes())
    }
}

/// The request and its caller. Every field is part of the key.
#[derive(Debug)]
pub(crate) struct KeyInputs<'a> {
    pub(crate) url: UrlHash,
    /// The entity: each has its own lifetime, and a caller may name another one than the path does.
    pub(crate) entity: Option<&'a str>,
    /// The provider, then the fingerprints of our keys if they go with the call, and the name of an
    /// isolated client.
    pub(crate) provider_and_keys: &'a [&'a str],
    pub(crate) headers: &'a HeaderMap,
    /// A header that Tollgate replaces with its key, so that the client's value has no effect.
    pub(crate) replaced_header: Option<&'a str>,
    /// Whether the file or the responses define lifetimes.
    pub(crate) mode: FreshnessMode,
}

impl KeyInputs<'_> {
    /// The key of a response to a GET or HEAD.
    pub(crate) fn key(&self, salt: &Salt) -> CacheKey {
        let mut hasher = PartsHasher(blake3::Hasher::new_keyed(&salt.0));
        hasher.add(&self.url.0);
        hasher.add(self.entity.unwrap_or_default().as_bytes());
        hasher.add(&(self.provider_and_keys.len() as u64).to_le_bytes());
        for mark in self.provider_and_keys {
            hasher.add(mark.as_bytes());
        }
        let tells = match self.mode {
            FreshnessMode::Ttl => may_affect_response,
            FreshnessMode::Rfc9111 => identifies_request,
        };
        let mut names: SmallVec<[&str; 16]> = self
            .headers
            .keys()
            .map(http::HeaderName::as_str)
            .filter(|name| tells(name) && Some(*name) != self.replaced_header)
            .collect();
        names.sort_unstable();
        for name in names {
            // The name before each value keeps a value from reading as a name.
            for value in self.headers.get_all(name) {
                hasher.add(name.as_bytes());
                hasher.add(value.as_bytes());
            }
        }
        CacheKey(*hasher.0.finalize().as_bytes())
    }
}

/// A hash of parts, each with its length, so that two parts never read as one.
struct PartsHasher(blake3::Hasher);

impl PartsHasher {
    fn add(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    fn first_16_bytes(&self) -> [u8; 16] {
        let mut first = [0; 16];
        let hash = self.0.finalize();
        for (to, from) in first.iter_mut().zip(hash.as_bytes()) {
            *to = *from;
        }
        first
    }
}

/// Can this header affect the response? All can except noise and those that the cache itself
/// applies: conditions, cache directives, and the encodings, languages and origins that a response
/// names in `Vary` (or omits in a known way).
fn may_affect_response(name: &str) -> bool {
    !matches!(
        name,
        "host"
            | "accept-encoding"
            | "accept-language"
            | "origin"
            | "cache-control"
            | "pragma"
            | "range"
            | "if-range"
            | "if-none-match"
            | "if-modified-since"
            | "if-match"
            | "if-unmodified-since"
    ) && !is_ignored_header(name)
}

/// Does this header identify the caller or the resource? Credentials and users by their usual names
/// and by parts of names; headers that servers read as another URL, method, host or address; and
/// `Accept`, versions and preferences, which many APIs apply without naming them in `Vary`.
fn identifies_request(name: &str) -> bool {
    const PARTS: [&str; 33] = [
        "auth",
        "token",
        "key",
        "cookie",
        "secret",
        "session",
        "passw",
        "signature",
        "user",
        "account",
        "tenant",
        "customer",
        "client",
        "email",
        "identity",
        "principal",
        "member",
        "subject",
        "login",
        "role",
        "behalf",
        "credential",
        "organization",
        "project",
        "workspace",
        "merchant",
        "actor",
        "uid",
        "dpop",
        "profile",
        "jwt",
        "version",
        "prefer",
    ];
    const STARTS: [&str; 9] = [
        "x-forwarded",
        "forwarded",
        "x-original",
        "x-rewrite",
        "x-http-",
        "x-method",
        "x-host",
        "x-org",
        "x-real",
    ];
    match name {
        // Headers that nearly every client sends come first: the search below is for the others.
        "host" | "user-agent" | "accept-encoding" | "accept-language" | "content-length"
        | "content-type" | "cache-control" | "if-none-match" | "if-modified-since" | "range"
        | "traceparent" | "tracestate" | "x-request-id" | "idempotency-key" => false,
        "accept" | "front-end-https" => true,
        name => {
            STARTS.iter().any(|start| name.starts_with(start))
                || PARTS.iter().any(|part| name.contains(part))
        }
    }
}

/// The values of the headers that a response varies on, as a hash.
pub(crate) fn variant(salt: &Salt, names: &[String], request: &impl Headers) -> Variant {
    if names.is_empty() {
        return Variant::default();
    }
    let mut hasher = PartsHasher(blake3::Hasher::new_keyed(&salt.0));
    let mut text = Vec::new();
    for name in names {
        text.clear();
        variant_text(name, request, &mut text);
        hasher.add(name.as_bytes());
        hasher.add(&text);
    }
    Variant(hasher.first_16_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    fn key(path: &str, query: &str, headers: &[(&str, &str)]) -> CacheKey {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(
                HeaderName::try_from(*name).unwrap(),
                HeaderValue::try_from(*value).unwrap(),
            );
        }
        let salt = Salt([7; 32]);
        let url = RequestUrl {
            tls: true,
            host: "api.example.org",
            port: 443,
            path,
            query,
        };
        let inputs = KeyInputs {
            url: url.hash(&salt),
            entity: None,
            provider_and_keys: &[],
            headers: &map,
            replaced_header: None,
            mode: FreshnessMode::Rfc9111,
        };
        inputs.key(&salt)
    }

    #[test]
    fn parameter_order_matters_only_among_equal_names() {
        assert_eq!(key("/a", "x=1&y=2", &[]), key("/a", "y=2&&x=1", &[]));
        assert_ne!(key("/a", "x=1&x=2", &[]), key("/a", "x=2&x=1", &[]));
        assert_ne!(key("/a", "x=1", &[]), key("/a", "x=2", &[]));
        assert_ne!(key("/a", "", &[]), key("/b", "", &[]));
    }

    #[test]
    fn parts_cannot_be_shifted_into_each_other() {
        assert_ne!(key("/a", "b=1&c=2", &[]), key("/ab", "=1&c=2", &[]));
        assert_ne!(
            key("/a", "", &[("authorization", "ab")]),
            key("/a", "", &[("authorization", "a"), ("authorization", "b")])
        );
        let two = [("authorization", "a"), ("cookie", "b")];
        let one = ["a", "cookie", "b"].map(|value| ("authorization", value));
        assert_ne!(key("/a", "", &two), key("/a", "", &one));
    }

    /// R-E5: headers that select another user or resource are part of the key.
    #[test]
    fn caller_and_target_headers_are_part_of_the_key() {
        let plain = key("/a", "", &[]);
        for name in [
            "authorization",
            "cookie",
            "x-api-key",
            "apikey",
            "x-auth-token",
            "x-session",
            "x-user-id",
            "x-user",
            "x-tenant",
            "x-org-id",
            "x-client-id",
            "x-on-behalf-of",
            "x-ms-client-principal",
            "x-amz-security-token",
            "x-forwarded-host",
            "x-forwarded-for",
            "forwarded",
            "x-original-url",
            "x-rewrite-url",
            "x-http-method-override",
            "x-host",
            "x-real-ip",
            "accept",
        ] {
            assert_ne!(plain, key("/a", "", &[(name, "v")]), "{name}");
        }
        for name in [
            "user-agent",
            "x-request-id",
            "traceparent",
            "accept-language",
        ] {
            assert_eq!(plain, key("/a", "", &[(name, "v")]), "{name}");
        }
    }

    #[test]
    fn two_random_salts_differ() {
        assert_ne!(Salt::random().0, Salt::random().0);
        assert_eq!(format!("{:?}", Salt([1; 32])), "Salt(hidden)");
    }
}
