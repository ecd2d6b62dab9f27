//! The judge: `tollgate-sim serve` as its own process, and the evaluation of its log.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use serde_json::Value;

/// A provider that enforces its limits and writes its own log. Killed when dropped.
pub struct Provider {
    child: Child,
    pub url: String,
}

/// The report and the log of the provider.
#[derive(Clone, Debug)]
pub struct Judged {
    report: Value,
    /// When the provider started, in seconds of the epoch.
    pub began: f64,
    /// Every request in the order of arrival.
    pub log: Vec<Arrival>,
}

#[derive(Clone, Debug)]
pub struct Arrival {
    /// Seconds since the provider started.
    pub at: f64,
    /// A rule accepted it, and no planned fault affected it.
    pub accepted: bool,
    /// Which process sent it, and which of its calls it was.
    pub call: Option<(usize, usize)>,
}

impl Provider {
    pub fn start(sim: &Path, rule: &str, more: &[&str]) -> anyhow::Result<Provider> {
        let mut child = Command::new(sim)
            .args(["serve", "--rule", rule])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("tollgate-sim could not be started")?;
        let stdout = child.stdout.take().context("its output")?;
        let mut url = String::new();
        BufReader::new(stdout).read_line(&mut url)?;
        if url.trim().is_empty() {
            bail!("tollgate-sim did not print its address");
        }
        let url = url.trim().to_owned();
        Ok(Provider { child, url })
    }

    pub fn judge(&self) -> anyhow::Result<Judged> {
        let report: Value = serde_json::from_str(&self.get("/-/report")?)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let began = now - report["seconds"].as_f64().context("seconds")?;
        let log = self.get("/-/log")?;
        let log = log.lines().map(|line| arrival(line, began));
        let log: anyhow::Result<Vec<Arrival>> = log.collect();
        let log = log?;
        Ok(Judged { report, began, log })
    }

    fn get(&self, path: &str) -> anyhow::Result<String> {
        let address = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address)?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        let (_, body) = response.split_once("\r\n\r\n").context("a response")?;
        Ok(body.to_owned())
    }
}

fn arrival(line: &str, began: f64) -> anyhow::Result<Arrival> {
    let line: Value = serde_json::from_str(line)?;
    // A call is named by tool, process and number.
    let name = line["call"].as_str().unwrap_or_default();
    let mut numbers = name.rsplit('-').map(str::parse);
    let call = match (numbers.next(), numbers.next()) {
        (Some(Ok(call)), Some(Ok(process))) => Some((process, call)),
        _ => None,
    };
    Ok(Arrival {
        at: line["at_us"].as_f64().context("at_us")? / 1e6 - began,
        accepted: line["accepted"] == true && line["fate"] == "answered",
        call,
    })
}

impl Judged {
    pub fn violations(&self) -> u64 {
        self.report["violations"].as_u64().unwrap_or(0)
    }

    pub fn accepted(&self) -> u64 {
        self.report["accepted"].as_u64().unwrap_or(0)
    }

    pub fn arrivals(&self) -> u64 {
        self.report["arrivals"].as_u64().unwrap_or(0)
    }

    /// Requests that a planned fault affected.
    pub fn struck(&self) -> u64 {
        self.report["struck"].as_u64().unwrap_or(0)
    }

    /// The p99 of the waits of urgent calls, in milliseconds.
    pub fn urgent_p99(&self) -> f64 {
        self.report["scopes"][0]["waits"]["high"]["p99_ms"]
            .as_f64()
            .unwrap_or(f64::NAN)
    }

    /// Of the calls of one process for which `of` holds: those that arrived, for the first time,
    /// more than `slack` seconds after a later call.
    pub fn overtaken(&self, process: usize, slack: f64, of: impl Fn(usize) -> bool) -> usize {
        let mut seen = HashSet::new();
        // Every call with a higher number than all calls before it, in order of arrival.
        let mut latest: Vec<(usize, f64)> = Vec::new();
        let mut overtaken = 0;
        for arrival in &self.log {
            let Some((from, call)) = arrival.call else {
                continue;
            };
            if from != process || !of(call) || !seen.insert(call) {
                continue;
            }
            let later = latest.partition_point(|(other, _)| *other < call);
            let is_late = |later: &(usize, f64)| arrival.at - later.1 > slack;
            overtaken += usize::from(latest.get(later).is_some_and(is_late));
            if later == latest.len() {
                latest.push((call, arrival.at));
            }
        }
        overtaken
    }

    /// Requests accepted between two instants, in seconds since the provider started.
    pub fn accepted_between(&self, from: f64, to: f64) -> usize {
        let accepted = self.log.iter().filter(|arrival| arrival.accepted);
        accepted.filter(|one| one.at >= from && one.at < to).count()
    }

    /// From the first request to the last accepted one.
    pub fn lasted(&self) -> f64 {
        let accepted = || self.log.iter().filter(|arrival| arrival.accepted);
        let first = self.log.first().map_or(0.0, |arrival| arrival.at);
        accepted().next_back().map_or(0.0, |last| last.at - first)
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}
