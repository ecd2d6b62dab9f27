//! Which provider a host belongs to.
//!
//! Promises: one host has one spelling here (case, trailing dot and port do not matter), a domain
//! matches itself and its subdomains at label boundaries, and the most specific one wins. A name
//! that two programs could read as two hosts is rejected, never guessed.
//!
//! Never: resolves a name. Whether an address may be called is decided after resolution.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The longest host name that DNS can carry.
pub const HOST_MAX: usize = 253;

/// The longest label that DNS can carry.
pub const LABEL_MAX: usize = 63;

/// A host in its one spelling: lower case, no port, no trailing dot. Clones share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(Arc<str>);

/// Why a host is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The host is empty without the port.
    #[error("the host is empty; write a name such as `api.example.org`")]
    Empty,
    /// `user@host`: programs disagree about which part is the host.
    #[error(
        "the host carries a user name or a path; write the bare name, such as `api.example.org`"
    )]
    UserInfo,
    /// Longer than DNS allows.
    #[error("the host or one of its labels is longer than DNS allows (253 and 63 characters)")]
    TooLong,
    /// A label is empty or has other characters than letters, digits, `-` and `_`.
    #[error("the host has an empty label or a character that host names do not have")]
    Label,
    /// Letters outside ASCII: two versions of IDNA read them differently.
    #[error(
        "the host has letters outside ASCII, which programs read differently; write its `xn--` form"
    )]
    NotAscii,
    /// A `xn--` label that stands for plain ASCII.
    #[error("the host has an `xn--` label that stands for plain letters; write those letters")]
    Punycode,
    /// `127.1`, `0x7f000001`: an address to some programs and a name to others.
    #[error("the host looks like a number; write an address with four parts, such as `192.0.2.1`")]
    Number,
    /// The port is not a number from 1 to 65535.
    #[error("the port is not a number between 1 and 65535")]
    Port,
    /// A pattern that would cover a whole top-level domain.
    #[error(
        "the wildcard covers a whole top-level domain; name at least two labels, such as `*.example.org`"
    )]
    TooWide,
}

impl Host {
    /// Reads `host`, `host:port`, `host.` or `[::1]:port`.
    pub fn parse(authority: &str) -> Result<Host, HostError> {
        if authority.contains(['@', '/', '\\', '?', '#', '%']) {
            return Err(HostError::UserInfo);
        }
        if let Some(rest) = authority.strip_prefix('[') {
            return parse_bracketed(rest);
        }
        let (name, port) = match authority.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (authority, None),
        };
        check_port(port)?;
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.is_empty() {
            return Err(HostError::Empty);
        }
        if !name.is_ascii() {
            return Err(HostError::NotAscii);
        }
        parse_name(name.to_ascii_lowercase())
    }

    /// The one spelling.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn is_address(&self) -> bool {
        self.0.parse::<IpAddr>().is_ok()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn parse_bracketed(rest: &str) -> Result<Host, HostError> {
    let (address, port) = rest.split_once(']').ok_or(HostError::Label)?;
    match port.strip_prefix(':') {
        Some(port) => check_port(Some(port))?,
        None if port.is_empty() => {}
        None => return Err(HostError::Label),
    }
    let address: Ipv6Addr = address.parse().map_err(|_| HostError::Label)?;
    // `::ffff:192.0.2.1` reaches the same socket as `192.0.2.1`, so it is the same host.
    Ok(Host(address.to_canonical().to_string().into()))
}

fn check_port(port: Option<&str>) -> Result<(), HostError> {
    let Some(port) = port else { return Ok(()) };
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse::<u16>() {
        Ok(1..) if digits => Ok(()),
        Ok(_) | Err(_) => Err(HostError::Port),
    }
}

