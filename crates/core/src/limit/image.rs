//! A cell as bytes.
use super::Cell;
/// x
#[derive(Debug)]
pub struct Damaged;
