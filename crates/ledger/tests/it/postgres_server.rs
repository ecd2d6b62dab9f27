//! A real Postgres server as a backend: tests that run at the same time share one, and each has a
//! database of its own.
//!
//! The server's clock and the ledger's are the machine's, both ahead by what the test has advanced, and
//! slow where milliseconds matter.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::postgres::PostgresAddress;
use tollgate_ledger::{Clock, Ledger, NetworkedOptions, SlowClock};
use tollgate_sim::test_servers::PostgresServer;

use crate::backend::{Backend, Owner};
use crate::redis_server::{DELAY, SLOWNESS};

/// A database, and how its owners are set up.
pub(crate) struct Postgres {
    pub(crate) server: Arc<PostgresServer>,
    pub(crate) database: String,
    pub(crate) clock: Arc<SlowClock>,
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) node_lease: Span,
    lost_after: Span,
}

/// The server of the tests that run now: it ends with the last of them.
fn shared_server() -> Arc<PostgresServer> {
    static SERVER: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());
    let mut shared = SERVER.lock();
    shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(PostgresServer::start(&["fsync=off"]));
        *shared = Arc::downgrade(&server);
        server
    })
}

impl Postgres {
    pub(crate) fn start() -> Postgres {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let server = shared_server();
        let database = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        assert_eq!(
            server.sql("postgres", &format!("CREATE DATABASE {database}")),
            "CREATE DATABASE"
        );
        Postgres {
            server,
            database,
            clock: SlowClock::new(1),
            state_dir: None,
            node_lease: NetworkedOptions::default().node_lease,
            lost_after: NetworkedOptions::default().lost_after,
        }
    }

    /// Loss is not what is tested: a machine that stands still for some seconds is none.
    pub(crate) fn patient(mut self) -> Postgres {
        self.lost_after = Span::from_secs(30);
        self
    }

    /// Milliseconds of its clock are long enough for a busy machine. The function is as the first
    /// process would make it, but for the clock.
    pub(crate) fn slow(mut self) -> Postgres {
        self.clock = SlowClock::new(SLOWNESS);
        let origin = self.clock.origin.wall.0;
        let machine = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let slow = format!("{origin} + ({machine} - {origin}) / {SLOWNESS}");
        let schema = include_str!("../../src/postgres/schema-1.sql");
        assert!(schema.contains(machine));
        let made = self.sql(&format!(
            "{}; CREATE TABLE tollgate_schema (version int PRIMARY KEY); INSERT INTO tollgate_schema VALUES (1)",
            schema.replace(machine, &slow)
        ));
        assert!(made.ends_with("INSERT 0 1"), "{made}");
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
            ..NetworkedOptions::default()
        }
    }

    /// Runs SQL in the database and returns what it prints.
    pub(crate) fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.database, sql)
    }
}

impl Backend for Postgres {
    fn ledger(&self) -> Ledger {
        let address = PostgresAddress::parse(&self.server.url(&self.database)).unwrap();
        Ledger::postgres(&address, self.clock(), &self.options())
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
