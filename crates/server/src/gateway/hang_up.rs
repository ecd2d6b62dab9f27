//! A caller that hangs up while its request body is not read.
//!
//! The parser reads a body only when somebody asks for its next piece. While a call waits in the queue
//! with a body that is too large to be read before, nobody does, and the end of the connection stays
//! behind the unread bytes. The kernel knows it all the same.
//!
//! Promises: such a caller is noticed as soon as the kernel knows it: at once if the connection is reset
//! or what is unread fits into its buffer; otherwise the end waits in the caller's kernel, until that gives
//! up or the body is read on. Nothing is read or polled, and a call that is done soon costs nothing.
//!
//! Never: takes a slow caller for one that has gone.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use http_body::Body;
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tollgate::body::WHOLE_MAX;

use super::watched_stream::RequestProgress;

/// Most calls are done by then, and need not be watched.
const WATCH_AFTER: Duration = Duration::from_millis(200);

/// A second handle of the client's socket, for the call that wants to watch it.
#[derive(Debug, Default)]
pub(super) struct SocketHandle {
    /// A call wants it. The stream, which has the socket, is polled after the call.
    is_wanted: AtomicBool,
    /// `Some(None)`: there are no descriptors left.
    given: Mutex<Option<Option<OwnedFd>>>,
}

impl SocketHandle {
    /// Does a call want it?
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Acquire)
    }

    pub(super) fn give(&self, socket: &impl AsFd) {
        *self.given.lock() = Some(socket.as_fd().try_clone_to_owned().ok());
        self.is_wanted.store(false, Ordering::Release);
    }

    fn take(&self) -> Option<Option<OwnedFd>> {
        let given = self.given.lock().take();
        self.is_wanted.store(given.is_none(), Ordering::Release);
        given
    }
}

/// May this body be unread while its call waits?
pub(super) fn may_stay_unread(body: &impl Body) -> bool {
    let longest = body.size_hint().upper();
    !body.is_end_stream() && longest.is_none_or(|longest| longest > WHOLE_MAX as u64)
}

/// Ends when the client has closed its side of the connection.
#[expect(
    clippy::disallowed_methods,
    reason = "a call that is done soon is not watched"
)]
pub(super) async fn hung_up(progress: Arc<RequestProgress>) {
    tokio::time::sleep(WATCH_AFTER).await;
    // The connection's task polls this call and then the stream, which answers and wakes the task.
    let socket = std::future::poll_fn(|_| match progress.socket.take() {
        Some(socket) => Poll::Ready(socket),
        None => Poll::Pending,
    });
    let Some(socket) = socket.await else {
        return std::future::pending().await;
    };
    until_read_closed(socket).await;
}

/// Ends when the peer of this second handle of a socket, of any kind, has closed its side. Its readiness
/// is its own, so that whoever reads the socket later misses nothing.
pub(crate) async fn until_read_closed(socket: OwnedFd) {
    let Ok(socket) = TcpStream::from_std(socket.into()) else {
        return std::future::pending().await;
    };
    loop {
        match socket.ready(Interest::READABLE).await {
            Ok(ready) if ready.is_read_closed() => return,
            Ok(_unread) => {}
            Err(_) => return std::future::pending().await,
        }
        // Bytes that nobody reads now. The next news is more of them, or the end.
        let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _cleared = socket.try_io(Interest::READABLE, nothing);
    }
}
