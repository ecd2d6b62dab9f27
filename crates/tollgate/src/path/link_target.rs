//! Where the links of a response lead, as far as the cache needs it.
//!
//! Promises: only links to the same origin count; a path is resolved as in browsers.
//!
//! Never: follows a link.

use super::route::Route;
use crate::cache::{RequestUrl, Salt, UrlHash};

/// The URL of a link, if it is on the origin of the call.
pub(super) fn url(route: &Route, link: &str, salt: &Salt) -> Option<UrlHash> {
    let origin = route.request.origin.to_string();
    let whole = path_of(&origin, &route.request.path, link)?;
    let (path, query) = whole.split_once('?').unwrap_or((&whole, ""));
    let request_url = RequestUrl {
        tls: route.request.origin.tls,
        host: route.request.origin.host.as_str(),
        port: route.request.origin.port,
        path,
        query,
    };
    Some(request_url.hash(salt))
}

/// Path and query of a link on this origin.
fn path_of(origin: &str, base: &str, link: &str) -> Option<String> {
    let link = link.split('#').next().unwrap_or_default();
    if let Some(rest) = link.strip_prefix(origin) {
        return match rest.chars().next() {
            None => Some("/".to_owned()),
            Some('/') => Some(without_dots(rest)),
            Some('?') => Some(format!("/{rest}")),
            // Another host with the same prefix, or another port.
            Some(_) => None,
        };
    }
    if link.contains("://") || link.starts_with("//") {
        return None;
    }
    if link.starts_with('/') {
        return Some(without_dots(link));
    }
    if link.is_empty() || link.starts_with('?') {
        return Some(format!("{base}{link}"));
    }
    let folder = base.rsplit_once('/').map_or("", |(folder, _)| folder);
    Some(without_dots(&format!("{folder}/{link}")))
}

/// The path without `.` and `..`; the query is unchanged.
fn without_dots(written: &str) -> String {
    let (path, query) = match written.split_once('?') {
        Some((path, query)) => (path, format!("?{query}")),
        None => (written, String::new()),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}{query}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_resolve_as_in_browsers() {
        let at = |link| path_of("http://api.example.org", "/v1/items/7", link);
        for (link, path) in [
            ("http://api.example.org/a?b=1#c", Some("/a?b=1")),
            ("http://api.example.org", Some("/")),
            ("http://api.example.org.evil/a", None),
            ("http://api.example.org:81/a", None),
            ("https://api.example.org/a", None),
            ("//api.example.org/a", None),
            ("/a/../b", Some("/b")),
            ("8", Some("/v1/items/8")),
            ("../x", Some("/v1/x")),
            ("?q=1", Some("/v1/items/7?q=1")),
            ("", Some("/v1/items/7")),
        ] {
            assert_eq!(at(link).as_deref(), path, "{link}");
        }
    }
}
