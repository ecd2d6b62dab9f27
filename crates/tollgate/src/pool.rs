//! Connections to upstreams: opened before the permit, taken after it, used by one call at a time.
//!
//! Checkout and send are two steps, because a permit must not lie around while a handshake runs.
//! Those who wait hold no connection: they only make sure that one will be ready (`ExpectedCall`).
//! So a thousand background calls that wait cannot keep an urgent one from a connection.
//!
//! Promises: at most so many connections of a provider as the permit stage lets calls through; one
//! that was closed by the other side is not handed out; nothing is ever sent twice from here.
//!
//! Never: sends a request by itself, or keeps one to send again.

mod address;
mod dial;
mod preamble;
mod tls;
pub use address::{Origin, is_private};
pub(crate) use dial::Wire;
pub use dial::{ConnectError, Dialer};
pub use tls::Roots;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderValue;
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::Ledger;

use crate::timer::within;

/// An idle connection is not used after this long: servers close them after 5 to 75 s, and the
/// older it is, the likelier the next request meets a connection that is just being closed.
const IDLE_MAX: Span = Span::from_secs(30);

/// How long a connection that was just given back may need to be ready. A turn of the scheduler is
/// enough; one that takes longer is still busy with an upload whose answer came early, and the permit
/// must not wait for that.
const READY_WAIT: Span = Span::from_millis(10);

/// Among how many of the youngest connections one is looked for that is ready at once. Those that are
/// not have just been given back; more than this many in one turn of the scheduler are rare.
const READY_AMONG: usize = 8;

/// How often all idle connections are looked at. Looking at each of them for every call would cost
/// more the more there are; those that die in between are found when they are taken.
const PRUNE_EVERY: Span = Span::from_millis(100);

/// Upstreams of one provider that are remembered. A provider has a handful; calls to unknown
/// domains share one pool. With each new one those that nobody wants and whose connections are too old
/// are forgotten, and past this many also those whose connections could still be used: what is left
/// has a call each, which the gateway bounds.
const UPSTREAMS_MAX: usize = 1_024;

/// The connections of one provider; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    shared: Arc<PoolState>,
}

#[derive(Debug)]
struct PoolState {
    dialer: Arc<Dialer>,
    ledger: Ledger,
    upstreams: Mutex<HashMap<Origin, Arc<UpstreamPool>>>,
}

/// The connections to one upstream. A call finds it once and keeps it.
#[derive(Debug)]
struct UpstreamPool {
    origin: Origin,
    /// As in the `Host` header; `None` if it cannot be one.
    host: Option<HeaderValue>,
    state: Mutex<UpstreamState>,
    /// Connections that calls have, or are about to take. Counted without the lock; whoever adds to it
    /// looks at the rest under the lock afterwards, and so does whoever opens one.
    busy: AtomicUsize,
    /// One that was being opened is there, or has failed.
    opened: Notify,
}

#[derive(Debug, Default)]
struct UpstreamState {
    /// Oldest first.
    idle: Vec<Idle>,
    opening: usize,
    /// Calls that will want one soon.
    expected: usize,
    /// When the dead were taken out last.
    pruned: Micros,
}

#[derive(Debug)]
struct Idle {
    wire: Wire,
    since: Micros,
}

/// A connection that belongs to one call. Dropped, it is closed.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) wire: Wire,
    /// The other protocol that it speaks from now on, if its call was upgraded.
    pub(crate) upgraded: Option<OnUpgrade>,
    busy: BusyGuard,
    shared: Arc<PoolState>,
}

/// A connection that a call has, or is about to take.
#[derive(Debug)]
struct BusyGuard {
    upstream: Arc<UpstreamPool>,
}

