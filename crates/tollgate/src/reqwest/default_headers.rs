//! What a built client adds to requests by itself.
//!
//! reqwest adds the default headers of a client to every request, also to one for another origin, and
//! lets nobody read or remove them; only the `Debug` text of a client shows them. It is read here to
//! permit something: whatever is not recognized counts as a credential.
//!
//! Promises: a client that adds a header which is not known to be harmless, or cookies, is found.
//!
//! Never: guesses in favour of a client.

use ::reqwest::Client;
use http::HeaderMap;
use http::header::HeaderValue;

/// Headers that name nobody.
const HARMLESS: [&str; 6] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "content-type",
    "user-agent",
];

/// What a client adds to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Additions {
    /// Headers that may be credentials, the same for every request.
    pub(super) headers: bool,
    /// Cookies, each for its own origin; a response may change them.
    pub(super) cookies: bool,
}

impl Additions {
    /// Of a client.
    pub(super) fn of(client: &Client) -> Additions {
        Additions::shown(&format!("{client:?}"))
    }

    fn shown(text: &str) -> Additions {
        let headers = text.split_once("default_headers: {");
        Additions {
            headers: !headers.is_some_and(|(_, headers)| are_harmless(headers)),
            cookies: text.contains("cookie_store"),
        }
    }
}

/// Reads `"accept": "*/*", "user-agent": "me"}` up to its end. `Sensitive` in place of a value is not
/// harmless.
fn are_harmless(mut headers: &str) -> bool {
    while let Some(header) = headers.strip_prefix('"') {
        let Some((name, value)) = header.split_once("\": \"") else {
            return false;
        };
        let Some(rest) = after_value(value).filter(|_| HARMLESS.contains(&name)) else {
            return false;
        };
        if rest.starts_with('}') {
            return true;
        }
        headers = rest.strip_prefix(", ").unwrap_or_default();
    }
    false
}

/// What follows a value; a quote in it has a backslash before it.
fn after_value(value: &str) -> Option<&str> {
    let quotes = value.match_indices('"').map(|(at, _)| value.split_at(at));
    let mut ends = quotes.filter(|(before, _)| !before.ends_with('\\'));
    ends.next()?.1.strip_prefix('"')
}

/// Adds default headers to a request that has not its own. Those that may be credentials are marked
/// as sensitive, so that no hop to another origin has them.
pub(super) fn add(headers: &mut HeaderMap, defaults: &HeaderMap) {
    for name in defaults.keys() {
        if headers.contains_key(name) {
            continue;
        }
        for value in defaults.get_all(name) {
            let mut value = HeaderValue::clone(value);
            value.set_sensitive(value.is_sensitive() || !HARMLESS.contains(&name.as_str()));
            headers.append(name.clone(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: &[(&'static str, &str)]) -> Additions {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::try_from(*value).unwrap());
        }
        let client = Client::builder().default_headers(map);
        Additions::of(&client.build().unwrap())
    }

    const HARMLESS_ONLY: Additions = Additions {
        headers: false,
        cookies: false,
    };
    const SECRET: Additions = Additions {
        headers: true,
        cookies: false,
    };

    #[test]
    fn only_what_is_known_to_be_harmless_is_harmless() {
        assert_eq!(Additions::of(&Client::new()), HARMLESS_ONLY);
        let named = [("user-agent", "me (\"a\"; b}), c"), ("accept", "text/html")];
        assert_eq!(of(&named), HARMLESS_ONLY);
        for name in ["authorization", "cookie", "x-api-key", "x-anything"] {
            assert_eq!(of(&[(name, "a")]), SECRET, "{name}");
            // Whatever the values before it look like.
            for before in ["a\\", "}", "\"", "\\\"}", "\"}, \"accept\": \""] {
                let both = [
                    ("accept-language", before),
                    ("user-agent", before),
                    (name, "a"),
                ];
                assert_eq!(of(&both), SECRET, "{name} after {before}");
            }
        }
        let mut secret = HeaderValue::from_static("de");
        secret.set_sensitive(true);
        let secret = HeaderMap::from_iter([(http::header::ACCEPT_LANGUAGE, secret)]);
        let client = Client::builder().default_headers(secret).build().unwrap();
        assert_eq!(Additions::of(&client), SECRET);
    }

    #[test]
    fn an_unknown_text_is_not_harmless() {
        let known = "Client { accepts: Accepts, default_headers: {\"accept\": \"*/*\"} }";
        assert_eq!(Additions::shown(known), HARMLESS_ONLY);
        for unknown in [
            "Client",
            "Client { default_headers: {} }",
            "Client { headers: {} }",
        ] {
            assert_eq!(Additions::shown(unknown), SECRET, "{unknown}");
        }
        let jar = known.replace("accepts", "cookie_store: true, accepts");
        let with_cookies = |found| Additions {
            cookies: true,
            ..found
        };
        assert_eq!(Additions::shown(&jar), with_cookies(HARMLESS_ONLY));
        let jar = jar.replace("accept\"", "authorization\"");
        assert_eq!(Additions::shown(&jar), with_cookies(SECRET));
    }
}
