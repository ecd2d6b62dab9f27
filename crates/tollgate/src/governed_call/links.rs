//! The links of a response in the terms of the program that made the call.
//!
//! The program writes `https://api.example.org/items`, the call goes to the upstream
//! `http://eu.example.net/v3/items`, and its response links to the latter. Followed as it is, such a
//! link would lead past the limits.
//!
//! Promises: a link to the upstream, below its path, becomes one to the origin that the program
//! called. A key of ours that the provider repeats in a link is removed.
//!
//! Never: changes a link to another origin.

use http::Uri;
use http::header::HeaderMap;

use crate::path::CallTrace;
use crate::providers::{Links, map_links};

/// How links in the response to one call are read.
#[derive(Debug)]
pub(crate) struct CallerLinks {
    links: Links,
    /// As the program wrote it: `https://api.example.org`.
    called: String,
}

impl CallerLinks {
    /// Of a call to this URL.
    pub(super) fn new(url: &Uri, trace: &CallTrace) -> CallerLinks {
        let scheme = url.scheme_str().unwrap_or_default();
        let authority = url.authority().map_or("", |authority| authority.as_str());
        let origin = trace.origin.as_ref().map(ToString::to_string);
        let mut links = match (&trace.provider, origin) {
            (Some(provider), Some(origin)) => provider.links(&origin),
            (Some(_), None) | (None, _) => Links::default(),
        };
        let has_keys =
            |provider: &crate::providers::ActiveProvider| provider.policy().key_count() > 0;
        if !trace.provider.as_deref().is_some_and(has_keys) {
            links.keys.clear(); // such a parameter is the program's own
        }
        CallerLinks {
            links,
            called: format!("{scheme}://{authority}"),
        }
    }

    /// Rewrites the links of a response, unless the provider's file says otherwise.
    pub(crate) fn rewrite(&self, headers: &mut HeaderMap) {
        map_links(headers, |link| match self.links.rewrite {
            true => self.to_caller(link).unwrap_or_else(|outside| outside),
            false => self.links.without_key(link),
        });
    }

    /// The link as the program would write it. `Err` = it leads to the upstream, but not below its
    /// path, so that no call to the provider reaches it.
    pub(crate) fn to_caller(&self, link: &str) -> Result<String, String> {
        let link = self.links.without_key(link);
        // What the program called is the upstream itself.
        if self.links.origin.eq_ignore_ascii_case(&self.called) {
            return Ok(link);
        }
        let is_relative = link.starts_with('/') && !link.starts_with("//");
        match self.links.caller_path(&link) {
            Some(path) => {
                let root = if path.starts_with('/') { "" } else { "/" };
                let called = if is_relative { "" } else { &self.called };
                Ok(format!("{called}{root}{path}"))
            }
            None if is_relative => Err(format!("{}{link}", self.links.origin)),
            None => {
                let whole = Links {
                    base: String::new(),
                    ..self.links.clone()
                };
                match whole.caller_path(&link) {
                    Some(_) => Err(link),
                    None => Ok(link),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(called: &str, base: &str) -> CallerLinks {
        CallerLinks {
            links: Links {
                rewrite: true,
                origin: "http://eu.example.net:81".to_owned(),
                base: base.to_owned(),
                keys: vec!["key".to_owned()],
            },
            called: called.to_owned(),
        }
    }

    #[test]
    fn a_link_to_the_upstream_becomes_one_to_what_was_called() {
        let links = links("https://api.example.org", "/v3");
        for (link, expected) in [
            (
                "http://eu.example.net:81/v3/a?b",
                "https://api.example.org/a?b",
            ),
            (
                "HTTP://EU.example.net:81/v3?b&key=k",
                "https://api.example.org/?b",
            ),
            ("//eu.example.net:81/v3", "https://api.example.org/"),
            ("/v3/a?key=k#top", "/a#top"),
            ("/v3", "/"),
            ("a/b", "a/b"),
            ("?page=2", "?page=2"),
            (
                "https://eu.example.net:81/v3/a",
                "https://eu.example.net:81/v3/a",
            ),
            ("//cdn.example.net/v3/a", "//cdn.example.net/v3/a"),
        ] {
            assert_eq!(links.to_caller(link).as_deref(), Ok(expected), "{link}");
        }
        let outside = Err("http://eu.example.net:81/v33");
        assert_eq!(
            links.to_caller("/v33").as_deref().map_err(String::as_str),
            outside
        );
        let link = "http://eu.example.net:81/v33";
        assert_eq!(
            links.to_caller(link).as_deref().map_err(String::as_str),
            outside
        );
    }

    #[test]
    fn a_link_of_an_upstream_that_was_called_itself_stays() {
        let links = links("http://eu.example.net:81", "/v3");
        assert_eq!(links.to_caller("/v3/a").as_deref(), Ok("/v3/a"));
        assert_eq!(links.to_caller("/v4/a").as_deref(), Ok("/v4/a"));
    }
}
