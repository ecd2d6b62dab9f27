//! The open connections of the gRPC address: how many there may be, and which one makes way.
//!
//! Promises: there are at most so many, and of one address a quarter, this host apart. A new one replaces the
//! oldest that is idle: first one whose client never proved who it is, then any. So clients
//! that open connections and ask nothing, or ask for health only, keep nobody from it.
//!
//! Never: ends a connection while a call is being served.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::gateway::{ConnectionCap, ConnectionSlot};

/// The open connections.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    /// The share of each address.
    cap: Arc<ConnectionCap>,
    /// Oldest first.
    open: Mutex<VecDeque<Arc<Activity>>>,
}

/// The calls of a connection.
#[derive(Debug, Default)]
pub(super) struct Activity {
    begun: AtomicUsize,
    running: AtomicUsize,
    /// A call was allowed to ask for a decision.
    is_known: AtomicBool,
    /// A new connection has taken its place.
    replaced: Notify,
}

/// One open connection. Dropping it frees its place.
#[derive(Debug)]
pub(super) struct GrpcPlace {
    activity: Arc<Activity>,
    places: Arc<Places>,
    _slot: ConnectionSlot,
}

/// A call that is being served.
#[derive(Debug)]
pub(super) struct RunningCall(Arc<Activity>);

impl Places {
    pub(super) fn new(max: usize) -> Arc<Places> {
        let max = max.max(1);
        // A replaced connection has its slot until it has ended, which is at once.
        let slots = max.saturating_mul(2);
        Arc::new(Places {
            max,
            cap: Arc::new(ConnectionCap::new(slots, (max / 4).max(1), false)),
            open: Mutex::default(),
        })
    }

    /// A place for a new connection; `None` if its address has its share, or all others are being
    /// served.
    pub(super) fn open(self: &Arc<Places>, peer: IpAddr) -> Option<GrpcPlace> {
        let slot = self.cap.try_acquire(peer)?;
        let activity = Arc::new(Activity::default());
        let mut open = self.open.lock();
        let replaced = if open.len() < self.max {
            None
        } else {
            let oldest = |is_known| {
                let makes_way = |one: &Arc<Activity>| one.is_idle() && one.is_known() == is_known;
                open.iter().position(makes_way)
            };
            let oldest = oldest(false).or_else(|| oldest(true))?;
            open.remove(oldest)
        };
        open.push_back(activity.clone());
        drop(open);
        if let Some(replaced) = replaced {
            replaced.replaced.notify_one();
        }
        Some(GrpcPlace {
            activity,
            places: self.clone(),
            _slot: slot,
        })
    }
}

impl GrpcPlace {
    /// Its calls.
    pub(super) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Waits until a new connection has taken its place.
    pub(super) async fn replaced(&self) {
        self.activity.replaced.notified().await;
    }
}

impl Drop for GrpcPlace {
    fn drop(&mut self) {
        let mut open = self.places.open.lock();
        open.retain(|one| !Arc::ptr_eq(one, &self.activity));
    }
}

impl Activity {
    /// A call begins; it ends with the returned value.
    pub(super) fn begin(self: &Arc<Activity>) -> RunningCall {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.running.fetch_add(1, Ordering::Relaxed);
        RunningCall(self.clone())
    }

    /// Its client has proved who it is.
    pub(super) fn on_known(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// Calls so far.
    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// No call is being served.
    pub(super) fn is_idle(&self) -> bool {
        self.running.load(Ordering::Relaxed) == 0
    }

    fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }
}

impl RunningCall {
    /// The calls that it is one of.
    pub(super) fn activity(&self) -> &Activity {
        &self.0
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_replaced(place: &GrpcPlace) -> bool {
        let mut replaced = std::pin::pin!(place.replaced());
        let waker = std::task::Waker::noop();
        let mut context = std::task::Context::from_waker(waker);
        replaced.as_mut().poll(&mut context).is_ready()
    }

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([203, 0, 113, last])
    }

    #[test]
    fn one_address_has_a_quarter() {
        let places = Places::new(8);
        let _held = [ip(1), ip(1)].map(|peer| places.open(peer).unwrap());
        assert!(places.open(ip(1)).is_none());
        assert!(places.open(ip(2)).is_some());
    }

    #[test]
    fn a_new_connection_replaces_the_oldest_idle_stranger_then_any_idle_one() {
        let places = Places::new(3);
        let open = |last| places.open(ip(last)).unwrap();
        let (known, stranger, busy) = (open(1), open(2), open(3));
        known.activity().on_known();
        let running = busy.activity().begin();
        let fourth = open(4);
        assert!(is_replaced(&stranger) && !is_replaced(&known) && !is_replaced(&busy));
        fourth.activity().on_known();
        let fifth = open(5);
        assert!(is_replaced(&known) && !is_replaced(&fourth));
        let _served = [&fourth, &fifth].map(|place| place.activity().begin());
        assert!(places.open(ip(6)).is_none(), "all others are being served");
        drop(running);
        let _sixth = open(6);
        assert!(is_replaced(&busy));
        drop((known, stranger, busy, fourth, fifth));
        assert_eq!(places.open.lock().len(), 1);
    }
}
