//! A limit that only the provider's responses state: what it is, since when, and when it changes.
//!
//! Promises: a lower limit applies with the response that reports it. A higher one applies after
//! [`RAISE_RESPONSES`] responses in a row have reported it over a full window. A limit that no
//! response has reported for a day is forgotten. A reset further away than a window's end proves
//! that the window is longer. It gets shorter, though never shorter than documented, after as many
//! responses over a full window whose resets all fit the shorter one.
//!
//! Never: counts. The cell that has learned the limit does.

use crate::time::{Micros, Span, TimeBounds};

/// A limit that nobody has reported for this long is forgotten: tiers and models change, and a key
/// that has not been used for a day starts with one call.
pub const FORGET_AFTER: Span = Span::from_secs(86_400);

/// This many responses in a row must report more than the known limit: one may be late, and two may
/// come from a server that does not know of a change yet.
pub const RAISE_RESPONSES: u32 = 3;

/// The windows that providers use. A reset further away than the assumed window has a window of the
/// next length.
const WINDOWS: [Span; 7] = [
    Span::from_secs(1),
    Span::from_secs(10),
    Span::from_secs(60),
    Span::from_secs(900),
    Span::from_secs(3_600),
    Span::from_secs(86_400),
    Span::from_secs(31 * 86_400),
];

/// A reset may be this much later than the window, in percent: responses round up, and are late.
const RESET_TOLERANCE: u64 = 125;

/// An estimate falls by this part of the difference with each lower usage.
const FALL: u64 = 16;

/// What the next call of a kind will use, if the last one used `used`: at once more, slowly less.
#[must_use]
pub fn next_estimate(known: Option<u64>, used: u64) -> u64 {
    match known {
        Some(known) if used < known => known - (known - used).div_ceil(FALL),
        Some(_) | None => used,
    }
}

/// What the responses say about one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LearnedLimit {
    /// N; `None`: responses have come, and none has stated it.
    pub(crate) limit: Option<u64>,
    /// The window of N.
    pub(crate) period: Span,
    /// Since when N is what it is.
    pub(crate) since: Micros,
    /// The last response that counts: one that stated N, or any while N is not known.
    pub(crate) seen_at: Micros,
    /// The responses since then have stated more.
    pub(crate) higher: Option<HigherLimit>,
    /// The resets since then fit a shorter window.
    pub(crate) shorter: Option<ShorterWindow>,
}

/// A shorter window, until it is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShorterWindow {
    pub(crate) since: Micros,
    /// The furthest of the resets.
    pub(crate) furthest: Span,
    pub(crate) responses: u32,
}

/// A higher limit, until it is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HigherLimit {
    pub(crate) since: Micros,
    /// The lowest of the reported numbers.
    pub(crate) least: u64,
    pub(crate) responses: u32,
}

/// What one response says about a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitReport {
    pub(crate) limit: Option<u64>,
    pub(crate) reset_after: Option<Span>,
}

/// What a response has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LearnedChange {
    /// Nothing.
    None,
    /// More may go: the limit is known now, or it is higher.
    More,
    /// Less may go.
    Less,
}

/// A learned limit as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedView {
    /// N; `None`: responses have come, and none has stated it.
    pub limit: Option<u64>,
    /// The window of N.
    pub period: Span,
    /// How long N has been what it is.
    pub age: Span,
    /// How long ago a response last stated it.
    pub seen: Span,
}

impl LearnedLimit {
    /// The first response. `assumed` is the window that the provider documents.
    pub(crate) fn first(report: LimitReport, assumed: Span, now: Micros) -> LearnedLimit {
        LearnedLimit {
            limit: report.limit,
            period: window_for(assumed, report.reset_after),
            since: now,
            seen_at: now,
            higher: None,
            shorter: None,
        }
    }

    /// A further response. `assumed` is the window that the provider documents.
    pub(crate) fn on_report(
        &mut self,
        report: LimitReport,
        assumed: Span,
        now: TimeBounds,
    ) -> LearnedChange {
        if self.limit.is_none() || report.limit.is_some() {
            self.seen_at = now.hi;
        }
        let period = window_for(self.period, report.reset_after);
        let is_longer = period > self.period;
        self.period = period;
        let is_shorter = report
            .reset_after
            .is_some_and(|reset| self.shrinks(reset, assumed, now));
        let change = match (self.limit, report.limit) {
            (_, None) => LearnedChange::None,
            (None, Some(limit)) => self.set(limit, now.hi, LearnedChange::Less),
            (Some(known), Some(limit)) if limit < known => {
                self.set(limit, now.hi, LearnedChange::Less)
            }
            (Some(known), Some(limit)) if limit == known => {
                self.higher = None;
                LearnedChange::None
            }
            (Some(_), Some(limit)) => self.on_higher(limit, now),
        };
        match change {
            LearnedChange::None if is_longer => LearnedChange::Less,
            LearnedChange::None if is_shorter => LearnedChange::More,
            LearnedChange::None | LearnedChange::More | LearnedChange::Less => change,
        }
    }

