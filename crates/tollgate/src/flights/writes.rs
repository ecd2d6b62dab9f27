//! When each path was last changed through Tollgate.
//!
//! Promises: a call that starts after a write has completed does not get a response requested
//! before it. Fixed size and lock-free: paths that share a slot are treated as one, which costs at
//! most one call.
//!
//! Never: forgets a write because there were too many.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use http::StatusCode;
use tollgate_core::time::Micros;

/// Slots for paths. Requests in flight use far fewer paths.
const SLOTS: usize = 256;

/// When the paths of one provider were last changed.
#[derive(Debug)]
pub(crate) struct Writes {
    at: [AtomicU64; SLOTS],
}

impl Default for Writes {
    fn default() -> Writes {
        Writes {
            at: [const { AtomicU64::new(0) }; SLOTS],
        }
    }
}

impl Writes {
    /// Records a write that has completed, if it succeeded.
    pub(crate) fn record(&self, path: &str, status: StatusCode, now: Micros) {
        if status.is_success() || status.is_redirection() {
            self.slot(path).fetch_max(now.0, Ordering::AcqRel);
        }
    }

    /// Has the path changed since?
    pub(crate) fn changed_since(&self, path: &str, since: Micros) -> bool {
        let last = self.slot(path).load(Ordering::Acquire);
        last != 0 && last >= since.0
    }

    fn slot(&self, path: &str) -> &AtomicU64 {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        let index = usize::try_from(hasher.finish() % SLOTS as u64).unwrap_or(0);
        &self.at[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_successful_write_counts_and_only_for_its_path() {
        let writes = Writes::default();
        writes.record("/a", StatusCode::BAD_REQUEST, Micros(5));
        assert!(!writes.changed_since("/a", Micros(0)));
        writes.record("/a", StatusCode::CREATED, Micros(5));
        assert!(writes.changed_since("/a", Micros(5)));
        assert!(!writes.changed_since("/a", Micros(6)));
        assert!(!writes.changed_since("/b", Micros(0)));
    }
}
