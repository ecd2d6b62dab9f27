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
use tollgate::body::set_spool_files_max;
use tollgate::cache::{MEMFDS_MAX, set_memfds_max};
use tollgate::event::{Event, Events};
use tollgate::providers::set_upstream_connections_max;

/// Descriptors for the store, logs, listeners and the runtime.
const RESERVED: u64 = 32;

/// One in this many descriptors is for a large cached body in a memfd.
const MEMFD_PART: u64 = 16;

/// One in this many descriptors is for a request body in a file; with more, bodies are streamed.
const SPOOL_PART: u64 = 16;

/// The most request bodies in files: a thousand of 1 MiB fill what all together may take on disk.
const SPOOLS_MAX: u64 = 1_024;

/// One in this many descriptors is for a connection of the admin address.
const ADMIN_PART: u64 = 16;

/// The fewest and the most connections of the admin address: a command and a few probes; and many
/// dashboards. One is a task of some 20 KiB, so the most are 20 MiB.
const ADMIN_MIN: u64 = 4;
const ADMIN_MAX: u64 = 1_024;

/// One in this many descriptors is for a client of the Redis protocol.
const RESP_PART: u64 = 16;

/// The fewest and the most of them: a pool of one program, and as many as callers of the gateway. One
/// is a task of some 5 KiB while it is idle.
const RESP_MIN: u64 = 4;
const RESP_MAX: u64 = 4_096;

/// Descriptors of one call: the client's connection and the upstream's.
const PER_CALL: u64 = 2;

/// The cap, and the open connections.
#[derive(Debug)]
pub(crate) struct ConnectionCap {
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
pub(crate) struct ConnectionSlot {
    cap: Arc<ConnectionCap>,
    client: Option<IpAddr>,
}

impl ConnectionCap {
    pub(crate) fn new(max: usize, max_per_client: usize, counts_this_host: bool) -> ConnectionCap {
        ConnectionCap {
            max,
            max_per_client,
            counts_this_host,
            counts: Mutex::default(),
        }
    }

