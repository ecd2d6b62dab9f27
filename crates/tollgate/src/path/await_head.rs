//! Waiting for the head of a response.
//!
//! Promises: an upload that makes progress is never cut, and the time of a follower that joins
//! counts. A request without a response is reported as arrived once, when it must have arrived; a
//! response that comes sooner costs nothing for that.
//!
//! Never: reads the response.

use tollgate_core::time::Span;

use super::route::Route;
use crate::Permit;
use crate::payload::Upload;
use crate::pool::Preamble;
use crate::providers::CompiledPolicy;
use crate::timer::{Elapsed, within};

/// When a request without a response counts as arrived.
pub(super) struct PresumedArrival<'a> {
    /// This long after its last byte has left; `None`: not, or not again.
    within: Option<Span>,
    preamble: &'a Preamble,
    permit: &'a mut Permit,
}

impl<'a> PresumedArrival<'a> {
    pub(super) fn new(
        within: Option<Span>,
        preamble: &'a Preamble,
        permit: &'a mut Permit,
    ) -> PresumedArrival<'a> {
        PresumedArrival {
            within,
            preamble,
            permit,
        }
    }

    /// How long ago its last byte left; nothing while bytes are being written.
    fn sent_for(&self) -> Span {
        let sent_at = self.preamble.sent_at();
        sent_at.map_or(Span::ZERO, |at| self.permit.now().since(at))
    }

    /// How long until the next look.
    fn next_check(&self) -> Option<Span> {
        Some(self.within? - self.sent_for())
    }

    /// Reports the arrival if it is due.
    fn check(&mut self) {
        let sent_for = self.sent_for();
        if let Some(within) = self.within
            && sent_for >= within
        {
            self.within = None;
            self.permit.presume_arrived(sent_for - within);
        }
    }
}

/// How long the kernel may wait for the peer to acknowledge a request that counts as arrived after
/// `within`: less, so that a dead connection is known to be dead before. Linux counts from the first
/// retransmission, which comes 0.2 to 0.4 s after the last byte, and looks at the next one.
pub(super) fn user_timeout(within: Span) -> Span {
    Span(within.0 / 8 * 5)
}

/// Waits for the head of a response: the provider's timeout, or the caller's remaining time.
pub(super) async fn wait_for_head<T>(
    route: &Route,
    policy: &CompiledPolicy,
    upload: Option<&Upload>,
    mut arrival: PresumedArrival<'_>,
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
