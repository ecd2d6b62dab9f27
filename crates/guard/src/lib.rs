//! Guards: limits on the callers of one's own service, for millions of keys.
//!
//! Promises: a decision costs tens of nanoseconds, allocates nothing (a new key may grow one shard)
//! and never waits for anything but another decision. All limits of a key are decided together;
//! several keys are decided together too ([`GuardTable::take_all`]), all or none, also among
//! threads. A rejection says how long to wait, never zero. Memory is bounded by a number of keys;
//! beyond it new keys share one strict bucket per plan, and no key in debt is evicted.
//!
//! Never: reads a clock to decide (the caller passes the time, from [`TickClock`] for instance),
//! draws a random number, does I/O, holds a caller's name, or settles: a guard is not a ledger.

mod clock;
mod decide;
mod huge_pages;
mod hint;
mod key;
mod lock;
mod pace;
mod plan;
mod shard;
mod slots;
mod snapshot;
mod table;
mod take;

pub use clock::{Tick, TickClock};
pub use key::{GuardKey, Keys, Seed};
pub use plan::{GuardPlan, LIMITS_MAX, Limit, PlanError};
pub use snapshot::SnapshotError;
pub use table::{GuardTable, KEYS_MAX, PLANS_MAX, Swept};
pub use take::{ASKS_MAX, Ask, BucketView, KeyView, Outcome, Remaining, TooManyAsks};
