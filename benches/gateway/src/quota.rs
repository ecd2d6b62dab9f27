//! Quotas kept and used: our gateway compared with the client libraries, judged by the provider's
//! own log.
//!
//! Every subject of a workload has its own provider, and all subjects run at the same time: the
//! calls are few, and so all subjects see the same noise.

mod all;
pub mod client;
mod full;
mod many;
mod provider;
mod rows;
pub mod scenario;
mod slow;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use provider::{Judged, Provider};
use scenario::{Scenario, Tally, Urgency};

use crate::Effort;
use crate::peers::free;
use crate::report::Part;

/// The programs and files that the subjects need.
pub struct Tools {
    pub folder: PathBuf,
    pub ours: PathBuf,
    pub sim: PathBuf,
    /// Scripts of this package.
    pub scripts: PathBuf,
    /// The folder of the npm packages.
    pub node_modules: PathBuf,
    pub python: PathBuf,
}

/// The compared subjects. The first one is ours.
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

/// The result of one subject in one workload.
pub struct Outcome {
    pub name: &'static str,
    pub judged: Judged,
    pub tally: Tally,
}

/// A running subject.
struct Running {
    name: &'static str,
    provider: Provider,
    client: Child,
    /// Ended together with the subject.
    _gateway: Option<Process>,
}

/// A process that is killed when it is dropped.
pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// How much later than in order a background call may arrive: uplinks differ by that much.
const UPLINK_SLACK: f64 = 0.05;

impl Outcome {
    /// Background calls that arrived after a later call of the same process.
    fn overtaken(&self, scenario: &Scenario) -> usize {
        let busy = scenario.busy.max(1);
        let is_low = |process: usize, call: usize| {
            let whole = scenario.calls.get(call * busy + process);
            whole.is_some_and(|(_, urgency)| *urgency == Urgency::Low)
        };
        (0..busy)
            .map(|process| {
                let of = |call| is_low(process, call);
                self.judged.overtaken(process, UPLINK_SLACK, of)
            })
            .sum()
    }
}

impl Tools {
    /// Runs one part of the report.
    pub fn part(&self, name: &str, effort: Effort) -> anyhow::Result<Part> {
        match name {
            "w1-s" => rows::overload(self, name, "S", Scenario::s(), effort),
            "w1-t" => rows::overload(self, name, "T", Scenario::t(), effort),
            "w1-wan" => rows::wan(self, effort),
            "w2" => rows::burst(self),
            "w3" => rows::urgent(self, effort),
            "w4" => rows::outage(self),
            "w5" => rows::halved(self, effort),
            "w6" => many::processes(self, effort),
            "w7" => many::killed(self),
            "w9" => slow::responses(self),
            "all" => all::at_once(self),
            other => anyhow::bail!("there is no part `{other}`"),
        }
    }

    /// The log file of the gateway with this label.
    fn log(&self, word: &str) -> PathBuf {
        self.folder.join(format!("{word}.log"))
    }

    /// An empty folder of this run.
    fn fresh(&self, name: &str) -> anyhow::Result<String> {
        let path = self.folder.join(name);
        if path.is_dir() {
            std::fs::remove_dir_all(&path)?;
        }
        std::fs::create_dir_all(&path)?;
        Ok(path.display().to_string())
    }

    /// Runs one workload with all these subjects at once. `sim` are further arguments of the
    /// provider, `extra` further lines of our provider file.
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
                let file = self.provider_file(word, &provider.url, &scenario, extra)?;
                let (gateway, url) = gateway_at(&self.ours, &file, "memory:")?;
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
            _gateway: gateway,
        })
    }

    /// The provider file of our gateway for this limit.
    fn provider_file(
        &self,
        word: &str,
        upstream: &str,
        scenario: &Scenario,
        extra: &str,
    ) -> anyhow::Result<PathBuf> {
        let file = self.folder.join(format!("{word}.yaml"));
        // W9 is about the default.
        let connections = match word.starts_with("w9") {
            true => "",
            false => "connections: 256\n",
        };
        let text = format!(
            "name: up\nupstream: {upstream}\nlimits:\n  - {}\n{connections}\
             queue: {{ max: 100000, timeout: 10m }}\n{extra}",
            scenario.ours()
        );
        std::fs::write(&file, text)?;
        Ok(file)
    }

    fn client(&self, name: &str, file: &std::path::Path) -> Command {
        let mut command = match name {
            "bottleneck" | "bottleneck-redis" | "p-queue" | "p-throttle" => {
                let mut command = Command::new("node");
                command.arg(self.scripts.join("peer.mjs"));
                command.current_dir(&self.node_modules);
                command
            }
            "aiolimiter" | "pyrate-limiter" | "pyrate-sqlite" | "requests-ratelimiter" => {
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
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }
}

impl Running {
    fn end(self) -> anyhow::Result<Outcome> {
        let output = self.client.wait_with_output()?;
        let judged = self.provider.judge()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let tally = serde_json::from_str(text.trim())
            .with_context(|| format!("{} printed no tally: {text}", self.name))?;
        Ok(Outcome {
            name: self.name,
            judged,
            tally,
        })
    }
}

/// Our gateway, once it listens, and the URL that reaches the provider through it.
fn gateway_at(ours: &Path, file: &Path, store: &str) -> anyhow::Result<(Process, String)> {
    let address = free()?;
    let log = std::fs::File::create(file.with_extension("log"))?;
    let child = Command::new(ours)
        .args(["serve", "--store", store, "--listen", &address.to_string()])
        .args(["--admin", "127.0.0.1:0"])
        .env("NO_COLOR", "1")
        .arg("--provider")
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()?;
    let gateway = Process(child);
    listens(address)?;
    Ok((gateway, format!("http://{address}/up/item")))
}

/// Waits until a process listens on the address.
fn listens(address: std::net::SocketAddr) -> anyhow::Result<()> {
    let began = Instant::now();
    while std::net::TcpStream::connect(address).is_err() {
        anyhow::ensure!(
            began.elapsed() < Duration::from_secs(10),
            "no process listens on {address}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
