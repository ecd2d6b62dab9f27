//! The table of client rules against ways of counting: how much of the quota each rule uses, and
//! how often the provider limits it.
//!
//! Promises: demand saturates; seeds, lengths and delays are stated here; the same call gives the
//! same table. Rows are data: the caller adds its own.
//!
//! Never: uses anything but the provider's log.

use std::fmt::{self, Write};

use tollgate_core::time::{Micros, Span};

use crate::clock::NodeClock;
use crate::latency::Latency;
use crate::peer::{
    GuardedLog, OwnWindow, Pace, ReferenceA, ReferenceB, RttAdjustedLog, Saturating, SendBucket,
    SendLog,
};
use crate::rule::{Counting, RuleSpec};
use crate::world::{Client, Runaway, Setup, World};

mod tollgate_rows;
pub use tollgate_rows::rows as our_rows;
#[cfg(test)]
mod tests;

/// The seeds of a table; a cell is the mean over them.
pub const SEEDS: [u64; 3] = [1, 2, 3];

/// One provider and network.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name in the head of the table.
    pub name: String,
    /// How the provider counts.
    pub rule: RuleSpec,
    /// The network and the provider's work.
    pub latency: Latency,
    /// How long a run lasts.
    pub length: Span,
}

/// Makes a new client for a column; `None` where the rule does not apply.
pub type Factory = Box<dyn Fn(&Column) -> Option<Box<dyn Client>>>;

/// One client rule.
pub struct Row {
    /// The first cell of its line in the table.
    pub name: String,
    /// How many nodes its client runs.
    pub nodes: usize,
    /// Makes its clients.
    pub make: Factory,
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Use of the quota in percent, [`crate::checker::Checker::quota_used`].
    pub used: f64,
    /// 429s per 1000 requests that arrived.
    pub limited: f64,
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Row {
    /// A row of one node.
    pub fn new(name: &str, make: impl Fn(&Column) -> Option<Box<dyn Client>> + 'static) -> Row {
        Row {
            name: name.to_owned(),
            nodes: 1,
            make: Box::new(make),
        }
    }

    /// The same with several nodes, whose clocks drift and started at different times.
    #[must_use]
    pub fn with_nodes(self, nodes: usize) -> Row {
        Row { nodes, ..self }
    }

    /// A rule that paces one node, made from N and W of the column.
    pub fn paced<P: Pace + 'static>(name: &str, make: impl Fn(u64, Span) -> P + 'static) -> Row {
        Row::new(name, move |column| {
            let window = column.rule.counting.window()?;
            let pace = make(column.rule.counting.limit(), window);
            Some(Box::new(Saturating::new(pace)))
        })
    }

    /// The same, for columns with a token bucket only.
    fn for_buckets<P: Pace + 'static>(
        name: &str,
        make: impl Fn(u64, Span, u64) -> P + 'static,
    ) -> Row {
        Row::new(name, move |column| match column.rule.counting {
            Counting::Bucket {
                limit,
                window,
                burst,
                ..
            } => Some(Box::new(Saturating::new(make(limit, window, burst)))),
            _ => None,
        })
    }
}

/// The eight columns: two sliding windows near and far, a bucket and a fixed window. Windows of
/// 10 s run for 600 s, windows of 1 s for 300 s. The edges of the fixed window lie half a window
/// after the start of the run: no client knows them, and a client that started on an edge by luck
/// would look better than it is. So the run touches 301 of its windows.
#[must_use]
pub fn columns() -> Vec<Column> {
    let slow = Counting::Sliding {
        limit: 40,
        window: Span::from_secs(10),
    };
    let (limit, window) = (50, Span::from_secs(1));
    let quick = Counting::Sliding { limit, window };
    let bucket = Counting::Bucket {
        limit,
        window,
        burst: limit,
        tick: None,
    };
    let fixed = Counting::Fixed {
        limit,
        window,
        phase: Span::from_millis(500),
    };
    let column = |name: &str, counting: Counting, latency: Latency, secs: u64| Column {
        name: name.to_owned(),
        rule: counting.into(),
        latency,
        length: Span::from_secs(secs),
    };
    vec![
        column("sliding 40/10s LAN", slow, Latency::LAN, 600),
        column("WAN", slow, Latency::WAN, 600),
        column("LLM", slow, Latency::LLM, 600),
        column("sliding 50/1s LAN", quick, Latency::LAN, 300),
        column("WAN", quick, Latency::WAN, 300),
        column("LLM", quick, Latency::LLM, 300),
        column("bucket 50/s WAN", bucket, Latency::WAN, 300),
        column("fixed 50/1s WAN", fixed, Latency::WAN, 300),
    ]
}

