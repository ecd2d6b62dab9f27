//! The rows that only networked stores have: one per provider, and one per owner.
//!
//! Promises: as every row. The owner's row holds its version: the last batch of that owner that the
//! store has taken, so that no batch is applied twice; and if it may use a share of the limits
//! without the store, since when it is known to be there.
//!
//! Never: decides.

use super::fields::{self, FieldReader, FieldWriter};
use super::{Contents, RowMeta, read, tag};
use crate::ask::OwnerId;
use crate::limit::Damaged;
use crate::time::{Micros, Span};

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

impl Loss {
    /// Was everything lost, at a time that is known?
    #[must_use]
    pub fn is_total(&self) -> bool {
        self.is_all && self.at.is_some()
    }
}

/// The process that wrote a provider's row first. A wiped store in which another process has
/// started anew has another one, although it has rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation {
    /// The owner.
    pub owner: OwnerId,
    /// A number that no other process of this owner's number has.
    pub nonce: u64,
}

/// One per provider: what a missing row means, and which rows were written before a loss was
/// noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderRow {
    /// What was lost.
    pub loss: Loss,
    /// Who wrote it first; `None`: a program that did not note it.
    pub incarnation: Option<Incarnation>,
    /// How often everything was lost. A cell that was written under another number is used up for
    /// one period: others may have written it before the loss was noticed.
    pub losses: u64,
    /// How often somebody wrote who did not know the store's clock from before: a node that joined
    /// without any knowledge of it, or one that saw it step. What a host remembers of the
    /// clock counts only while this stays.
    pub clock_changes: u64,
    /// The nodes that may use a share of each limit without the store, at most [`MEMBERS_MAX`].
    pub members: Vec<ShareMember>,
    /// Where it comes from.
    pub meta: RowMeta,
}

/// Nodes that may use a share: more than any store of this kind serves.
pub const MEMBERS_MAX: usize = 1_024;

/// A node that may use a share of each limit without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareMember {
    /// The node: the same for the next process that stands in for this one.
    pub node: u64,
    /// Its process now, whose row says when it was there last.
    pub owner: OwnerId,
    /// See `owner`.
    pub process: u64,
    /// Of so many shares it has one.
    pub nodes: u32,
    /// How long it counts as there after it was.
    pub lease: Span,
}

/// Since when a node that may use a share is known to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharePresence {
    /// It had the store then.
    pub renewed: Micros,
    /// It may have used its share until then.
    pub returned: Option<Micros>,
}

/// One per owner: which of its batches was the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerRow {
    /// `None`: it uses no share.
    pub presence: Option<SharePresence>,
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
        if let Some(Incarnation { owner, nonce }) = self.incarnation {
            out.field(tag::INCARNATION, |bytes| {
                fields::number(bytes, u64::from(owner.0));
                fields::number(bytes, nonce);
                fields::number(bytes, self.losses);
            });
        }
        if self.clock_changes > 0 {
            out.field(tag::CLOCK_CHANGES, |bytes| {
                fields::number(bytes, self.clock_changes);
            });
        }
        if !self.members.is_empty() {
            out.field(tag::MEMBERS, |bytes| {
                for member in self.members.iter().take(MEMBERS_MAX) {
                    let ShareMember {
                        node,
                        owner: OwnerId(owner),
                        process,
                        nodes,
                        lease,
                    } = *member;
                    let (owner, nodes) = (u64::from(owner), u64::from(nodes));
                    for number in [node, owner, process, nodes, lease.0] {
                        fields::number(bytes, number);
                    }
                }
            });
        }
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
        let (mut found, mut incarnation, mut losses) = (None, None, 0);
        let (mut clock_changes, mut members) = (0, Vec::new());
        let meta = read(FieldReader::open(bytes, PROVIDER)?, |tag, bytes| {
            match tag {
                tag::LOSS => found = Some(read_loss(bytes)?),
                tag::INCARNATION => {
                    let (read, times) = read_incarnation(bytes)?;
                    (incarnation, losses) = (Some(read), times);
                }
                tag::CLOCK_CHANGES => {
                    let mut values = fields::Values(bytes);
                    clock_changes = values.number()?;
                    values.end()?;
                }
                tag::MEMBERS => members = read_members(bytes)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(ProviderRow {
            loss: found.ok_or(Damaged::Bytes)?,
            incarnation,
            losses,
            clock_changes,
            members,
            meta,
        })
    }
}

impl OwnerRow {
    /// The row as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = FieldWriter::over(Vec::new(), &self.meta.unknown);
        if let Some(SharePresence { renewed, returned }) = self.presence {
            out.field(tag::REGISTRATION, |bytes| {
                fields::number(bytes, renewed.0);
                if let Some(at) = returned {
                    fields::number(bytes, at.0);
                }
            });
        }
        let mut row = Vec::new();
        Contents(out.finish()).write_row(OWNER, &self.meta, &mut row);
        row
    }

    /// Decodes a row.
    pub fn from_bytes(bytes: &[u8]) -> Result<OwnerRow, Damaged> {
        let mut presence = None;
        let meta = read(FieldReader::open(bytes, OWNER)?, |tag, bytes| {
            if tag != tag::REGISTRATION {
                return Ok(false);
            }
            let mut values = fields::Values(bytes);
            presence = Some(SharePresence {
                renewed: Micros(values.number()?),
                returned: match values.0.is_empty() {
                    true => None,
                    false => Some(Micros(values.number()?)),
                },
            });
            values.end()?;
            Ok(true)
        })?;
        Ok(OwnerRow { presence, meta })
    }
}

