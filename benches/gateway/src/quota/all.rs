//! W1, W3, W4 and W6 in one run: two processes on one quota, three times as many calls as the limit
//! allows, some of them urgent, and an outage in between.

use super::Tools;
use super::full::Full;
use super::many::ProcessGroup;
use super::rows::NEAR;
use super::scenario::Scenario;
use crate::report::Part;

/// Processes, all of them with demand.
const PROCESSES: usize = 2;

/// When the outage begins, in seconds; until then the limit must be used from the start.
const UP: u64 = 9;

pub fn at_once(tools: &Tools) -> anyhow::Result<Part> {
    // Urgent calls are made while the gateways consider the provider up: before the outage, and
    // after they have detected its end.
    let mut scenario = Scenario::t()
        .phase(0, UP, 150, true)
        .phase(UP, 30, 40, false)
        .phase(50, 56, 150, true)
        .until(110);
    scenario.busy = PROCESSES;
    scenario.shared = Some(tools.fresh("all-ledger")?);
    let fault = ["--fault", "outage 10s..20s 503"];
    let sim: Vec<&str> = NEAR.into_iter().chain(fault).collect();
    eprintln!("all: {} calls, 110 s", scenario.calls.len());
    let size = (PROCESSES, PROCESSES);
    let mut group = ProcessGroup::start_with(tools, "all", "Tollgate", &scenario, size, &sim)?;
    let outcome = group.end()?;
    let logs: Vec<_> = (0..PROCESSES)
        .map(|index| tools.log(&format!("all-{index}")))
        .collect();
    let full = Full::judge(&outcome, &scenario, &logs)?;
    let judged = &outcome.judged;
    let first = judged.log.first().map_or(0.0, |arrival| arrival.at);
    let before = judged.accepted_between(first, first + UP as f64);
    let used = before as f64 * 100.0 / scenario.clone().until(UP).most() as f64;
    let all = scenario.calls.len() as u64;
    let lost = all - outcome.tally.ok.min(all);
    let overtaken = outcome.overtaken(&scenario);
    let (violations, struck, p99) = (judged.violations(), judged.struck(), judged.urgent_p99());
    let mut part = Part::default();
    part.goal(
        "W1, W3, W4 and W6 in one run, 2 processes on T: violations, use before the outage, use from \
         1 s after Normal on, urgent p99, background out of order, lost, sent into the outage",
        "–",
        format!(
            "{violations}, {used:.1} %, {:.1} %, {p99:.0} ms, {overtaken}, {lost} of {all}, {struck}",
            full.percent
        ),
        "0, ≥ 98 %, ≥ 98 %, ≤ 40 ms, 0, 0, ≤ 15",
        violations == 0
            && used >= 98.0
            && full.percent >= 98.0
            && p99 <= 40.0
            && overtaken == 0
            && lost == 0
            && struck <= 15,
    );
    Ok(part)
}
