//! The workloads with one process, W1 to W5: the load, the goals and the results.

use super::full::Full;
use super::scenario::Scenario;
use super::{Outcome, SUBJECTS, Tools};
use crate::Effort;
use crate::plot::Plot;
use crate::report::{Part, table};

/// The uplink of §1: 5 ms lognormal, responses after 20 ms.
pub const NEAR: [&str; 4] = ["--up", "5ms~0.5", "--work", "20ms"];

/// A wide-area network: 30 ms with a heavy tail, responses after 100 ms.
const FAR: [&str; 4] = ["--up", "30ms~0.8", "--work", "100ms"];

/// W1: three times the limit for the whole time.
pub fn overload(
    tools: &Tools,
    word: &str,
    name: &str,
    scenario: Scenario,
    effort: Effort,
) -> anyhow::Result<Part> {
    let scenario = scenario.overload(effort.seconds, false);
    let outcomes = tools.run(word, &scenario, &NEAR, "", &SUBJECTS)?;
    let mut part = Part::default();
    let ours = &outcomes[0];
    let used = used(ours, &scenario);
    part.goal(
        &format!("W1 overload 3x, {name}: violations, use"),
        &span_of(&outcomes),
        format!("{}, {used:.1} %", ours.judged.violations()),
        "0, ≥ 99 %",
        ours.judged.violations() == 0 && used >= 99.0,
    );
    listed(
        &mut part,
        &format!("W1, {name}"),
        word,
        &outcomes,
        &scenario,
    );
    Ok(part)
}

/// W1 over a wide-area network, with a window of a second and with the bucket.
pub fn wan(tools: &Tools, effort: Effort) -> anyhow::Result<Part> {
    let mut part = Part::default();
    let seconds = effort.seconds.min(20);
    let subjects = [SUBJECTS[0], "p-queue", "p-throttle", "pyrate-limiter"];
    let window = Scenario::second().overload(seconds, false);
    let bucket = Scenario::t().overload(seconds, false);
    let on_window = tools.run("w1-wan-window", &window, &FAR, "", &subjects)?;
    let on_bucket = tools.run("w1-wan-bucket", &bucket, &FAR, "", &subjects[..1])?;
    let ours = &on_window[0];
    // Rule A: a slot is freed one window after the response, so W of every W + round trip is used.
    let bound = 100.0 / (1.0 + 0.13);
    let used_window = used(ours, &window);
    part.goal(
        "W1 over a WAN, 50 in a sliding second: violations, use",
        &span_of(&on_window),
        format!("{}, {used_window:.1} %", ours.judged.violations()),
        "0, ≥ 83 % (rule A's bound)",
        ours.judged.violations() == 0 && used_window >= bound * 0.94,
    );
    let ours = &on_bucket[0];
    let used_bucket = used(ours, &bucket);
    part.goal(
        "W1 over a WAN, bucket T: violations, use",
        "–",
        format!("{}, {used_bucket:.1} %", ours.judged.violations()),
        "0, ≥ 99 %",
        ours.judged.violations() == 0 && used_bucket >= 99.0,
    );
    listed(
        &mut part,
        "W1 over a WAN, 50 in a second",
        "w1-wan",
        &on_window,
        &window,
    );
    Ok(part)
}

/// W2: 80 calls at once, and 80 more after a pause.
pub fn burst(tools: &Tools) -> anyhow::Result<Part> {
    let mut scenario = Scenario::s().until(37);
    let at = |ms| std::iter::repeat_n((ms, super::scenario::Urgency::Normal), 80);
    scenario.calls = at(0).chain(at(25_000)).collect();
    let outcomes = tools.run("w2", &scenario, &NEAR, "", &SUBJECTS)?;
    let mut part = Part::default();
    let ours = &outcomes[0];
    let late = ours.judged.lasted() - 35.0;
    let lost = 160 - ours.tally.ok.min(160);
    part.goal(
        "W2 burst after idle: violations, delay after the ideal end, calls lost",
        &span_of(&outcomes),
        format!("{}, {late:.2} s, {lost}", ours.judged.violations()),
        "0, ≤ 0.2 s, 0",
        ours.judged.violations() == 0 && late <= 0.2 && lost == 0,
    );
    let lines = outcomes.iter().map(|one| {
        vec![
            one.name.to_owned(),
            one.judged.violations().to_string(),
            one.tally.ok.to_string(),
            format!("{:.1} s", one.judged.lasted()),
        ]
    });
    let head = [
        "W2",
        "violations",
        "successful of 160",
        "last call accepted after (ideal 35 s)",
    ];
    part.section(
        "W2, burst after idle",
        table(&head, &lines.collect::<Vec<_>>()),
    );
    Ok(part)
}

/// W3: every tenth call is urgent.
pub fn urgent(tools: &Tools, effort: Effort) -> anyhow::Result<Part> {
    let mut part = Part::default();
    let subjects = [
        SUBJECTS[0],
        "bottleneck",
        "p-queue",
        "aiolimiter",
        "governor",
    ];
    let cases = [("T", Scenario::t(), 40.0), ("S", Scenario::s(), 300.0)];
    for (name, scenario, most) in cases {
        let scenario = scenario.overload(effort.seconds, true);
        let outcomes = tools.run(&format!("w3-{name}"), &scenario, &NEAR, "", &subjects)?;
        let ours = &outcomes[0];
        let (p99, used) = (ours.judged.urgent_p99(), used(ours, &scenario));
        let overtaken = ours.overtaken(&scenario);
        let peers: Vec<String> = outcomes[1..]
            .iter()
            .map(|one| format!("{} {:.0} ms", one.name, one.judged.urgent_p99()))
            .collect();
        part.goal(
            &format!(
                "W3 10 % urgent, {name}: urgent p99, use, violations, background out of order"
            ),
            &peers.join(", "),
            format!(
                "{p99:.0} ms, {used:.1} %, {}, {overtaken}",
                ours.judged.violations()
            ),
            &format!("≤ {most:.0} ms, ≥ 99 %, 0, 0"),
            p99 <= most && used >= 99.0 && ours.judged.violations() == 0 && overtaken == 0,
        );
        let bars = outcomes
            .iter()
            .map(|one| (one.name.to_owned(), one.judged.urgent_p99()));
        let title = format!("p99 wait of urgent calls in a flood on {name}, ms");
        let file = format!("w3-{}", name.to_lowercase());
        part.plots.push(Plot::new(&file, &title, bars.collect()));
    }
    Ok(part)
}

