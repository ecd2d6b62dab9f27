//! Prints which client rules keep which limits, and how much of the quota they use:
//! `cargo run -p tollgate-sim --example exactness`.

use tollgate_sim::exactness::{SEEDS, columns, our_rows, rows, table, ways};

#[expect(clippy::print_stdout, reason = "printing is what this program is for")]
fn main() -> Result<(), tollgate_sim::world::Runaway> {
    println!("Use % / violations per 1000 sent, seeds {SEEDS:?}\n");
    println!("{}", table(&all(), &columns(), &SEEDS)?);
    println!("Every way of counting, LAN\n");
    println!("{}", table(&all(), &ways(), &SEEDS)?);
    Ok(())
}

fn all() -> Vec<tollgate_sim::exactness::Row> {
    rows().into_iter().chain(our_rows()).collect()
}
