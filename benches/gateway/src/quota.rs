//! Quota kept and used: our gateway beside the client libraries, judged by the provider's own log.
//!
//! Every subject of a workload has a provider of its own, and all of them run at the same time: the
//! calls are few, and so everybody meets the same noise.

pub mod client;
mod provider;
pub mod scenario;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use provider::{Judged, Provider};
use scenario::{Scenario, Tally};

use crate::peers::free;

/// What the subjects are made from.
pub struct Tools {
    pub folder: PathBuf,
    pub ours: PathBuf,
    pub sim: PathBuf,
    /// Scripts of this package.
    pub scripts: PathBuf,
    /// Where npm has put its packages.
    pub node_modules: PathBuf,
    pub python: PathBuf,
}

/// Everybody that is compared. The first one is ours.
pub const SUBJECTS: [&str; 10] = [
    "Tollgate",
    "bottleneck",
    "p-queue",
    "p-throttle",
    "aiolimiter",
    "pyrate-limiter",
    "requests-ratelimiter",
    "governor",
    "leaky-bucket",
    "tower",
];

/// What came of one subject in one workload.
pub struct Outcome {
    pub name: &'static str,
    pub judged: Judged,
    pub tally: Tally,
}

/// A subject that runs.
struct Running {
    name: &'static str,
    provider: Provider,
    client: Child,
    gateway: Option<Child>,
}

impl Tools {
    /// Runs one workload with all these subjects at once. `sim` are further words for the provider,
    /// `extra` further lines of our provider file.
    pub fn run(
        &self,
        word: &str,
        scenario: &Scenario,
        sim: &[&str],
        extra: &str,
        subjects: &[&'static str],
    ) -> anyhow::Result<Vec<Outcome>> {
        eprintln!(
            "{word}: {} s with {} subjects",
            scenario.until_ms / 1_000,
            subjects.len()
        );
        let mut running = Vec::new();
        for name in subjects {
            running.push(self.start(word, name, scenario, sim, extra)?);
        }
        running.into_iter().map(Running::end).collect()
    }

    fn start(
        &self,
        word: &str,
        name: &'static str,
        scenario: &Scenario,
        sim: &[&str],
        extra: &str,
    ) -> anyhow::Result<Running> {
        let provider = Provider::start(&self.sim, &scenario.rule(), sim)?;
        let mut scenario = scenario.clone();
        let gateway = match name {
            "Tollgate" => {
                let (gateway, url) = self.gateway(word, &provider.url, &scenario, extra)?;
                scenario.url = url;
                Some(gateway)
            }
            _ => {
                scenario.url = format!("{}/item", provider.url);
                None
            }
        };
        let file = scenario.save(&self.folder, &format!("{word}-{name}"))?;
        let client = self.client(name, &file).spawn();
        let client = client.with_context(|| format!("{name} could not be started"))?;
        Ok(Running {
            name,
            provider,
            client,
            gateway,
        })
    }

    /// Our gateway in front of a provider, and the URL that reaches it.
    fn gateway(
        &self,
        word: &str,
        upstream: &str,
        scenario: &Scenario,
        extra: &str,
    ) -> anyhow::Result<(Child, String)> {
        let file = self.folder.join(format!("{word}.yaml"));
        let text = format!(
            "name: up\nupstream: {upstream}\nlimits:\n  - {}\nconnections: 256\n\
             queue: {{ max: 100000, timeout: 10m }}\n{extra}",
            scenario.ours()
        );
        std::fs::write(&file, text)?;
        let address = free()?;
        let log = std::fs::File::create(self.folder.join(format!("{word}.log")))?;
        let child = Command::new(&self.ours)
            .args([
                "serve",
                "--store",
                "memory:",
                "--listen",
                &address.to_string(),
            ])
            .arg("--provider")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        let began = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            anyhow::ensure!(
                began.elapsed() < Duration::from_secs(10),
                "it does not listen"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok((child, format!("http://{address}/up/item")))
    }

    fn client(&self, name: &str, file: &std::path::Path) -> Command {
        let mut command = match name {
            "bottleneck" | "p-queue" | "p-throttle" => {
                let mut command = Command::new("node");
                command.arg(self.scripts.join("peer.mjs"));
                command.current_dir(&self.node_modules);
                command
            }
            "aiolimiter" | "pyrate-limiter" | "requests-ratelimiter" => {
                let mut command = Command::new(&self.python);
                command.arg(self.scripts.join("peer.py"));
                command
            }
            _ => {
                let mut command = Command::new(std::env::current_exe().unwrap_or_default());
                command.arg("client");
                command
            }
        };
        command.arg(name).arg(file);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }
}

impl Running {
    fn end(mut self) -> anyhow::Result<Outcome> {
        let output = self.client.wait_with_output()?;
        let judged = self.provider.judge()?;
        if let Some(gateway) = &mut self.gateway {
            gateway.kill()?;
            gateway.wait()?;
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let tally = serde_json::from_str(text.trim())
            .with_context(|| format!("{} told nothing: {text}", self.name))?;
        Ok(Outcome {
            name: self.name,
            judged,
            tally,
        })
    }
}
