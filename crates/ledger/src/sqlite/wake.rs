//! Wake-ups between processes: a Unix datagram socket per owner, in the state folder.
//!
//! A timer wakes nearly everybody, because a cell that rejects an ask usually knows when it frees.
//! Only concurrency, a full bucket's calls on their way, a permit given back and a scope that
//! changes need a signal.
//!
//! Promises: a wake-up for a process that has died fails at once, and its socket is removed. What
//! is lost costs a second at most: those who wait for a signal also ask again each second.
//!
//! Never: carries a permit, and never blocks the sender.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate_core::ask::{CellId, OwnerId, ScopeId};
use tollgate_core::time::Span;

use crate::Clock;
use crate::store::{EventSink, Liveness};

/// Ids in one datagram. More than that freed at once is told as "anything".
const IDS_MAX: usize = 64;

/// Those who wait for a signal ask again this often without one.
const WATCHDOG: Span = Span::from_secs(1);

const SOCKET_PREFIX: &str = "wake.";

/// Bytes of an id.
const ID_BYTES: usize = 16;

/// Sends wake-ups to other owners of a folder.
#[derive(Debug)]
pub(super) struct Notifier {
    folder: File,
    sender: UnixDatagram,
    owner: OwnerId,
}

impl Notifier {
    /// The notifier of this owner, and the socket on which it is woken.
    pub(super) fn open(folder: File, owner: OwnerId) -> io::Result<(Notifier, UnixDatagram)> {
        let sender = UnixDatagram::unbound()?;
        sender.set_nonblocking(true)?;
        let notifier = Notifier {
            folder,
            sender,
            owner,
        };
        let bind = || UnixDatagram::bind(notifier.address(owner));
        let is_dead = || notifier.liveness(owner) == Liveness::Dead;
        let socket = bind().or_else(|error| match error.kind() {
            // Left by one that was given this number, and killed before that was committed.
            io::ErrorKind::AddrInUse if is_dead() => bind(),
            _ => Err(error),
        })?;
        socket.set_read_timeout(Some(Duration::from(WATCHDOG)))?;
        Ok((notifier, socket))
    }

    /// Through the open folder, because the path of a socket may have 107 bytes only.
    fn address(&self, owner: OwnerId) -> PathBuf {
        let folder = self.folder.as_raw_fd();
        PathBuf::from(format!("/proc/self/fd/{folder}/{SOCKET_PREFIX}{}", owner.0))
    }

    /// Wakes another owner.
    pub(super) fn notify_freed(&self, owner: OwnerId, cells: &[CellId]) -> Liveness {
        self.send(owner, &message(1, cells.iter().map(|cell| cell.0)))
    }

    /// Tells every other owner there is. Scopes change rarely, so the folder is simply read.
    pub(super) fn notify_scopes(&self, scopes: &[ScopeId]) {
        let message = message(2, scopes.iter().map(|scope| scope.0));
        for owner in self.other_owners() {
            self.send(owner, &message);
        }
    }

    /// The other owners that are not dead. Asks all of them, so that the sockets of those killed go.
    pub(super) fn alive(&self) -> Vec<OwnerId> {
        let owners = self.other_owners();
        let alive = owners.filter(|owner| self.liveness(*owner) != Liveness::Dead);
        alive.collect()
    }

    /// Is there somebody behind this number? Says nothing to whoever it is.
    pub(super) fn liveness(&self, owner: OwnerId) -> Liveness {
        self.send(owner, &message(1, std::iter::empty()))
    }

    /// Ends the listener of this owner and takes its socket away.
    pub(super) fn close(&self) {
        self.send(self.owner, &[0]);
        drop(std::fs::remove_file(self.address(self.owner)));
    }

    fn other_owners(&self) -> impl Iterator<Item = OwnerId> {
        let folder = format!("/proc/self/fd/{}", self.folder.as_raw_fd());
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let own = self.owner;
        entries
            .filter_map(|entry| {
                let name = entry.file_name();
                let number = name.to_str()?.strip_prefix(SOCKET_PREFIX)?.parse().ok()?;
                Some(OwnerId(number))
            })
            .filter(move |owner| *owner != own)
    }

    fn send(&self, owner: OwnerId, message: &[u8]) -> Liveness {
        let address = self.address(owner);
        let Err(error) = self.sender.send_to(message, &address) else {
            return Liveness::Alive;
        };
        match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                drop(std::fs::remove_file(address));
                Liveness::Dead
            }
            io::ErrorKind::NotFound => Liveness::Dead,
            // Its buffer is full: it has wake-ups enough.
            io::ErrorKind::WouldBlock => Liveness::Alive,
            _ => Liveness::Unknown,
        }
    }
}

