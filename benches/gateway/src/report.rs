//! Results: stored per part, so that a part can be measured alone, and assembled into the document.
//!
//! For a document `docs/benchmarks.md` a part has its results in
//! `docs/benchmarks/results/PART.json`, which is committed with it; the document is assembled from
//! all of them, each group between its markers `<!-- GROUP:begin -->` and `<!-- GROUP:end -->`. So
//! a part that is measured alone, in any copy of the repository, leaves all other rows as they are.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::plot::Plot;

/// The results of one part.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    pub goals: Vec<Goal>,
    /// Title and markdown.
    pub sections: Vec<(String, String)>,
    pub plots: Vec<Plot>,
}

/// A measure with a bar.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Goal {
    pub measure: String,
    pub peers: String,
    pub ours: String,
    pub goal: String,
    pub reached: bool,
}

impl Part {
    pub fn goal(&mut self, measure: &str, peers: &str, ours: String, goal: &str, reached: bool) {
        let verdict = if reached { "reached" } else { "MISSED" };
        eprintln!("{measure}: {ours} (goal {goal}) {verdict}; peers: {peers}");
        self.goals.push(Goal {
            measure: measure.to_owned(),
            peers: peers.to_owned(),
            ours,
            goal: goal.to_owned(),
            reached,
        });
    }

    pub fn section(&mut self, title: &str, text: String) {
        eprintln!("\n{title}\n{text}");
        self.sections.push((title.to_owned(), text));
    }

    /// Stores it next to the document.
    pub fn save(&self, out: &Path, name: &str) -> anyhow::Result<()> {
        let file = results(out, name);
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let text = serde_json::to_string_pretty(self)?;
        Ok(std::fs::write(file, text + "\n")?)
    }
}

/// Where the results of a part are.
fn results(out: &Path, name: &str) -> PathBuf {
    let folder = out.with_extension("").join("results");
    folder.join(format!("{name}.json"))
}

/// Writes all stored results into the document.
pub fn assemble(groups: &BTreeMap<&str, Vec<&str>>, out: &Path) -> anyhow::Result<()> {
    let mut document = std::fs::read_to_string(out)?;
    let images = out.with_extension("");
    std::fs::create_dir_all(&images)?;
    let images_name = images.file_name().unwrap_or_default().to_string_lossy();
    for (group, names) in groups {
        let (mut goals, mut rest) = (String::new(), String::new());
        for name in names {
            let Ok(text) = std::fs::read_to_string(results(out, name)) else {
                continue;
            };
            let part: Part = serde_json::from_str(&text)?;
            for goal in &part.goals {
                let Goal {
                    measure,
                    peers,
                    ours,
                    goal,
                    reached,
                } = goal;
                let verdict = if *reached { "reached" } else { "**missed**" };
                writeln!(
                    goals,
                    "| {measure} | {peers} | {ours} | {goal} | {verdict} |"
                )?;
            }
            for (title, text) in &part.sections {
                write!(rest, "\n### {title}\n\n{text}")?;
            }
            for plot in &part.plots {
                std::fs::write(images.join(format!("{}.svg", plot.file)), plot.svg())?;
                writeln!(rest, "\n![{}]({images_name}/{}.svg)", plot.title, plot.file)?;
            }
        }
        let text = format!(
            "| measure | peers | Tollgate | goal | |\n|---|---|---|---|---|\n{goals}{rest}"
        );
        document = placed(&document, group, &text)?;
    }
    Ok(std::fs::write(out, document)?)
}

/// `text` between the markers of a group.
fn placed(document: &str, group: &str, text: &str) -> anyhow::Result<String> {
    let (begin, end) = (
        format!("<!-- {group}:begin -->"),
        format!("<!-- {group}:end -->"),
    );
    let parts = document
        .split_once(&begin)
        .and_then(|(head, rest)| Some((head, rest.split_once(&end)?.1)));
    let Some((head, tail)) = parts else {
        anyhow::bail!("the document has no markers `{begin}` and `{end}`; add them");
    };
    Ok(format!("{head}{begin}\n\n{text}\n{end}{tail}"))
}

/// A table with one line per subject.
pub fn table(head: &[&str], lines: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for line in lines {
        text.push_str(&format!("| {} |\n", line.join(" | ")));
    }
    text
}

/// The middle value, or the mean of the two in the middle.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let at = |index: usize| figures.get(index).copied().unwrap_or(f64::NAN);
    f64::midpoint(
        at(figures.len().saturating_sub(1) / 2),
        at(figures.len() / 2),
    )
}
