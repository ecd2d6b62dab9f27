//! The open connections of the admin address.
//!
//! Promises: there are at most so many, and a new one replaces the oldest that is idle. So clients
//! that open connections and say nothing cannot keep an operator, or a health check, from it.
//!
//! Never: ends a connection whose request is being served, or whose response is being written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The open connections.
#[derive(Debug)]
pub(super) struct AdminConnections {
    max: usize,
    /// Oldest first.
    open: Mutex<VecDeque<Arc<Entry>>>,
}

#[derive(Debug, Default)]
struct Entry {
    progress: Arc<AdminProgress>,
    /// A new connection has taken its place.
    replaced: Notify,
}

/// How far the requests of a connection have come.
#[derive(Debug, Default)]
pub(super) struct AdminProgress {
    begun: AtomicUsize,
    /// Those whose response was handed over to be written.
    ended: AtomicUsize,
    /// Those whose response is written.
    written: AtomicUsize,
}

/// One open connection. Dropping it frees its place.
#[derive(Debug)]
pub(super) struct AdminConnection {
    entry: Arc<Entry>,
    table: Arc<AdminConnections>,
}

/// A request that is being served, until its response is handed over to be written.
#[derive(Debug)]
pub(super) struct RunningRequest(Arc<AdminProgress>);

impl AdminConnections {
    pub(super) fn new(max: usize) -> Arc<AdminConnections> {
        Arc::new(AdminConnections {
            max: max.max(1),
            open: Mutex::default(),
        })
    }

    /// A place for a new connection; `None` if all others are being served.
    pub(super) fn open(self: &Arc<AdminConnections>) -> Option<AdminConnection> {
        let entry = Arc::new(Entry::default());
        let mut open = self.open.lock();
        let replaced = if open.len() < self.max {
            None
        } else {
            let oldest = open.iter().position(|entry| entry.progress.is_idle())?;
            open.remove(oldest)
        };
        open.push_back(entry.clone());
        drop(open);
        if let Some(replaced) = replaced {
            replaced.replaced.notify_one();
        }
        Some(AdminConnection {
            entry,
            table: self.clone(),
        })
    }
}

impl AdminConnection {
    /// A request begins; it ends with the returned value.
    pub(super) fn begin(&self) -> RunningRequest {
        self.entry.progress.begun.fetch_add(1, Ordering::AcqRel);
        RunningRequest(self.progress())
    }

    /// How far its requests have come.
    pub(super) fn progress(&self) -> Arc<AdminProgress> {
        self.entry.progress.clone()
    }

    /// Waits until a new connection has taken its place.
    pub(super) async fn replaced(&self) {
        self.entry.replaced.notified().await;
    }
}

impl Drop for AdminConnection {
    fn drop(&mut self) {
        let mut open = self.table.open.lock();
        open.retain(|entry| !Arc::ptr_eq(entry, &self.entry));
    }
}

impl AdminProgress {
    fn is_idle(&self) -> bool {
        self.begun.load(Ordering::Acquire) == self.written.load(Ordering::Acquire)
    }

    /// The responses that have been handed over to be written.
    pub(super) fn ended(&self) -> usize {
        self.ended.load(Ordering::Acquire)
    }

    /// So many responses are written.
    pub(super) fn on_written(&self, responses: usize) {
        self.written.store(responses, Ordering::Release);
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_replaced(connection: &AdminConnection) -> bool {
        let mut replaced = std::pin::pin!(connection.replaced());
        let waker = std::task::Waker::noop();
        let mut context = std::task::Context::from_waker(waker);
        replaced.as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn a_new_connection_replaces_the_oldest_idle_one() {
        let table = AdminConnections::new(2);
        let (one, two) = (table.open().unwrap(), table.open().unwrap());
        let running = one.begin();
        let three = table.open().unwrap();
        assert!(is_replaced(&two) && !is_replaced(&one) && !is_replaced(&three));
        let _served = three.begin();
        assert!(table.open().is_none(), "all others are being served");
        drop(running);
        assert!(table.open().is_none(), "its response is being written");
        one.progress().on_written(one.progress().ended());
        assert!(table.open().is_some());
        assert!(is_replaced(&one));
        drop((one, two, three));
        assert!(table.open.lock().is_empty());
    }
}