    fn set(&mut self, limit: u64, now: Micros, change: LearnedChange) -> LearnedChange {
        (self.limit, self.since, self.higher) = (Some(limit), now, None);
        change
    }

    fn on_higher(&mut self, limit: u64, now: TimeBounds) -> LearnedChange {
        let higher = self.higher.get_or_insert(HigherLimit {
            since: now.hi,
            least: limit,
            responses: 0,
        });
        higher.least = higher.least.min(limit);
        higher.responses = higher.responses.saturating_add(1);
        let HigherLimit {
            since,
            least,
            responses,
        } = *higher;
        if responses < RAISE_RESPONSES || now.lo.since(since) < self.period {
            return LearnedChange::None;
        }
        self.set(least, now.hi, LearnedChange::More)
    }

    /// One response with a far reset, such as a wrong one, must not make a limit of a minute one of an
    /// hour for as long as the key is used. The time to wait is the known window: whoever uses a
    /// longer one sees resets beyond the shorter one within it.
    fn shrinks(&mut self, reset: Span, assumed: Span, now: TimeBounds) -> bool {
        if window_for(assumed, Some(reset)) >= self.period {
            self.shorter = None;
            return false;
        }
        let shorter = self.shorter.get_or_insert(ShorterWindow {
            since: now.hi,
            furthest: reset,
            responses: 0,
        });
        shorter.furthest = shorter.furthest.max(reset);
        shorter.responses = shorter.responses.saturating_add(1);
        let ShorterWindow {
            since,
            furthest,
            responses,
        } = *shorter;
        if responses < RAISE_RESPONSES || now.lo.since(since) < self.period {
            return false;
        }
        (self.period, self.shorter) = (window_for(assumed, Some(furthest)), None);
        true
    }

    /// Nobody has reported it for a day.
    pub(crate) fn is_forgotten(&self, now: Micros) -> bool {
        now >= self.forgotten_at()
    }

    /// When it is forgotten without another response.
    pub(crate) fn forgotten_at(&self) -> Micros {
        self.seen_at + FORGET_AFTER
    }

    /// As it is shown.
    pub(crate) fn view(&self, now: Micros) -> LearnedView {
        LearnedView {
            limit: self.limit,
            period: self.period,
            age: now.since(self.since),
            seen: now.since(self.seen_at),
        }
    }
}

