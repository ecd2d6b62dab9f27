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

use crate::backend::{Backend, Owner};

/// What takes the machine a second takes a millisecond of the clock.
pub(crate) const SLOWNESS: u32 = 1_000;

/// More than the bounds of the server's time are apart.
pub(crate) const DELAY: Span = Span(50);

/// A redis-server, and how its owners are set up.
pub(crate) struct Redis {
    pub(crate) server: RedisServer,
    pub(crate) clock: std::sync::Arc<SlowClock>,
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) node_lease: Span,
    lost_after: Span,
    pub(crate) rules: Rules,
}

impl Redis {
    pub(crate) fn start() -> Redis {
        Redis::on(RedisServer::start(&[]), Rules::default())
    }

    /// The owners of this server keep to these rules.
    pub(crate) fn on(server: RedisServer, rules: Rules) -> Redis {
        Redis {
            server,
            clock: SlowClock::new(1),
            state_dir: None,
            node_lease: NetworkedOptions::default().node_lease,
            lost_after: NetworkedOptions::default().lost_after,
            rules,
        }
    }

    /// Loss is not what is tested: a machine that stands still for some seconds is none.
    pub(crate) fn patient(mut self) -> Redis {
        self.lost_after = Span::from_secs(30);
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
            test_clock: Some(self.clock.clone()),
            state_dir: self.state_dir.clone(),
            node_lease: self.node_lease,
            lost_after: self.lost_after,
            rules: self.rules,
            ..NetworkedOptions::default()
        }
    }

    /// One more process, at this address.
    pub(crate) fn open_at(&self, url: &str) -> Ledger {
        self.open_with(url, &self.options())
    }

    pub(crate) fn open_with(&self, url: &str, options: &NetworkedOptions) -> Ledger {
        let address = RedisAddress::parse(url).unwrap();
        Ledger::redis(&address, self.clock(), options).0
    }
}

impl Backend for Redis {
    fn ledger(&self) -> Ledger {
        self.open_at(&self.server.url())
    }

    fn owner(&self, _: u32) -> Owner {
        Owner::of(&self.ledger())
    }

    /// Both clocks at once, and a little more than was asked for: requests carry how far the server's is ahead.
    fn pass(&self, span: Span) {
        self.clock.pass(span + DELAY);
    }

    fn slack(&self) -> Span {
        Span::from_millis(1)
    }

    fn now(&self) -> Option<Micros> {
        Some(self.clock().at())
    }
}
