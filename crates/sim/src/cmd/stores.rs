//! `tollgate-sim stores`: what nodes use of a limit that they share through a networked store.
//!
//! Promises: virtual time only; the same settings give the same table.
//!
//! Never: measures anything itself; `tollgate_sim::store_table` does.

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
}

const EXAMPLE: &str = "\
Example:
  tollgate-sim stores --secs 20 --nodes 1,8 --round-trips 1ms,10ms";

impl Stores {
    /// Prints the table, line by line.
    pub(crate) fn run(self) -> CommandResult {
        print_line(HEAD)?;
        for limit in [SharedLimit::Window, SharedLimit::Bucket] {
            let reference = limit.reference(self.secs)?;
            for &round_trip in &self.round_trips {
                for &nodes in &self.nodes {
                    let used = limit.used_by(nodes.into(), round_trip, self.secs, reference)?;
                    print_line(&used.line(limit))?;
                }
            }
        }
        Ok(())
    }
}

fn time(text: &str) -> Result<Span, String> {
    parse_span(text).ok_or_else(|| format!("`{text}` is not a time; write `200us`, `1ms` or `2s`"))
}