fn parse_name(name: String) -> Result<Host, HostError> {
    if name.len() > HOST_MAX {
        return Err(HostError::TooLong);
    }
    if name.parse::<Ipv4Addr>().is_ok() {
        return Ok(Host(name.into()));
    }
    let mut last = "";
    for label in name.split('.') {
        check_label(label)?;
        last = label;
    }
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    if is_number {
        return Err(HostError::Number);
    }
    Ok(Host(name.into()))
}

fn check_label(label: &str) -> Result<(), HostError> {
    if label.len() > LABEL_MAX {
        return Err(HostError::TooLong);
    }
    let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if label.is_empty() || !label.bytes().all(known) {
        return Err(HostError::Label);
    }
    // `xn--abc-` decodes to `abc`, and `xn--` to nothing: the only two spellings of plain letters.
    if let Some(code) = label.strip_prefix("xn--")
        && (code.is_empty() || code.ends_with('-'))
    {
        return Err(HostError::Punycode);
    }
    Ok(())
}

/// A configured domain: `example.org` (itself and its subdomains) or `*.example.org` (only those).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain {
    host: Host,
    subdomains_only: bool,
}

impl Domain {
    /// Reads a domain as it is written in a provider file.
    pub fn parse(text: &str) -> Result<Domain, HostError> {
        let (name, only_below) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        let host = Host::parse(name)?;
        if only_below && (host.is_address() || !host.as_str().contains('.')) {
            return Err(HostError::TooWide);
        }
        Ok(Domain {
            host,
            subdomains_only: only_below,
        })
    }

    /// The host, without the `*.` of a wildcard.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Only subdomains belong to it, not the domain itself.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        self.subdomains_only
    }

    /// Does the host belong to this domain?
    #[must_use]
    pub fn matches(&self, host: &Host) -> bool {
        if host == &self.host {
            return !self.subdomains_only;
        }
        // A name of one label covers nothing below it: `com` must not catch `example.com`.
        self.host.as_str().contains('.')
            && !self.host.is_address()
            && host
                .as_str()
                .strip_suffix(self.host.as_str())
                .is_some_and(|rest| rest.ends_with('.'))
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.subdomains_only { "*." } else { "" };
        write!(f, "{star}{}", self.host)
    }
}

/// Domains and their owners; the most specific domain wins.
#[derive(Clone, Debug)]
pub struct DomainTable<T> {
    entries: BTreeMap<(String, bool), T>,
}

impl<T> Default for DomainTable<T> {
    fn default() -> Self {
        DomainTable {
            entries: BTreeMap::new(),
        }
    }
}

impl<T> DomainTable<T> {
    /// Adds a domain. If it has an owner already, that owner stays and is returned.
    pub fn insert(&mut self, domain: &Domain, owner: T) -> Result<(), &T> {
        let key = (domain.host.0.to_string(), domain.subdomains_only);
        if self.entries.contains_key(&key) {
            return Err(&self.entries[&key]);
        }
        self.entries.insert(key, owner);
        Ok(())
    }

