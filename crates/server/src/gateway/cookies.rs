//! Cookies of many providers on one address.
//!
//! A client keeps cookies by host and path, not by port. So the cookies of all providers of a
//! gateway, and of all its `listen` addresses, are in one jar.
//!
//! Promises: with `cookies: rewrite`, a cookie comes back to the provider that set it, and to no
//! other: its name says whose it is, and its path is below the provider's address on the gateway.
//! The provider sees its own names only. With `cookies: pass`, a provider neither sees nor sets the
//! rewritten cookies of others.
//!
//! Never: changes a value, or a cookie of a proxy request, whose jar knows the real host.

use http::header::{COOKIE, HeaderMap, HeaderValue, SET_COOKIE};
use tollgate::ProviderRegistry;
use tollgate::path::Target;
use tollgate::providers::ActiveProvider;
use tollgate_config::settings::Cookies;

use super::address::Mount;

/// What the names of all rewritten cookies begin with. `~` may be in a cookie's name, and is neither
/// in the names of providers nor in hosts.
const PREFIX: &str = "tollgate~";

/// Prepares the cookies of a request for its provider: those of others are removed. A cookie without
/// our prefix is one that the caller sends by itself, and stays.
pub(super) fn select(
    headers: &mut HeaderMap,
    registry: &ProviderRegistry,
    target: &Target,
    mount: &Mount,
) {
    let (mode, owner) = match target {
        Target::Provider { name, .. } => (mode_of(registry.named(name).ok().as_deref()), name),
        Target::Url { authority, .. } => {
            let found = registry.find_by_authority(authority);
            (mode_of(found.as_deref()), authority)
        }
    };
    let Some(prefix) = prefix(mount, owner) else {
        return;
    };
    let mut cookies: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b';'))
        .map(<[u8]>::trim_ascii)
        .filter(|cookie| !cookie.is_empty())
        .collect();
    let pairs: Vec<&[u8]> = match mode {
        // Nearly always there is none of ours, and the header stays as it is.
        Cookies::Pass if !cookies.iter().any(is_rewritten) => return,
        Cookies::Pass => {
            cookies.retain(|cookie| !is_rewritten(cookie));
            cookies
        }
        Cookies::Drop => Vec::new(),
        Cookies::Rewrite => cookies
            .into_iter()
            .filter_map(|cookie| match cookie.strip_prefix(prefix.as_bytes()) {
                Some(own) => Some(own),
                None => (!is_rewritten(cookie)).then_some(cookie),
            })
            .filter(|cookie| !cookie.is_empty())
            .collect(),
    };
    let line = HeaderValue::from_bytes(&pairs.join(&b"; "[..]));
    headers.remove(COOKIE);
    if let Ok(line) = line
        && !line.is_empty()
    {
        headers.insert(COOKIE, line);
    }
}

/// Makes the cookies of a response those of the gateway's address.
pub(super) fn rewrite(headers: &mut HeaderMap, provider: &ActiveProvider, mount: &Mount) {
    let mode = mode_of(Some(provider));
    let Some(prefix) = prefix(mount, provider.name()) else {
        return;
    };
    let is_ours = |line: &HeaderValue| is_rewritten(line.as_bytes());
    if mode == Cookies::Pass && !headers.get_all(SET_COOKIE).iter().any(is_ours) {
        return;
    }
    let lines: Vec<HeaderValue> = headers.get_all(SET_COOKIE).iter().cloned().collect();
    headers.remove(SET_COOKIE);
    let base = provider.links("").base;
    for line in lines {
        let line = match mode {
            Cookies::Drop => None,
            Cookies::Pass => Some(line).filter(|line| !is_ours(line)),
            Cookies::Rewrite => rewritten(line.as_bytes(), &prefix, &base, mount)
                .and_then(|line| HeaderValue::from_bytes(&line).ok()),
        };
        if let Some(line) = line {
            headers.append(SET_COOKIE, line);
        }
    }
}

/// Does the name of a cookie begin as those that we write? A client sends a cookie without a name as
/// its bare value, so `=tollgate~x~a` is one as well.
fn is_rewritten(cookie: impl AsRef<[u8]>) -> bool {
    let is_padding = |byte: &u8| *byte == b'=' || byte.is_ascii_whitespace();
    let start = cookie.as_ref().iter().position(|byte| !is_padding(byte));
    let name = start.and_then(|start| cookie.as_ref().get(start..));
    name.is_some_and(|name| name.starts_with(PREFIX.as_bytes()))
}

fn mode_of(provider: Option<&ActiveProvider>) -> Cookies {
    provider.map(ActiveProvider::cookies).unwrap_or_default()
}

