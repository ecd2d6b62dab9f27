//! A workload as data: the limit of the provider, and the time and priority of each call.
//!
//! The clients of all languages read the same file, so that all of them make the same calls.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One workload for one client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// The URL of the calls.
    pub url: String,
    pub kind: Kind,
    pub limit: u64,
    pub period_ms: u64,
    pub burst: u64,
    /// The time of each call, in milliseconds, and its priority.
    pub calls: Vec<(u64, Urgency)>,
    /// When the client stops and prints its tally.
    pub until_ms: u64,
    /// What it shares with other processes: a folder, or the port and name of a Redis.
    pub shared: Option<String>,
    /// The number of this process, and among how many processes the calls are divided.
    pub number: usize,
    pub busy: usize,
    /// It prints `ready` when it is loaded, and begins on an input line. Otherwise it begins at
    /// once.
    pub on_word: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Sliding,
    Bucket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Urgency {
    High,
    Normal,
    Low,
}

/// The tally that a client prints.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    pub sent: u64,
    pub ok: u64,
    pub refused: u64,
    pub failed: u64,
}

impl Scenario {
    /// S: a strict sliding log of 40 in 10 s.
    pub fn s() -> Scenario {
        Scenario {
            url: String::new(),
            kind: Kind::Sliding,
            limit: 40,
            period_ms: 10_000,
            burst: 40,
            calls: Vec::new(),
            until_ms: 0,
            shared: None,
            number: 0,
            busy: 1,
            on_word: false,
        }
    }

    /// T: a token bucket of 50 a second, 50 deep.
    pub fn t() -> Scenario {
        Scenario {
            kind: Kind::Bucket,
            limit: 50,
            period_ms: 1_000,
            burst: 50,
            ..Scenario::s()
        }
    }

    /// A sliding log of 50 in a second.
    pub fn second() -> Scenario {
        Scenario {
            limit: 50,
            period_ms: 1_000,
            burst: 50,
            ..Scenario::s()
        }
    }

    /// Calls at an even rate of `per_second`; every tenth is urgent if `urgent`.
    pub fn flood(mut self, per_second: u64, seconds: u64, urgent: bool) -> Scenario {
        self.calls = (0..per_second * seconds)
            .map(|call| {
                let urgency = match (urgent, call % 10) {
                    (false, _) => Urgency::Normal,
                    (true, 0) => Urgency::High,
                    (true, _) => Urgency::Low,
                };
                (call * 1_000 / per_second, urgency)
            })
            .collect();
        self.until_ms = seconds * 1_000;
        self
    }

    /// More calls between two seconds; every tenth is urgent if `urgent`, the others can wait.
    pub fn phase(mut self, from: u64, to: u64, per_second: u64, urgent: bool) -> Scenario {
        let calls = (0..per_second * (to - from)).map(|call| {
            let urgency = match (urgent, call % 10) {
                (true, 0) => Urgency::High,
                _ => Urgency::Low,
            };
            (from * 1_000 + call * 1_000 / per_second, urgency)
        });
        self.calls.extend(calls);
        self
    }

    /// Three times as many calls as the limit allows.
    pub fn overload(self, seconds: u64, urgent: bool) -> Scenario {
        let per_second = (self.limit * 3_000).div_ceil(self.period_ms);
        self.flood(per_second, seconds, urgent)
    }

    pub fn until(mut self, seconds: u64) -> Scenario {
        self.until_ms = seconds * 1_000;
        self
    }

    /// The most of these calls that the limit allows in time, if each is sent as soon as it is due
    /// and the limit has room, over a network without delay.
    pub fn most(&self) -> u64 {
        let gap = self.period_ms as f64 / self.limit as f64;
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let mut went: Vec<f64> = Vec::new();
        // The bucket: the time at which it is full again.
        let mut full_at = f64::NEG_INFINITY;
        for (at, _) in &self.calls {
            let at = *at as f64;
            let room_at = match self.kind {
                Kind::Sliding => went
                    .len()
                    .checked_sub(limit)
                    .map_or(at, |before| went[before] + self.period_ms as f64),
                Kind::Bucket => full_at - (self.burst as f64 - 1.0) * gap,
            };
            let goes = at.max(room_at);
            if goes >= self.until_ms as f64 {
                break;
            }
            full_at = full_at.max(goes) + gap;
            went.push(goes);
        }
        went.len() as u64
    }

    /// The rule as the provider enforces it.
    pub fn rule(&self) -> String {
        let Scenario {
            limit,
            period_ms,
            burst,
            ..
        } = self;
        match self.kind {
            Kind::Sliding => format!("sliding {limit}/{period_ms}ms"),
            Kind::Bucket => format!("bucket {limit}/{period_ms}ms burst {burst}"),
        }
    }

    /// The limit as a provider file of ours has it.
    pub fn ours(&self) -> String {
        let Scenario {
            limit,
            period_ms,
            burst,
            ..
        } = self;
        match self.kind {
            Kind::Sliding => {
                format!("{{ limit: {limit}, period: {period_ms}ms, algorithm: sliding-window }}")
            }
            Kind::Bucket => format!(
                "{{ limit: {limit}, period: {period_ms}ms, algorithm: token-bucket, burst: {burst} }}"
            ),
        }
    }

    pub fn save(&self, folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
        let path = folder.join(format!("{name}.json"));
        std::fs::write(&path, serde_json::to_string(self)?)?;
        Ok(path)
    }
}
