//! The table as markdown: what was measured, the goal, and whether it was reached.

use std::fmt::Write;

use crate::measure::Timing;

/// Everything that was measured, in order.
#[derive(Default)]
pub struct Report {
    goals: Vec<Goal>,
    sections: Vec<(&'static str, String)>,
}

/// A measure with a bar.
pub struct Goal {
    pub measure: String,
    pub peer: String,
    pub floor: String,
    pub ours: String,
    /// What is compared with the bar, and the bar.
    pub value: f64,
    pub bar: f64,
    pub unit: &'static str,
}

impl Report {
    pub fn goal(&mut self, goal: Goal) {
        eprintln!(
            "{}: {:.2}{} (goal {}{})",
            goal.measure, goal.value, goal.unit, goal.bar, goal.unit
        );
        self.goals.push(goal);
    }

    pub fn section(&mut self, title: &'static str, text: String) {
        eprintln!("{title}\n{text}");
        self.sections.push((title, text));
    }

    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| measure | governor | floor | Tollgate | result | goal | |\n|---|---|---|---|---|---|---|\n",
        );
        for goal in &self.goals {
            let verdict = if goal.value <= goal.bar {
                "reached"
            } else {
                "**missed**"
            };
            let Goal {
                measure,
                peer,
                floor,
                ours,
                value,
                bar,
                unit,
            } = goal;
            writeln!(
                text,
                "| {measure} | {peer} | {floor} | {ours} | {value:.3}{unit} | ≤ {bar}{unit} | {verdict} |"
            )
            .expect("a String can be written to");
        }
        for (title, body) in &self.sections {
            write!(text, "\n### {title}\n\n{body}").expect("a String can be written to");
        }
        text
    }
}

/// A goal from timings: the first is the peer, the second ours, `floor` says which is the floor.
pub fn row(measure: &str, timings: &[Timing], floor: Option<usize>, bar: f64) -> Goal {
    let show = |timing: &Timing| format!("{:.1} ns", timing.ns);
    Goal {
        measure: measure.to_owned(),
        peer: show(&timings[0]),
        floor: floor.map_or("–".to_owned(), |at| show(&timings[at])),
        ours: show(&timings[1]),
        value: timings[1].ratio,
        bar,
        unit: "x",
    }
}

/// All contenders with one thread and with two.
pub fn side_by_side(what: &str, timings: &[Vec<Timing>; 2]) -> String {
    let mut text = format!("| {what} | 1 thread | 2 threads |\n|---|---|---|\n");
    for (one, two) in timings[0].iter().zip(&timings[1]) {
        writeln!(
            text,
            "| {} | {:.1} ns | {:.1} ns |",
            one.name, one.ns, two.ns
        )
        .expect("a String can be written to");
    }
    text
}
