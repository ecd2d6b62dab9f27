//! Who is connected: how many at a time, and how many from one place.
//!
//! Promises: at most so many connections in all, and so many of one address, because one host must
//! not be able to keep all others out. Programs on this host are not counted by address unless it is
//! asked for: they share one, and whoever can run them can do worse. Descriptors are left for
//! upstreams and the store.
//!
//! Never: waits. Who finds no room is refused at once.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate::cache::{SHEETS_MAX, sheets_at_most};
use tollgate::event::Fact;

/// Descriptors that are not for callers: the store, logs, listeners, the runtime.
const RESERVED: u64 = 32;

/// The part of all descriptors that is for large bodies in memory.
const SHEET_PART: u64 = 16;

/// Descriptors of one call: its caller's connection and the upstream's.
const PER_CALL: u64 = 2;

/// Everybody who is connected.
#[derive(Debug)]
pub(super) struct Crowd {
    most: usize,
    most_of_one: usize,
    counts_this_host: bool,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    all: usize,
    by_place: HashMap<IpAddr, usize>,
}

/// Room for one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    crowd: Arc<Crowd>,
    place: Option<IpAddr>,
}

impl Crowd {
    pub(super) fn new(most: usize, most_of_one: usize, counts_this_host: bool) -> Crowd {
        Crowd {
            most,
            most_of_one,
            counts_this_host,
            inside: Mutex::default(),
        }
    }

    /// Room for one more, if there is any.
    pub(super) fn enter(self: &Arc<Crowd>, peer: IpAddr) -> Option<Room> {
        let counts = self.counts_this_host || !peer.to_canonical().is_loopback();
        let place = counts.then(|| place(peer));
        let mut inside = self.inside.lock();
        if inside.all >= self.most {
            return None;
        }
        if let Some(place) = place {
            let here = inside.by_place.entry(place).or_default();
            if *here >= self.most_of_one {
                return None;
            }
            *here += 1;
        }
        inside.all += 1;
        drop(inside);
        Some(Room {
            crowd: self.clone(),
            place,
        })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut inside = self.crowd.inside.lock();
        inside.all -= 1;
        if let Some(place) = self.place
            && let Some(here) = inside.by_place.get_mut(&place)
        {
            *here -= 1;
            if *here == 0 {
                inside.by_place.remove(&place);
            }
        }
    }
}

/// What counts as one place: an address, or the 64 bits that one IPv6 customer gets.
fn place(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(ip) => IpAddr::V4(ip),
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

/// How many connections the descriptors of this process carry, at most `wanted`. The soft limit is
/// raised to the hard one first: it is meant for programs that use `select`.
pub(super) fn affordable(wanted: usize) -> usize {
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
    Fact::Descriptors { before, now }.tell();
    let Some(descriptors) = current else {
        return wanted;
    };
    let (carried, sheets) = carried(descriptors, wanted);
    sheets_at_most(sheets);
    carried
}

/// How many connections and how many bodies so many descriptors carry.
fn carried(descriptors: u64, wanted: usize) -> (usize, usize) {
    let sheets = (descriptors / SHEET_PART).min(SHEETS_MAX as u64);
    let carried = descriptors.saturating_sub(RESERVED + sheets) / PER_CALL;
    let carried =
        usize::try_from(carried).map_or(wanted, |carried| carried.clamp(1, wanted.max(1)));
    (carried, usize::try_from(sheets).unwrap_or(SHEETS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(most: usize, most_of_one: usize) -> Arc<Crowd> {
        Arc::new(Crowd::new(most, most_of_one, false))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// R-E1: one address cannot keep all others out.
    #[test]
    fn one_address_has_its_part_and_no_more() {
        let crowd = crowd(10, 2);
        let one = crowd.enter(ip("203.0.113.7")).unwrap();
        let _two = crowd.enter(ip("::ffff:203.0.113.7")).unwrap();
        assert!(crowd.enter(ip("203.0.113.7")).is_none());
        assert!(crowd.enter(ip("203.0.113.8")).is_some());
        drop(one);
        assert!(crowd.enter(ip("203.0.113.7")).is_some());
    }

    #[test]
    fn one_ipv6_customer_is_one_place() {
        let crowd = crowd(10, 1);
        let _one = crowd.enter(ip("2001:db8:1:2::1")).unwrap();
        assert!(crowd.enter(ip("2001:db8:1:2:ffff::9")).is_none());
        assert!(crowd.enter(ip("2001:db8:1:3::1")).is_some());
    }

    #[test]
    fn this_host_is_bounded_by_the_whole_only() {
        let crowd = crowd(3, 1);
        let _rooms = ["127.0.0.1", "::1", "::ffff:127.0.0.1"].map(|peer| crowd.enter(ip(peer)));
        assert!(crowd.enter(ip("203.0.113.7")).is_none(), "full");
    }

    #[test]
    fn places_that_left_are_forgotten() {
        let crowd = crowd(10, 2);
        drop(crowd.enter(ip("203.0.113.7")));
        assert!(crowd.inside.lock().by_place.is_empty());
    }

    /// R-C10: callers never take the last descriptors.
    #[test]
    fn descriptors_are_left_for_upstreams_and_the_store() {
        assert_eq!(carried(64, 4_096), (14, 4));
        assert_eq!(carried(10, 4_096), (1, 0));
        assert_eq!(carried(1_048_576, 4_096), (4_096, SHEETS_MAX));
        for descriptors in [128, 1_024, 4_096] {
            let (calls, sheets) = carried(descriptors, usize::MAX);
            let used = calls as u64 * PER_CALL + sheets as u64 + RESERVED;
            assert!(used <= descriptors, "{descriptors}: {used}");
        }
    }
}