impl BusyGuard {
    fn new(lane: &Arc<UpstreamPool>) -> BusyGuard {
        lane.busy.fetch_add(1, Ordering::SeqCst);
        BusyGuard {
            upstream: lane.clone(),
        }
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.upstream.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A call that will want a connection soon.
#[derive(Debug)]
pub(crate) struct ExpectedCall {
    upstream: Arc<UpstreamPool>,
    shared: Arc<PoolState>,
}

impl Pool {
    pub(crate) fn new(dialer: Arc<Dialer>, ledger: Ledger) -> Pool {
        Pool {
            shared: Arc::new(PoolState {
                dialer,
                ledger,
                upstreams: Mutex::default(),
            }),
        }
    }

    /// Announces a call to this upstream.
    pub(crate) fn expect(&self, origin: &Origin) -> ExpectedCall {
        let mut lanes = self.shared.upstreams.lock();
        let lane = match lanes.get(origin) {
            Some(lane) => lane.clone(),
            None => {
                let now = self.shared.ledger.at();
                lanes.retain(|_, lane| !lane.prune_if_unused(now));
                if lanes.len() >= UPSTREAMS_MAX {
                    lanes.retain(|_, lane| lane.is_busy());
                }
                let lane = Arc::new(UpstreamPool {
                    host: HeaderValue::try_from(origin.authority()).ok(),
                    origin: origin.clone(),
                    state: Mutex::default(),
                    busy: AtomicUsize::new(0),
                    opened: Notify::new(),
                });
                lanes.insert(origin.clone(), lane.clone());
                lane
            }
        };
        // Under the lock of all lanes: one that is expected is not forgotten.
        lane.state.lock().expected += 1;
        drop(lanes);
        ExpectedCall {
            upstream: lane,
            shared: self.shared.clone(),
        }
    }
}

impl ExpectedCall {
    /// Opens a connection if there are fewer than calls that will want one, up to `most`. A failure
    /// here has cost no permit.
    pub(crate) async fn warm(&self, most: usize, connect: Span) -> Result<(), ConnectError> {
        let Some(opening) = self.begin_opening(most) else {
            return Ok(());
        };
        let dialer = &self.shared.dialer;
        let wire = dialer.dial(&self.upstream.origin, connect).await?;
        // Never in neither count: whoever waits for it would open another.
        self.upstream.add_idle(wire, self.shared.ledger.at());
        drop(opening);
        Ok(())
    }

    /// A connection that is ready. Usually it is there; if the idle ones have died meanwhile, a new
    /// one is opened, unless as many as there may be are being opened by others.
    pub(crate) async fn take(self, most: usize, connect: Span) -> Result<Conn, ConnectError> {
        let busy = BusyGuard::new(&self.upstream);
        loop {
            while let Some(mut wire) = self.pop_idle() {
                // The one that has just been given back may still be busy with the end of its answer.
                if wire.sender.is_ready()
                    || matches!(
                        within(Some(READY_WAIT), wire.sender.ready()).await,
                        Ok(Ok(()))
                    )
                {
                    return Ok(self.conn(wire, busy));
                }
            }
            let opened = self.upstream.opened.notified();
            tokio::pin!(opened);
            // Heard of from now on, so that none is missed between the look and the wait.
            opened.as_mut().enable();
            match self.when_none_idle(most) {
                NoIdleAction::TryAgain => {}
                NoIdleAction::Dial => break,
                // Ends: whoever opens one has a limit of time, and at this number nobody begins.
                NoIdleAction::Wait => opened.await,
            }
        }
        let dialer = &self.shared.dialer;
        let wire = dialer.dial(&self.upstream.origin, connect).await?;
        Ok(self.conn(wire, busy))
    }

    /// What is to be done where none is ready. Our own is counted as busy already.
    fn when_none_idle(&self, most: usize) -> NoIdleAction {
        let state = self.upstream.state.lock();
        let all = self.upstream.busy.load(Ordering::SeqCst) + state.opening;
        if !state.idle.is_empty() {
            NoIdleAction::TryAgain
        } else if state.opening > 0 && all > most {
            NoIdleAction::Wait
        } else {
            NoIdleAction::Dial
        }
    }

    fn begin_opening(&self, most: usize) -> Option<OpeningGuard<'_>> {
        let mut state = self.upstream.state.lock();
        state.prune(self.shared.ledger.at());
        let ready = state.idle.len() + state.opening;
        let all = ready + self.upstream.busy.load(Ordering::SeqCst);
        if ready >= state.expected || all >= most {
            return None;
        }
        state.opening += 1;
        Some(OpeningGuard {
            upstream: &self.upstream,
        })
    }

    /// The youngest idle connection: the least likely to be closed by the other side. One that is
    /// ready goes before one that has just been given back and must be waited for.
    fn pop_idle(&self) -> Option<Wire> {
        let mut state = self.upstream.state.lock();
        let now = self.shared.ledger.at();
        let first = state.idle.len().saturating_sub(READY_AMONG);
        let youngest = state.idle.get(first..).unwrap_or_default();
        let ready = youngest
            .iter()
            .rposition(|idle| idle.wire.sender.is_ready());
        if let Some(idle) = ready.map(|at| state.idle.remove(first + at))
            && idle.is_usable(now)
        {
            return Some(idle.wire);
        }
        while let Some(idle) = state.idle.pop() {
            if idle.is_usable(now) {
                return Some(idle.wire);
            }
        }
        None
    }

    fn conn(&self, wire: Wire, busy: BusyGuard) -> Conn {
        Conn {
            wire,
            upgraded: None,
            busy,
            shared: self.shared.clone(),
        }
    }
}

impl Drop for ExpectedCall {
    fn drop(&mut self) {
        let mut state = self.upstream.state.lock();
        state.expected = state.expected.saturating_sub(1);
    }
}

/// What a call does that has a permit and finds no connection.
enum NoIdleAction {
    /// One was given back meanwhile.
    TryAgain,
    /// As many as there may be are used or being opened: one of those will do.
    Wait,
    /// There is room for another.
    Dial,
}

/// A connection that is being opened.
struct OpeningGuard<'a> {
    upstream: &'a UpstreamPool,
}

