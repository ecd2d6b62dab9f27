//! The estimated limit of a scope, as the bytes of a field.
//!
//! Promises: an estimate reads back as it was written, as far as amounts and times are exact; any bytes
//! are an estimate or [`Damaged`].
//!
//! Never: decides.

use super::fields::{Values, amount, number};
use crate::ask::{OwnerId, PermitId};
use crate::limit::Damaged;
use crate::rate::Rate;
use crate::scope::estimate::{EstimatePhase, FirstCall, PacedRate, RateEstimate, SlowStart};
use crate::time::Micros;

/// The layout: a later one gets another number.
const LAYOUT: u8 = 1;

const NEEDED: u8 = 0;
const SENT: u8 = 1;
const ACCEPTED: u8 = 2;
const SLOW_START: u8 = 0;
const PACED: u8 = 1;

pub(super) fn write(bytes: &mut Vec<u8>, known: &RateEstimate) {
    let (first, phase) = (known.first, known.phase);
    bytes.push(LAYOUT);
    for at in [known.limited_at, known.reopens_at, known.since] {
        amount(bytes, at.0);
    }
    amount(bytes, known.accepted);
    amount(bytes, known.taken);
    match first {
        FirstCall::Needed => bytes.push(NEEDED),
        FirstCall::Sent { permit, until } => {
            bytes.push(SENT);
            number(bytes, u64::from(permit.owner.0));
            number(bytes, permit.seq);
            amount(bytes, until.0);
        }
        FirstCall::Accepted => bytes.push(ACCEPTED),
    }
    match phase {
        EstimatePhase::SlowStart(start) => {
            bytes.push(SLOW_START);
            for count in [start.at_a_time, start.free, start.accepted] {
                number(bytes, u64::from(count));
            }
            amount(bytes, start.taken_at.0);
            bytes.push(u8::from(start.was_full));
        }
        EstimatePhase::Paced(pace) => {
            bytes.push(PACED);
            amount(bytes, pace.rate.millionths());
            amount(bytes, pace.step.millionths());
            amount(bytes, pace.raised_at.0);
            amount(bytes, pace.next_at.0);
            bytes.push(u8::from(pace.is_tight));
        }
    }
}

pub(super) fn read(bytes: &[u8]) -> Result<RateEstimate, Damaged> {
    let mut values = Values(bytes);
    match values.byte() {
        Some(LAYOUT) => {}
        Some(newer) => return Err(Damaged::Newer(newer)),
        None => return Err(Damaged::Bytes),
    }
    let estimate = RateEstimate {
        limited_at: instant(&mut values)?,
        reopens_at: instant(&mut values)?,
        since: instant(&mut values)?,
        accepted: values.amount()?,
        taken: values.amount()?,
        first: first(&mut values)?,
        phase: phase(&mut values)?,
    };
    values.end()?;
    Ok(estimate)
}

fn first(values: &mut Values<'_>) -> Result<FirstCall, Damaged> {
    Ok(match values.byte() {
        Some(NEEDED) => FirstCall::Needed,
        Some(SENT) => FirstCall::Sent {
            permit: PermitId {
                owner: OwnerId(count(values)?),
                seq: values.number()?,
            },
            until: instant(values)?,
        },
        Some(ACCEPTED) => FirstCall::Accepted,
        Some(_) | None => return Err(Damaged::Bytes),
    })
}

fn phase(values: &mut Values<'_>) -> Result<EstimatePhase, Damaged> {
    Ok(match values.byte() {
        Some(SLOW_START) => EstimatePhase::SlowStart(SlowStart {
            at_a_time: count(values)?,
            free: count(values)?,
            accepted: count(values)?,
            taken_at: instant(values)?,
            was_full: flag(values)?,
        }),
        Some(PACED) => EstimatePhase::Paced(PacedRate {
            rate: Rate::from_millionths(values.amount()?),
            step: Rate::from_millionths(values.amount()?),
            raised_at: instant(values)?,
            next_at: instant(values)?,
            is_tight: flag(values)?,
        }),
        Some(_) | None => return Err(Damaged::Bytes),
    })
}

fn instant(values: &mut Values<'_>) -> Result<Micros, Damaged> {
    values.amount().map(Micros)
}

fn count(values: &mut Values<'_>) -> Result<u32, Damaged> {
    u32::try_from(values.number()?).map_err(|_| Damaged::Bytes)
}

fn flag(values: &mut Values<'_>) -> Result<bool, Damaged> {
    match values.byte() {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        Some(_) | None => Err(Damaged::Bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::super::ScopeRow;
    use super::*;
    use crate::scope::Scope;
    use crate::time::Span;

    fn every_estimate() -> Vec<RateEstimate> {
        let permit = PermitId {
            owner: OwnerId(3),
            seq: u64::MAX,
        };
        let new = RateEstimate::new(Micros(5), Micros(900));
        let mut sent = new;
        sent.take(permit, Micros(1_000), Micros(2_000));
        let mut accepted = sent;
        accepted.on_accepted(permit, Micros(1_100));
        let mut paced = accepted;
        for _ in 0..2 {
            paced.take(permit, Micros(1_200), Micros(2_000));
        }
        paced.on_limited(
            Micros(1_200),
            Micros(1_300),
            Micros(1_300) + Span::from_secs(2),
        );
        assert!(paced.rate().is_some());
        vec![new, sent, accepted, paced]
    }

    fn bytes_of(estimate: &RateEstimate) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, estimate);
        bytes
    }

    #[test]
    fn an_estimate_reads_back_as_it_was_written() {
        for estimate in every_estimate() {
            assert_eq!(read(&bytes_of(&estimate)), Ok(estimate));
        }
    }

    /// The field is optional: a row without it is that of a program that knows no estimates.
    #[test]
    fn a_row_has_the_field_only_where_there_is_an_estimate() {
        let plain = ScopeRow::default();
        for estimate in every_estimate() {
            let row = ScopeRow {
                scope: Scope::default().with_estimate(Some(estimate)),
                ..ScopeRow::default()
            };
            assert_eq!(ScopeRow::from_bytes(&row.to_bytes()), Ok(row.clone()));
            assert!(row.to_bytes().len() > plain.to_bytes().len());
        }
        assert_eq!(ScopeRow::from_bytes(&plain.to_bytes()), Ok(plain));
    }

    #[test]
    fn other_bytes_are_no_estimate() {
        for estimate in every_estimate() {
            let bytes = bytes_of(&estimate);
            for length in 0..bytes.len() {
                assert!(read(&bytes[..length]).is_err());
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(read(&longer), Err(Damaged::Bytes));
            let newer = [&[LAYOUT + 1], &bytes[1..]].concat();
            assert_eq!(read(&newer), Err(Damaged::Newer(LAYOUT + 1)));
        }
    }
}