/// Ways of counting at 50 per second, in a LAN: which rule is exact for which counting.
#[must_use]
pub fn all_countings() -> Vec<Column> {
    let (limit, window, phase) = (50, Span::from_secs(1), Span::from_millis(500));
    let countings = [
        Counting::Sliding { limit, window },
        Counting::Fixed {
            limit,
            window,
            phase,
        },
        Counting::FirstUse { limit, window },
        Counting::Bucket {
            limit,
            window,
            burst: limit,
            tick: None,
        },
        Counting::Bucket {
            limit,
            window,
            burst: limit,
            tick: Some(Span::from_millis(100)),
        },
        Counting::TwoCounter {
            limit,
            window,
            phase,
        },
        Counting::Binned {
            limit,
            window,
            bins: 10,
        },
    ];
    let column = |counting: Counting| Column {
        name: RuleSpec::from(counting).to_string(),
        rule: counting.into(),
        latency: Latency::LAN,
        length: Span::from_secs(120),
    };
    countings.into_iter().map(column).collect()
}

/// The rules that other libraries use, and the references.
#[must_use]
pub fn rows() -> Vec<Row> {
    let millis = Span::from_millis;
    vec![
        Row::paced("own window (tower, reservoir, p-queue)", OwnWindow::new),
        Row::paced(
            "log from send (p-throttle/p-queue strict)",
            |limit, window| SendLog::new(limit, window, Span::ZERO),
        ),
        Row::paced("bucket depth N (governor, aiolimiter)", |limit, window| {
            SendBucket::new(limit, window, limit)
        }),
        Row::paced("even pacing W/N (nginx, minTime)", |limit, window| {
            SendBucket::new(limit, window, 1)
        }),
        Row::paced(
            "log from send + 50 ms (pyrate's buffer_ms)",
            move |limit, window| SendLog::new(limit, window, millis(50)),
        ),
        Row::paced(
            "C, G = 0.2 s, or response if earlier",
            move |limit, window| GuardedLog::new(limit, window, millis(200)),
        ),
        Row::paced("A response-clocked log (reference)", ReferenceA::new),
        Row::paced(
            "A (reference), 4 nodes with drifting clocks, one ledger",
            ReferenceA::new,
        )
        .with_nodes(4),
        Row::paced("A − 0.9·min RTT (not provable)", RttAdjustedLog::new),
        Row::for_buckets("B response-clocked bucket (reference)", ReferenceB::new),
    ]
}

/// Runs one cell; `None` where the row does not apply.
///
/// # Errors
/// The client does not let time pass.
pub fn cell(row: &Row, column: &Column, seeds: &[u64]) -> Result<Option<Cell>, Runaway> {
    let mut sum = Cell {
        used: 0.0,
        limited: 0.0,
    };
    for &seed in seeds {
        let Some(client) = (row.make)(column) else {
            return Ok(None);
        };
        let end = Micros(0) + column.length;
        let mut setup = Setup::new(seed, vec![column.rule], column.latency);
        setup.clocks = clocks(row.nodes);
        let mut world = World::new(setup, client);
        world.run_until(end)?;
        let used = world.checker().quota_used(&column.rule, Micros(0), end);
        sum.used += used.map_or(0.0, |used| used.percent());
        sum.limited += world.checker().violations_per_1000();
    }
    #[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
    let runs = seeds.len().max(1) as f64;
    Ok(Some(Cell {
        used: sum.used / runs,
        limited: sum.limited / runs,
    }))
}

/// Realistic clocks: one perfect clock, or several that started at different times and run 100 to
/// 500 ppm fast or slow in turn, as slewing does.
fn clocks(nodes: usize) -> Vec<NodeClock> {
    if nodes == 1 {
        return vec![NodeClock::default()];
    }
    let clock = |(node, ppm): (u64, i32)| NodeClock {
        at_start: Micros(0) + Span::from_secs(7 * node),
        drift_ppm: if node % 2 == 0 { ppm } else { -ppm },
        ..NodeClock::default()
    };
    (0..)
        .zip((100..=500).step_by(100).cycle())
        .take(nodes)
        .map(clock)
        .collect()
}

/// The whole table in markdown: use % / violations per 1000.
///
/// # Errors
/// A client does not let time pass.
pub fn table(rows: &[Row], columns: &[Column], seeds: &[u64]) -> Result<String, Runaway> {
    let mut text = String::from("| Client rule |");
    for column in columns {
        text.push_str(&format!(" {} |", column.name));
    }
    text.push_str(&format!("\n| --- |{}\n", " --- |".repeat(columns.len())));
    for row in rows {
        text.push_str(&format!("| {} |", row.name));
        for column in columns {
            match cell(row, column, seeds)? {
                Some(cell) => text.push_str(&format!(" {cell} |")),
                None => text.push_str(" |"),
            }
        }
        text.push('\n');
    }
    Ok(text)
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} / ", self.used)?;
        // A single 429 must never look like none.
        if self.limited == 0.0 {
            f.write_char('0')
        } else {
            write!(f, "{:.2}", self.limited)
        }
    }
}
