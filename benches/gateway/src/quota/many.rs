//! The workloads with several processes on one quota, W6 and W7: they share no daemon, only the
//! files of the ledger.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;

use super::provider::Provider;
use super::rows::{NEAR, used};
use super::scenario::{Kind, Scenario, Tally};
use super::{Outcome, Process, Tools, gateway_at};
use crate::Effort;
use crate::peers::free;
use crate::report::{Part, table};

/// The number of processes, and how many of them have calls.
const GROUP_SIZES: [(usize, usize); 4] = [(2, 2), (4, 4), (2, 1), (4, 1)];

/// The subjects that can share a quota between processes. The first one is ours.
const SHARING_SUBJECTS: [&str; 3] = ["Tollgate", "pyrate-sqlite", "bottleneck-redis"];

/// Several processes of one subject on one quota.
pub struct ProcessGroup {
    name: &'static str,
    provider: Provider,
    clients: Vec<Child>,
    gateways: Vec<Process>,
}

/// W6: one quota for 2 and 4 processes, and all demand at one of them, on S and on T at a time.
/// All clients begin when all are loaded: the peers' sixteen interpreters share one core with the
/// measured ones, and while they load, a running client gets a twentieth of it.
pub fn processes(tools: &Tools, effort: Effort) -> anyhow::Result<Part> {
    let redis = Redis::start(tools)?;
    let mut lines = Vec::new();
    let mut worst = vec![(0_u64, f64::INFINITY); SHARING_SUBJECTS.len()];
    for (processes, busy) in GROUP_SIZES {
        eprintln!("w6: {processes} processes, demand at {busy}");
        let mut running = Vec::new();
        for name in SHARING_SUBJECTS {
            for (rule, scenario) in [("S", Scenario::s()), ("T", Scenario::t())] {
                let mut scenario = scenario.overload(effort.seconds, false);
                scenario.on_word = true;
                let word = format!("w6-{name}-{rule}-{processes}-{busy}");
                scenario.shared = Some(match name {
                    "bottleneck-redis" => format!("{}/{word}", redis.port),
                    _ => tools.fresh(&word)?,
                });
                let group = ProcessGroup::start(tools, &word, name, &scenario, processes, busy)?;
                running.push((rule, scenario, group));
            }
        }
        for (_, _, group) in &mut running {
            group.loaded()?;
        }
        for (_, _, group) in &mut running {
            group.begin()?;
        }
        for (number, pair) in running.chunks_mut(2).enumerate() {
            let mut line = vec![format!(
                "{}, {processes} processes, demand at {busy}",
                SHARING_SUBJECTS[number]
            )];
            for (_, scenario, group) in pair {
                let outcome = group.end()?;
                let (violations, used) = (outcome.judged.violations(), used(&outcome, scenario));
                worst[number].0 = worst[number].0.max(violations);
                worst[number].1 = worst[number].1.min(used);
                line.extend([violations.to_string(), format!("{used:.1} %")]);
            }
            lines.push(line);
        }
    }
    Ok(shared(&lines, &worst))
}

/// The worst figures of every subject, and the table of all figures.
fn shared(lines: &[Vec<String>], worst: &[(u64, f64)]) -> Part {
    let show = |(violations, used): (u64, f64)| format!("{violations}, {used:.1} %");
    let peers = SHARING_SUBJECTS.iter().zip(worst).skip(1);
    let peers: Vec<String> = peers
        .map(|(name, worst)| format!("{name} {}", show(*worst)))
        .collect();
    let (violations, used) = worst[0];
    let mut part = Part::default();
    part.goal(
        "W6 2 and 4 processes on one quota, S and T, demand at all or at one: most violations, least use",
        &peers.join("; "),
        show(worst[0]),
        "0, ≥ 98 %",
        violations == 0 && used >= 98.0,
    );
    let head = ["W6", "S: violations", "use", "T: violations", "use"];
    part.section("W6, several processes", table(&head, lines));
    part
}

impl ProcessGroup {
    /// Starts all processes at once; each process with demand gets every `busy`th call.
    pub fn start(
        tools: &Tools,
        word: &str,
        name: &'static str,
        scenario: &Scenario,
        processes: usize,
        busy: usize,
    ) -> anyhow::Result<ProcessGroup> {
        ProcessGroup::start_with(tools, word, name, scenario, (processes, busy), &NEAR)
    }

    /// As [`ProcessGroup::start`]; `sim` are the arguments of the provider.
    pub fn start_with(
        tools: &Tools,
        word: &str,
        name: &'static str,
        scenario: &Scenario,
        (processes, busy): (usize, usize),
        sim: &[&str],
    ) -> anyhow::Result<ProcessGroup> {
        let provider = Provider::start(&tools.sim, &scenario.rule(), sim)?;
        let (mut gateways, mut clients) = (Vec::new(), Vec::new());
        for index in 0..processes {
            let word = format!("{word}-{index}");
            let mut own = scenario.clone();
            own.url = format!("{}/item", provider.url);
            if name == "Tollgate" {
                let file = tools.provider_file(&word, &provider.url, scenario, "")?;
                let store = scenario.shared.clone().unwrap_or_default();
                let (gateway, url) = gateway_at(&tools.ours, &file, &format!("sqlite:{store}"))?;
                gateways.push(gateway);
                own.url = url;
            }
            let calls = own.calls.into_iter().enumerate();
            let calls = calls.filter(|(call, _)| index < busy && call % busy == index);
            own.calls = calls.map(|(_, call)| call).collect();
            own.number = index;
            clients.push(own.save(&tools.folder, &word)?);
        }
        let started = clients.iter().map(|file| tools.client(name, file).spawn());
        Ok(ProcessGroup {
            name,
            provider,
            clients: started.collect::<Result<_, _>>()?,
            gateways,
        })
    }

