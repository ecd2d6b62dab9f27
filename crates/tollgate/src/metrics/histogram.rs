//! A histogram: how many values fell between two bounds.
//!
//! Promises: the number of buckets never changes; counting costs two atomic additions.
//!
//! Never: keeps a value.

use std::sync::atomic::{AtomicU64, Ordering};

/// A histogram with fixed bounds.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One more than bounds: the last counts what is above all of them.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// A copy of a histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// The upper bounds, each included in its bucket.
    pub bounds: &'static [u64],
    /// Values of each bucket, not cumulative; the last is above all bounds.
    pub counts: Vec<u64>,
    /// The sum of all values.
    pub sum: u64,
}

impl Histogram {
    /// An empty histogram with these upper bounds, in ascending order.
    #[must_use]
    pub fn new(bounds: &'static [u64]) -> Histogram {
        Histogram {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    /// Counts a value.
    pub fn observe(&self, value: u64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound);
        let bucket = bucket.unwrap_or(self.bounds.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        if value > 0 {
            self.sum.fetch_add(value, Ordering::Relaxed);
        }
    }

    /// A copy. While values are counted its sum may be of a moment later than its counts.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        let counts = self.counts.iter();
        HistogramSnapshot {
            bounds: self.bounds,
            counts: counts.map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

impl HistogramSnapshot {
    /// How many values were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How many values were at most each bound, and how many in all.
    pub fn cumulative(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        let bounds = self.bounds.iter().copied().map(Some).chain([None]);
        bounds.zip(self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        }))
    }

    /// Adds the values of another histogram with the same bounds.
    pub fn add(&mut self, other: &HistogramSnapshot) {
        debug_assert_eq!(self.bounds, other.bounds, "only equal buckets can be added");
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_below_its_bound_and_at_it() {
        let histogram = Histogram::new(&[10, 20]);
        for value in [0, 10, 11, 20, 21, 1_000] {
            histogram.observe(value);
        }
        let mut snapshot = histogram.snapshot();
        assert_eq!(
            (snapshot.counts.clone(), snapshot.sum),
            (vec![2, 2, 2], 1_062)
        );
        let buckets: Vec<_> = snapshot.cumulative().collect();
        assert_eq!(buckets, [(Some(10), 2), (Some(20), 4), (None, 6)]);
        snapshot.add(&histogram.snapshot());
        assert_eq!((snapshot.count(), snapshot.sum), (12, 2_124));
    }
}
