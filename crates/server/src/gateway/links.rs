//! Rewrites links in responses so that they lead through the gateway.
//!
//! Promises: `Link`, `Location` and `Content-Location` to the provider become links to the gateway,
//! under the address that the caller used. A key that the provider repeats in a link is removed.
//!
//! Never: changes a body, or a link to another host.

use http::header::{CONTENT_LOCATION, HeaderMap, LINK, LOCATION};
use tollgate::providers::{Links, map_links};

use super::address::Mount;

/// Is there anything to rewrite? Most responses have no links.
pub(super) fn has_any(headers: &HeaderMap) -> bool {
    [LOCATION, CONTENT_LOCATION, LINK]
        .iter()
        .any(|name| headers.contains_key(name))
}

/// Rewrites the links of a response. `here` is the gateway's own address as the caller wrote it.
pub(super) fn rewrite(headers: &mut HeaderMap, links: &Links, mount: &Mount, here: &str) {
    map_links(headers, |value| rewrite_link(value, links, mount, here));
}

fn rewrite_link(url: &str, links: &Links, mount: &Mount, here: &str) -> String {
    let url = links.without_key(url);
    if !links.rewrite {
        return url;
    }
    match mount {
        Mount::Proxy => url,
        // The host that the caller used replaces the upstream, which callers may not know or reach.
        Mount::Url(origin) => match links.caller_path(&url) {
            Some(path) if is_absolute(&url) => format!("{here}/{origin}{path}"),
            Some(path) => format!("/{origin}{path}"),
            None if is_absolute(&url) => format!("{here}/{url}"),
            None if url.starts_with('/') && !url.starts_with("//") => {
                format!("/{}{url}", links.origin)
            }
            None => url,
        },
        Mount::Under(prefix) => match links.caller_path(&url) {
            Some(path) if is_absolute(&url) => format!("{here}{prefix}{path}"),
            Some(path) => format!("{prefix}{path}"),
            None => url,
        },
    }
}

fn is_absolute(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn links() -> Links {
        Links {
            rewrite: true,
            origin: "https://api.example.org".to_owned(),
            base: "/v3".to_owned(),
            keys: vec!["api_key".to_owned()],
        }
    }

    fn to(url: &str, mount: &Mount) -> String {
        rewrite_link(url, &links(), mount, "http://127.0.0.1:4290")
    }

    #[test]
    fn a_link_to_the_provider_comes_back_through_the_gateway() {
        let mount = Mount::Under("/x@web".to_owned());
        assert_eq!(
            to("https://api.example.org/v3/a?p=2", &mount),
            "http://127.0.0.1:4290/x@web/a?p=2"
        );
        assert_eq!(to("/v3/a", &mount), "/x@web/a");
        assert_eq!(
            to("https://elsewhere.org/a", &mount),
            "https://elsewhere.org/a"
        );
        assert_eq!(
            to("https://api.example.org.evil.org/v3/a", &mount),
            "https://api.example.org.evil.org/v3/a"
        );
        assert_eq!(to("a/b", &mount), "a/b");
    }

    #[test]
    fn a_link_in_a_response_to_an_absolute_url_stays_absolute() {
        let mount = Mount::Url("https://www.example.org".to_owned());
        assert_eq!(
            to("https://elsewhere.org/a", &mount),
            "http://127.0.0.1:4290/https://elsewhere.org/a"
        );
        assert_eq!(to("/a", &mount), "/https://api.example.org/a");
        assert_eq!(to("//cdn.example.org/a", &mount), "//cdn.example.org/a");
        // A link below the upstream gets the host that the caller used.
        assert_eq!(to("/v3/a", &mount), "/https://www.example.org/a");
        assert_eq!(
            to("https://api.example.org/v3/a?p=2", &mount),
            "http://127.0.0.1:4290/https://www.example.org/a?p=2"
        );
        assert_eq!(
            to("http://api.example.org/a", &Mount::Proxy),
            "http://api.example.org/a"
        );
    }

    /// H3: a key that the provider repeats in a link does not reach the caller.
    #[test]
    fn h3_a_key_in_a_link_is_removed() {
        let mount = Mount::Under("/x".to_owned());
        assert_eq!(to("/v3/a?api_key=canary&b=1", &mount), "/x/a?b=1");
        assert_eq!(to("/v3/a?api_key=canary#top", &mount), "/x/a#top");
    }

    #[test]
    fn every_link_of_a_header_is_rewritten() {
        let mut headers = HeaderMap::new();
        headers.insert(
            LINK,
            HeaderValue::from_static(
                "<https://api.example.org/v3/a?p=2>; rel=\"next\", </v3/b>; rel=last",
            ),
        );
        rewrite(
            &mut headers,
            &links(),
            &Mount::Under("/x".to_owned()),
            "http://h",
        );
        assert_eq!(
            headers[LINK],
            "<http://h/x/a?p=2>; rel=\"next\", </x/b>; rel=last"
        );
    }
}
