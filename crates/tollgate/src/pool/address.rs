//! Origins of calls, and which addresses may be called.
//!
//! Promises: recognises private, local and reserved addresses in every form in which an IPv6
//! address can contain an IPv4 one.
//!
//! Never: resolves a name.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollgate_core::domain::Host;

/// Scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Over TLS.
    pub tls: bool,
    /// To this host.
    pub host: Host,
    /// At this port.
    pub port: u16,
    /// Private addresses may be called: the user's own file names this origin.
    pub private: bool,
}

impl Origin {
    /// As in a `Host` header: the port only if it is not the scheme's default.
    #[must_use]
    pub fn authority(&self) -> String {
        let usual = if self.tls { 443 } else { 80 };
        if self.port == usual {
            self.bracketed()
        } else {
            format!("{}:{}", self.bracketed(), self.port)
        }
    }

    fn bracketed(&self) -> String {
        let host = self.host.as_str();
        if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]")
        } else {
            host.to_owned()
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

/// Must an untrusted URL not reach this address?
#[must_use]
pub fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_private_v4(ip),
        IpAddr::V6(ip) => is_private_v6(ip),
    }
}

fn is_private_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_documentation()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (18..20).contains(&b))
}

fn is_private_v6(ip: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let inner = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        is_private_v4(Ipv4Addr::new(a, b, c, d))
    };
    match (a, b) {
        // Mapped, compatible, unspecified and loopback.
        (0, 0) if (c, d) == (0, 0) && [(0, 0), (0, 0xffff), (0xffff, 0)].contains(&(e, f)) => {
            (g, h) == (0, 1) || inner(g, h)
        }
        (0x64, 0xff9b) => inner(g, h),
        (0x2002, _) => inner(b, c),
        (0x2001, 0xdb8) => true,
        // Unique local, link local, site local (deprecated, and still routed in some networks),
        // multicast.
        _ => a & 0xfe00 == 0xfc00 || matches!(a & 0xffc0, 0xfe80 | 0xfec0) || a & 0xff00 == 0xff00,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_recognised_in_every_form() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.31.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "198.18.0.1",
            "::",
            "::1",
            "fe80::1",
            "fec0::1",
            "feff::1",
            "fd00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
        ] {
            assert!(is_private(text.parse().unwrap()), "{text}");
        }
        for text in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "64:ff9b::101:101",
            "::ffff:1.1.1.1",
        ] {
            assert!(!is_private(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn an_authority_names_the_port_only_if_it_must() {
        let origin = |tls, port| Origin {
            tls,
            host: Host::parse("api.example.org").unwrap(),
            port,
            private: false,
        };
        assert_eq!(origin(true, 443).authority(), "api.example.org");
        assert_eq!(origin(false, 443).authority(), "api.example.org:443");
        assert_eq!(origin(false, 80).to_string(), "http://api.example.org");
    }
}