/// Listens until the notifier closes: tells this process what others freed, and each second makes
/// those who wait for a signal ask again.
pub(super) fn listen(socket: &UnixDatagram, sink: &EventSink, is_over: &AtomicBool) {
    let mut buffer = [0; 1 + ID_BYTES * IDS_MAX];
    let mut watched = Clock::System.now().at;
    while !is_over.load(Ordering::Acquire) {
        let message = match socket.recv(&mut buffer) {
            Ok(length) => read(&buffer[..length]),
            Err(_) => None,
        };
        match message {
            Some(Message::Freed(cells)) => sink.freed(cells),
            Some(Message::Scopes(scopes)) => sink.scopes_changed(scopes),
            Some(Message::Anything) => sink.resync(),
            None => {}
        }
        let now = Clock::System.now().at;
        if now.since(watched) >= WATCHDOG {
            watched = now;
            sink.ask_again();
        }
    }
}

/// What another owner says.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    Freed(Vec<CellId>),
    Scopes(Vec<ScopeId>),
    Anything,
}

fn message(kind: u8, ids: impl ExactSizeIterator<Item = u128>) -> Vec<u8> {
    if ids.len() > IDS_MAX {
        return vec![3];
    }
    let mut bytes = vec![kind];
    ids.for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
    bytes
}

/// What a datagram says. One that makes no sense says nothing.
fn read(bytes: &[u8]) -> Option<Message> {
    let (kind, ids) = bytes.split_first()?;
    let (ids, rest) = ids.as_chunks::<ID_BYTES>();
    let mut ids = ids.iter().map(|id| u128::from_le_bytes(*id)).peekable();
    match (kind, rest) {
        (1, []) if ids.peek().is_some() => Some(Message::Freed(ids.map(CellId).collect())),
        (2, []) if ids.peek().is_some() => Some(Message::Scopes(ids.map(ScopeId).collect())),
        (3, []) => Some(Message::Anything),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tollgate_sim::test_host::TempFolder;

    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written_and_garbage_is_ignored() {
        let cells = [CellId(7), CellId(u128::MAX)];
        let bytes = message(1, cells.iter().map(|cell| cell.0));
        assert_eq!(read(&bytes), Some(Message::Freed(cells.to_vec())));
        let many = vec![1_u128; IDS_MAX + 1];
        assert_eq!(read(&message(2, many.into_iter())), Some(Message::Anything));
        for nonsense in [&[][..], &[0], &[9, 9], &bytes[..5], &[1]] {
            assert_eq!(read(nonsense), None);
        }
    }

    /// The first process on a folder was killed while it opened it: the second got the same number,
    /// found the socket in its way, and so did everybody after it.
    #[test]
    fn the_socket_of_a_dead_owner_does_not_block_a_new_owner() {
        let temporary = TempFolder::new("left");
        let folder = || File::open(temporary.path()).unwrap();
        drop(Notifier::open(folder(), OwnerId(1)).unwrap());
        let (_notifier, socket) = Notifier::open(folder(), OwnerId(1)).unwrap();
        assert!(
            Notifier::open(folder(), OwnerId(1)).is_err(),
            "that one lives"
        );
        drop(socket);
    }

    #[test]
    fn a_dead_owner_is_detected_and_its_socket_removed() {
        let temporary = TempFolder::new("wake");
        let folder = || File::open(temporary.path()).unwrap();
        let (one, _socket) = Notifier::open(folder(), OwnerId(1)).unwrap();
        let (two, dead) = Notifier::open(folder(), OwnerId(2)).unwrap();
        assert_eq!(one.notify_freed(OwnerId(2), &[CellId(1)]), Liveness::Alive);
        assert_eq!(one.alive(), [OwnerId(2)]);
        drop((two, dead));
        assert_eq!(one.notify_freed(OwnerId(2), &[CellId(1)]), Liveness::Dead);
        assert!(!temporary.path().join("wake.2").exists());
        assert_eq!(one.alive(), []);
    }

    /// An owner that is stopped, or slow, has a full socket: it is not dead, and its socket stays.
    #[test]
    fn an_owner_that_does_not_read_its_wake_ups_is_alive() {
        let temporary = TempFolder::new("wake-full");
        let folder = || File::open(temporary.path()).unwrap();
        let (one, _socket) = Notifier::open(folder(), OwnerId(1)).unwrap();
        let (_two, _unread) = Notifier::open(folder(), OwnerId(2)).unwrap();
        // The kernel queues some hundred datagrams.
        for _ in 0..10_000 {
            let liveness = one.notify_freed(OwnerId(2), &[CellId(1)]);
            assert_eq!(liveness, Liveness::Alive);
        }
        assert!(temporary.path().join("wake.2").exists());
    }
}
