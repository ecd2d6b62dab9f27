//! Connections to upstreams: opened before the permit, taken after it, used by one call at a time.
//!
//! Checkout and send are two steps, because a permit must not wait for a handshake. Waiting calls
//! hold no connection: they only make sure that one will be ready (`ExpectedCall`). So a thousand
//! waiting background calls cannot keep an urgent one from a connection.
//!
//! Promises: a provider has at most as many connections as the permit stage admits calls; a
//! connection that the peer has closed is not handed out; one that nobody uses is closed after
//! [`IDLE_MAX`], also if its provider is never called again; the pool never sends anything twice.
//!
//! Never: sends a request by itself, or stores one to send it again.

mod address;
mod dial;
mod head_scan;
mod preamble;
mod send_queue;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "pool/no_tls.rs"]
mod tls;
pub use address::{Origin, is_private};
pub use dial::{ConnectError, Dialer};
use dial::{HEADERS_MAX, HEADERS_USUAL};
pub(crate) use dial::{Wire, open_connections};
pub(crate) use preamble::Preamble;
pub use tls::{Roots, TlsError};

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use http::HeaderValue;
use hyper::upgrade::OnUpgrade;
use tokio::sync::Notify;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::Ledger;
use tollgate_ledger::lock_order::{RankedMutex, rank};

use crate::timer::{sleep, within};

/// An idle connection is not used after this long: servers close them after 5 to 75 s, and the
/// older it is, the likelier the next request meets a connection that is just being closed.
const IDLE_MAX: Span = Span::from_secs(30);

/// How long a connection that was just released may need to be ready. One turn of the scheduler is
/// enough; one that takes longer is still busy with an upload whose response came early, and the
/// permit must not wait for that.
const READY_WAIT: Span = Span::from_millis(10);

/// How many of the youngest connections are searched for one that is ready at once. The others have
/// just been released; more than this many in one turn of the scheduler are rare.
const READY_AMONG: usize = 8;

/// How often all idle connections are checked. A check for every call would cost more the more
/// there are; connections that die in between are found when they are taken.
const PRUNE_EVERY: Span = Span::from_millis(100);

/// Upstreams of one provider that are remembered. A provider has a handful; calls to unknown
/// domains share one pool. Each new upstream drops those that are unused and whose connections are
/// too old, and past this many also those whose connections are still usable: each remaining one
/// has a call, and the gateway bounds calls.
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
    upstreams: RankedMutex<{ rank::UPSTREAMS }, HashMap<Origin, Arc<UpstreamPool>>>,
    /// A task closes the idle ones when they are too old. It runs while there are any.
    is_pruned: AtomicBool,
}

/// The connections to one upstream. A call looks it up once.
#[derive(Debug)]
struct UpstreamPool {
    origin: Origin,
    /// The `Host` header; `None` if the origin is not a valid header value.
    host: Option<HeaderValue>,
    state: RankedMutex<{ rank::UPSTREAM }, UpstreamState>,
    /// Connections that calls have, or are about to take. Counted without the lock; a call that
    /// adds to it checks the rest under the lock afterwards, and so does a call that opens a
    /// connection.
    busy: AtomicUsize,
    /// A connection has been opened, or has failed to open.
    opened: Notify,
    /// The most headers of a response that its connections take.
    headers_max: AtomicUsize,
}

#[derive(Debug, Default)]
struct UpstreamState {
    /// Oldest first.
    idle: Vec<Idle>,
    opening: usize,
    /// Calls that will need a connection soon.
    expected: usize,
    /// When dead connections were last removed.
    pruned: Micros,
}

#[derive(Debug)]
struct Idle {
    wire: Wire,
    since: Micros,
}

/// A connection that belongs to one call. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) wire: Wire,
    /// The upgraded protocol, if its call was upgraded.
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
    fn new(upstream: &Arc<UpstreamPool>) -> BusyGuard {
        upstream.busy.fetch_add(1, Ordering::SeqCst);
        BusyGuard {
            upstream: upstream.clone(),
        }
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.upstream.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A call that will need a connection soon.
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
                upstreams: RankedMutex::default(),
                is_pruned: AtomicBool::new(false),
            }),
        }
    }

    /// Announces a call to this upstream.
    pub(crate) fn expect(&self, origin: &Origin) -> ExpectedCall {
        let mut upstreams = self.shared.upstreams.lock();
        let upstream = match upstreams.get(origin) {
            Some(upstream) => upstream.clone(),
            None => {
                let now = self.shared.ledger.at();
                upstreams.retain(|_, upstream| !upstream.prune_if_unused(now));
                if upstreams.len() >= UPSTREAMS_MAX {
                    upstreams.retain(|_, upstream| upstream.is_busy());
                }
                let upstream = Arc::new(UpstreamPool {
                    host: HeaderValue::try_from(origin.authority()).ok(),
                    origin: origin.clone(),
                    state: RankedMutex::default(),
                    busy: AtomicUsize::new(0),
                    opened: Notify::new(),
                    headers_max: AtomicUsize::new(HEADERS_USUAL),
                });
                upstreams.insert(origin.clone(), upstream.clone());
                upstream
            }
        };
        // Under the lock of all upstreams: one with an expected call is not dropped.
        upstream.state.lock().expected += 1;
        drop(upstreams);
        ExpectedCall {
            upstream,
            shared: self.shared.clone(),
        }
    }
}

