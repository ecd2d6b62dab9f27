//! The rows that only networked stores have: one per provider, and one per owner.
//!
//! Promises: as every row. The owner's row holds nothing but its version: the last batch of that
//! owner that the store has taken, so that no batch is applied twice.
//!
//! Never: decides.

use super::fields::{self, FieldReader, FieldWriter};
use super::{Contents, RowMeta, read, tag};
use crate::limit::Damaged;
use crate::time::Micros;

const PROVIDER: u8 = 3;
const OWNER: u8 = 4;

/// What may have been lost before the present epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// When it was noticed that rows may be lost; `None`: nothing was ever lost.
    pub at: Option<Micros>,
    /// Everything is gone, not only what was written last.
    pub is_all: bool,
}

/// One per provider: what a missing row means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderRow {
    /// What was lost.
    pub loss: Loss,
    /// Where it comes from.
    pub meta: RowMeta,
}

/// One per owner: which of its batches was the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerRow {
    /// Where it comes from: its version is the batch.
    pub meta: RowMeta,
}

impl ProviderRow {
    /// The contents as they would be written.
    #[must_use]
    pub fn contents(&self) -> Contents {
        let mut out = FieldWriter::over(Vec::new(), &self.meta.unknown);
        out.field(tag::LOSS, |bytes| {
            bytes.push(u8::from(self.loss.is_all));
            if let Some(at) = self.loss.at {
                fields::number(bytes, at.0);
            }
        });
        Contents(out.finish())
    }

    /// The row as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut row = Vec::new();
        self.contents().write_row(PROVIDER, &self.meta, &mut row);
        row
    }

    /// Decodes a row.
    pub fn from_bytes(bytes: &[u8]) -> Result<ProviderRow, Damaged> {
        let mut found = None;
        let meta = read(FieldReader::open(bytes, PROVIDER)?, |tag, bytes| {
            if tag == tag::LOSS {
                found = Some(read_loss(bytes)?);
            }
            Ok(tag == tag::LOSS)
        })?;
        let loss = found.ok_or(Damaged::Bytes)?;
        Ok(ProviderRow { loss, meta })
    }
}

impl OwnerRow {
    /// The row as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let contents = Contents(FieldWriter::over(Vec::new(), &self.meta.unknown).finish());
        let mut row = Vec::new();
        contents.write_row(OWNER, &self.meta, &mut row);
        row
    }

    /// Decodes a row.
    pub fn from_bytes(bytes: &[u8]) -> Result<OwnerRow, Damaged> {
        let meta = read(FieldReader::open(bytes, OWNER)?, |_, _| Ok(false))?;
        Ok(OwnerRow { meta })
    }
}

fn read_loss(bytes: &[u8]) -> Result<Loss, Damaged> {
    let mut values = fields::Values(bytes);
    let is_all = match values.byte() {
        Some(0) => false,
        Some(1) => true,
        Some(_) | None => return Err(Damaged::Bytes),
    };
    let at = match values.0.is_empty() {
        true => None,
        false => Some(Micros(values.number()?)),
    };
    values.end()?;
    Ok(Loss { at, is_all })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::OwnerId;
    use crate::row::{CellRow, RowVersion};

    fn meta() -> RowMeta {
        RowMeta {
            version: RowVersion {
                owner: OwnerId(3),
                nonce: u64::MAX,
                batch: 9,
            },
            time: Micros(1 << 50),
            epoch: 7,
            revision: 300,
            ..RowMeta::default()
        }
    }

    #[test]
    fn rows_of_providers_and_owners_read_back_as_they_were_written() {
        for at in [None, Some(Micros(0)), Some(Micros(u64::MAX))] {
            for is_all in [false, true] {
                let row = ProviderRow {
                    loss: Loss { at, is_all },
                    meta: meta(),
                };
                assert_eq!(ProviderRow::from_bytes(&row.to_bytes()), Ok(row));
            }
        }
        let row = OwnerRow { meta: meta() };
        assert_eq!(OwnerRow::from_bytes(&row.to_bytes()), Ok(row.clone()));
        assert!(ProviderRow::from_bytes(&row.to_bytes()).is_err());
        assert!(CellRow::from_bytes(&row.to_bytes()).is_err());
    }

    #[test]
    fn a_cell_keeps_its_epoch_and_revision() {
        let row = CellRow {
            meta: meta(),
            ..CellRow::default()
        };
        let read = CellRow::from_bytes(&row.to_bytes()).expect("a row");
        assert_eq!(read.meta, meta());
    }

    #[test]
    fn damaged_rows_are_not_guessed() {
        let bytes = ProviderRow::default().to_bytes();
        for cut in 0..bytes.len() {
            assert!(ProviderRow::from_bytes(&bytes[..cut]).is_err());
        }
        assert!(read_loss(&[2]).is_err());
        assert!(read_loss(&[]).is_err());
    }
}