/// W4: the provider is down for ten seconds.
pub fn outage(tools: &Tools) -> anyhow::Result<Part> {
    let scenario = Scenario::t().flood(40, 30, false).until(60);
    let fault = ["--fault", "outage 10s..20s 503"];
    let sim: Vec<&str> = NEAR.into_iter().chain(fault).collect();
    let subjects = [
        SUBJECTS[0],
        "bottleneck",
        "p-queue",
        "aiolimiter",
        "governor",
        "tower",
    ];
    let outcomes = tools.run("w4", &scenario, &sim, "", &subjects)?;
    let mut part = Part::default();
    let lost = |one: &Outcome| 1_200 - one.tally.ok.min(1_200);
    let ours = &outcomes[0];
    let peers: Vec<String> = outcomes[1..]
        .iter()
        .map(|one| format!("{} {}", one.name, lost(one)))
        .collect();
    let full = Full::judge(ours, &scenario, &[tools.log("w4")])?;
    part.goal(
        "W4 outage of 10 s: lost of 1,200, sent into it, violations, use from 1 s after Normal on",
        &format!("lost: {}", peers.join(", ")),
        format!(
            "{}, {}, {}, {:.1} %",
            lost(ours),
            ours.judged.struck(),
            ours.judged.violations(),
            full.percent
        ),
        "0, ≤ 15, 0, ≥ 99 %",
        lost(ours) == 0
            && ours.judged.struck() <= 15
            && ours.judged.violations() == 0
            && full.percent >= 99.0,
    );
    let recovered = full.normal - 20.0;
    part.goal(
        "W4 outage of 10 s: Normal again after its end",
        "–",
        format!("{recovered:.1} s"),
        "≤ 5 s",
        recovered <= 5.0,
    );
    let recovery = format!(
        "\nTollgate was Normal again {recovered:.1} s after the end of the outage.\n"
    );
    part.section("W4, outage", after_outage(&outcomes, lost) + &recovery);
    Ok(part)
}

/// The results of all subjects.
fn after_outage(outcomes: &[Outcome], lost: impl Fn(&Outcome) -> u64) -> String {
    let lines = outcomes.iter().map(|one| {
        vec![
            one.name.to_owned(),
            lost(one).to_string(),
            one.judged.struck().to_string(),
            one.judged.violations().to_string(),
            format!("{:.1} s", one.judged.lasted()),
        ]
    });
    let head = [
        "W4",
        "lost of 1,200",
        "sent into the outage",
        "violations",
        "last call accepted after",
    ];
    table(&head, &lines.collect::<Vec<_>>())
}

/// W5: the limit is halved, and only headers report it.
pub fn halved(tools: &Tools, effort: Effort) -> anyhow::Result<Part> {
    let scenario = Scenario::s().overload(effort.seconds.max(20), false);
    let fault = ["--style", "x-ratelimit", "--fault", "limit 0 halve at 12s"];
    let sim: Vec<&str> = NEAR.into_iter().chain(fault).collect();
    let outcomes = tools.run("w5", &scenario, &sim, "concurrency: 4\n", &SUBJECTS)?;
    let mut part = Part::default();
    let ours = &outcomes[0];
    part.goal(
        "W5 limit halved, reported by headers: violations",
        &span_of(&outcomes),
        ours.judged.violations().to_string(),
        "≤ 5",
        ours.judged.violations() <= 5,
    );
    listed(
        &mut part,
        "W5, limit halved after 12 s",
        "w5",
        &outcomes,
        &scenario,
    );
    Ok(part)
}

/// The accepted calls, in percent of the most that the limit allows.
pub fn used(outcome: &Outcome, scenario: &Scenario) -> f64 {
    outcome.judged.accepted() as f64 * 100.0 / scenario.most() as f64
}

/// The fewest and the most violations of the peers.
fn span_of(outcomes: &[Outcome]) -> String {
    let violations = outcomes[1..].iter().map(|one| one.judged.violations());
    let (least, most) = (violations.clone().min(), violations.max());
    match (least, most) {
        (Some(least), Some(most)) => format!("{least}–{most} violations"),
        _ => "–".to_owned(),
    }
}

/// The violations and use of all subjects, as a table and a plot.
fn listed(part: &mut Part, title: &str, file: &str, outcomes: &[Outcome], scenario: &Scenario) {
    let lines = outcomes.iter().map(|one| {
        vec![
            one.name.to_owned(),
            one.judged.violations().to_string(),
            format!("{:.1} %", used(one, scenario)),
            one.judged.arrivals().to_string(),
        ]
    });
    let head = [title, "violations", "use", "sent"];
    part.section(title, table(&head, &lines.collect::<Vec<_>>()));
    let bars = outcomes
        .iter()
        .map(|one| (one.name.to_owned(), one.judged.violations() as f64));
    let title = format!("{title}: violations, by the provider's log");
    part.plots.push(Plot::new(file, &title, bars.collect()));
}
