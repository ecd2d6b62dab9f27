//! The table as markdown: what was measured, the goal, and whether it was reached.

use std::fmt::Write;

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
                "| {measure} | {peer} | {floor} | {ours} | {value:.2}{unit} | ≤ {bar}{unit} | {verdict} |"
            )
            .expect("a String can be written to");
        }
        for (title, body) in &self.sections {
            write!(text, "\n### {title}\n\n{body}").expect("a String can be written to");
        }
        text
    }
}
