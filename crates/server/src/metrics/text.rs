//! Families as text: Prometheus 0.0.4, and OpenMetrics 1.0 for whoever prefers it.
//!
//! Promises: what `Accept` prefers, and 0.0.4 without a preference. Values of labels are escaped.
//!
//! Never: gathers anything.

use std::fmt::Write as _;

use super::{Family, MetricKind, Sample, SampleValue};

/// A text format of Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exposition {
    /// Text 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Exposition {
    /// What this `Accept` prefers.
    #[must_use]
    pub(crate) fn accepted(accept: Option<&str>) -> Exposition {
        let wanted = accept.unwrap_or_default();
        let weight = |kind: &str| -> u32 {
            let offers = wanted.split(',').map(str::trim);
            let offers =
                offers.filter(|offer| offer.split(';').next().map(str::trim) == Some(kind));
            offers.map(quality).max().unwrap_or(0)
        };
        let open = weight("application/openmetrics-text");
        if open > 0 && open >= weight("text/plain") {
            Exposition::OpenMetrics
        } else {
            Exposition::Text
        }
    }

    /// The value of `Content-Type`.
    #[must_use]
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Exposition::Text => "text/plain; version=0.0.4; charset=utf-8",
            Exposition::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The `q` of an offer, in thousandths.
fn quality(offer: &str) -> u32 {
    let q = offer
        .split(';')
        .find_map(|part| part.trim().strip_prefix("q="));
    let Some(q) = q.and_then(|q| q.trim().parse::<f32>().ok()) else {
        return 1_000;
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 0..=1000 before"
    )]
    let thousandths = (q.clamp(0.0, 1.0) * 1_000.0) as u32;
    thousandths
}

/// All families in this format. `prefix` is put before the names that have one.
#[must_use]
pub(crate) fn exposition(families: &[Family], prefix: &str, format: Exposition) -> String {
    let mut out = String::new();
    for family in families {
        write_family(&mut out, family, prefix, format);
    }
    if format == Exposition::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

fn write_family(out: &mut String, family: &Family, prefix: &str, format: Exposition) {
    let prefix = if family.is_prefixed { prefix } else { "" };
    let name = format!("{prefix}{}", family.name);
    // OpenMetrics names a counter without the suffix of its samples.
    let described = match format {
        Exposition::OpenMetrics if family.kind == MetricKind::Counter => {
            name.strip_suffix("_total").unwrap_or(&name)
        }
        Exposition::OpenMetrics | Exposition::Text => &name,
    };
    push(out, format_args!("# HELP {described} {}\n", family.help));
    push(
        out,
        format_args!("# TYPE {described} {}\n", family.kind.as_str()),
    );
    for sample in &family.samples {
        write_sample(out, &name, sample);
    }
}

fn write_sample(out: &mut String, name: &str, sample: &Sample) {
    match &sample.value {
        SampleValue::Integer(value) => {
            push(
                out,
                format_args!("{name}{} {value}\n", labels(sample, None)),
            );
        }
        SampleValue::Number(value) => {
            let value = number(*value);
            push(
                out,
                format_args!("{name}{} {value}\n", labels(sample, None)),
            );
        }
        SampleValue::Buckets {
            buckets,
            sum,
            count,
        } => {
            for (bound, count) in buckets {
                let bound = number(bound.unwrap_or(f64::INFINITY));
                let labels = labels(sample, Some(&bound));
                push(out, format_args!("{name}_bucket{labels} {count}\n"));
            }
            let labels = labels(sample, None);
            push(out, format_args!("{name}_sum{labels} {}\n", number(*sum)));
            push(out, format_args!("{name}_count{labels} {count}\n"));
        }
    }
}

fn labels(sample: &Sample, bound: Option<&str>) -> String {
    let own = sample.labels.iter().map(|(name, value)| (*name, &**value));
    let all = own.chain(bound.map(|bound| ("le", bound)));
    let texts: Vec<String> = all
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    if texts.is_empty() {
        String::new()
    } else {
        format!("{{{}}}", texts.join(","))
    }
}

fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

/// As both formats write it.
fn number(value: f64) -> String {
    if value == f64::INFINITY {
        "+Inf".to_owned()
    } else {
        value.to_string()
    }
}

fn push(out: &mut String, line: std::fmt::Arguments<'_>) {
    out.write_fmt(line).expect("a String can be written to");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Vec<Family> {
        let mut hits = Family::counter("rate_limit_hits_total", "Rejected.").without_prefix();
        hits.add([("type", "ip"), ("identifier", "a\"b\\c\nd")], 3);
        let mut took = Family::histogram("latency_ms", "Took.");
        took.push(
            [],
            SampleValue::Buckets {
                buckets: vec![(Some(0.5), 1), (None, 2)],
                sum: 7.25,
                count: 2,
            },
        );
        let mut rate = Family::gauge("rate_current", "Rate.");
        rate.push([], SampleValue::Number(f64::INFINITY));
        vec![hits, took, rate]
    }

    #[test]
    fn text_and_openmetrics_name_counters_as_their_standards_do() {
        let text = exposition(&families(), "x_", Exposition::Text);
        assert_eq!(
            text,
            "# HELP rate_limit_hits_total Rejected.\n# TYPE rate_limit_hits_total counter\n\
             rate_limit_hits_total{type=\"ip\",identifier=\"a\\\"b\\\\c\\nd\"} 3\n\
             # HELP x_latency_ms Took.\n# TYPE x_latency_ms histogram\n\
             x_latency_ms_bucket{le=\"0.5\"} 1\nx_latency_ms_bucket{le=\"+Inf\"} 2\n\
             x_latency_ms_sum 7.25\nx_latency_ms_count 2\n\
             # HELP x_rate_current Rate.\n# TYPE x_rate_current gauge\nx_rate_current +Inf\n"
        );
        let open = exposition(&families(), "x_", Exposition::OpenMetrics);
        assert!(
            open.starts_with("# HELP rate_limit_hits Rejected.\n# TYPE rate_limit_hits counter\n")
        );
        assert!(open.contains("\nrate_limit_hits_total{") && open.ends_with("# EOF\n"));
    }

    #[test]
    fn accept_chooses_the_format() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            (None, Exposition::Text),
            (Some("*/*"), Exposition::Text),
            (Some("text/plain"), Exposition::Text),
            (Some(prometheus), Exposition::OpenMetrics),
            (
                Some("application/openmetrics-text"),
                Exposition::OpenMetrics,
            ),
            (Some("application/openmetrics-text; q=0"), Exposition::Text),
            (
                Some("text/plain, application/openmetrics-text;q=0.1"),
                Exposition::Text,
            ),
        ] {
            assert_eq!(Exposition::accepted(accept), format, "{accept:?}");
        }
    }
}
