//! How long a provider's responses take: the time that a call with a deadline needs after its permit.
//!
//! Promises: rises with the first slower response, but at most to twice what was known; falls slowly.
//!
//! Never: counts rejections of the provider, which are quick.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::learned::next_estimate;
use tollgate_core::time::Span;

/// Up to this a first or slower response is taken as it is.
const RISES_TO: Span = Span::from_secs(1);

/// The time from the permit to the head of a response.
#[derive(Debug, Default)]
pub(crate) struct ResponseTime {
    micros: AtomicU64,
}

impl ResponseTime {
    /// A response was a success after this time. One slow response says little: the next ones confirm it.
    pub(crate) fn learn(&self, took: Span) {
        let known = self.micros.load(Ordering::Relaxed);
        let most = known.saturating_mul(2).max(RISES_TO.0);
        // Two at the same time: one of them is as good as the other.
        let next = next_estimate(Some(known), took.0.min(most));
        self.micros.store(next, Ordering::Relaxed);
    }

    /// What a call with so much time in all leaves for its response: an eighth more than responses take, and at
    /// most half of its time.
    pub(crate) fn reserved_of(&self, total: Span) -> Span {
        let usual = Span(self.micros.load(Ordering::Relaxed));
        usual.scale_up(9, 8).min(Span(total.0 / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_leaves_time_for_its_response() {
        let times = ResponseTime::default();
        let minute = Span::from_secs(60);
        assert_eq!(times.reserved_of(minute), Span::ZERO);
        times.learn(Span::from_millis(800));
        assert_eq!(times.reserved_of(minute), Span::from_millis(900));
        assert_eq!(
            times.reserved_of(Span::from_secs(1)),
            Span::from_millis(500)
        );
        // Streams answer at once; whole responses between them take as long as before.
        times.learn(Span::ZERO);
        assert_eq!(times.reserved_of(minute), Span(843_750));
    }

    #[test]
    fn one_slow_response_is_not_believed_at_once() {
        let times = ResponseTime::default();
        times.learn(Span::from_secs(30));
        times.learn(Span::from_secs(30));
        assert_eq!(
            times.reserved_of(Span::from_secs(60)),
            Span::from_millis(2_250)
        );
    }
}