/// What the names of one provider's cookies begin with; `None` for a proxy request. Behind an
/// absolute URL it is the host: unknown hosts share a provider, but not their cookies.
fn prefix(mount: &Mount, provider: &str) -> Option<String> {
    let owner = match mount {
        Mount::Proxy => return None,
        Mount::Under(_) => provider.to_owned(),
        Mount::Url(origin) => {
            let host = origin
                .split_once("://")
                .map_or(origin.as_str(), |(_, host)| host);
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            host.to_ascii_lowercase().replace(|c| !is_plain(c), "_")
        }
    };
    Some(format!("{PREFIX}{owner}~"))
}

/// One `Set-Cookie`. `None`: it has no name, so nobody could tell whose it is.
fn rewritten(line: &[u8], prefix: &str, base: &str, mount: &Mount) -> Option<Vec<u8>> {
    let mut parts = line.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let cookie = parts.next()?;
    let is_named = cookie
        .iter()
        .position(|byte| *byte == b'=')
        .is_some_and(|at| at > 0);
    if !is_named {
        return None;
    }
    let mut line = [prefix.as_bytes(), cookie].concat();
    for part in parts.filter(|part| !part.is_empty()) {
        let (name, value) = match part.iter().position(|byte| *byte == b'=') {
            Some(at) => part.split_at(at),
            None => (part, &b""[..]),
        };
        let value = value.strip_prefix(b"=").unwrap_or_default().trim_ascii();
        match name.trim_ascii().to_ascii_lowercase().as_slice() {
            // The host is the gateway's, and its address is not encrypted.
            b"domain" | b"secure" | b"partitioned" => {}
            b"samesite" if value.eq_ignore_ascii_case(b"none") => {}
            b"path" => {
                line.extend_from_slice(b"; Path=");
                line.extend_from_slice(&path_here(value, base, mount));
            }
            _ => {
                line.extend_from_slice(b"; ");
                line.extend_from_slice(part);
            }
        }
    }
    Some(line)
}

/// A path of the provider, as a path of the gateway.
fn path_here(path: &[u8], base: &str, mount: &Mount) -> Vec<u8> {
    let below = path.strip_prefix(base.as_bytes());
    let below = below.filter(|rest| rest.is_empty() || rest.starts_with(b"/"));
    let path = below.unwrap_or(if path.starts_with(b"/") { path } else { b"/" });
    let path = if path.is_empty() { b"/" } else { path };
    match mount {
        Mount::Under(prefix) => [prefix.as_bytes(), path].concat(),
        Mount::Url(origin) => [b"/", origin.as_bytes(), path].concat(),
        Mount::Proxy => path.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(line: &str, base: &str, mount: &Mount) -> Option<String> {
        let prefix = prefix(mount, "x").unwrap();
        let line = rewritten(line.as_bytes(), &prefix, base, mount)?;
        Some(String::from_utf8(line).unwrap())
    }

    #[test]
    fn path_domain_and_name_fit_the_gateway() {
        let mount = Mount::Under("/x@web".to_owned());
        for (line, expected) in [
            ("a=1", "tollgate~x~a=1"),
            (
                "a=1; Path=/; HttpOnly",
                "tollgate~x~a=1; Path=/x@web/; HttpOnly",
            ),
            (
                "a=b=c;path=/v3/login;Domain=.example.org",
                "tollgate~x~a=b=c; Path=/x@web/login",
            ),
            (
                "a=; Path=/v30; Max-Age=0",
                "tollgate~x~a=; Path=/x@web/v30; Max-Age=0",
            ),
            (
                "__Host-a=1; Path=/; Secure; SameSite=None",
                "tollgate~x~__Host-a=1; Path=/x@web/",
            ),
            (
                "a=1; SameSite=Lax; Path=v3",
                "tollgate~x~a=1; SameSite=Lax; Path=/x@web/",
            ),
        ] {
            assert_eq!(to(line, "/v3", &mount).as_deref(), Some(expected), "{line}");
        }
        assert_eq!(to("=1; Path=/", "", &mount), None);
        assert_eq!(to("nameless", "", &mount), None);
    }

    #[test]
    fn behind_an_absolute_url_the_host_owns_the_cookie() {
        let mount = Mount::Url("https://API.example.org:8443".to_owned());
        let expected = "tollgate~api.example.org_8443~a=1; Path=/https://API.example.org:8443/b";
        assert_eq!(to("a=1; Path=/b", "", &mount).as_deref(), Some(expected));
        let own = Mount::Under(String::new());
        assert_eq!(
            to("a=1; Path=/b", "", &own).as_deref(),
            Some("tollgate~x~a=1; Path=/b")
        );
    }
}
