//! Families as NDJSON: one line per sample (A17).
//!
//! Promises: names have no prefix; histograms add `sum`, `count` and `buckets`.
//!
//! Never: writes a file.

use serde_json::{Map, Value, json};

use super::{Family, Sample, SampleValue};

/// One line per sample, each with a line end. `ts` is the time of all of them, as RFC 3339 in UTC.
#[must_use]
pub fn ndjson_lines(families: &[Family], ts: &str) -> String {
    let lines = families.iter().flat_map(|family| {
        family
            .samples
            .iter()
            .map(move |sample| line(family, sample, ts))
    });
    lines.map(|line| line + "\n").collect()
}

fn line(family: &Family, sample: &Sample, ts: &str) -> String {
    let labels = sample.labels.iter();
    let labels: Map<String, Value> = labels
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    let mut line =
        json!({ "ts": ts, "name": family.name, "type": family.kind.as_str(), "labels": labels });
    match &sample.value {
        SampleValue::Integer(value) => line["value"] = json!(value),
        SampleValue::Number(value) => line["value"] = number(*value),
        SampleValue::Buckets {
            buckets,
            sum,
            count,
        } => {
            let bucket = |(bound, count): &(Option<f64>, u64)| {
                json!([number(bound.unwrap_or(f64::INFINITY)), count])
            };
            line["value"] = json!(count);
            line["sum"] = number(*sum);
            line["count"] = json!(count);
            line["buckets"] = buckets.iter().map(bucket).collect();
        }
    }
    line.to_string()
}

/// JSON has no infinity.
fn number(value: f64) -> Value {
    if value == f64::INFINITY {
        return json!("+Inf");
    }
    json!(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A17: the documented form of a line.
    #[test]
    fn a17_a_line_per_sample_without_prefix() {
        let mut requests = Family::counter("requests_total", "Requests.");
        requests.add([("provider", "tmdb"), ("code", "200")], 12);
        let mut took = Family::histogram("latency_ms", "Took.");
        let value = SampleValue::Buckets {
            buckets: vec![(Some(5.0), 3), (None, 9)],
            sum: 101.5,
            count: 9,
        };
        took.push([("provider", "tmdb")], value);
        let lines = ndjson_lines(&[requests, took], "2026-03-01T12:00:00Z");
        let lines: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(
            lines,
            [
                json!({"ts": "2026-03-01T12:00:00Z", "name": "requests_total", "type": "counter",
                       "labels": {"provider": "tmdb", "code": "200"}, "value": 12}),
                json!({"ts": "2026-03-01T12:00:00Z", "name": "latency_ms", "type": "histogram",
                       "labels": {"provider": "tmdb"}, "value": 9, "sum": 101.5, "count": 9,
                       "buckets": [[5.0, 3], ["+Inf", 9]]}),
            ]
        );
    }
}
