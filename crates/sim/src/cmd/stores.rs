//! `tollgate-sim stores`: what nodes use of a limit that they share through a networked store.
//!
//! Promises: virtual time only; the same settings give the same table.
//!
//! Never: measures anything itself; `tollgate_sim::store_table` does.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use tollgate_core::time::Span;
use tollgate_sim::fault::parse_span;
use tollgate_sim::store_table::{HEAD, SharedLimit};

use super::{CommandResult, print_line};

/// What nodes use of a limit that they share through a networked store, in virtual time.
///
/// Prints a markdown table: the use in percent of what one client without a store uses, requests to the
/// store and conflicts per grant, and how equally the nodes are served in each second.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE, after_long_help = EXAMPLE)]
pub(crate) struct Stores {
    /// Length of each run in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(2..=100_000))]
    secs: u64,
    /// How many nodes share the limit
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16],
        value_parser = clap::value_parser!(u16).range(1..=256))]
    nodes: Vec<u16>,
    /// The round trip between a node and the store
    #[arg(long, value_name = "TIME,…", value_delimiter = ',', value_parser = time,
        default_values = ["200us", "1ms", "10ms", "20ms"])]
    round_trips: Vec<Span>,
    /// Write the table over the one in this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

const EXAMPLE: &str = "\
Example:
  tollgate-sim stores --secs 20 --nodes 1,8 --round-trips 1ms,10ms
  tollgate-sim stores --secs 20 --nodes 1,2,4,8,16,64,256 --out docs/exactness.md";

impl Stores {
    /// Prints the table, line by line, and writes it if a file is named.
    pub(crate) fn run(self) -> CommandResult {
        let mut table = format!("{HEAD}\n");
        print_line(HEAD)?;
        for limit in [SharedLimit::Window, SharedLimit::Bucket] {
            let reference = limit.reference(self.secs)?;
            for &round_trip in &self.round_trips {
                for &nodes in &self.nodes {
                    let used = limit.used_by(nodes.into(), round_trip, self.secs, reference)?;
                    let line = used.line(limit);
                    print_line(&line)?;
                    table.extend([line.as_str(), "\n"]);
                }
            }
        }
        let Some(file) = self.out else { return Ok(()) };
        let text = fs::read_to_string(&file)?;
        let replaced = replace_table(&text, &table);
        let replaced =
            replaced.ok_or("the file has no table that begins with `| limit | round trip |`")?;
        Ok(fs::write(file, replaced)?)
    }
}

/// The text with this table instead of the one that it has.
fn replace_table(text: &str, table: &str) -> Option<String> {
    const BEGIN: &str = "| limit | round trip |";
    let begin = text.find(BEGIN)?;
    let (before, old) = text.split_at(begin);
    let rows = old
        .split_inclusive('\n')
        .take_while(|line| line.starts_with('|'));
    let rows: usize = rows.map(str::len).sum();
    Some(format!("{before}{table}{}", old.get(rows..)?))
}

fn time(text: &str) -> Result<Span, String> {
    parse_span(text).ok_or_else(|| format!("`{text}` is not a time; write `200us`, `1ms` or `2s`"))
}

#[cfg(test)]
mod tests {
    use super::replace_table;

    #[test]
    fn a_table_takes_the_place_of_the_one_before() {
        let text = "a\n\n| limit | round trip | x |\n| --- |\n| 1 |\n\nb | c\n";
        let replaced = replace_table(text, "| new |\n");
        assert_eq!(replaced.as_deref(), Some("a\n\n| new |\n\nb | c\n"));
        assert_eq!(replace_table("no table", "| new |\n"), None);
    }
}
