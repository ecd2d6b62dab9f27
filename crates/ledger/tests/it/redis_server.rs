//! A real redis-server as a backend: each test has one of its own.
//!
//! The server's clock and the ledger's are the machine's, both ahead by what the test has advanced, and
//! slow where milliseconds matter.

use std::path::PathBuf;

use tollgate_core::replica::Rules;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::redis::RedisAddress;
use tollgate_ledger::{Clock, Ledger, NetworkedOptions, SlowClock};
use tollgate_sim::test_servers::RedisServer;

use crate::backend::Backend;

/// What takes the machine a second takes a millisecond of the clock.
pub(crate) const SLOWNESS: u32 = 1_000;

/// A redis-server, and how its owners are set up.
pub(crate) struct Redis {
    pub(crate) server: RedisServer,
    pub(crate) clock: std::sync::Arc<SlowClock>,
    pub(crate) rules: Rules,
    pub(crate) state_dir: Option<PathBuf>,
}

impl Redis {
    pub(crate) fn start() -> Redis {
        Redis {
            server: RedisServer::start(&[]),
            clock: SlowClock::new(1),
            rules: Rules::default(),
            state_dir: None,
        }
    }

    /// Its owners have been there for long: they believe rows that they see for the first time.
    pub(crate) fn trusting(mut self) -> Redis {
        self.rules.distrust_on_join = false;
        self
    }

    /// Milliseconds of its clock are long enough for a busy machine.
    pub(crate) fn slow(mut self) -> Redis {
        self.clock = SlowClock::new(SLOWNESS);
        self
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock::Slow(self.clock.clone())
    }

    pub(crate) fn options(&self) -> NetworkedOptions {
        NetworkedOptions {
            rules: self.rules,
            test_clock: Some(self.clock.clone()),
            state_dir: self.state_dir.clone(),
            ..NetworkedOptions::default()
        }
    }

    /// One more process, at this address.
    pub(crate) fn open_at(&self, url: &str) -> Ledger {
        let address = RedisAddress::parse(url).unwrap();
        Ledger::redis(&address, self.clock(), &self.options()).0
    }
}

impl Backend for Redis {
    fn ledger(&self) -> Ledger {
        self.open_at(&self.server.url())
    }

    /// Both clocks at once: requests carry how far the server's is ahead.
    fn pass(&self, span: Span) {
        self.clock.pass(span);
    }

    fn slack(&self) -> Span {
        Span::from_millis(20)
    }

    fn now(&self) -> Option<Micros> {
        Some(self.clock().at())
    }
}
