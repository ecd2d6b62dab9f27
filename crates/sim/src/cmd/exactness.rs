//! `tollgate-sim exactness`: which client rules stay within which limits, as markdown.
//!
//! Promises: virtual time only; the same seeds give the same tables.
//!
//! Never: measures anything itself; `tollgate_sim::exactness` does.

use clap::Args;
use tollgate_sim::exactness::{Row, SEEDS, all_countings, columns, our_rows, rows, table};

use super::{CommandResult, print_line};

/// Which client rules stay within which limits, and how much of the quota they use, in virtual
/// time.
///
/// Prints two markdown tables: quota used in percent / 429s per 1000 requests that reached the
/// provider.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE, after_long_help = EXAMPLE)]
pub(crate) struct Exactness {
    /// Seeds of the runs; a cell is the mean over them
    #[arg(long, value_name = "SEED,…", value_delimiter = ',', default_values_t = SEEDS)]
    seeds: Vec<u64>,
}

const EXAMPLE: &str = "\
Example:
  tollgate-sim exactness --seeds 1,2,3 > exactness.md";

impl Exactness {
    /// Prints both tables.
    pub(crate) fn run(self) -> CommandResult {
        print_line(&format!(
            "Use % / violations per 1000 sent, seeds {:?}\n",
            self.seeds
        ))?;
        print_line(&table(&all_rows(), &columns(), &self.seeds)?)?;
        print_line("Ways of counting, LAN\n")?;
        Ok(print_line(&table(
            &all_rows(),
            &all_countings(),
            &self.seeds,
        )?)?)
    }
}

/// The peers' rules, then ours.
fn all_rows() -> Vec<Row> {
    rows().into_iter().chain(our_rows()).collect()
}
