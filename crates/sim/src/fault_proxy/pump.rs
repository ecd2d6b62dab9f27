//! One direction of a relayed connection: read, delay as configured, write.
//!
//! Promises: order is kept; each chunk leaves no earlier than its delay after it was read; a change
//! to `Drop` or `HalfClose` discards the chunks in transit.
//!
//! Never: holds more than [`QUEUE_CHUNKS`] chunks.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tollgate_core::time::Span;

use super::{Flow, LinkFaults, ProxyFaults, QUEUE_CHUNKS};
use crate::real_time;

/// One read at most.
const CHUNK_BYTES: usize = 16 * 1024;

/// The connection is to be reset on both sides.
#[derive(Debug)]
pub(super) struct Cut;

type LinkSelector = fn(&ProxyFaults) -> LinkFaults;

/// Relays one direction until its end of stream has been forwarded.
pub(super) async fn pump(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    link: LinkSelector,
    dice: fastrand::Rng,
    faults: watch::Receiver<ProxyFaults>,
) -> Result<(), Cut> {
    let (queue, due) = mpsc::channel(QUEUE_CHUNKS);
    let read = read(from, link, dice, faults.clone(), queue);
    let write = write(to, link, faults, due);
    tokio::try_join!(read, write).map(|_| ())
}

/// Stamps each chunk with the time at which it may leave.
async fn read(
    mut from: ReadHalf<'_>,
    link: LinkSelector,
    mut dice: fastrand::Rng,
    faults: watch::Receiver<ProxyFaults>,
    queue: mpsc::Sender<(Instant, Vec<u8>)>,
) -> Result<(), Cut> {
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let n = from.read(&mut chunk).await.map_err(|_| Cut)?;
        chunk.truncate(n);
        let LinkFaults { delay, jitter, .. } = link(&faults.borrow());
        let extra = Span(dice.u64(0..=jitter.0));
        let due = real_time::now() + (delay + extra).into();
        // The writer ends only when this direction has ended; then nobody waits for the chunk.
        if queue.send((due, chunk)).await.is_err() || n == 0 {
            return Ok(());
        }
    }
}

/// Writes chunks when they are due and the flow allows it. An empty chunk is the end of the stream.
async fn write(
    to: WriteHalf<'_>,
    link: LinkSelector,
    mut faults: watch::Receiver<ProxyFaults>,
    mut due: mpsc::Receiver<(Instant, Vec<u8>)>,
) -> Result<(), Cut> {
    let mut writer = LinkWriter {
        to,
        closed: false,
        link: LinkFaults::default(),
        passed: 0,
    };
    loop {
        let next = tokio::select! {
            chunk = due.recv() => chunk,
            // A half-close takes effect at once, whether or not bytes arrive.
            changed = faults.changed() => {
                let now = link(&faults.borrow_and_update());
                writer.set_link(now).await;
                if changed.is_ok() { continue } else { None }
            }
        };
        let Some((at, chunk)) = next else {
            return Ok(());
        };
        real_time::sleep_until(at).await;
        let flowing = faults
            .wait_for(|faults| link(faults).flow != Flow::Stall)
            .await;
        let now = flowing.map(|faults| link(&faults)).map_err(|_| Cut)?;
        writer.set_link(now).await;
        if chunk.is_empty() {
            writer.close().await;
            return Ok(());
        }
        writer.write_chunk(&chunk).await?;
    }
}

/// The receiving side of one direction.
struct LinkWriter<'a> {
    to: WriteHalf<'a>,
    closed: bool,
    link: LinkFaults,
    /// Bytes since the last update of the link.
    passed: u64,
}

impl LinkWriter<'_> {
    async fn set_link(&mut self, link: LinkFaults) {
        if self.link != link {
            self.link = link;
            self.passed = 0;
        }
        if link.flow == Flow::HalfClose {
            self.close().await;
        }
    }

    async fn close(&mut self) {
        if !self.closed {
            self.closed = true;
            // Fails only when the connection is closed, and then its end has been seen.
            self.to.shutdown().await.ok();
        }
    }

    async fn write_chunk(&mut self, chunk: &[u8]) -> Result<(), Cut> {
        if self.closed || self.link.flow == Flow::Drop {
            return Ok(());
        }
        let remaining = self
            .link
            .cut_after
            .map_or(u64::MAX, |cut| cut.saturating_sub(self.passed));
        let remaining = usize::try_from(remaining).unwrap_or(usize::MAX);
        self.to
            .write_all(chunk.get(..remaining).unwrap_or(chunk))
            .await
            .map_err(|_| Cut)?;
        self.passed = self.passed.saturating_add(chunk.len() as u64);
        match self.link.cut_after {
            Some(cut) if cut <= self.passed => Err(Cut),
            Some(_) | None => Ok(()),
        }
    }
}