impl Drop for OpeningGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.upstream.state.lock();
        state.opening = state.opening.saturating_sub(1);
        drop(state);
        self.upstream.opened.notify_waiters();
    }
}

impl Conn {
    /// The `Host` header of its upstream.
    pub(crate) fn host(&self) -> Option<&HeaderValue> {
        self.busy.upstream.host.as_ref()
    }

    /// The answer is whole: the next call may use it.
    pub(crate) fn release(self) {
        let now = self.shared.ledger.at();
        self.busy.upstream.add_idle(self.wire, now);
    }
}

impl UpstreamPool {
    fn add_idle(&self, wire: Wire, now: Micros) {
        if wire.sender.is_closed() {
            return;
        }
        let mut state = self.state.lock();
        state.prune(now);
        state.idle.push(Idle { wire, since: now });
    }

    /// Closes what is too old to be used. Nothing is left and nobody wants it?
    fn prune_if_unused(&self, now: Micros) -> bool {
        let mut state = self.state.lock();
        state.prune(now);
        state.idle.is_empty() && !state.is_busy() && !self.is_used()
    }

    /// Somebody has one, or wants one now.
    fn is_busy(&self) -> bool {
        self.is_used() || self.state.lock().is_busy()
    }

    /// Calls have connections of it: whoever forgot it would count them no longer.
    fn is_used(&self) -> bool {
        self.busy.load(Ordering::SeqCst) > 0
    }
}

impl UpstreamState {
    fn is_busy(&self) -> bool {
        self.opening > 0 || self.expected > 0
    }

    /// Takes out the dead: now and then, and at once when the youngest has died, because then the
    /// other side has probably closed them all.
    fn prune(&mut self, now: Micros) {
        let is_due = now.since(self.pruned) >= PRUNE_EVERY;
        if is_due || self.idle.last().is_some_and(|idle| !idle.is_usable(now)) {
            self.pruned = now;
            self.idle.retain(|idle| idle.is_usable(now));
        }
    }
}

impl Idle {
    fn is_usable(&self, now: Micros) -> bool {
        !self.wire.sender.is_closed() && now.since(self.since) < IDLE_MAX
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tollgate_core::domain::Host;
    use tollgate_core::time::Now;
    use tollgate_ledger::{Clock, ManualClock};

    use super::*;

    /// An upstream, and the connection that was opened to it.
    async fn warmed(pool: &Pool) -> (Origin, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = Origin {
            tls: false,
            host: Host::parse("127.0.0.1").unwrap(),
            port: listener.local_addr().unwrap().port(),
            private: true,
        };
        let expected = pool.expect(&origin);
        expected.warm(1, Span::from_secs(5)).await.unwrap();
        (origin, listener.accept().await.unwrap().0)
    }

    /// A host that is never called again does not keep its connection.
    #[tokio::test]
    async fn old_connections_are_closed_when_another_upstream_is_called() {
        let clock = ManualClock::new(Now::default());
        let ledger = Ledger::memory(Clock::Manual(clock.clone()));
        let dialer = Dialer::new(&Roots::Only(Vec::new())).unwrap();
        let pool = Pool::new(Arc::new(dialer), ledger);
        let (first, mut opened) = warmed(&pool).await;
        clock.pass(IDLE_MAX);
        let (second, _kept) = warmed(&pool).await;
        assert_eq!(opened.read(&mut [0]).await.unwrap(), 0, "it is closed");
        let lanes = pool.shared.upstreams.lock();
        assert!(!lanes.contains_key(&first) && lanes.contains_key(&second));
    }
}
