//! Lifetimes that adapt to how often a response changes (S13).
//!
//! Promises: always within MIN and MAX; whole microseconds.
//!
//! Never: compares responses. The caller does and passes the result.

use crate::time::Span;

/// The result of a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentChange {
    /// The content is the same.
    Unchanged,
    /// The content is different.
    Changed,
}

/// The lifetime after a refresh: ×1.5 if the content is the same, ×0.5 if not.
#[must_use]
pub fn adapted(lifetime: Span, change: ContentChange, (least, most): (Span, Span)) -> Span {
    let next = match change {
        ContentChange::Unchanged => lifetime.scale_up(3, 2),
        ContentChange::Changed => Span(lifetime.0 / 2),
    };
    within(next, least, most)
}

/// The lifetime while the quota is low: ×2.
#[must_use]
pub fn lengthened(lifetime: Span, (least, most): (Span, Span)) -> Span {
    within(lifetime.scale_up(2, 1), least, most)
}

/// A random lifetime between MIN and MAX, so that responses fetched together do not all expire
/// together.
#[must_use]
pub fn spread((least, most): (Span, Span), dice: u64) -> Span {
    let width = most.0.saturating_sub(least.0);
    least + Span(dice % width.saturating_add(1))
}

fn within(span: Span, least: Span, most: Span) -> Span {
    Span(span.0.clamp(least.0, most.0.max(least.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: (Span, Span) = (Span::from_secs(300), Span::from_secs(600));

    /// S13: longer per unchanged revalidation, shorter when the content changed, within the range.
    #[test]
    fn s13_lifetimes_adapt_to_changes_within_the_range() {
        let start = Span::from_secs(300);
        let longer = adapted(start, ContentChange::Unchanged, BOUNDS);
        assert_eq!(longer, Span::from_secs(450));
        let most = adapted(longer, ContentChange::Unchanged, BOUNDS);
        assert_eq!(most, Span::from_secs(600));
        assert_eq!(
            adapted(most, ContentChange::Changed, BOUNDS),
            Span::from_secs(300)
        );
        assert_eq!(adapted(start, ContentChange::Changed, BOUNDS), start);
    }

    #[test]
    fn s13_a_low_quota_doubles_the_lifetime_within_the_range() {
        assert_eq!(
            lengthened(Span::from_secs(250), BOUNDS),
            Span::from_secs(500)
        );
        assert_eq!(
            lengthened(Span::from_secs(400), BOUNDS),
            Span::from_secs(600)
        );
    }

    #[test]
    fn a_spread_reaches_both_ends_and_survives_odd_ranges() {
        assert_eq!(spread(BOUNDS, 0), BOUNDS.0);
        assert_eq!(spread(BOUNDS, 300_000_000), BOUNDS.1);
        assert_eq!(spread((Span(5), Span(3)), 77), Span(5));
        assert!(spread((Span(0), Span(u64::MAX)), u64::MAX) <= Span(u64::MAX));
    }
}
