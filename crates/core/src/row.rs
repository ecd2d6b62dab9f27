//! A row as bytes: one cell or one scope, with its version and its waiters. The format of every
//! store.
//!
//! ```text
//! row   = FORMAT kind field* checksum          kind: 1 a cell, 2 a scope, 3 a provider, 4 an owner
//! field = tag length bytes                     tag and length: seven bits a byte, the lowest first
//! ```
//!
//! Fields stand in the order of their tags, each at most once. An odd tag is required: a program
//! that does not know it cannot know what was used, so the row counts as used up. An even one is
//! optional: it is ignored, and written again as it was. So a field can be added without a new
//! format, and a program that does not know it yet shares the row with one that does.
//!
//! | tag | what | in |
//! |---|---|---|
//! | 1 | version: owner, nonce of its process, its batch | all |
//! | 2 | time of the last write on the store's clock, and the scale of that clock; in a networked store also its epoch, and how often the row was written | all |
//! | 3 | the cell; owners' published limits are in it | cells |
//! | 4 | the owners that wait | cells |
//! | 5 | the scope | scopes |
//! | 6 | not used | |
//! | 7 | not used: calls that count as arrived at sent + `arrive_within` are in the cell, version 3 | cells |
//! | 8 | the estimated limit of a scope that a 429 has closed; a program that does not know it lets all calls go after the cool-down | scopes |
//! | 9 | the durable reservation of a limit of a minute or longer; a program that does not know it
//!       would grant after a boot what was granted before it | cells |
//! | 10 | how often everything was lost before it was written | cells |
//! | 11 | what may have been lost | providers |
//! | 12 | who wrote the row first, and how often everything was lost since | providers |
//! | 14 | how often somebody wrote who did not know the store's clock | providers |
//! | 16 | the nodes that may use a share of each limit without the store; a program that does not know it leaves them nothing | providers |
//! | 18 | since when such a node is known to be there | owners |
//!
//! Promises: a row reads back as it was written. Any bytes are a row or [`Damaged`], in time and
//! memory bounded by their length. The checksum detects changed, lost and added bytes. Rows from
//! before this format (a cell or a scope alone) are read.
//!
//! Never: guesses, or writes another layout under the same [`FORMAT`].

mod estimate;
mod fields;
mod networked;
pub use networked::{
    Incarnation, Loss, MEMBERS_MAX, OwnerRow, ProviderRow, ShareMember, SharePresence,
};
#[cfg(test)]
mod tests;

use crate::ask::{OwnerId, Priority, WakeOn};
use crate::fairness::{WAITERS_MAX, Waiter};
use crate::limit::{Cell, Damaged};
use crate::reservation::Reservation;
use crate::scope::Scope;
use crate::time::Micros;

use fields::{FieldReader, FieldWriter};

/// The first byte of a row. Cells and scopes that were stored alone began with 1 or 2.
pub const FORMAT: u8 = 16;

const CELL: u8 = 1;
const SCOPE: u8 = 2;

mod tag {
    pub(super) const VERSION: u64 = 1;
    pub(super) const TIME: u64 = 2;
    pub(super) const CELL: u64 = 3;
    pub(super) const WAITERS: u64 = 4;
    pub(super) const SCOPE: u64 = 5;
    pub(super) const ESTIMATE: u64 = 8;
    pub(super) const RESERVATION: u64 = 9;
    pub(super) const LOSSES: u64 = 10;
    pub(super) const LOSS: u64 = 11;
    pub(super) const INCARNATION: u64 = 12;
    pub(super) const CLOCK_CHANGES: u64 = 14;
    pub(super) const MEMBERS: u64 = 16;
    pub(super) const REGISTRATION: u64 = 18;
}

/// Which write a row comes from. Never a counter: after a wipe a counter repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowVersion {
    /// Whose write it was.
    pub owner: OwnerId,
    /// A number that no other process of this owner's number has.
    pub nonce: u64,
    /// The owner's running number of the batch.
    pub batch: u64,
}

/// What a row says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowMeta {
    /// Which write it comes from.
    pub version: RowVersion,
    /// When that was, on the store's clock.
    pub time: Micros,
    /// Counts the steps of the store's clock, and boots: times of another scale must be rebased.
    pub scale: u64,
    /// In which epoch of a networked store it was written; 0 elsewhere.
    pub epoch: u64,
    /// How often it was written, in a networked store: tells an older copy from a newer one where
    /// that is only a hint. 0 elsewhere.
    pub revision: u64,
    /// Optional fields that this program does not know.
    pub unknown: Vec<UnknownField>,
}

/// A field of a newer program, written again as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownField {
    tag: u64,
    bytes: Vec<u8>,
}