    /// A slot for one more connection, if there is one.
    pub(crate) fn try_acquire(self: &Arc<ConnectionCap>, peer: IpAddr) -> Option<ConnectionSlot> {
        let counts = self.counts_this_host || !peer.to_canonical().is_loopback();
        let client = counts.then(|| client_key(peer));
        let mut state = self.counts.lock();
        if state.total >= self.max {
            return None;
        }
        if let Some(client) = client {
            let count = state.by_client.entry(client).or_default();
            if *count >= self.max_per_client {
                return None;
            }
            *count += 1;
        }
        state.total += 1;
        debug_assert!(state.total <= self.max, "connections are bounded");
        drop(state);
        Some(ConnectionSlot {
            cap: self.clone(),
            client,
        })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = self.cap.counts.lock();
        state.total -= 1;
        if let Some(client) = self.client
            && let Some(count) = state.by_client.get_mut(&client)
        {
            *count -= 1;
            if *count == 0 {
                state.by_client.remove(&client);
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
pub(super) fn max_connections(wanted: usize, events: &Events) -> usize {
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
    events.emit(Event::Descriptors { before, now });
    let Some(descriptors) = current else {
        return wanted;
    };
    let parts = split_descriptors(descriptors, wanted);
    set_memfds_max(parts.memfds);
    set_spool_files_max(parts.spools);
    set_upstream_connections_max(parts.connections);
    parts.connections
}

/// Descriptors beyond those of so many calls.
pub(super) fn spare_descriptors(connections: usize) -> usize {
    use rustix::process::{Resource, getrlimit};
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let possible = split_descriptors(descriptors, usize::MAX).connections;
    possible.saturating_sub(connections)
}

/// How many connections the admin address may have. The gateway leaves their descriptors alone.
pub(crate) fn max_admin_connections() -> usize {
    use rustix::process::{Resource, getrlimit};
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(admin_part(descriptors)).unwrap_or(usize::MAX)
}

/// How many clients of the Redis protocol may connect. The gateway leaves their descriptors alone.
pub(crate) fn max_resp_connections() -> usize {
    use rustix::process::{Resource, getrlimit};
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(resp_part(descriptors)).unwrap_or(usize::MAX)
}

fn resp_part(descriptors: u64) -> u64 {
    (descriptors / RESP_PART).clamp(RESP_MIN, RESP_MAX)
}

fn admin_part(descriptors: u64) -> u64 {
    (descriptors / ADMIN_PART).clamp(ADMIN_MIN, ADMIN_MAX)
}

/// The descriptors of this process, by what they are for.
#[derive(Debug, PartialEq, Eq)]
struct DescriptorParts {
    /// Client connections, each with its upstream's.
    connections: usize,
    /// Large cached bodies.
    memfds: usize,
    /// Request bodies in files.
    spools: usize,
}

/// Splits descriptors, beside those of the admin address and of the Redis protocol.
fn split_descriptors(descriptors: u64, wanted: usize) -> DescriptorParts {
    let memfds = (descriptors / MEMFD_PART).min(MEMFDS_MAX as u64);
    let spools = (descriptors / SPOOL_PART).min(SPOOLS_MAX);
    let listeners = admin_part(descriptors) + resp_part(descriptors);
    let others = RESERVED + memfds + spools + listeners;
    let connections = descriptors.saturating_sub(others) / PER_CALL;
    let connections = usize::try_from(connections)
        .map_or(wanted, |connections| connections.clamp(1, wanted.max(1)));
    DescriptorParts {
        connections,
        memfds: usize::try_from(memfds).unwrap_or(MEMFDS_MAX),
        spools: usize::try_from(spools).unwrap_or(usize::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection_cap(max: usize, max_per_client: usize) -> Arc<ConnectionCap> {
        Arc::new(ConnectionCap::new(max, max_per_client, false))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// R-E1: one address cannot lock out all others.
    #[test]
    fn one_address_cannot_exceed_its_share() {
        let cap = connection_cap(10, 2);
        let one = cap.try_acquire(ip("203.0.113.7")).unwrap();
        let _two = cap.try_acquire(ip("::ffff:203.0.113.7")).unwrap();
        assert!(cap.try_acquire(ip("203.0.113.7")).is_none());
        assert!(cap.try_acquire(ip("203.0.113.8")).is_some());
        drop(one);
        assert!(cap.try_acquire(ip("203.0.113.7")).is_some());
    }

    #[test]
    fn one_ipv6_prefix_of_64_bits_counts_as_one_client() {
        let cap = connection_cap(10, 1);
        let _one = cap.try_acquire(ip("2001:db8:1:2::1")).unwrap();
        assert!(cap.try_acquire(ip("2001:db8:1:2:ffff::9")).is_none());
        assert!(cap.try_acquire(ip("2001:db8:1:3::1")).is_some());
    }

    #[test]
    fn loopback_is_limited_by_the_total_only() {
        let cap = connection_cap(3, 1);
        let _slots = ["127.0.0.1", "::1", "::ffff:127.0.0.1"].map(|peer| cap.try_acquire(ip(peer)));
        assert!(cap.try_acquire(ip("203.0.113.7")).is_none(), "full");
    }

    #[test]
    fn a_client_without_connections_is_removed() {
        let cap = connection_cap(10, 2);
        drop(cap.try_acquire(ip("203.0.113.7")));
        assert!(cap.counts.lock().by_client.is_empty());
    }

    /// A host that may open many files has many connections of the admin address, one with few keeps some.
    #[test]
    fn the_admin_address_scales_with_descriptors() {
        assert_eq!(admin_part(0), ADMIN_MIN);
        assert_eq!(admin_part(u64::MAX), ADMIN_MAX);
        let middle = (ADMIN_MIN + 1) * ADMIN_PART;
        assert_eq!(admin_part(middle), ADMIN_MIN + 1);
        assert_eq!(admin_part(2 * middle), 2 * (ADMIN_MIN + 1));
        const { assert!(2 * (ADMIN_MIN + 1) < ADMIN_MAX, "not the cap") };
    }

    /// R-C10: callers never take the last descriptors.
    #[test]
    fn descriptors_are_reserved_for_upstreams_and_the_store() {
        let parts = |connections, memfds, spools| DescriptorParts {
            connections,
            memfds,
            spools,
        };
        assert_eq!(split_descriptors(64, 4_096), parts(8, 4, 4));
        assert_eq!(split_descriptors(10, 4_096), parts(1, 0, 0));
        let many = split_descriptors(1_048_576, 4_096);
        assert_eq!(many, parts(4_096, MEMFDS_MAX, 1_024));
        for descriptors in [128, 1_024, 4_096] {
            let split = split_descriptors(descriptors, usize::MAX);
            let files = (split.memfds + split.spools) as u64;
            let listeners = admin_part(descriptors) + resp_part(descriptors);
            let used = split.connections as u64 * PER_CALL + files + listeners + RESERVED;
            assert!(used <= descriptors, "{descriptors}: {used}");
        }
    }
}
