//! Waiting for the head of a response.
//!
//! Promises: an upload that makes progress is never cut, and the time of a follower that joins
//! counts. A request without a response is reported as arrived once: when the peer's kernel has
//! acknowledged all of it, and the provider has had the time to count it. A response that comes
//! sooner costs nothing for that.
//!
//! Never: reads the response.

use tollgate_core::time::{Micros, Span};

use super::route::Route;
use crate::Permit;
use crate::payload::Upload;
use crate::pool::Preamble;
use crate::providers::CompiledPolicy;
use crate::timer::{Elapsed, within};

/// The shortest time between two looks at the socket.
const LOOK_EVERY_MIN: Span = Span::from_millis(10);

/// When a request without a response counts as arrived: `arrive_within` after its last byte has left,
/// and half of that after its bytes were seen to be acknowledged, whichever is later. A host that
/// sleeps meanwhile, a slow uplink and a dead one have unacknowledged bytes, so nothing is presumed.
pub(super) struct PresumedArrival<'a> {
    /// `arrive_within`; `None`: with its response, or it was reported.
    within: Option<Span>,
    /// When its bytes were seen to be acknowledged.
    acknowledged: Option<Micros>,
    preamble: &'a Preamble,
    permit: &'a mut Permit,
}

/// Sees whether a request without a response has arrived.
pub(super) trait ArrivalWatch {
    /// How long until the next look; `None` = never.
    fn next_check(&self) -> Option<Span>;

    /// Looks, and reports the arrival if it is due.
    fn check(&mut self);
}

/// Nobody sees when the bytes of a foreign client arrive: only its response shows it.
pub(super) struct OnlyByResponse;

impl ArrivalWatch for OnlyByResponse {
    fn next_check(&self) -> Option<Span> {
        None
    }

    fn check(&mut self) {}
}

impl<'a> PresumedArrival<'a> {
    pub(super) fn new(
        within: Option<Span>,
        preamble: &'a Preamble,
        permit: &'a mut Permit,
    ) -> PresumedArrival<'a> {
        PresumedArrival {
            within,
            acknowledged: None,
            preamble,
            permit,
        }
    }
}

impl ArrivalWatch for PresumedArrival<'_> {
    fn next_check(&self) -> Option<Span> {
        let within = self.within?;
        let half = Span(within.0 / 2);
        let Some(sent_at) = self.preamble.sent_at() else {
            return Some(half.max(LOOK_EVERY_MIN)); // bytes are being written
        };
        let now = self.permit.now();
        Some(match self.acknowledged {
            Some(seen) => counts_from(within, sent_at, seen).since(now),
            None if now < sent_at + half => (sent_at + half).since(now),
            None => Span(within.0 / 4).max(LOOK_EVERY_MIN),
        })
    }

    fn check(&mut self) {
        let (Some(within), Some(sent_at)) = (self.within, self.preamble.sent_at()) else {
            return;
        };
        let now = self.permit.now();
        let is_time = now >= sent_at + Span(within.0 / 2);
        if self.acknowledged.is_none() && is_time && self.preamble.is_acknowledged() {
            self.acknowledged = Some(now);
        }
        let Some(seen) = self.acknowledged else {
            return;
        };
        let arrived = counts_from(within, sent_at, seen);
        if now >= arrived {
            self.within = None;
            self.permit.presume_arrived(now.since(arrived));
        }
    }
}

/// When a request counts as arrived that left at `sent_at` and was seen to be acknowledged at `seen`.
fn counts_from(within: Span, sent_at: Micros, seen: Micros) -> Micros {
    (sent_at + within).max(seen + Span(within.0 / 2))
}

/// Waits for the head of a response: the provider's timeout, or the caller's remaining time.
pub(super) async fn wait_for_head<T, A: ArrivalWatch>(
    route: &Route,
    policy: &CompiledPolicy,
    upload: Option<&Upload>,
    mut arrival: A,
    response: impl Future<Output = T>,
) -> Result<T, Elapsed> {
    let mut response = std::pin::pin!(response);
    let most = policy.provider.timeouts.first_byte;
    let gone = || upload.map(Upload::pieces);
    let (mut seen, mut rest) = (gone(), most);
    loop {
        let remaining = route.subject.remaining();
        let patience = remaining.map_or(rest, |remaining| remaining.min(rest));
        let pause = arrival
            .next_check()
            .map_or(patience, |check| check.min(patience));
        match within(Some(pause), response.as_mut()).await {
            Ok(response) => return Ok(response),
            Err(late) => {
                arrival.check();
                let sent = gone();
                rest = if sent == seen { rest - pause } else { most };
                if rest == Span::ZERO || route.subject.remaining() == Some(Span::ZERO) {
                    return Err(late);
                }
                seen = sent;
            }
        }
    }
}
