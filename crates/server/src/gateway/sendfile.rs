//! `sendfile` from a memfd to a socket.
//!
//! Promises: a head and the file after it leave without a partial packet between them. Like every
//! write, a call returns the number of bytes that the socket took.
//!
//! Never: blocks, or reads the file into this process.

use std::io;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tollgate::cache::MemfdBody;

use super::hang_up::SocketHandle;

/// A writer that can send a file.
pub(super) trait SendFile: AsyncWrite + Unpin {
    /// Gives a second handle of the socket to a call, if it is a socket.
    fn give_handle(&self, to: &SocketHandle);

    /// Writes bytes that a file follows at once (`MSG_MORE`).
    fn poll_send_more(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Writes the file from offset `from` on.
    fn poll_sendfile(
        &mut self,
        cx: &mut Context<'_>,
        memfd: &MemfdBody,
        from: usize,
    ) -> Poll<io::Result<usize>>;
}

#[cfg(target_os = "linux")]
impl SendFile for TcpStream {
    fn give_handle(&self, to: &SocketHandle) {
        to.give(self);
    }

    fn poll_send_more(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        use rustix::net::{SendFlags, send};

        let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
        when_ready(self, cx, || Ok(send(&*self, bytes, flags)?))
    }

    fn poll_sendfile(
        &mut self,
        cx: &mut Context<'_>,
        memfd: &MemfdBody,
        from: usize,
    ) -> Poll<io::Result<usize>> {
        let remaining = memfd.len().saturating_sub(from);
        when_ready(self, cx, || {
            let mut at = from as u64;
            Ok(rustix::fs::sendfile(
                &*self,
                memfd,
                Some(&mut at),
                remaining,
            )?)
        })
    }
}

/// Runs `attempt`, and waits for the socket again each time it would block.
#[cfg(target_os = "linux")]
fn when_ready(
    stream: &TcpStream,
    cx: &mut Context<'_>,
    attempt: impl Fn() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        std::task::ready!(stream.poll_write_ready(cx))?;
        match stream.try_io(tokio::io::Interest::WRITABLE, &attempt) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return Poll::Ready(done),
        }
    }
}

/// Other systems have no memfd.
#[cfg(not(target_os = "linux"))]
impl SendFile for TcpStream {
    fn give_handle(&self, to: &SocketHandle) {
        to.give(self);
    }

    fn poll_send_more(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        std::pin::Pin::new(self).poll_write(cx, bytes)
    }

    fn poll_sendfile(
        &mut self,
        _cx: &mut Context<'_>,
        _memfd: &MemfdBody,
        _from: usize,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
