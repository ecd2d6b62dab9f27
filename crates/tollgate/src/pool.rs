//! Connections to upstreams: opened before the permit, taken after it, used by one call at a time.
//!
//! Checkout and send are two steps, because a permit must not lie around while a handshake runs.
//! Those who wait hold no connection: they only make sure that one will be ready (`Expected`).
//! So a thousand background calls that wait cannot keep an urgent one from a connection.
//!
//! Promises: at most so many connections of a provider as the permit stage lets calls through; one
//! that was closed by the other side is not handed out; nothing is ever sent twice from here.
//!
//! Never: sends a request by itself, or keeps one to send again.

mod address;
mod dial;
mod tls;
pub use address::{Origin, is_private};
pub use dial::{Dialer, Unreached};
pub use tls::Roots;

use std::collections::HashMap;
use std::sync::Arc;

use hyper::client::conn::http1::SendRequest;
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::Ledger;

use crate::body::Outgoing;
use crate::timer::within;

/// An idle connection is not used after this long: servers close them after 5 to 75 s, and the
/// older it is, the likelier the next request meets a connection that is just being closed.
const IDLE_MAX: Span = Span::from_secs(30);

/// How long a connection that was just given back may need to be ready. A turn of the scheduler is
/// enough; one that takes longer is still busy with an upload whose answer came early, and the permit
/// must not wait for that.
const READY_WAIT: Span = Span::from_millis(10);

/// Upstreams of one provider that are remembered. A provider has a handful; calls to unknown
/// domains share one pool, and past this many those without connections are forgotten.
const LANES_MAX: usize = 1_024;

/// The connections of one provider; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    dialer: Arc<Dialer>,
    ledger: Ledger,
    lanes: Mutex<HashMap<Origin, Lane>>,
}

/// The connections to one upstream.
#[derive(Debug, Default)]
struct Lane {
    /// Oldest first.
    idle: Vec<Idle>,
    opening: usize,
    /// Calls that will want one soon.
    expected: usize,
}

#[derive(Debug)]
struct Idle {
    sender: SendRequest<Outgoing>,
    since: Micros,
}

/// A connection that belongs to one call. Dropped, it is closed.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) sender: SendRequest<Outgoing>,
    /// The other protocol that it speaks from now on, if its call was upgraded.
    pub(crate) upgraded: Option<OnUpgrade>,
    origin: Origin,
    shared: Arc<Shared>,
}

/// A call that will want a connection soon.
#[derive(Debug)]
pub(crate) struct Expected {
    shared: Arc<Shared>,
    origin: Origin,
}

impl Pool {
    pub(crate) fn new(dialer: Arc<Dialer>, ledger: Ledger) -> Pool {
        Pool {
            shared: Arc::new(Shared {
                dialer,
                ledger,
                lanes: Mutex::default(),
            }),
        }
    }

    /// Announces a call to this upstream.
    pub(crate) fn expect(&self, origin: &Origin) -> Expected {
        let mut lanes = self.shared.lanes.lock();
        if lanes.len() >= LANES_MAX && !lanes.contains_key(origin) {
            lanes.retain(|_, lane| !lane.is_forgotten());
        }
        lanes.entry(origin.clone()).or_default().expected += 1;
        drop(lanes);
        Expected {
            shared: self.shared.clone(),
            origin: origin.clone(),
        }
    }
}

impl Expected {
    /// Opens a connection if there are fewer than calls that will want one, up to `most`. A failure
    /// here has cost no permit.
    pub(crate) async fn warm(&self, most: usize, connect: Span) -> Result<(), Unreached> {
        let Some(opening) = self.begin(most) else {
            return Ok(());
        };
        let sender = self.shared.dialer.dial(&self.origin, connect).await?;
        drop(opening);
        self.shared.keep(&self.origin, sender);
        Ok(())
    }

    /// A connection that is ready. Usually it is there; if the idle ones have died meanwhile, a new
    /// one is opened.
    pub(crate) async fn take(self, connect: Span) -> Result<Conn, Unreached> {
        while let Some(mut sender) = self.pop() {
            // The one that has just been given back may still be busy with the end of its answer.
            if let Ok(Ok(())) = within(Some(READY_WAIT), sender.ready()).await {
                return Ok(self.conn(sender));
            }
        }
        let sender = self.shared.dialer.dial(&self.origin, connect).await?;
        Ok(self.conn(sender))
    }

    fn begin(&self, most: usize) -> Option<Opening<'_>> {
        let mut lanes = self.shared.lanes.lock();
        let lane = lanes.entry(self.origin.clone()).or_default();
        lane.prune(self.shared.ledger.now().at);
        let ready = lane.idle.len() + lane.opening;
        if ready >= lane.expected || ready >= most {
            return None;
        }
        lane.opening += 1;
        Some(Opening { expected: self })
    }

    /// The youngest idle connection: the least likely to be closed by the other side.
    fn pop(&self) -> Option<SendRequest<Outgoing>> {
        let mut lanes = self.shared.lanes.lock();
        let lane = lanes.get_mut(&self.origin)?;
        lane.prune(self.shared.ledger.now().at);
        lane.idle.pop().map(|idle| idle.sender)
    }

    fn conn(&self, sender: SendRequest<Outgoing>) -> Conn {
        Conn {
            sender,
            upgraded: None,
            origin: self.origin.clone(),
            shared: self.shared.clone(),
        }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        if let Some(lane) = self.shared.lanes.lock().get_mut(&self.origin) {
            lane.expected = lane.expected.saturating_sub(1);
        }
    }
}

/// A connection that is being opened.
struct Opening<'a> {
    expected: &'a Expected,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let Expected { shared, origin } = self.expected;
        if let Some(lane) = shared.lanes.lock().get_mut(origin) {
            lane.opening = lane.opening.saturating_sub(1);
        }
    }
}

impl Conn {
    /// The answer is whole: the next call may use it.
    pub(crate) fn give_back(self) {
        let Conn {
            sender,
            origin,
            shared,
            upgraded: _,
        } = self;
        shared.keep(&origin, sender);
    }
}

impl Shared {
    fn keep(&self, origin: &Origin, sender: SendRequest<Outgoing>) {
        if sender.is_closed() {
            return;
        }
        let since = self.ledger.now().at;
        let mut lanes = self.lanes.lock();
        let lane = lanes.entry(origin.clone()).or_default();
        lane.prune(since);
        lane.idle.push(Idle { sender, since });
    }
}

impl Lane {
    fn prune(&mut self, now: Micros) {
        self.idle
            .retain(|idle| !idle.sender.is_closed() && now.since(idle.since) < IDLE_MAX);
    }

    fn is_forgotten(&self) -> bool {
        self.idle.is_empty() && self.opening == 0 && self.expected == 0
    }
}