    /// The owner of the host.
    #[must_use]
    pub fn find(&self, host: &Host) -> Option<&T> {
        let whole = host.as_str();
        if let Some(owner) = self.entries.get(&(whole.to_owned(), false)) {
            return Some(owner);
        }
        if host.is_address() {
            return None;
        }
        let mut rest = whole;
        while let Some((_, parent)) = rest.split_once('.') {
            rest = parent;
            if !rest.contains('.') {
                return None;
            }
            // Of `*.example.org` and `example.org` the first covers less, so it is more specific.
            let wildcard = self.entries.get(&(rest.to_owned(), true));
            let plain = || self.entries.get(&(rest.to_owned(), false));
            if let Some(owner) = wildcard.or_else(plain) {
                return Some(owner);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    fn table(domains: &[&'static str]) -> DomainTable<&'static str> {
        let mut table = DomainTable::default();
        for &domain in domains {
            table
                .insert(&Domain::parse(domain).unwrap(), domain)
                .unwrap();
        }
        table
    }

    /// H4: case, trailing dot and port are ignored.
    #[test]
    fn equivalent_spellings_give_one_host() {
        for text in [
            "API.Example.org",
            "api.example.org.",
            "api.example.org:443",
            "api.example.ORG.:80",
        ] {
            assert_eq!(host(text), host("api.example.org"), "{text}");
        }
        assert_eq!(host("[::FFFF:192.0.2.1]:443"), host("192.0.2.1"));
        assert_eq!(host("[2001:DB8:0:0::1]"), host("[2001:db8::1]:8080"));
    }

    /// H4: names that two programs read as two hosts are rejected (R-E3).
    #[test]
    fn ambiguous_hosts_are_rejected() {
        for (text, error) in [
            ("", HostError::Empty),
            (":443", HostError::Empty),
            (".", HostError::Empty),
            ("a..org", HostError::Label),
            ("example.org..", HostError::Label),
            ("user@example.org", HostError::UserInfo),
            ("example.org/x", HostError::UserInfo),
            ("example%2eorg", HostError::UserInfo),
            ("exämple.org", HostError::NotAscii),
            ("example\u{3002}org", HostError::NotAscii),
            ("xn--abc-.org", HostError::Punycode),
            ("xn--.org", HostError::Punycode),
            ("127.1", HostError::Number),
            ("2130706433", HostError::Number),
            ("0x7f.0x1", HostError::Number),
            ("010.0.0.1", HostError::Number),
            ("example.org:0", HostError::Port),
            ("example.org:+80", HostError::Port),
            ("example.org:70000", HostError::Port),
            ("[::1", HostError::Label),
            ("[fe80::1%25eth0]", HostError::UserInfo),
        ] {
            assert_eq!(Host::parse(text), Err(error), "{text}");
        }
        assert_eq!(Host::parse(&"a".repeat(64)), Err(HostError::TooLong));
        assert!(Host::parse("xn--exmple-cua.org").is_ok());
    }

    /// H4: a domain matches itself and its subdomains, at label boundaries only.
    #[test]
    fn a_domain_matches_at_label_boundaries() {
        let domain = Domain::parse("finance.yahoo.com").unwrap();
        assert!(domain.matches(&host("finance.yahoo.com")));
        assert!(domain.matches(&host("query1.finance.yahoo.com")));
        assert!(!domain.matches(&host("notfinance.yahoo.com")));
        assert!(!domain.matches(&host("yahoo.com")));
        let below = Domain::parse("*.my.salesforce.com").unwrap();
        assert!(below.matches(&host("acme.my.salesforce.com")));
        assert!(!below.matches(&host("my.salesforce.com")));
        assert!(!Domain::parse("com").unwrap().matches(&host("example.com")));
        assert!(
            !Domain::parse("192.0.2.1")
                .unwrap()
                .matches(&host("a.example.org"))
        );
        assert_eq!(Domain::parse("*.com"), Err(HostError::TooWide));
    }

    /// H4: the most specific configured domain wins.
    #[test]
    fn the_most_specific_domain_wins() {
        let table = table(&[
            "example.org",
            "*.example.org",
            "api.example.org",
            "com",
            "192.0.2.1",
        ]);
        assert_eq!(table.find(&host("example.org")), Some(&"example.org"));
        assert_eq!(table.find(&host("www.example.org")), Some(&"*.example.org"));
        assert_eq!(
            table.find(&host("api.example.org")),
            Some(&"api.example.org")
        );
        assert_eq!(
            table.find(&host("v2.api.example.org")),
            Some(&"api.example.org")
        );
        assert_eq!(table.find(&host("badexample.org")), None);
        assert_eq!(table.find(&host("example.com")), None);
        assert_eq!(table.find(&host("192.0.2.1")), Some(&"192.0.2.1"));
    }

    #[test]
    fn a_domain_has_one_owner() {
        let mut table = table(&["example.org"]);
        let again = Domain::parse("EXAMPLE.org.").unwrap();
        assert_eq!(table.insert(&again, "other"), Err(&"example.org"));
    }
}
