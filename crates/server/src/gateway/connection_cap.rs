//! The cap on client connections: in total and per client address.
//!
//! Promises: bounds the total, and the number per address, so that one host cannot lock out all
//! others. Loopback is not counted by address unless configured: local programs share one address,
//! and a hostile local program can do worse anyway. Descriptors stay free for upstreams and the
//! store.
//!
//! Never: waits. A connection above the cap is rejected at once.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate::cache::{MEMFDS_MAX, set_memfds_max};
use tollgate::event::LogEvent;

/// Descriptors for the store, logs, listeners and the runtime.
const RESERVED: u64 = 32;

/// One in this many descriptors is for a large cached body in a memfd.
const MEMFD_PART: u64 = 16;

/// Descriptors of one call: the client's connection and the upstream's.
const PER_CALL: u64 = 2;

/// The cap, and the open connections.
#[derive(Debug)]
pub(super) struct ConnectionCap {
    max: usize,
    max_per_client: usize,
    counts_this_host: bool,
    counts: Mutex<ConnectionCounts>,
}

#[derive(Debug, Default)]
struct ConnectionCounts {
    total: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// A slot for one connection. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    cap: Arc<ConnectionCap>,
    client: Option<IpAddr>,
}

impl ConnectionCap {
    pub(super) fn new(most: usize, most_of_one: usize, counts_this_host: bool) -> ConnectionCap {
        ConnectionCap {
            max: most,
            max_per_client: most_of_one,
            counts_this_host,
            counts: Mutex::default(),
        }
    }

    /// A slot for one more connection, if there is one.
    pub(super) fn try_acquire(self: &Arc<ConnectionCap>, peer: IpAddr) -> Option<ConnectionSlot> {
        let counts = self.counts_this_host || !peer.to_canonical().is_loopback();
        let place = counts.then(|| client_key(peer));
        let mut inside = self.counts.lock();
        if inside.total >= self.max {
            return None;
        }
        if let Some(place) = place {
            let here = inside.by_client.entry(place).or_default();
            if *here >= self.max_per_client {
                return None;
            }
            *here += 1;
        }
        inside.total += 1;
        drop(inside);
        Some(ConnectionSlot {
            cap: self.clone(),
            client: place,
        })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut inside = self.cap.counts.lock();
        inside.total -= 1;
        if let Some(place) = self.client
            && let Some(here) = inside.by_client.get_mut(&place)
        {
            *here -= 1;
            if *here == 0 {
                inside.by_client.remove(&place);
            }
        }
    }
}

/// The key of a client: an IPv4 address, or the /64 prefix that one IPv6 customer gets.
fn client_key(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(ip) => IpAddr::V4(ip),
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

/// How many connections the descriptors of this process allow, at most `wanted`. Raises the soft
/// limit to the hard one first: the soft limit exists for programs that use `select`.
pub(super) fn max_connections(wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let count = |descriptors: Option<u64>| descriptors.unwrap_or(u64::MAX);
    let (before, now) = (count(limit.current), count(current));
    LogEvent::Descriptors { before, now }.emit();
    let Some(descriptors) = current else {
        return wanted;
    };
    let (carried, sheets) = split_descriptors(descriptors, wanted);
    set_memfds_max(sheets);
    carried
}

/// Splits descriptors into connections and memfd bodies.
fn split_descriptors(descriptors: u64, wanted: usize) -> (usize, usize) {
    let sheets = (descriptors / MEMFD_PART).min(MEMFDS_MAX as u64);
    let carried = descriptors.saturating_sub(RESERVED + sheets) / PER_CALL;
    let carried =
        usize::try_from(carried).map_or(wanted, |carried| carried.clamp(1, wanted.max(1)));
    (carried, usize::try_from(sheets).unwrap_or(MEMFDS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection_cap(most: usize, most_of_one: usize) -> Arc<ConnectionCap> {
        Arc::new(ConnectionCap::new(most, most_of_one, false))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// R-E1: one address cannot lock out all others.
    #[test]
    fn one_address_cannot_exceed_its_share() {
        let crowd = connection_cap(10, 2);
        let one = crowd.try_acquire(ip("203.0.113.7")).unwrap();
        let _two = crowd.try_acquire(ip("::ffff:203.0.113.7")).unwrap();
        assert!(crowd.try_acquire(ip("203.0.113.7")).is_none());
        assert!(crowd.try_acquire(ip("203.0.113.8")).is_some());
        drop(one);
        assert!(crowd.try_acquire(ip("203.0.113.7")).is_some());
    }

    #[test]
    fn one_ipv6_prefix_of_64_bits_counts_as_one_client() {
        let crowd = connection_cap(10, 1);
        let _one = crowd.try_acquire(ip("2001:db8:1:2::1")).unwrap();
        assert!(crowd.try_acquire(ip("2001:db8:1:2:ffff::9")).is_none());
        assert!(crowd.try_acquire(ip("2001:db8:1:3::1")).is_some());
    }

    #[test]
    fn loopback_is_limited_by_the_total_only() {
        let crowd = connection_cap(3, 1);
        let _rooms =
            ["127.0.0.1", "::1", "::ffff:127.0.0.1"].map(|peer| crowd.try_acquire(ip(peer)));
        assert!(crowd.try_acquire(ip("203.0.113.7")).is_none(), "full");
    }

    #[test]
    fn a_client_without_connections_is_removed() {
        let crowd = connection_cap(10, 2);
        drop(crowd.try_acquire(ip("203.0.113.7")));
        assert!(crowd.counts.lock().by_client.is_empty());
    }

    /// R-C10: callers never take the last descriptors.
    #[test]
    fn descriptors_are_reserved_for_upstreams_and_the_store() {
        assert_eq!(split_descriptors(64, 4_096), (14, 4));
        assert_eq!(split_descriptors(10, 4_096), (1, 0));
        assert_eq!(split_descriptors(1_048_576, 4_096), (4_096, MEMFDS_MAX));
        for descriptors in [128, 1_024, 4_096] {
            let (calls, sheets) = split_descriptors(descriptors, usize::MAX);
            let used = calls as u64 * PER_CALL + sheets as u64 + RESERVED;
            assert!(used <= descriptors, "{descriptors}: {used}");
        }
    }
}
