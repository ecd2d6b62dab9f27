//! What a socket can do beyond taking bytes: it takes the pages of a file in memory.
//!
//! Promises: a head and the file behind it leave as one; what was taken is said, as with every write.
//!
//! Never: blocks, or reads the file into this process.

use std::io;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tollgate::cache::MemfdBody;

/// Something to write to that can take a file.
pub(super) trait SendFile: AsyncWrite + Unpin {
    /// Takes bytes behind which a file comes at once.
    fn poll_send_more(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Takes what follows the first so many bytes of a file.
    fn poll_sendfile(
        &mut self,
        cx: &mut Context<'_>,
        sheet: &MemfdBody,
        from: usize,
    ) -> Poll<io::Result<usize>>;
}

#[cfg(target_os = "linux")]
impl SendFile for TcpStream {
    fn poll_send_more(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        use rustix::net::{SendFlags, send};

        let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
        when_ready(self, cx, || Ok(send(&*self, bytes, flags)?))
    }

    fn poll_sendfile(
        &mut self,
        cx: &mut Context<'_>,
        sheet: &MemfdBody,
        from: usize,
    ) -> Poll<io::Result<usize>> {
        let left = sheet.len().saturating_sub(from);
        when_ready(self, cx, || {
            let mut at = from as u64;
            Ok(rustix::fs::sendfile(&*self, sheet, Some(&mut at), left)?)
        })
    }
}

/// Tries, and waits for the socket as often as it is not ready after all.
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

/// There are no files in memory here.
#[cfg(not(target_os = "linux"))]
impl SendFile for TcpStream {
    fn poll_head(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        std::pin::Pin::new(self).poll_write(cx, bytes)
    }

    fn poll_sheet(
        &mut self,
        _cx: &mut Context<'_>,
        _sheet: &MemfdBody,
        _from: usize,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
