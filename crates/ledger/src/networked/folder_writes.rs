//! Writes to the state folder, which may be on a disk that hangs.
//!
//! Promises: one write per provider is under way. Whoever comes meanwhile does not wait, and whoever waits may
//! leave: the write ends all the same, and the next one is possible then.
//!
//! Never: blocks a thread of the runtime.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

/// The writes to one file, or to one file per provider.
#[derive(Clone, Debug, Default)]
pub(super) struct FolderWrites {
    /// Being written now. Bounded by the providers.
    under_way: Arc<Mutex<BTreeSet<String>>>,
}

/// A write that ends, whatever becomes of it.
struct WriteEnd {
    writes: FolderWrites,
    tag: String,
}

impl FolderWrites {
    /// Writes for this provider and waits for it. `None`: it is being written already, or the write ended
    /// without a result.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        tag: &str,
        write: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if !self.under_way.lock().insert(tag.to_owned()) {
            return None;
        }
        let end = WriteEnd {
            writes: self.clone(),
            tag: tag.to_owned(),
        };
        let write = move || {
            let result = write();
            drop(end);
            result
        };
        tokio::task::spawn_blocking(write).await.ok()
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.lock().is_empty()
    }
}

impl Drop for WriteEnd {
    fn drop(&mut self) {
        self.writes.under_way.lock().remove(&self.tag);
    }
}
