//! The socket of a client, and what its kernel knows while nobody reads it.
//!
//! Promises: a client that hangs up while its input is full is noticed as soon as the kernel knows it.
//!
//! Never: reads. The readiness of the socket itself stays as it is, so that no later read misses it.

use std::io::Result;
use std::os::fd::{AsFd, OwnedFd};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::gateway::until_read_closed;

/// The stream of a connection.
pub(super) trait ClientStream: AsyncRead + AsyncWrite + Unpin {
    /// Ends when the client has closed its side.
    fn hung_up(&self) -> impl Future<Output = ()> + Send;
}

impl ClientStream for TcpStream {
    fn hung_up(&self) -> impl Future<Output = ()> + Send {
        watch(self.as_fd().try_clone_to_owned())
    }
}

impl ClientStream for UnixStream {
    fn hung_up(&self) -> impl Future<Output = ()> + Send {
        watch(self.as_fd().try_clone_to_owned())
    }
}

/// Reads if there is room; otherwise waits for the end, which is nothing read.
pub(super) async fn read_or_end(
    stream: &mut impl ClientStream,
    input: &mut BytesMut,
    may_read: bool,
) -> Result<usize> {
    if may_read {
        return stream.read_buf(input).await;
    }
    stream.hung_up().await;
    Ok(0)
}

async fn watch(handle: Result<OwnedFd>) {
    match handle {
        Ok(handle) => until_read_closed(handle).await,
        // Without a descriptor nobody watches: the ticks find it.
        Err(_) => std::future::pending().await,
    }
}
