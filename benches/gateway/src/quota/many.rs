//! The workloads with several processes on one folder, W6 and W7: no daemon, only the ledger's files.

use std::path::Path;
use std::time::Duration;

use super::provider::Provider;
use super::rows::NEAR;
use super::scenario::{Kind, Scenario};
use super::{Outcome, Tools, gateway_at};
use crate::Effort;
use crate::report::{Part, table};

/// W6: one quota, 2 and 4 processes, and all demand at one of 4.
pub fn processes(tools: &Tools, effort: Effort) -> anyhow::Result<Part> {
    let mut part = Part::default();
    let mut lines = Vec::new();
    let mut all_well = true;
    for (processes, busy) in [(2, 2), (4, 4), (4, 1)] {
        let scenario = Scenario::s().overload(effort.seconds, false);
        let outcome = one_quota(tools, &scenario, processes, busy)?;
        let used = super::rows::used(&outcome, &scenario);
        all_well &= outcome.judged.violations() == 0 && used >= 98.0;
        lines.push(vec![
            format!("Tollgate, {processes} processes, demand at {busy}"),
            outcome.judged.violations().to_string(),
            format!("{used:.1} %"),
        ]);
    }
    let ours: Vec<String> = lines
        .iter()
        .map(|line| format!("{} and {}", line[1], line[2]))
        .collect();
    part.goal(
        "W6 2 and 4 processes on one folder, S: violations and use",
        "each with a limiter of its own would send 2 or 4 times the quota",
        ours.join("; "),
        "0 and ≥ 98 %",
        all_well,
    );
    part.section(
        "W6, several processes",
        table(&["W6 on S", "violations", "use"], &lines),
    );
    Ok(part)
}

fn one_quota(
    tools: &Tools,
    scenario: &Scenario,
    processes: usize,
    busy: usize,
) -> anyhow::Result<Outcome> {
    eprintln!("w6: {processes} processes, demand at {busy}");
    let provider = Provider::start(&tools.sim, &scenario.rule(), &NEAR)?;
    let folder = tools.fresh("w6-ledger")?;
    let mut gateways = Vec::new();
    let mut clients = Vec::new();
    for index in 0..processes {
        let word = format!("w6-{index}");
        let file = tools.provider_file(&word, &provider.url, scenario, "")?;
        let (gateway, url) = gateway_at(&tools.ours, &file, &format!("sqlite:{folder}"))?;
        gateways.push(gateway);
        if index < busy {
            let mut own = scenario.clone();
            own.url = url;
            let calls = own.calls.into_iter().enumerate();
            let calls = calls.filter(|(call, _)| call % busy == index);
            own.calls = calls.map(|(_, call)| call).collect();
            let file = own.save(&tools.folder, &word)?;
            clients.push(tools.client("Tollgate", &file).spawn()?);
        }
    }
    let mut tally = super::scenario::Tally::default();
    for client in clients {
        let output = client.wait_with_output()?;
        let one: super::scenario::Tally = serde_json::from_slice(&output.stdout)?;
        tally.ok += one.ok;
        tally.sent += one.sent;
    }
    Ok(Outcome {
        name: "Tollgate",
        judged: provider.judge()?,
        tally,
    })
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
