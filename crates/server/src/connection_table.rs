//! The open connections of an address, and which one makes way for a new one.
//!
//! Promises: there are at most so many. A new one replaces the oldest of those that make way first;
//! which those are, and which never do, is said by what the connection does ([`Replaceable`]). So clients
//! that open connections and ask nothing keep nobody from the address.
//!
//! Never: ends a connection that is being served.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// What a connection does, as far as others may take its place.
pub(crate) trait Replaceable {
    /// The lowest makes way first; `None`: it is being served.
    fn makes_way(&self) -> Option<u8>;
}

/// The open connections.
#[derive(Debug)]
pub(crate) struct ConnectionTable<A> {
    max: usize,
    /// Oldest first.
    open: Mutex<VecDeque<Arc<Entry<A>>>>,
}

#[derive(Debug)]
struct Entry<A> {
    activity: Arc<A>,
    /// A new connection has taken its place.
    replaced: Notify,
}

/// One open connection. Dropping it frees its place.
#[derive(Debug)]
pub(crate) struct ConnectionPlace<A> {
    entry: Arc<Entry<A>>,
    table: Arc<ConnectionTable<A>>,
}

impl<A: Replaceable + Default> ConnectionTable<A> {
    pub(crate) fn new(max: usize) -> Arc<ConnectionTable<A>> {
        Arc::new(ConnectionTable {
            max: max.max(1),
            open: Mutex::default(),
        })
    }

    /// A place for a new connection; `None` if all others are being served.
    pub(crate) fn open(self: &Arc<ConnectionTable<A>>) -> Option<ConnectionPlace<A>> {
        let entry = Arc::new(Entry {
            activity: Arc::default(),
            replaced: Notify::new(),
        });
        let mut open = self.open.lock();
        let replaced = if open.len() < self.max {
            None
        } else {
            let ranks = open.iter().enumerate();
            let ranks = ranks.filter_map(|(at, one)| Some((one.activity.makes_way()?, at)));
            let (_, first) = ranks.min()?;
            open.remove(first)
        };
        open.push_back(entry.clone());
        drop(open);
        if let Some(replaced) = replaced {
            replaced.replaced.notify_one();
        }
        Some(ConnectionPlace {
            entry,
            table: self.clone(),
        })
    }
}

impl<A> ConnectionPlace<A> {
    /// What the connection does.
    pub(crate) fn activity(&self) -> &Arc<A> {
        &self.entry.activity
    }

    /// Waits until a new connection has taken its place.
    pub(crate) async fn replaced(&self) {
        self.entry.replaced.notified().await;
    }
}

impl<A> Drop for ConnectionPlace<A> {
    fn drop(&mut self) {
        let mut open = self.table.open.lock();
        open.retain(|entry| !Arc::ptr_eq(entry, &self.entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU8, Ordering};

    /// 0: it is being served.
    #[derive(Debug, Default)]
    struct Rank(AtomicU8);

    impl Replaceable for Rank {
        fn makes_way(&self) -> Option<u8> {
            Some(self.0.load(Ordering::Relaxed)).filter(|rank| *rank > 0)
        }
    }

    fn is_replaced(place: &ConnectionPlace<Rank>) -> bool {
        let mut replaced = std::pin::pin!(place.replaced());
        let waker = std::task::Waker::noop();
        let mut context = std::task::Context::from_waker(waker);
        replaced.as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn a_new_connection_replaces_the_oldest_of_the_lowest_rank() {
        let table = ConnectionTable::<Rank>::new(4);
        let open = |rank| {
            let place = table.open().unwrap();
            place.activity().0.store(rank, Ordering::Relaxed);
            place
        };
        let (second, first, served, younger) = (open(2), open(1), open(0), open(1));
        let fifth = open(0);
        assert!(is_replaced(&first) && !is_replaced(&younger));
        let sixth = open(0);
        assert!(is_replaced(&younger) && !is_replaced(&second));
        let seventh = open(0);
        assert!(is_replaced(&second) && !is_replaced(&served));
        assert!(table.open().is_none(), "all others are being served");
        served.activity().0.store(1, Ordering::Relaxed);
        let _eighth = open(0);
        assert!(is_replaced(&served));
        drop((second, first, served, younger, fifth, sixth, seventh));
        assert_eq!(table.open.lock().len(), 1);
    }
}
