//! The send queue of a connection: has the peer acknowledged every byte?
//!
//! Promises: any task may look, while another one owns the connection. A connection that is closed, or
//! that is not TCP, has never been acknowledged.
//!
//! Never: reads or writes. Never looks at a descriptor after its connection was closed: the number
//! may be another file by then.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use parking_lot::Mutex;
use rustix::ioctl::{Getter, Opcode, ioctl};
use tokio::net::TcpStream;

/// `SIOCOUTQ` of tcp(7): how many bytes were written and are not acknowledged. The number is that of
/// x86, ARM and RISC-V; where it is another one the kernel refuses, and no call counts as acknowledged.
const SIOCOUTQ: Opcode = 0x5411;

/// The send queue of one connection.
#[derive(Debug)]
pub(super) struct SendQueue {
    /// The socket, while its connection is open.
    socket: Mutex<Option<RawFd>>,
}

impl SendQueue {
    pub(super) fn of(tcp: Option<&TcpStream>) -> SendQueue {
        SendQueue {
            socket: Mutex::new(tcp.map(AsRawFd::as_raw_fd)),
        }
    }

    /// The connection is about to be closed.
    pub(super) fn close(&self) {
        *self.socket.lock() = None;
    }

    /// The peer's kernel has every byte that was written.
    pub(super) fn is_empty(&self) -> bool {
        let socket = self.socket.lock();
        let Some(socket) = *socket else {
            return false;
        };
        #[expect(
            unsafe_code,
            reason = "the socket belongs to another task, and rustix has no safe call for this ioctl"
        )]
        // SAFETY: the descriptor is open: whoever closes it calls `close` before, which waits for this
        // lock (`Drop` of `CountedStream`, which is the only owner of the stream). `SIOCOUTQ` writes one
        // `int` and changes nothing.
        let unacknowledged = unsafe {
            let socket = BorrowedFd::borrow_raw(socket);
            ioctl(socket, Getter::<SIOCOUTQ, c_int>::new())
        };
        unacknowledged == Ok(0)
    }
}
