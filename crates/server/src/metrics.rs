//! Metrics of the daemon: families of samples, as text for Prometheus and as NDJSON.
//!
//! Promises: every name has a sample from the start; labels have closed or bounded sets of values; both formats
//! are written from the same families.
//!
//! Never: contains a key, a query or a caller beyond [`crate::guards`]'s bound.

mod gather;
mod ndjson;
mod text;
pub use ndjson::ndjson_lines;
pub(crate) use text::{Exposition, exposition};

use tollgate::metrics::HistogramSnapshot;

/// All samples of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The name without the prefix, with `_total` for counters.
    pub(crate) name: &'static str,
    /// What it is, in a sentence.
    help: &'static str,
    pub(crate) kind: MetricKind,
    /// The names of C7 have no prefix.
    is_prefixed: bool,
    pub(crate) samples: Vec<Sample>,
}

/// How a value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How many values fell into each bucket.
    Histogram,
}

/// One value with its labels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) labels: Vec<(&'static str, String)>,
    pub(crate) value: SampleValue,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SampleValue {
    Integer(u64),
    /// Infinite = no limit.
    Number(f64),
    Buckets {
        /// Upper bounds (`None` = all values) and how many values are at most that.
        buckets: Vec<(Option<f64>, u64)>,
        sum: f64,
        count: u64,
    },
}

impl MetricKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

impl SampleValue {
    /// A histogram of microseconds, in another unit.
    #[expect(clippy::cast_precision_loss, reason = "a number that is only shown")]
    fn of_micros(snapshot: &HistogramSnapshot, unit: u64) -> SampleValue {
        let scaled = |micros: u64| micros as f64 / unit as f64;
        let buckets = snapshot.cumulative();
        SampleValue::Buckets {
            buckets: buckets
                .map(|(bound, count)| (bound.map(scaled), count))
                .collect(),
            sum: scaled(snapshot.sum),
            count: snapshot.count(),
        }
    }
}

impl Family {
    fn new(name: &'static str, kind: MetricKind, help: &'static str) -> Family {
        Family {
            name,
            help,
            kind,
            is_prefixed: true,
            samples: Vec::new(),
        }
    }

    fn counter(name: &'static str, help: &'static str) -> Family {
        Family::new(name, MetricKind::Counter, help)
    }

    fn gauge(name: &'static str, help: &'static str) -> Family {
        Family::new(name, MetricKind::Gauge, help)
    }

    fn histogram(name: &'static str, help: &'static str) -> Family {
        Family::new(name, MetricKind::Histogram, help)
    }

    fn without_prefix(mut self) -> Family {
        self.is_prefixed = false;
        self
    }

    fn push<const N: usize>(&mut self, labels: [(&'static str, &str); N], value: SampleValue) {
        self.samples.push(Sample {
            labels: labels.map(|(name, value)| (name, value.to_owned())).into(),
            value,
        });
    }

    fn add<const N: usize>(&mut self, labels: [(&'static str, &str); N], value: u64) {
        self.push(labels, SampleValue::Integer(value));
    }
}
