//! After an outage: when our gateway was Normal again, by its own log, and how much of the limit
//! was used at the provider from a second later on.

use std::path::PathBuf;

use anyhow::Context;

use super::Outcome;
use super::scenario::Scenario;

/// How soon after Normal the limit must be fully used, in seconds.
const SOON: f64 = 1.0;

pub struct Full {
    /// When the last of the gateways became Normal, in seconds since the provider started.
    pub normal: f64,
    /// The calls accepted from then on until the last call, in percent of the limit.
    pub percent: f64,
}

impl Full {
    /// For a bucket with more calls than it allows.
    pub fn judge(outcome: &Outcome, scenario: &Scenario, logs: &[PathBuf]) -> anyhow::Result<Full> {
        let judged = &outcome.judged;
        let mut normal: f64 = 0.0;
        for log in logs {
            let text = std::fs::read_to_string(log)?;
            let last = text
                .lines()
                .rfind(|line| line.contains("state_transition") && line.contains(" to=Normal"));
            let line = last.with_context(|| format!("never Normal again: {text}"))?;
            // Both clocks are the machine's; no run lasts a day.
            let since = (seconds_of_day(line)? - judged.began).rem_euclid(86_400.0);
            normal = normal.max(since);
        }
        let accepted = judged.log.iter().filter(|arrival| arrival.accepted);
        let last = accepted.map(|arrival| arrival.at).fold(0.0, f64::max);
        let from = normal + SOON;
        let per_second = scenario.limit as f64 * 1_000.0 / scenario.period_ms as f64;
        let most = (last - from) * per_second;
        let percent = judged.accepted_between(from, last) as f64 * 100.0 / most;
        Ok(Full { normal, percent })
    }
}

/// The time of a log line such as `ts=2026-01-02T03:04:05.678901Z …`.
fn seconds_of_day(line: &str) -> anyhow::Result<f64> {
    let (_, rest) = line.split_once('T').context("a time")?;
    let (time, _) = rest.split_once('Z').context("a time in UTC")?;
    let mut seconds = 0.0;
    for part in time.split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>()?;
    }
    Ok(seconds)
}