/// One a microsecond for two centuries, and one more can always be counted.
const LOSSES_MAX: u64 = 1 << 53;

fn read_incarnation(bytes: &[u8]) -> Result<(Incarnation, u64), Damaged> {
    let mut values = fields::Values(bytes);
    let owner = u32::try_from(values.number()?).map_err(|_| Damaged::Bytes)?;
    let incarnation = Incarnation {
        owner: OwnerId(owner),
        nonce: values.number()?,
    };
    let losses = values.number()?;
    values.end()?;
    if losses >= LOSSES_MAX {
        return Err(Damaged::Bytes);
    }
    Ok((incarnation, losses))
}

fn read_members(bytes: &[u8]) -> Result<Vec<ShareMember>, Damaged> {
    let mut values = fields::Values(bytes);
    let mut members = Vec::new();
    let narrow = |number: u64| u32::try_from(number).map_err(|_| Damaged::Bytes);
    while !values.0.is_empty() {
        if members.len() >= MEMBERS_MAX {
            return Err(Damaged::Bytes);
        }
        members.push(ShareMember {
            node: values.number()?,
            owner: OwnerId(narrow(values.number()?)?),
            process: values.number()?,
            nodes: narrow(values.number()?)?,
            lease: Span(values.number()?),
        });
    }
    Ok(members)
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
                let mut row = ProviderRow {
                    loss: Loss { at, is_all },
                    meta: meta(),
                    ..ProviderRow::default()
                };
                assert_eq!(ProviderRow::from_bytes(&row.to_bytes()), Ok(row.clone()));
                row.incarnation = Some(Incarnation {
                    owner: OwnerId(u32::MAX),
                    nonce: u64::MAX,
                });
                row.losses = 300;
                assert_eq!(ProviderRow::from_bytes(&row.to_bytes()), Ok(row.clone()));
                row.clock_changes = u64::MAX;
                assert_eq!(ProviderRow::from_bytes(&row.to_bytes()), Ok(row.clone()));
                let member = ShareMember {
                    node: u64::MAX,
                    owner: OwnerId(u32::MAX),
                    process: u64::MAX,
                    nodes: u32::MAX,
                    lease: Span(u64::MAX),
                };
                row.members = vec![member; 2];
                assert_eq!(ProviderRow::from_bytes(&row.to_bytes()), Ok(row));
            }
        }
        let mut row = OwnerRow {
            meta: meta(),
            presence: None,
        };
        for returned in [None, Some(Micros(u64::MAX))] {
            assert_eq!(OwnerRow::from_bytes(&row.to_bytes()), Ok(row.clone()));
            let renewed = Micros(7);
            row.presence = Some(SharePresence { renewed, returned });
        }
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