/// One limit for one key, and who waits for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellRow {
    /// What was used.
    pub cell: Cell,
    /// The owners that it has rejected and that wait.
    pub waiters: Vec<Waiter>,
    /// What may be granted before the next sync; nothing in stores that do not sync.
    pub reservation: Reservation,
    /// [`ProviderRow::losses`] when it was last made up for; 0 outside of networked stores.
    pub losses: u64,
    /// Where it comes from.
    pub meta: RowMeta,
}

/// One scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopeRow {
    /// Is it open?
    pub scope: Scope,
    /// Where it comes from.
    pub meta: RowMeta,
}

/// What a row holds, without where it comes from: equal contents need not be written again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents(Vec<u8>);

impl CellRow {
    /// The contents as they would be written.
    #[must_use]
    pub fn contents(&self) -> Contents {
        let mut contents = Contents::default();
        self.write_contents(&mut contents);
        contents
    }

    /// The same, in place of these: a store that compares all rows of a batch allocates nothing.
    pub fn write_contents(&self, contents: &mut Contents) {
        let bytes = std::mem::take(&mut contents.0);
        let mut out = FieldWriter::over(bytes, &self.meta.unknown);
        out.field(tag::CELL, |bytes| self.cell.write_body(bytes));
        if !self.waiters.is_empty() {
            out.field(tag::WAITERS, |bytes| write_waiters(bytes, &self.waiters));
        }
        if !self.reservation.is_none() {
            out.field(tag::RESERVATION, |bytes| {
                let numbers = self.reservation.numbers();
                numbers
                    .iter()
                    .for_each(|&value| fields::number(bytes, value));
            });
        }
        if self.losses > 0 {
            out.field(tag::LOSSES, |bytes| fields::number(bytes, self.losses));
        }
        contents.0 = out.finish();
    }

