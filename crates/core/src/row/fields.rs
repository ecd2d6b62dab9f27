//! Fields of a row: tag, length, bytes; and the numbers in them.
//!
//! Promises: reading never looks beyond the bytes and allocates nothing. Fields come in the order of
//! their tags, none twice.
//!
//! Never: knows what a field means.

use super::{FORMAT, UnknownField};
use crate::limit::Damaged;

/// Bytes of checksum at the end: damaged bytes pass once in four thousand million.
const CHECKSUM: usize = 4;

/// At most this many bytes are around the contents: format, kind, version, time, checksum.
pub(super) const OVERHEAD: usize = 64;

/// Most rows are smaller: a handful of calls and who waits. Larger ones grow.
const USUAL_SIZE: usize = 256;

/// The largest amount or time in a row, outside of a cell's own counters: exact also where numbers are
/// doubles.
pub(super) const EXACT_MAX: u64 = 1 << 53;

/// An amount or a time. A larger one counts as the largest, which is as good as for ever.
pub(super) fn amount(bytes: &mut Vec<u8>, value: u64) {
    number(bytes, value.min(EXACT_MAX));
}

/// Seven bits a byte, the lowest first; the high bit says that more follow.
pub(super) fn number(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push((value & 0x7f) as u8);
}

/// Bytes with their checksum.
pub(super) fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = blake3::hash(&bytes);
    bytes.extend_from_slice(&sum.as_bytes()[..CHECKSUM]);
    bytes
}

/// Writes fields, and the unknown ones of a former row between them.
pub(super) struct FieldWriter<'a> {
    bytes: Vec<u8>,
    unknown: &'a [UnknownField],
}

impl<'a> FieldWriter<'a> {
    /// In place of these bytes.
    pub(super) fn over(mut bytes: Vec<u8>, unknown: &'a [UnknownField]) -> FieldWriter<'a> {
        bytes.clear();
        bytes.reserve(USUAL_SIZE);
        FieldWriter { bytes, unknown }
    }

    /// Behind these bytes, without unknown fields.
    pub(super) fn onto(bytes: Vec<u8>) -> FieldWriter<'a> {
        FieldWriter {
            bytes,
            unknown: &[],
        }
    }

    pub(super) fn field(&mut self, tag: u64, write: impl FnOnce(&mut Vec<u8>)) {
        self.unknown_before(tag);
        number(&mut self.bytes, tag);
        let start = self.bytes.len();
        write(&mut self.bytes);
        let end = self.bytes.len();
        // The length is known now, and belongs before what it measures.
        number(&mut self.bytes, (end - start) as u64);
        let length = self.bytes.len() - end;
        self.bytes[start..].rotate_right(length);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.unknown_before(u64::MAX);
        self.bytes
    }

    fn unknown_before(&mut self, tag: u64) {
        while let Some((field, rest)) = self.unknown.split_first() {
            if field.tag >= tag {
                break;
            }
            number(&mut self.bytes, field.tag);
            number(&mut self.bytes, field.bytes.len() as u64);
            self.bytes.extend_from_slice(&field.bytes);
            self.unknown = rest;
        }
    }
}

/// Reads the fields of a row.
pub(super) struct FieldReader<'a> {
    rest: Values<'a>,
    last: u64,
}

impl<'a> FieldReader<'a> {
    /// The fields of a row of this kind, if its checksum is right.
    pub(super) fn open(bytes: &'a [u8], kind: u8) -> Result<FieldReader<'a>, Damaged> {
        let (body, sum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(Damaged::Bytes)?;
        if blake3::hash(body).as_bytes()[..CHECKSUM] != sum[..] {
            return Err(Damaged::Bytes);
        }
        match body {
            [FORMAT, found, fields @ ..] if *found == kind => Ok(FieldReader {
                rest: Values(fields),
                last: 0,
            }),
            _ => Err(Damaged::Bytes),
        }
    }

    /// The next field.
    pub(super) fn next(&mut self) -> Result<Option<(u64, &'a [u8])>, Damaged> {
        if self.rest.0.is_empty() {
            return Ok(None);
        }
        let tag = self.rest.number()?;
        let length = usize::try_from(self.rest.number()?).map_err(|_| Damaged::Bytes)?;
        if tag <= self.last {
            return Err(Damaged::Bytes);
        }
        let (bytes, rest) = self.rest.0.split_at_checked(length).ok_or(Damaged::Bytes)?;
        (self.rest, self.last) = (Values(rest), tag);
        Ok(Some((tag, bytes)))
    }
}

/// The values in a field.
pub(super) struct Values<'a>(pub(super) &'a [u8]);

impl Values<'_> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    /// An amount or a time, as `amount` writes it.
    pub(super) fn amount(&mut self) -> Result<u64, Damaged> {
        let value = self.number()?;
        (value <= EXACT_MAX).then_some(value).ok_or(Damaged::Bytes)
    }

    pub(super) fn number(&mut self) -> Result<u64, Damaged> {
        let mut value: u64 = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte().ok_or(Damaged::Bytes)?;
            let part = u64::from(byte & 0x7f);
            // The last of ten bytes has room for one bit only.
            if shift == 63 && part > 1 {
                return Err(Damaged::Bytes);
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Damaged::Bytes)
    }

    /// Nothing is left over.
    pub(super) fn end(&self) -> Result<(), Damaged> {
        self.0.is_empty().then_some(()).ok_or(Damaged::Bytes)
    }
}
