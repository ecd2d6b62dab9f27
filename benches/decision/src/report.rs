//! The results: figures of each process, their medians, and the assembled document.
//!
//! For a document `docs/benchmarks.md` a part has the figures of every process that measured it in
//! `docs/benchmarks/results/decision-PART.json`. The document is assembled from all of them, so a
//! part that is measured alone leaves all other rows as they are.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::measure::{Timing, median};

/// Everything that one process measured, in order.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Report {
    goals: Vec<Goal>,
    tables: Vec<Table>,
}

/// A measure with a bar.
#[derive(Clone, Serialize, Deserialize)]
pub struct Goal {
    pub measure: String,
    /// Of the figures of the peer, the floor and ours.
    pub unit: String,
    pub peer: Option<f64>,
    pub floor: Option<f64>,
    pub ours: f64,
    /// What is compared with the bar, the bar, and their unit.
    pub value: f64,
    pub bar: f64,
    pub bar_unit: String,
}

/// Figures without a goal.
#[derive(Clone, Serialize, Deserialize)]
pub struct Table {
    pub title: String,
    /// What the rows are.
    pub head: String,
    /// Name, unit and decimals of each column.
    pub columns: Vec<(String, String, usize)>,
    pub rows: Vec<(String, Vec<f64>)>,
    /// The text below the table.
    pub note: String,
}

impl Report {
    pub fn goal(&mut self, goal: Goal) {
        self.goals.push(goal);
    }

    pub fn table(&mut self, table: Table) {
        self.tables.push(table);
    }
}

/// The same part, measured by several processes.
#[derive(Default, Serialize, Deserialize)]
pub struct Part {
    pub processes: Vec<Report>,
}

impl Part {
    /// Adds the results of one more process and prints them.
    pub fn add(&mut self, found: Report) {
        for goal in &found.goals {
            let Goal {
                measure,
                value,
                bar,
                bar_unit,
                ..
            } = goal;
            eprintln!("{measure}: {value:.3}{bar_unit} (goal {bar}{bar_unit})");
        }
        self.processes.push(found);
    }

    pub fn save(&self, out: &Path, name: &str) -> io::Result<()> {
        let file = results(out, name);
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(file, serde_json::to_string_pretty(self)? + "\n")
    }

    /// What was measured before, if it was.
    pub fn load(out: &Path, name: &str) -> io::Result<Part> {
        match std::fs::read(results(out, name)) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Part::default()),
            Err(error) => Err(error),
        }
    }

    /// The median over processes of what `figure` picks.
    fn median(&self, figure: impl Fn(&Report) -> f64) -> f64 {
        median(self.processes.iter().map(figure).collect())
    }

    fn goals(&self, text: &mut String) {
        let goals = self.processes.first().map_or(&[][..], |first| &first.goals);
        for (at, goal) in goals.iter().enumerate() {
            let values = self.processes.iter().map(|found| found.goals[at].value);
            let value = median(values.clone().collect());
            let (least, most) = values.fold((f64::MAX, f64::MIN), |(least, most), value| {
                (least.min(value), most.max(value))
            });
            let figure = |present: Option<f64>, pick: &dyn Fn(&Goal) -> Option<f64>| match present {
                Some(_) => {
                    let middle = self.median(|found| pick(&found.goals[at]).unwrap_or(f64::NAN));
                    format!("{} {}", shown(middle), goal.unit)
                        .trim_end()
                        .to_owned()
                }
                None => "–".to_owned(),
            };
            let Goal {
                measure,
                bar,
                bar_unit,
                ..
            } = goal;
            let verdict = if value <= *bar {
                "reached"
            } else {
                "**missed**"
            };
            writeln!(
                text,
                "| {measure} | {} | {} | {} | {value:.3}{bar_unit} | {least:.3} to {most:.3} | ≤ {bar}{bar_unit} | {verdict} |",
                figure(goal.peer, &|goal| goal.peer),
                figure(goal.floor, &|goal| goal.floor),
                figure(Some(goal.ours), &|goal| Some(goal.ours)),
            )
            .expect("a String can be written to");
        }
    }

    fn tables(&self, text: &mut String) {
        let tables = self
            .processes
            .first()
            .map_or(&[][..], |first| &first.tables);
        for (number, table) in tables.iter().enumerate() {
            let Table {
                title,
                head,
                columns,
                rows,
                note,
            } = table;
            let names: String = columns
                .iter()
                .map(|(name, ..)| format!(" {name} |"))
                .collect();
            let rule = "---|".repeat(columns.len());
            write!(text, "\n### {title}\n\n| {head} |{names}\n|---|{rule}\n")
                .expect("a String can be written to");
            for (at, (name, _)) in rows.iter().enumerate() {
                let cell = |(column, (_, unit, decimals)): (usize, &(String, String, usize))| {
                    let middle = self.median(|found| found.tables[number].rows[at].1[column]);
                    format!(" {middle:.decimals$}{unit} |")
                };
                let cells: String = columns.iter().enumerate().map(cell).collect();
                writeln!(text, "| {name} |{cells}").expect("a String can be written to");
            }
            if !note.is_empty() {
                writeln!(text, "\n{note}").expect("a String can be written to");
            }
        }
    }
}

/// Three digits or one decimal, whichever is more.
fn shown(figure: f64) -> String {
    if figure == 0.0 || figure >= 100.0 {
        format!("{figure:.0}")
    } else {
        format!("{figure:.1}")
    }
}

/// All parts as markdown.
pub fn markdown(parts: &[Part]) -> String {
    let counts = || parts.iter().map(|part| part.processes.len());
    let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
    let processes = if least == most {
        format!("{most}")
    } else {
        format!("{least} to {most}")
    };
    let mut text = format!(
        "Each part was measured in {processes} new processes, one after the other. A figure is the median of these \
         processes; \"from … to\" is the lowest and the highest result of a process.\n\n\
         | measure | governor | floor | Tollgate | result | from … to | goal | |\n|---|---|---|---|---|---|---|---|\n"
    );
    parts.iter().for_each(|part| part.goals(&mut text));
    parts.iter().for_each(|part| part.tables(&mut text));
    text
}

/// Where the figures of a part are.
fn results(out: &Path, name: &str) -> PathBuf {
    let folder = out.with_extension("").join("results");
    folder.join(format!("decision-{name}.json"))
}

/// A goal from timings: the first is the peer, the second ours, `floor` says which is the floor.
pub fn row(measure: &str, timings: &[Timing], floor: Option<usize>, bar: f64) -> Goal {
    Goal {
        measure: measure.to_owned(),
        unit: "ns".into(),
        peer: Some(timings[0].ns),
        floor: floor.map(|at| timings[at].ns),
        ours: timings[1].ns,
        value: timings[1].ratio,
        bar,
        bar_unit: "x".into(),
    }
}

/// All contenders with one thread and with two.
pub fn side_by_side(title: &str, what: &str, timings: &[Vec<Timing>; 2]) -> Table {
    let column = |name: &str| (name.to_owned(), " ns".to_owned(), 1);
    Table {
        title: title.to_owned(),
        head: what.to_owned(),
        columns: vec![column("1 thread"), column("2 threads")],
        rows: timings[0]
            .iter()
            .zip(&timings[1])
            .map(|(one, two)| (one.name.to_owned(), vec![one.ns, two.ns]))
            .collect(),
        note: String::new(),
    }
}
