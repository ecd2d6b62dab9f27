//! The kernel lock in front of the database, with a deadline.
//!
//! SQLite's own busy handler polls with growing pauses and so starves processes; a kernel lock
//! queues them. `flock` cannot time out, so where the lock is not free at once a thread of its own
//! waits for it, and whoever asked waits for that thread, but not for ever.
//!
//! Promises: at most one holder on the host. The lock goes with the process that dies.
//!
//! Never: waits longer than it was told to.

use std::fs::{File, TryLockError};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// How often the lock is tried before a thread is put to wait for it. The holder needs it for some
/// 20 µs, and a hand-over between threads costs as much.
const TRIES: usize = 4;

#[derive(Debug)]
pub(super) struct KernelLock {
    file: Arc<File>,
    wait: SyncSender<()>,
    held: Receiver<io::Result<()>>,
    /// The other thread waits for the lock already.
    is_waiting: bool,
}

impl KernelLock {
    pub(super) fn new(file: File) -> io::Result<KernelLock> {
        let file = Arc::new(file);
        let (wait, asked) = sync_channel::<()>(1);
        let (sender, held) = sync_channel(1);
        let waiter = file.clone();
        std::thread::Builder::new()
            .name("tollgate-lock".to_owned())
            .spawn(move || {
                while asked.recv().is_ok() {
                    if sender.send(waiter.lock()).is_err() {
                        // Nobody is there to use it. The file closes with this thread.
                        return;
                    }
                }
            })?;
        Ok(KernelLock {
            file,
            wait,
            held,
            is_waiting: false,
        })
    }

    /// Takes the lock within `longest`. `Ok(false)`: somebody else has it for longer than that.
    pub(super) fn acquire(&mut self, longest: Duration) -> io::Result<bool> {
        if !self.is_waiting {
            for _ in 0..TRIES {
                match self.file.try_lock() {
                    Ok(()) => return Ok(true),
                    Err(TryLockError::WouldBlock) => std::thread::yield_now(),
                    Err(TryLockError::Error(error)) => return Err(error),
                }
            }
            self.wait.send(()).map_err(|_| lock_thread_ended())?;
            self.is_waiting = true;
        }
        match self.held.recv_timeout(longest) {
            Ok(held) => {
                self.is_waiting = false;
                held.map(|()| true)
            }
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => Err(lock_thread_ended()),
        }
    }

    /// Takes the lock if nobody has it.
    pub(super) fn take_if_free(&self) -> bool {
        !self.is_waiting && self.file.try_lock().is_ok()
    }

    /// The file that is locked.
    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }

    pub(super) fn release(&self) -> io::Result<()> {
        self.file.unlock()
    }
}

fn lock_thread_ended() -> io::Error {
    io::Error::other("the thread that waits for the lock has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> File {
        let path = std::env::temp_dir().join(format!("tollgate-lock-{}", std::process::id()));
        File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .unwrap()
    }

    #[test]
    fn waiting_for_a_held_lock_times_out_and_succeeds_later() {
        let other = open();
        other.lock().unwrap();
        let mut lock = KernelLock::new(open()).unwrap();
        assert!(!lock.acquire(Duration::from_millis(5)).unwrap());
        assert!(!lock.acquire(Duration::ZERO).unwrap());
        other.unlock().unwrap();
        assert!(lock.acquire(Duration::from_secs(20)).unwrap());
        assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        lock.release().unwrap();
        other.try_lock().unwrap();
    }
}
