//! W9: providers whose responses are slow. Their quota is used as fully as that of quick ones.

use super::rows::used;
use super::scenario::{Kind, Scenario};
use super::{SUBJECTS, Tools};
use crate::report::{Part, table};

/// One provider: its limit, how slow it is, how long the row takes, and the goal.
struct Row {
    word: &'static str,
    name: &'static str,
    scenario: Scenario,
    work: &'static str,
    seconds: u64,
    least: f64,
}

/// A slot is held for the window and the 2 s in which a call surely arrives: 10 of 12 s, 60 of 62 s;
/// a bucket loses nothing.
fn all_rows() -> [Row; 3] {
    [
        Row {
            word: "w9-window",
            name: "40/10s, responses after 15 s",
            scenario: Scenario::s(),
            work: "15s",
            seconds: 60,
            least: 80.0,
        },
        Row {
            word: "w9-minute",
            name: "60/1m, responses after 30 s",
            scenario: Scenario {
                limit: 60,
                period_ms: 60_000,
                burst: 60,
                ..Scenario::s()
            },
            work: "30s",
            seconds: 130,
            least: 95.0,
        },
        Row {
            word: "w9-bucket",
            name: "bucket of 2/s, burst 10, responses after 30 s",
            scenario: Scenario {
                kind: Kind::Bucket,
                limit: 2,
                period_ms: 1_000,
                burst: 10,
                ..Scenario::s()
            },
            work: "30s",
            seconds: 100,
            least: 97.0,
        },
    ]
}

/// W9, with the default of `connections` and `hold_until`; all rows at once.
pub fn responses(tools: &Tools) -> anyhow::Result<Part> {
    let results = std::thread::scope(|scope| {
        let run = |row: Row| {
            scope.spawn(move || {
                let scenario = row.scenario.clone().overload(row.seconds, false);
                let sim = ["--up", "5ms~0.5", "--work", row.work];
                let extra = "timeout: 2m\n";
                let outcomes = tools.run(row.word, &scenario, &sim, extra, &SUBJECTS[..1])?;
                let ours = &outcomes[0];
                Ok((row, used(ours, &scenario), ours.judged.violations()))
            })
        };
        let running: Vec<_> = all_rows().into_iter().map(run).collect();
        let ended = running.into_iter().map(|one| match one.join() {
            Ok(result) => result,
            Err(_) => anyhow::bail!("a row of W9 panicked"),
        });
        ended.collect::<anyhow::Result<Vec<_>>>()
    })?;
    let mut part = Part::default();
    let mut lines = Vec::new();
    for (row, used, violations) in results {
        part.goal(
            &format!("W9 slow responses, {}: violations, use", row.name),
            "–",
            format!("{violations}, {used:.1} %"),
            &format!("0, ≥ {:.0} %", row.least),
            violations == 0 && used >= row.least,
        );
        lines.push(vec![
            row.name.to_owned(),
            violations.to_string(),
            format!("{used:.1} %"),
        ]);
    }
    let head = ["W9, slow responses", "violations", "use"];
    part.section("W9, slow responses", table(&head, &lines));
    Ok(part)
}
