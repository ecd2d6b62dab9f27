//! Prints the table of client rules against ways of counting:
//! `cargo run -p tollgate-sim --example exactness`.

use tollgate_sim::exactness::{SEEDS, columns, rows, table};

#[expect(clippy::print_stdout, reason = "printing is what this program is for")]
fn main() -> Result<(), tollgate_sim::world::Runaway> {
    println!("Use % / violations per 1000 sent, seeds {SEEDS:?}\n");
    println!("{}", table(&rows(), &columns(), &SEEDS)?);
    Ok(())
}
