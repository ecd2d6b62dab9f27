//! How long an upload may keep us waiting.
//!
//! A slow upload holds a connection, and memory or disk. One that is streamed also holds a permit
//! and a slot at the provider, so a few of them would take the provider away from everybody.
//!
//! Promises: an upload has some seconds, and a second more for each `min_rate` bytes that it has
//! sent. Only the time that we wait for it counts, not the time that the provider needs to take it.
//!
//! Never: cuts an upload that is as fast as `min_rate`.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// The time that every upload has, however little it sends: as long as a request head may take.
const START_MAX: Duration = Duration::from_secs(10);

/// How long an upload may pause, however much it has sent: what proxies usually grant a client.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The upload is slower than `min_rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the upload is slower than upload.min_rate allows")]
pub(crate) struct TooSlow;

/// The pace of one upload.
#[derive(Debug)]
pub(super) struct Pace {
    /// Bytes a second; 0 = any.
    min_rate: u64,
    received: u64,
    /// How long we have waited for it.
    waited: Duration,
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Pace {
    pub(super) fn new(min_rate: u64) -> Pace {
        Pace {
            min_rate,
            received: 0,
            waited: Duration::ZERO,
            waiting: None,
        }
    }

    /// Bytes have arrived.
    pub(super) fn add(&mut self, bytes: usize) {
        self.received = self.received.saturating_add(bytes as u64);
    }

    /// The next piece, unless it takes too long.
    #[expect(clippy::disallowed_methods, reason = "the timer of an upload")]
    pub(super) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        piece: Poll<T>,
    ) -> Poll<Result<T, TooSlow>> {
        match piece {
            Poll::Ready(piece) => {
                if let Some(waiting) = self.waiting.take() {
                    self.waited += waiting.since.elapsed();
                }
                Poll::Ready(Ok(piece))
            }
            Poll::Pending => {
                let remaining = self.remaining();
                let waiting = self.waiting.get_or_insert_with(|| Waiting {
                    since: Instant::now(),
                    timer: Box::pin(tokio::time::sleep(remaining)),
                });
                waiting.timer.as_mut().poll(cx).map(|()| Err(TooSlow))
            }
        }
    }

    /// How long the next piece may take.
    fn remaining(&self) -> Duration {
        let Some(earned) = self.received.checked_div(self.min_rate) else {
            return PAUSE_MAX;
        };
        let allowed = START_MAX.saturating_add(Duration::from_secs(earned));
        allowed.saturating_sub(self.waited).min(PAUSE_MAX)
    }
}
