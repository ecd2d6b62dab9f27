//! What a connection does, as far as others may take its place.
//!
//! Promises: a client that asks nothing makes way for a new one: first those that never sent a command,
//! or never said who they are, then any. One whose commands run or wait keeps its place.
//!
//! Never: counts the middle of a command as asking.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::connection_table::Replaceable;

/// What one connection does.
#[derive(Debug, Default)]
pub(super) struct ClientActivity {
    /// Commands run or wait.
    is_served: AtomicBool,
    /// A client that may ask has sent a command.
    is_known: AtomicBool,
}

impl ClientActivity {
    pub(super) fn set_served(&self, is_served: bool) {
        self.is_served.store(is_served, Ordering::Relaxed);
    }

    pub(super) fn on_known(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }
}

impl Replaceable for ClientActivity {
    fn makes_way(&self) -> Option<u8> {
        let is_known = self.is_known.load(Ordering::Relaxed);
        (!self.is_served.load(Ordering::Relaxed)).then_some(u8::from(is_known))
    }
}