/// The window, if it resets so far away: the known one, or the next length that is long enough.
fn window_for(known: Span, reset_after: Option<Span>) -> Span {
    let Some(reset) = reset_after else {
        return known;
    };
    if reset <= known.scale_up(RESET_TOLERANCE, 100) {
        return known;
    }
    let is_enough = |window: &&Span| reset <= window.scale_up(RESET_TOLERANCE, 100);
    let longest = WINDOWS[WINDOWS.len() - 1];
    WINDOWS
        .iter()
        .find(is_enough)
        .copied()
        .unwrap_or(longest)
        .max(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Wall;

    const MINUTE: Span = Span::from_secs(60);

    fn at(seconds: u64) -> TimeBounds {
        TimeBounds::exact(Micros(seconds * 1_000_000), Wall(0))
    }

    fn report(limit: u64) -> LimitReport {
        LimitReport {
            limit: Some(limit),
            reset_after: None,
        }
    }

    #[test]
    fn a_lower_limit_applies_with_the_response_that_reports_it() {
        let mut known = LearnedLimit::first(report(60), MINUTE, Micros(0));
        assert_eq!(
            known.on_report(report(30), MINUTE, at(1)),
            LearnedChange::Less
        );
        assert_eq!((known.limit, known.since), (Some(30), at(1).hi));
    }

    #[test]
    fn a_higher_limit_needs_several_responses_over_a_full_window() {
        let mut known = LearnedLimit::first(report(30), MINUTE, Micros(0));
        // Many responses, but within one window.
        for second in 1..60 {
            assert_eq!(
                known.on_report(report(90), MINUTE, at(second)),
                LearnedChange::None
            );
        }
        assert_eq!(
            known.on_report(report(60), MINUTE, at(60)),
            LearnedChange::None
        );
        assert_eq!(
            known.on_report(report(90), MINUTE, at(61)),
            LearnedChange::More
        );
        assert_eq!(known.limit, Some(60), "the lowest of them");
    }

    #[test]
    fn two_responses_far_apart_do_not_raise_it() {
        let mut known = LearnedLimit::first(report(30), MINUTE, Micros(0));
        assert_eq!(
            known.on_report(report(60), MINUTE, at(1)),
            LearnedChange::None
        );
        assert_eq!(
            known.on_report(report(60), MINUTE, at(600)),
            LearnedChange::None
        );
        assert_eq!(
            known.on_report(report(60), MINUTE, at(601)),
            LearnedChange::More
        );
    }

    #[test]
    fn the_known_limit_in_between_starts_the_count_again() {
        let mut known = LearnedLimit::first(report(30), MINUTE, Micros(0));
        known.on_report(report(60), MINUTE, at(1));
        known.on_report(report(60), MINUTE, at(2));
        known.on_report(report(30), MINUTE, at(3));
        assert_eq!(
            known.on_report(report(60), MINUTE, at(100)),
            LearnedChange::None
        );
        assert_eq!(known.limit, Some(30));
    }

    #[test]
    fn it_is_forgotten_a_day_after_the_last_report() {
        let mut known = LearnedLimit::first(report(30), MINUTE, Micros(0));
        known.on_report(LimitReport::default(), MINUTE, at(1_000));
        assert!(!known.is_forgotten(at(86_399).lo));
        assert!(
            known.is_forgotten(at(86_400).lo),
            "a response without the limit does not count"
        );
        known.on_report(report(30), MINUTE, at(10));
        assert!(!known.is_forgotten(at(86_405).lo));
    }

    #[test]
    fn a_reset_beyond_the_window_makes_it_longer_at_once() {
        let with = |reset| LimitReport {
            limit: Some(200),
            reset_after: Some(Span::from_secs(reset)),
        };
        let mut known = LearnedLimit::first(with(60), MINUTE, Micros(0));
        assert_eq!(known.period, MINUTE);
        assert_eq!(
            known.on_report(with(432), MINUTE, at(1)),
            LearnedChange::Less
        );
        assert_eq!(known.period, Span::from_secs(900));
        known.on_report(with(20_000), MINUTE, at(2));
        assert_eq!(known.period, Span::from_secs(86_400));
        known.on_report(with(3), MINUTE, at(3));
        assert_eq!(known.period, Span::from_secs(86_400));
        known.on_report(with(1 << 40), MINUTE, at(4));
        assert_eq!(known.period, Span::from_secs(31 * 86_400), "bounded");
    }

    /// A former bug: one reset of an hour made 150,000 a minute 150,000 an hour for as long as the key
    /// was used.
    #[test]
    fn a_window_gets_shorter_after_a_full_one_whose_resets_all_fit() {
        let with = |reset| LimitReport {
            limit: Some(200),
            reset_after: Some(Span::from_secs(reset)),
        };
        let hour = Span::from_secs(3_600);
        let mut known = LearnedLimit::first(with(3_723), MINUTE, Micros(0));
        assert_eq!(known.period, hour);
        for second in (10..3_610).step_by(10) {
            known.on_report(with(5), MINUTE, at(second));
            assert_eq!(known.period, hour, "at {second} s");
        }
        assert_eq!(
            known.on_report(with(50), MINUTE, at(3_610)),
            LearnedChange::More
        );
        assert_eq!(known.period, MINUTE);

        let mut known = LearnedLimit::first(with(3_000), MINUTE, Micros(0));
        for second in (10..36_000).step_by(10) {
            // A window of an hour that resets at the end of each hour.
            known.on_report(with(3_600 - second % 3_600), MINUTE, at(second));
            assert_eq!(known.period, hour, "at {second} s");
        }
    }

    #[test]
    fn a_window_is_never_shorter_than_documented() {
        let with = |reset| LimitReport {
            limit: Some(200),
            reset_after: Some(Span::from_secs(reset)),
        };
        let day = Span::from_secs(86_400);
        let mut known = LearnedLimit::first(with(5), day, Micros(0));
        for hour in 1..100 {
            known.on_report(with(5), day, at(hour * 3_600));
        }
        assert_eq!((known.period, known.shorter), (day, None));
    }

    #[test]
    fn an_estimate_rises_at_once_and_falls_slowly() {
        assert_eq!(next_estimate(None, 100), 100);
        assert_eq!(next_estimate(Some(100), 900), 900);
        assert_eq!(next_estimate(Some(900), 100), 850);
        let low = (0..200).fold(900, |known, _| next_estimate(Some(known), 100));
        assert_eq!(low, 100);
    }

    #[test]
    fn what_is_shown_has_value_and_times() {
        let mut known = LearnedLimit::first(report(30), MINUTE, Micros(0));
        known.on_report(report(30), MINUTE, at(5));
        let view = known.view(at(7).lo);
        assert_eq!((view.limit, view.period), (Some(30), MINUTE));
        assert_eq!(
            (view.age, view.seen),
            (Span::from_secs(7), Span::from_secs(2))
        );
    }
}
