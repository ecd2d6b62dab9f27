//! The wire format of protobuf: fields in, fields out.
//!
//! Written by hand: the five messages of this protocol have twenty fields, and a request is read in place,
//! without a copy of its texts.
//!
//! Promises: reads any bytes without panic and without allocation. Fields that a message does not know
//! are skipped.
//!
//! Never: recurses; a message inside a message is read by its own reader.

use bytes::BufMut;

/// The bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is not valid protobuf")]
pub(super) struct Malformed;

/// Reads the fields of a message.
#[derive(Clone, Debug)]
pub(super) struct FieldReader<'a> {
    rest: &'a [u8],
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldValue<'a> {
    /// A number or a boolean.
    Number(u64),
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
    /// Of a fixed length; no message of ours has one.
    Fixed,
}

impl<'a> FieldReader<'a> {
    pub(super) fn new(message: &'a [u8]) -> FieldReader<'a> {
        FieldReader { rest: message }
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for at in 0..10_u32 {
            let byte = *self.take(1)?.first().ok_or(Malformed)?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if at == 9 && bits > 1 {
                return Err(Malformed);
            }
            value |= bits << (7 * at);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u64, FieldValue<'a>), Malformed> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => FieldValue::Number(self.varint()?),
            1 => self.take(8).map(|_| FieldValue::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                FieldValue::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| FieldValue::Fixed)?,
            // Groups are not part of proto3.
            _ => return Err(Malformed),
        };
        match tag >> 3 {
            0 => Err(Malformed),
            number => Ok((number, value)),
        }
    }
}

impl<'a> Iterator for FieldReader<'a> {
    type Item = Result<(u64, FieldValue<'a>), Malformed>;

    /// Ends after the first error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> FieldValue<'a> {
    pub(super) fn number(self) -> Result<u64, Malformed> {
        match self {
            FieldValue::Number(number) => Ok(number),
            FieldValue::Bytes(_) | FieldValue::Fixed => Err(Malformed),
        }
    }

    /// A `uint32`: readers keep the low half of a longer number.
    pub(super) fn small_number(self) -> Result<u32, Malformed> {
        let number = self.number()? & u64::from(u32::MAX);
        u32::try_from(number).map_err(|_| Malformed)
    }

    pub(super) fn text(self) -> Result<&'a str, Malformed> {
        match self {
            FieldValue::Bytes(bytes) => std::str::from_utf8(bytes).map_err(|_| Malformed),
            FieldValue::Number(_) | FieldValue::Fixed => Err(Malformed),
        }
    }

    pub(super) fn message(self) -> Result<FieldReader<'a>, Malformed> {
        match self {
            FieldValue::Bytes(bytes) => Ok(FieldReader::new(bytes)),
            FieldValue::Number(_) | FieldValue::Fixed => Err(Malformed),
        }
    }
}

/// Writes the fields of a message. Fields with their default value are left out, as proto3 does.
#[derive(Debug, Default)]
pub(super) struct FieldWriter {
    bytes: Vec<u8>,
}

impl FieldWriter {
    /// A message behind the prefix of gRPC, whose length [`FieldWriter::into_frame`] sets.
    pub(super) fn frame() -> FieldWriter {
        let mut bytes = Vec::with_capacity(512);
        bytes.extend_from_slice(&[0; FRAME_PREFIX]);
        FieldWriter { bytes }
    }

    /// The frame of an uncompressed message.
    pub(super) fn into_frame(mut self) -> Vec<u8> {
        let length = self.bytes.len().saturating_sub(FRAME_PREFIX);
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        if let Some(prefix) = self.bytes.get_mut(..FRAME_PREFIX) {
            let mut prefix = prefix;
            prefix.put_u8(0);
            prefix.put_u32(length);
        }
        self.bytes
    }

    pub(super) fn number(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value);
        }
    }

    pub(super) fn bytes(&mut self, field: u64, value: &[u8]) {
        if !value.is_empty() {
            self.delimited(field, value);
        }
    }

    /// A message inside this one; there even if it is empty.
    pub(super) fn message(&mut self, field: u64, write: impl FnOnce(&mut FieldWriter)) {
        let mut inner = FieldWriter::default();
        write(&mut inner);
        self.delimited(field, &inner.bytes);
    }

    fn delimited(&mut self, field: u64, value: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(low_bits(value) | 0x80);
            value >>= 7;
        }
        self.bytes.push(low_bits(value));
    }
}

/// A flag for compression and the length of the message.
pub(super) const FRAME_PREFIX: usize = 5;

fn low_bits(value: u64) -> u8 {
    u8::try_from(value & 0x7f).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut writer = FieldWriter::default();
        writer.number(1, u64::MAX);
        writer.number(2, 0);
        writer.bytes(3, "text".as_bytes());
        writer.message(400, |inner| inner.number(1, 300));
        let fields: Vec<_> = FieldReader::new(&writer.bytes)
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(
            fields,
            [
                (1, FieldValue::Number(u64::MAX)),
                (3, FieldValue::Bytes(b"text")),
                (400, FieldValue::Bytes(&[8, 172, 2])),
            ]
        );
    }

    /// Any bytes end, with fields or with an error: here all of up to two bytes, and what follows a
    /// field of each kind.
    #[test]
    fn any_bytes_are_read_without_panic() {
        for first in 0..=u8::MAX {
            for second in 0..=u8::MAX {
                for message in [&[first, second][..], &[first, second, 0x80, 0x80]] {
                    let read = FieldReader::new(message);
                    assert!(read.count() <= 4, "{message:?}");
                }
            }
        }
        let too_long = [0xff; 11];
        assert_eq!(FieldReader::new(&too_long).next(), Some(Err(Malformed)));
        let beyond = [
            0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
        ];
        assert_eq!(FieldReader::new(&beyond).next(), Some(Err(Malformed)));
    }
}
