//! Whose request it is when a proxy stands in front.
//!
//! Promises: `X-Forwarded-For` is believed only from trusted proxies, and only as far back as each of
//! them is trusted: what stands further left was written by the caller itself.
//!
//! Never: fails. An unreadable entry ends the list.

use std::net::IpAddr;

use http::HeaderMap;
use tollgate_config::config::Network;

const FORWARDED_FOR: &str = "x-forwarded-for";

/// The address of the caller.
#[must_use]
pub fn client_ip(peer: IpAddr, headers: &HeaderMap, trusted: &[Network]) -> IpAddr {
    let is_trusted = |ip: IpAddr| trusted.iter().any(|network| network.contains(ip));
    let mut client = peer;
    let lines = headers.get_all(FORWARDED_FOR).iter().rev();
    // Of bytes: what a client wrote must not make unreadable what its proxy added.
    let entries = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    for entry in entries {
        let entry = std::str::from_utf8(entry).unwrap_or_default();
        if !is_trusted(client) {
            break;
        }
        match parse(entry.trim()) {
            Some(ip) => client = ip,
            None => break,
        }
    }
    client.to_canonical()
}

/// An address, also as some proxies write it: with a port, or in brackets.
pub(super) fn parse(entry: &str) -> Option<IpAddr> {
    let bracketed = entry
        .strip_prefix('[')
        .and_then(|rest| Some(rest.split_once(']')?.0));
    let with_port = || {
        entry
            .parse()
            .ok()
            .map(|socket: std::net::SocketAddr| socket.ip())
    };
    let text = bracketed.unwrap_or(entry);
    text.parse().ok().or_else(with_port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn network(address: &str, bits: u8) -> Network {
        Network {
            address: address.parse().unwrap(),
            bits,
        }
    }

    fn client(peer: &str, lines: &[&'static str]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            let line = HeaderValue::from_bytes(line.as_bytes()).unwrap();
            headers.append(FORWARDED_FOR, line);
        }
        let trusted = [network("10.0.0.0", 8), network("::1", 128)];
        client_ip(peer.parse().unwrap(), &headers, &trusted).to_string()
    }

    /// A caller that writes the header itself would choose its own bucket for every request.
    #[test]
    fn forwarded_for_is_believed_only_as_far_as_proxies_are_trusted() {
        assert_eq!(client("203.0.113.7", &["198.51.100.1"]), "203.0.113.7");
        assert_eq!(client("10.0.0.1", &["198.51.100.1"]), "198.51.100.1");
        assert_eq!(
            client("10.0.0.1", &["1.2.3.4, 198.51.100.1"]),
            "198.51.100.1"
        );
        assert_eq!(
            client("10.0.0.1", &["1.2.3.4", "198.51.100.1, 10.0.0.9"]),
            "198.51.100.1"
        );
        assert_eq!(client("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(client("10.0.0.1", &["nonsense"]), "10.0.0.1");
        assert_eq!(
            client("10.0.0.1", &["10.0.0.2, nonsense, 10.0.0.3"]),
            "10.0.0.3"
        );
        // Bytes beyond ASCII, which a client sent and its proxy passed on.
        assert_eq!(
            client("10.0.0.1", &["\u{ff}, 198.51.100.1"]),
            "198.51.100.1"
        );
        assert_eq!(client("::1", &["[2001:db8::1]:443"]), "2001:db8::1");
        assert_eq!(
            client("::ffff:10.0.0.1", &["198.51.100.1:99"]),
            "198.51.100.1"
        );
    }
}