impl ExpectedCall {
    /// Opens a connection if there are fewer than expected calls, up to `most`. A failure here has
    /// cost no permit.
    pub(crate) async fn warm(&self, most: usize, connect: Span) -> Result<(), ConnectError> {
        let Some(opening) = self.begin_opening(most) else {
            return Ok(());
        };
        let wire = self.dial(connect).await?;
        // Counted as idle before it stops counting as opening: otherwise a waiting call would open
        // another.
        self.shared.add_idle(&self.upstream, wire);
        drop(opening);
        Ok(())
    }

    /// A connection that is ready. Usually one is idle; if the idle ones have died meanwhile, this
    /// opens a new one, unless other calls are already opening the maximum.
    pub(crate) async fn take(self, most: usize, connect: Span) -> Result<Conn, ConnectError> {
        let busy = BusyGuard::new(&self.upstream);
        loop {
            while let Some(mut wire) = self.pop_idle() {
                // A connection that has just been released may still be busy with the end of its
                // response.
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
            // Subscribes now, so that no notification is missed between the check and the wait.
            opened.as_mut().enable();
            match self.when_none_idle(most) {
                NoIdleAction::TryAgain => {}
                NoIdleAction::Dial => break,
                // Ends: every opening has a timeout, and at this number no new one begins.
                NoIdleAction::Wait => opened.await,
            }
        }
        let wire = self.dial(connect).await?;
        Ok(self.conn(wire, busy))
    }

    async fn dial(&self, connect: Span) -> Result<Wire, ConnectError> {
        let PoolState { dialer, ledger, .. } = &*self.shared;
        let upstream = &self.upstream;
        let headers_max = upstream.headers_max.load(Ordering::Relaxed);
        dialer
            .dial(&upstream.origin, headers_max, connect, ledger)
            .await
    }

    /// What to do if no connection is ready. Our own already counts as busy.
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

    /// The youngest idle connection: the least likely to be closed by the peer. A ready one goes
    /// before one that has just been released and must be waited for.
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
        debug_assert!(state.expected > 0, "each expected call leaves once");
        state.expected = state.expected.saturating_sub(1);
    }
}

/// What a call with a permit does if it finds no connection.
enum NoIdleAction {
    /// A connection was released meanwhile.
    TryAgain,
    /// The maximum number is in use or being opened: wait for one of those.
    Wait,
    /// Another connection may be opened.
    Dial,
}

/// A connection that is being opened.
struct OpeningGuard<'a> {
    upstream: &'a UpstreamPool,
}

impl Drop for OpeningGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.upstream.state.lock();
        debug_assert!(state.opening > 0, "each opening ends once");
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

    /// A response had more headers than its connection takes, or too large ones: further connections
    /// take as many as their size allows.
    pub(crate) fn expect_many_headers(&self) {
        let upstream = &self.busy.upstream;
        if upstream.headers_max.swap(HEADERS_MAX, Ordering::Relaxed) != HEADERS_MAX {
            let earlier = std::mem::take(&mut upstream.state.lock().idle);
            drop(earlier);
        }
    }

    /// The response is complete: the next call may use the connection.
    pub(crate) fn release(self) {
        self.shared.add_idle(&self.busy.upstream, self.wire);
    }
}

impl PoolState {
    fn add_idle(self: &Arc<PoolState>, upstream: &UpstreamPool, wire: Wire) {
        upstream.add_idle(wire, self.ledger.at());
        self.prune_later();
    }

    /// Starts the task that closes idle connections, unless it runs.
    fn prune_later(self: &Arc<PoolState>) {
        // Without a runtime there is no connection to close either.
        if !self.is_pruned.load(Ordering::Acquire)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
            && !self.is_pruned.swap(true, Ordering::AcqRel)
        {
            runtime.spawn(prune_idle(Arc::downgrade(self)));
        }
    }

    /// Closes connections that are too old, and forgets upstreams without any. Returns since when the
    /// oldest of the others is idle.
    fn prune(&self, now: Micros) -> Option<Micros> {
        let mut upstreams = self.upstreams.lock();
        upstreams.retain(|_, upstream| !upstream.prune_if_unused(now));
        let oldest = upstreams
            .values()
            .filter_map(|upstream| Some(upstream.state.lock().idle.first()?.since));
        oldest.min()
    }
}

/// Closes idle connections when they are too old, until there are none.
async fn prune_idle(shared: Weak<PoolState>) {
    let mut pause = IDLE_MAX;
    loop {
        sleep(Some(pause)).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let now = shared.ledger.at();
        let Some(oldest) = shared.prune(now) else {
            shared.is_pruned.store(false, Ordering::Release);
            // One that was released just now has not started another task.
            if shared.prune(now).is_some() {
                shared.prune_later();
            }
            return;
        };
        // Those that become idle meanwhile are closed a little later.
        pause = (oldest + IDLE_MAX).since(now).max(PRUNE_EVERY);
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

    /// Closes connections that are too old. Returns whether the upstream is unused.
    fn prune_if_unused(&self, now: Micros) -> bool {
        let mut state = self.state.lock();
        state.prune(now);
        state.idle.is_empty() && !state.is_busy() && !self.is_used()
    }

    /// A call has a connection, or wants one now.
    fn is_busy(&self) -> bool {
        self.is_used() || self.state.lock().is_busy()
    }

    /// Calls have its connections: dropping it would lose their count.
    fn is_used(&self) -> bool {
        self.busy.load(Ordering::SeqCst) > 0
    }
}

impl UpstreamState {
    fn is_busy(&self) -> bool {
        self.opening > 0 || self.expected > 0
    }

    /// Removes dead connections: periodically, and at once when the youngest has died, because then
    /// the peer has probably closed them all.
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
mod tests;
