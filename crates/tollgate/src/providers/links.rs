//! Links that a provider sends, and which of them are its own.
//!
//! Promises: only a link to the same origin, below the same base, is the provider's own.
//!
//! Never: follows a link.

use http::header::{CONTENT_LOCATION, HeaderMap, HeaderName, HeaderValue, LINK, LOCATION};

use super::ActiveProvider;
use crate::query::without_parameter;
use tollgate_config::provider::AuthStyle;

/// How the links of one provider are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// Links are rewritten to come back through the gateway.
    pub rewrite: bool,
    /// Where the call went: `https://api.example.org`.
    pub origin: String,
    /// The path before the caller's path.
    pub base: String,
    /// The parameters that carry our keys.
    pub keys: Vec<String>,
}

/// Maps every link in a response head: `Location`, `Content-Location` and those between the angle
/// brackets of `Link`.
pub fn map_links(headers: &mut HeaderMap, change: impl Fn(&str) -> String) {
    for name in [LOCATION, CONTENT_LOCATION] {
        map_header(headers, &name, &change);
    }
    map_header(headers, &LINK, |value| map_link_header(value, &change));
}

fn map_header(headers: &mut HeaderMap, name: &HeaderName, change: impl Fn(&str) -> String) {
    let values: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
    if values.is_empty() {
        return;
    }
    headers.remove(name);
    for value in values {
        let changed = value.to_str().ok().map(&change);
        let changed = changed.and_then(|value| HeaderValue::try_from(value).ok());
        headers.append(name.clone(), changed.unwrap_or(value));
    }
}

/// `<url>; rel="next", <url>; rel="last"`.
fn map_link_header(value: &str, change: impl Fn(&str) -> String) -> String {
    let mut out = String::with_capacity(value.len());
    let mut rest = value;
    while let Some((before, after)) = rest.split_once('<') {
        let Some((url, tail)) = after.split_once('>') else {
            break;
        };
        out.push_str(before);
        out.push('<');
        out.push_str(&change(url));
        out.push('>');
        rest = tail;
    }
    out.push_str(rest);
    out
}

impl ActiveProvider {
    /// How links in responses from this origin are read.
    #[must_use]
    pub fn links(&self, origin: &str) -> Links {
        let policy = self.policy();
        let provider = &policy.provider;
        let also = provider.auth.also.iter().map(|(name, _)| name.clone());
        let keys = match &provider.auth.style {
            AuthStyle::Query { name } => std::iter::once(name.clone()).chain(also).collect(),
            AuthStyle::None
            | AuthStyle::Header { .. }
            | AuthStyle::Bearer
            | AuthStyle::Basic
            | AuthStyle::OAuth2(_)
            | AuthStyle::Login(_) => Vec::new(),
        };
        let base = provider
            .upstream
            .as_ref()
            .map(|upstream| upstream.base.clone());
        Links {
            rewrite: provider.rewrite_links,
            origin: origin.to_owned(),
            base: base.unwrap_or_default(),
            keys,
        }
    }
}

impl Links {
    /// The link without our keys.
    #[must_use]
    pub fn without_key(&self, url: &str) -> String {
        if self.keys.is_empty() {
            return url.to_owned();
        }
        let (front, fragment) = match url.split_once('#') {
            Some((front, fragment)) => (front, format!("#{fragment}")),
            None => (url, String::new()),
        };
        match front.split_once('?') {
            Some((path, query)) => {
                let without = |query: String, key: &String| without_parameter(&query, key);
                match self.keys.iter().fold(query.to_owned(), without) {
                    query if query.is_empty() => format!("{path}{fragment}"),
                    query => format!("{path}?{query}{fragment}"),
                }
            }
            None => url.to_owned(),
        }
    }

    /// The path of a link that spells the same origin differently: in upper case, with the default
    /// port, or without a scheme.
    fn path_if_same_origin<'a>(&self, url: &'a str) -> Option<&'a str> {
        let (scheme, own) = self.origin.split_once("://")?;
        let rest = match url.strip_prefix("//") {
            Some(rest) => rest,
            None => {
                let (theirs, rest) = url.split_once("://")?;
                theirs.eq_ignore_ascii_case(scheme).then_some(rest)?
            }
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at_checked(end)?;
        let usual = if scheme == "https" { ":443" } else { ":80" };
        let plain = |authority: &str| {
            let authority = authority.to_ascii_lowercase();
            let without = authority.strip_suffix(usual).map(str::to_owned);
            without.unwrap_or(authority)
        };
        (plain(authority) == plain(own)).then_some(path)
    }

    /// The part of the link that the caller would write; `None` if it leads elsewhere.
    #[must_use]
    pub fn caller_path<'a>(&self, url: &'a str) -> Option<&'a str> {
        let path = match url.strip_prefix(self.origin.as_str()) {
            Some(path) if path.is_empty() || path.starts_with(['/', '?', '#']) => path,
            _ if url.starts_with('/') && !url.starts_with("//") => url,
            _ => self.path_if_same_origin(url)?,
        };
        let path = path.strip_prefix(self.base.as_str())?;
        (path.is_empty() || path.starts_with(['/', '?', '#'])).then_some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_the_providers_own_however_its_origin_is_spelt() {
        let links = Links {
            origin: "https://api.example.org".to_owned(),
            base: "/v1".to_owned(),
            ..Links::default()
        };
        for own in [
            "https://api.example.org/v1/a?b",
            "/v1/a?b",
            "https://api.example.org:443/v1/a?b",
            "HTTPS://API.Example.ORG/v1/a?b",
            "//api.example.org/v1/a?b",
            "//API.example.org:443/v1/a?b",
        ] {
            assert_eq!(links.caller_path(own), Some("/a?b"), "{own}");
        }
        for other in [
            "http://api.example.org/v1/a",
            "https://api.example.org:8443/v1/a",
            "https://api.example.org.evil.example/v1/a",
            "https://api.example.org@evil.example/v1/a",
            "https://me@api.example.org/v1/a",
            "//evil.example/v1/a",
            "https://api.example.org/v2/a",
            "mailto:a@api.example.org",
            "v1/a",
        ] {
            assert_eq!(links.caller_path(other), None, "{other}");
        }
        let local = Links {
            origin: "http://127.0.0.1:8080".to_owned(),
            ..Links::default()
        };
        assert_eq!(local.caller_path("http://127.0.0.1:8080"), Some(""));
        assert_eq!(local.caller_path("http://127.0.0.1:80801/a"), None);
    }
}