    /// Waits until all clients report that they are loaded.
    fn loaded(&mut self) -> anyhow::Result<()> {
        for client in &mut self.clients {
            let stdout = client.stdout.as_mut().context("its output")?;
            let mut word = String::new();
            BufReader::new(stdout).read_line(&mut word)?;
            anyhow::ensure!(word == "ready\n", "a client printed `{word}`");
        }
        Ok(())
    }

    /// Makes all clients begin.
    fn begin(&mut self) -> anyhow::Result<()> {
        for client in &mut self.clients {
            let stdin = client.stdin.as_mut().context("its input")?;
            stdin.write_all(b"go\n")?;
        }
        Ok(())
    }

    /// Waits for all clients.
    pub fn end(&mut self) -> anyhow::Result<Outcome> {
        let mut tally = Tally::default();
        for client in self.clients.drain(..) {
            let output = client.wait_with_output()?;
            let one: Tally = serde_json::from_slice(&output.stdout)?;
            tally.ok += one.ok;
            tally.sent += one.sent;
            tally.refused += one.refused;
            tally.failed += one.failed;
        }
        let judged = self.provider.judge()?;
        self.gateways.clear();
        Ok(Outcome {
            name: self.name,
            judged,
            tally,
        })
    }
}

/// A Redis server for this run, with nothing on disk.
struct Redis {
    port: u16,
    _process: Process,
}

impl Redis {
    fn start(tools: &Tools) -> anyhow::Result<Redis> {
        crate::install::redis()?;
        let address = free()?;
        let port = address.port();
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(&tools.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let process = Process(child);
        super::listens(address)?;
        Ok(Redis {
            port,
            _process: process,
        })
    }
}

/// When a process is killed, in milliseconds after its start: early, late and in between.
const KILLS: [u64; 5] = [310, 170, 420, 250, 90];

/// W7: a daily quota of 200, and kill -9 at any instant.
pub fn killed(tools: &Tools) -> anyhow::Result<Part> {
    let mut scenario = Scenario::s();
    (scenario.limit, scenario.burst) = (200, 200);
    scenario.period_ms = 24 * 3_600 * 1_000;
    scenario.kind = Kind::Sliding;
    let scenario = scenario.flood(150, 4, false);
    let ours = with_kills(tools, "Tollgate", &scenario)?;
    let peer = with_kills(tools, "p-queue", &scenario)?;
    let wasted = 200_u64.saturating_sub(ours);
    let most = 2 * KILLS.len() as u64;
    let mut part = Part::default();
    part.goal(
        "W7 kill -9 five times under a daily quota of 200: sent, wasted",
        &format!("p-queue sends {peer}"),
        format!("{ours}, {wasted}"),
        &format!("≤ 200, ≤ {most}"),
        ours <= 200 && wasted <= most,
    );
    Ok(part)
}

/// How many requests reach the provider in all.
fn with_kills(tools: &Tools, name: &'static str, scenario: &Scenario) -> anyhow::Result<u64> {
    eprintln!("w7: {name}");
    let provider = Provider::start(&tools.sim, &scenario.rule(), &NEAR)?;
    let folder = tools.fresh("w7-ledger")?;
    for kill in KILLS.into_iter().map(Some).chain([None]) {
        once(tools, name, scenario, &provider, Path::new(&folder), kill)?;
    }
    Ok(provider.judge()?.arrivals())
}

fn once(
    tools: &Tools,
    name: &'static str,
    scenario: &Scenario,
    provider: &Provider,
    folder: &Path,
    kill: Option<u64>,
) -> anyhow::Result<()> {
    let mut scenario = scenario.clone();
    let mut gateway = None;
    scenario.url = format!("{}/item", provider.url);
    if name == "Tollgate" {
        let file = tools.provider_file("w7", &provider.url, &scenario, "")?;
        let store = format!("sqlite:{}", folder.display());
        let (own, url) = gateway_at(&tools.ours, &file, &store)?;
        scenario.url = url;
        gateway = Some(own);
    }
    let file = scenario.save(&tools.folder, "w7")?;
    let mut client = tools.client(name, &file).spawn()?;
    match kill {
        Some(after) => {
            // Runtimes of other languages take a while before the first call.
            let start = if name == "Tollgate" { 0 } else { 150 };
            std::thread::sleep(Duration::from_millis(start + after));
        }
        None => {
            client.wait()?;
        }
    }
    drop(gateway);
    let _killed = client.kill();
    client.wait()?;
    Ok(())
}
