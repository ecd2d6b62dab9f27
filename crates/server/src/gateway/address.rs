//! Addressing: what a request target refers to.
//!
//! Promises: distinguishes `/<provider>[@caller]/path`, `/<absolute URL>`, a proxy's
//! `http://host/path`, and the gateway's own `/health`, `/ready` and `/-/v1/…` by their raw bytes,
//! undecoded.
//!
//! Never: looks a provider up.

use http::Uri;
use tollgate::Error;
use tollgate::path::Target;

use super::ListenerKind;
use crate::call_words;

/// What a request target refers to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// The liveness probe.
    Health,
    /// The readiness probe.
    Ready,
    /// A call of the decision service: its path below `/-`.
    Decision(String),
    /// A call.
    Call {
        target: Target,
        caller: Option<String>,
        mount: Mount,
    },
}

/// The prefix of a provider's paths on the gateway, for rewriting links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mount {
    /// `/tmdb@scanner`, or empty on a provider's own listener.
    Under(String),
    /// `/` before an absolute URL, whose origin is this: `https://api.example.org`.
    Url(String),
    /// A proxy request: its links need no rewriting.
    Proxy,
}

impl Address {
    pub(super) fn of(uri: &Uri, kind: &ListenerKind) -> Result<Address, Error> {
        let path = uri.path();
        let query = uri.query().map(str::to_owned);
        if let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) {
            let target = Target::Url {
                tls: is_tls(scheme).ok_or(Error::Malformed(
                    "only `http://` and `https://` URLs are supported",
                ))?,
                authority: authority.as_str().to_owned(),
                path: rooted(path),
                query,
            };
            return Ok(Address::Call {
                target,
                caller: None,
                mount: Mount::Proxy,
            });
        }
        if let ListenerKind::Provider(name) = kind {
            let target = Target::Provider {
                name: name.clone(),
                path: rooted(path),
                query,
            };
            return Ok(Address::Call {
                target,
                caller: None,
                mount: Mount::Under(String::new()),
            });
        }
        let Some(rest) = path.strip_prefix('/') else {
            return Err(Error::Malformed(
                "the request target must be a path, or an absolute URL for a proxy",
            ));
        };
        match rest {
            "health" => Ok(Address::Health),
            "ready" => Ok(Address::Ready),
            _ if rest.starts_with("-/") => {
                Ok(Address::Decision(rest.trim_start_matches('-').to_owned()))
            }
            _ => match absolute(rest) {
                Some((tls, rest)) => Ok(by_url(tls, rest, query)),
                None => by_name(rest, query),
            },
        }
    }
}

/// `https://…`, and `https:/…`, because some clients and proxies merge slashes.
fn absolute(rest: &str) -> Option<(bool, &str)> {
    let (scheme, after) = rest.split_once(':')?;
    let tls = is_tls(scheme)?;
    let after = after.strip_prefix('/')?;
    Some((tls, after.strip_prefix('/').unwrap_or(after)))
}

/// Is this scheme `https`? `None` = neither that nor `http`.
fn is_tls(scheme: &str) -> Option<bool> {
    let is = |known| scheme.eq_ignore_ascii_case(known);
    is("https").then_some(true).or(is("http").then_some(false))
}

fn by_url(tls: bool, rest: &str, query: Option<String>) -> Address {
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let scheme = if tls { "https://" } else { "http://" };
    Address::Call {
        target: Target::Url {
            tls,
            authority: authority.to_owned(),
            path: path.to_owned(),
            query,
        },
        caller: None,
        mount: Mount::Url([scheme, authority].concat()),
    }
}

fn by_name(rest: &str, query: Option<String>) -> Result<Address, Error> {
    let (first, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let (name, caller) = match first.split_once('@') {
        Some((name, caller)) => (name, Some(self::parse_caller(caller)?)),
        None => (first, None),
    };
    Ok(Address::Call {
        target: Target::Provider {
            name: name.to_owned(),
            path: path.to_owned(),
            query,
        },
        caller,
        mount: Mount::Under(["/", first].concat()),
    })
}

/// A caller name that is safe in a log.
pub(super) fn parse_caller(name: &str) -> Result<String, Error> {
    if !call_words::is_caller(name) {
        return Err(Error::Malformed(
            "a caller name must have 1 to 64 characters out of letters, digits and `-_.:`",
        ));
    }
    Ok(name.to_owned())
}

fn rooted(path: &str) -> String {
    if path.is_empty() {
        "/".to_owned()
    } else {
        path.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Address {
        Address::of(&text.parse().unwrap(), &ListenerKind::All).unwrap()
    }

    fn provider(name: &str, path: &str, query: Option<&str>) -> Target {
        Target::Provider {
            name: name.to_owned(),
            path: path.to_owned(),
            query: query.map(str::to_owned),
        }
    }

    fn target(text: &str) -> Target {
        match of(text) {
            Address::Call { target, .. } => target,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_path_segment_names_a_provider_and_an_optional_caller() {
        assert_eq!(
            target("/tmdb/3/movie/550?a=b"),
            provider("tmdb", "/3/movie/550", Some("a=b"))
        );
        assert_eq!(target("/tmdb"), provider("tmdb", "/", None));
        let Address::Call { caller, mount, .. } = of("/tmdb@scanner/3") else {
            panic!("a call");
        };
        assert_eq!(caller.as_deref(), Some("scanner"));
        assert_eq!(mount, Mount::Under("/tmdb@scanner".to_owned()));
    }

    #[test]
    fn an_absolute_url_with_a_merged_slash_is_accepted() {
        for text in [
            "/https://api.example.com/x?y=1",
            "/https:/api.example.com/x?y=1",
            "/HTTPS://api.example.com/x?y=1",
        ] {
            let expected = Target::Url {
                tls: true,
                authority: "api.example.com".to_owned(),
                path: "/x".to_owned(),
                query: Some("y=1".to_owned()),
            };
            assert_eq!(target(text), expected, "{text}");
        }
    }

    #[test]
    fn a_proxy_request_names_its_url_in_the_request_line() {
        let expected = Target::Url {
            tls: false,
            authority: "api.example.com:8080".to_owned(),
            path: "/x".to_owned(),
            query: None,
        };
        assert_eq!(target("http://api.example.com:8080/x"), expected);
    }

    /// It would be sent as HTTP, which the caller did not request.
    #[test]
    fn a_url_of_another_scheme_is_rejected() {
        for text in ["ftp://api.example.com/x", "ws://api.example.com/x"] {
            let error = Address::of(&text.parse().unwrap(), &ListenerKind::All).unwrap_err();
            assert!(matches!(error, Error::Malformed(_)), "{text}: {error}");
        }
        assert!(matches!(
            target("HTTP://api.example.com/x"),
            Target::Url { tls: false, .. }
        ));
    }

    #[test]
    fn the_gateway_serves_its_own_health_and_ready() {
        assert_eq!(of("/health"), Address::Health);
        assert_eq!(of("/ready"), Address::Ready);
        let decision = Address::Decision("/v1/acquire".to_owned());
        assert_eq!(of("/-/v1/acquire"), decision);
    }

    #[test]
    fn a_provider_listener_serves_every_path_of_that_provider() {
        let kind = ListenerKind::Provider("tmdb".to_owned());
        let address = Address::of(&"/health".parse().unwrap(), &kind).unwrap();
        let Address::Call { target, .. } = address else {
            panic!("a call");
        };
        assert_eq!(target, provider("tmdb", "/health", None));
    }
}