    /// The row with these contents.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.contents().to_cell_row(&self.meta)
    }

    /// Decodes a row, also a cell that was stored alone.
    pub fn from_bytes(bytes: &[u8]) -> Result<CellRow, Damaged> {
        if bytes.first() != Some(&FORMAT) {
            let cell = Cell::from_bytes(bytes, Micros(0))?;
            return Ok(CellRow {
                cell,
                ..CellRow::default()
            });
        }
        let mut row = CellRow::default();
        let mut is_there = false;
        let fields = FieldReader::open(bytes, CELL)?;
        row.meta = read(fields, |tag, bytes| {
            match tag {
                tag::CELL => {
                    row.cell = Cell::from_body(bytes)?;
                    is_there = true;
                }
                tag::WAITERS => row.waiters = read_waiters(bytes)?,
                tag::RESERVATION => {
                    let mut values = fields::Values(bytes);
                    let mut numbers = [0; 8];
                    for value in &mut numbers {
                        *value = values.number()?;
                    }
                    values.end()?;
                    row.reservation = Reservation::of_numbers(numbers);
                }
                tag::LOSSES => {
                    let mut values = fields::Values(bytes);
                    row.losses = values.number()?;
                    values.end()?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        is_there.then_some(row).ok_or(Damaged::Bytes)
    }
}

impl ScopeRow {
    /// The contents as they would be written.
    #[must_use]
    pub fn contents(&self) -> Contents {
        let mut contents = Contents::default();
        self.write_contents(&mut contents);
        contents
    }

    /// The same, in place of these.
    pub fn write_contents(&self, contents: &mut Contents) {
        let bytes = std::mem::take(&mut contents.0);
        let mut out = FieldWriter::over(bytes, &self.meta.unknown);
        out.field(tag::SCOPE, |bytes| bytes.extend(self.scope.to_body()));
        if let Some(known) = self.scope.estimate() {
            out.field(tag::ESTIMATE, |bytes| estimate::write(bytes, known));
        }
        contents.0 = out.finish();
    }

    /// The row with these contents.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.contents().to_scope_row(&self.meta)
    }

    /// Decodes a row, also a scope that was stored alone.
    pub fn from_bytes(bytes: &[u8]) -> Result<ScopeRow, Damaged> {
        if bytes.first() != Some(&FORMAT) {
            let scope = Scope::from_bytes(bytes)?;
            return Ok(ScopeRow {
                scope,
                ..ScopeRow::default()
            });
        }
        let (mut scope, mut known) = (None, None);
        let meta = read(FieldReader::open(bytes, SCOPE)?, |tag, bytes| {
            match tag {
                tag::SCOPE => scope = Some(Scope::from_body(bytes)?),
                tag::ESTIMATE => known = Some(estimate::read(bytes)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let scope = scope.ok_or(Damaged::Bytes)?.with_estimate(known);
        Ok(ScopeRow { scope, meta })
    }
}

impl Contents {
    /// A row of a cell with these contents.
    #[must_use]
    pub fn to_cell_row(&self, meta: &RowMeta) -> Vec<u8> {
        let mut row = Vec::new();
        self.write_cell_row(meta, &mut row);
        row
    }

    /// The same, in place of these bytes.
    pub fn write_cell_row(&self, meta: &RowMeta, row: &mut Vec<u8>) {
        self.write_row(CELL, meta, row);
    }

    /// A row of a scope with these contents.
    #[must_use]
    pub fn to_scope_row(&self, meta: &RowMeta) -> Vec<u8> {
        let mut row = Vec::new();
        self.write_scope_row(meta, &mut row);
        row
    }

    /// The same, in place of these bytes.
    pub fn write_scope_row(&self, meta: &RowMeta, row: &mut Vec<u8>) {
        self.write_row(SCOPE, meta, row);
    }

    fn write_row(&self, kind: u8, meta: &RowMeta, row: &mut Vec<u8>) {
        let RowVersion {
            owner,
            nonce,
            batch,
        } = meta.version;
        let mut bytes = std::mem::take(row);
        bytes.clear();
        bytes.reserve(self.0.len() + fields::OVERHEAD);
        bytes.extend([FORMAT, kind]);
        let mut out = FieldWriter::onto(bytes);
        out.field(tag::VERSION, |bytes| {
            fields::number(bytes, u64::from(owner.0));
            fields::number(bytes, nonce);
            fields::number(bytes, batch);
        });
        out.field(tag::TIME, |bytes| {
            fields::amount(bytes, meta.time.0);
            fields::number(bytes, meta.scale);
            if (meta.epoch, meta.revision) != (0, 0) {
                fields::number(bytes, meta.epoch);
                fields::number(bytes, meta.revision);
            }
        });
        let mut bytes = out.finish();
        bytes.extend_from_slice(&self.0);
        *row = sealed(bytes);
    }
}

/// Bytes with the checksum that a reader demands.
#[must_use]
pub fn sealed(bytes: Vec<u8>) -> Vec<u8> {
    fields::sealed(bytes)
}

/// Reads all fields; `known` takes those of the row's kind and says whether it knew them.
fn read(
    mut fields: FieldReader<'_>,
    mut known: impl FnMut(u64, &[u8]) -> Result<bool, Damaged>,
) -> Result<RowMeta, Damaged> {
    let mut meta = RowMeta::default();
    while let Some((tag, bytes)) = fields.next()? {
        let mut values = fields::Values(bytes);
        match tag {
            tag::VERSION => {
                let owner = u32::try_from(values.number()?).map_err(|_| Damaged::Bytes)?;
                meta.version = RowVersion {
                    owner: OwnerId(owner),
                    nonce: values.number()?,
                    batch: values.number()?,
                };
                values.end()?;
            }
            tag::TIME => {
                (meta.time, meta.scale) = (Micros(values.amount()?), values.number()?);
                if !values.0.is_empty() {
                    (meta.epoch, meta.revision) = (values.number()?, values.number()?);
                }
                values.end()?;
            }
            _ if known(tag, bytes)? => {}
            _ if tag % 2 == 1 => return Err(Damaged::UnknownField(tag)),
            _ => meta.unknown.push(UnknownField {
                tag,
                bytes: bytes.to_vec(),
            }),
        }
    }
    Ok(meta)
}

/// Owners that wait, as bytes: in a row, or beside it in a store that notes them.
pub(crate) fn write_waiters(bytes: &mut Vec<u8>, waiters: &[Waiter]) {
    for waiter in waiters.iter().take(WAITERS_MAX) {
        let priority = match waiter.priority {
            Priority::Low => 0,
            Priority::Normal => 1,
            Priority::High => 2,
        };
        let on_event = u8::from(waiter.on.is_event());
        bytes.push(priority | on_event << 2 | u8::from(waiter.is_woken) << 3);
        for amount in [
            u64::from(waiter.owner.0),
            waiter.cost,
            waiter.granted,
            waiter.since.0,
            waiter.due.0,
            waiter.until.0,
        ] {
            fields::amount(bytes, amount);
        }
    }
}

/// Reads what [`write_waiters`] wrote.
pub(crate) fn read_waiters(bytes: &[u8]) -> Result<Vec<Waiter>, Damaged> {
    let mut values = fields::Values(bytes);
    let mut waiters = Vec::new();
    while let Some(flags) = values.byte() {
        let priority = match flags & 3 {
            0 => Priority::Low,
            1 => Priority::Normal,
            2 => Priority::High,
            _ => return Err(Damaged::Bytes),
        };
        if flags > 15 || waiters.len() >= WAITERS_MAX {
            return Err(Damaged::Bytes);
        }
        let on = match flags & 4 {
            0 => WakeOn::Time,
            _ => WakeOn::Event,
        };
        let owner = u32::try_from(values.number()?).map_err(|_| Damaged::Bytes)?;
        waiters.push(Waiter {
            owner: OwnerId(owner),
            on,
            priority,
            cost: values.amount()?,
            granted: values.amount()?,
            since: Micros(values.amount()?),
            due: Micros(values.amount()?),
            until: Micros(values.amount()?),
            is_woken: flags & 8 != 0,
        });
    }
    Ok(waiters)
}
