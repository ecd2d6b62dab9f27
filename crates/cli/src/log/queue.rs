//! The queue between what happens and where its lines are written.
//!
//! Promises: adding a line never waits for a pipe or a disk. A queue that is full loses the newest lines, and a line
//! says how many. At the end of the process, what is queued is written if its reader takes it within a second.
//!
//! Never: splits or reorders lines.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

/// Some 20,000 lines: seconds of rejected calls while a disk or a reader stalls.
const BYTES_MAX: usize = 4 << 20;

/// Long enough for a busy disk; a reader that has stopped for good must not keep the process.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Where lines are added. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct LineQueue(Arc<Shared>);

/// Writes what is queued when it is dropped: hold it until the process ends.
#[derive(Debug)]
#[must_use = "lines that are still queued are written when this is dropped"]
pub(crate) struct LogGuard(LineQueue);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// A line was added, or the process ends.
    added: Condvar,
    /// Everything is written.
    written: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines that found no room since the last report.
    lost: u64,
    /// The thread is writing lines that it has taken.
    is_writing: bool,
}

impl LineQueue {
    /// Starts the thread that writes. `report_lost` is called by it with the number of lost lines.
    pub(super) fn start(
        mut target: impl Write + Send + 'static,
        report_lost: impl Fn(u64) + Send + 'static,
    ) -> anyhow::Result<(LineQueue, LogGuard)> {
        let queue = LineQueue(Arc::default());
        let shared = Arc::clone(&queue.0);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || {
                loop {
                    let lost = shared.write_batch(&mut target);
                    if lost > 0 {
                        report_lost(lost);
                    }
                }
            })
            .context("the thread of the log could not start")?;
        let guard = LogGuard(queue.clone());
        Ok((queue, guard))
    }

    fn add(&self, line: &[u8]) {
        let mut state = self.0.state.lock();
        // One longer line is taken if nothing else is queued.
        if state.bytes > 0 && state.bytes + line.len() > BYTES_MAX {
            state.lost += 1;
            return;
        }
        state.bytes += line.len();
        state.lines.push_back(line.to_vec());
        drop(state);
        self.0.added.notify_one();
    }
}

impl Shared {
    /// Waits for lines and writes them; returns how many were lost before them.
    fn write_batch(&self, target: &mut impl Write) -> u64 {
        let (lines, lost) = {
            let mut state = self.state.lock();
            self.added
                .wait_while(&mut state, |state| state.lines.is_empty());
            state.is_writing = true;
            state.bytes = 0;
            (
                std::mem::take(&mut state.lines),
                std::mem::take(&mut state.lost),
            )
        };
        for line in lines {
            // A line that cannot be written is lost; the calls go on.
            let _written = target.write_all(&line);
        }
        let _flushed = target.flush();
        self.state.lock().is_writing = false;
        self.written.notify_all();
        lost
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        let Shared { state, written, .. } = &*self.0.0;
        let mut state = state.lock();
        let is_pending = |state: &mut State| state.is_writing || !state.lines.is_empty();
        let _result = written.wait_while_for(&mut state, is_pending, END_TIMEOUT);
    }
}

impl Write for LineQueue {
    /// A whole line: the layer above writes it in one piece.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // the thread writes at once
    }
}

impl<'w> MakeWriter<'w> for LineQueue {
    type Writer = LineQueue;

    fn make_writer(&'w self) -> LineQueue {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A reader that takes a line only when the test says so.
    struct StalledReader {
        may_write: Receiver<()>,
        lines: SyncSender<Vec<u8>>,
    }

    impl Write for StalledReader {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.may_write.recv().map_err(io::Error::other)?;
            self.lines.send(line.to_vec()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stalled_reader_loses_lines_and_stops_nobody() {
        let (allow, may_write) = sync_channel(100);
        let (lines, written) = sync_channel(100);
        let (lost, reported) = sync_channel(100);
        let reader = StalledReader { may_write, lines };
        let (queue, guard) = LineQueue::start(reader, move |lines| {
            lost.send(lines).ok();
        })
        .unwrap();
        let line = vec![b'x'; BYTES_MAX / 4];
        // At least one of these finds no room, however many the thread has taken in between.
        for _ in 0..10 {
            queue.add(&line);
        }
        for _ in 0..50 {
            allow.send(()).unwrap();
        }
        drop(guard);
        let mut lost = 0;
        let mut taken = 0;
        while taken + lost < 10 {
            lost += reported.recv_timeout(PATIENCE).unwrap();
            taken += written.try_iter().count() as u64;
        }
        assert_eq!(taken + lost, 10);
    }

    #[test]
    fn what_is_queued_is_written_at_the_end_in_order() {
        let (allow, may_write) = sync_channel(100);
        let (lines, written) = sync_channel(100);
        for _ in 0..3 {
            allow.send(()).unwrap();
        }
        let (queue, guard) = LineQueue::start(StalledReader { may_write, lines }, |_| ()).unwrap();
        for line in [b"a", b"b", b"c"] {
            queue.add(line);
        }
        drop(guard);
        let written: Vec<Vec<u8>> = written.try_iter().collect();
        assert_eq!(written, [b"a", b"b", b"c"].map(|line| line.to_vec()));
    }
}
