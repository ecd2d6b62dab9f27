//! Commands in bytes: arrays of bulk strings, and lines for people with a terminal.
//!
//! Promises: pure; what is parsed does not depend on how the bytes were cut. Every size has a cap,
//! and a command that breaks one is rejected as soon as its length is known. A command that is not
//! complete says how many bytes it needs at least, so that it is not parsed again for every byte.
//!
//! Never: copies an argument of an array, or panics for any input.

use smallvec::SmallVec;

/// The longest line: as Redis has it.
const LINE_MAX: usize = 64 * 1_024;

/// The most digits of a length: a longer number is above every cap.
const DIGITS_MAX: usize = 10;

/// Up to so many bytes every byte is worth a look: it costs little, and a mistake is found at once.
const LOOK_ALWAYS: usize = 512;

/// The shortest argument: `$0`, and an empty line.
const ARGUMENT_MIN: usize = 6;

/// The largest command that is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandCaps {
    /// Arguments, the name included.
    pub arguments: usize,
    /// Bytes of one argument.
    pub argument: usize,
    /// Bytes of the whole command.
    pub command: usize,
}

impl CommandCaps {
    /// For clients that are let in. The largest command is a report with the 512 headers of a
    /// response and 64 KiB of its body. 4,096 connections that all hold such a command are 512 MiB.
    pub const FULL: CommandCaps = CommandCaps {
        arguments: 2_048,
        argument: 64 * 1_024,
        command: 128 * 1_024,
    };

    /// For clients that have not said who they are: as Redis has it, enough for `HELLO` with
    /// everything.
    pub const STRANGER: CommandCaps = CommandCaps {
        arguments: 10,
        argument: 16 * 1_024,
        command: 64 * 1_024,
    };
}

/// Why bytes are not a command. The connection cannot go on: nobody knows where the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The number of arguments is no number, or above the cap.
    #[error("Protocol error: invalid multibulk length")]
    ArrayLength,
    /// The length of an argument is no number, or above the cap.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// An argument is not a bulk string.
    #[error("Protocol error: expected '$', got another type; commands are arrays of bulk strings")]
    NotBulk,
    /// A bulk string does not end where its length says.
    #[error("Protocol error: a bulk string is longer than its length says")]
    BulkEnd,
    /// The whole command is above the cap.
    #[error("Protocol error: too big command; one has at most 131072 bytes")]
    TooBig,
    /// A line is above the cap.
    #[error("Protocol error: too big inline request")]
    LineTooBig,
    /// A quote of a line does not end.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
}

/// What the bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A command of so many bytes; its arguments are in [`Arguments`]. None is an empty line or
    /// array, which is skipped.
    Command {
        /// Its length.
        used: usize,
    },
    /// The beginning of a command.
    Incomplete {
        /// How many bytes there must be before it is worth another look; more than there are.
        needed: usize,
    },
}

/// Where the arguments of a command are. Used again for the next one.
#[derive(Debug, Default)]
pub struct Arguments {
    ranges: SmallVec<[(usize, usize); 8]>,
    /// The arguments of a line, without their quotes.
    line: Vec<u8>,
    is_line: bool,
}

/// A command: its name and its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    bytes: &'a [u8],
    ranges: &'a [(usize, usize)],
    is_line: bool,
}

impl Arguments {
    /// The command that was parsed from these bytes.
    #[must_use]
    pub fn of<'a>(&'a self, input: &'a [u8]) -> Command<'a> {
        Command {
            bytes: if self.is_line { &self.line } else { input },
            ranges: &self.ranges,
            is_line: self.is_line,
        }
    }
}

impl<'a> Command<'a> {
    /// An argument; 0 is the name.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&'a [u8]> {
        let (start, end) = *self.ranges.get(at)?;
        self.bytes.get(start..end)
    }

    /// The name; empty if there is no command.
    #[must_use]
    pub fn name(&self) -> &'a [u8] {
        self.get(0).unwrap_or_default()
    }

    /// The number of arguments, the name included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there is no command: an empty line or array.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// It came as a line.
    #[must_use]
    pub fn is_line(&self) -> bool {
        self.is_line
    }
}

/// Parses the first command.
///
/// # Errors
/// The bytes are no command, or one above a cap.
pub fn parse(
    input: &[u8],
    caps: &CommandCaps,
    arguments: &mut Arguments,
) -> Result<Parsed, ProtocolError> {
    arguments.ranges.clear();
    arguments.is_line = false;
    match input.first() {
        None => Ok(Parsed::Incomplete { needed: 1 }),
        Some(b'*') => array(input, caps, arguments),
        Some(_) => line(input, caps, arguments),
    }
}

fn array(
    input: &[u8],
    caps: &CommandCaps,
    arguments: &mut Arguments,
) -> Result<Parsed, ProtocolError> {
    let (count, mut at) = match length(input, 1, ProtocolError::ArrayLength)? {
        Length::Known { value, next } => (value.unwrap_or(0), next),
        Length::Incomplete => return Ok(incomplete(input, 0)),
    };
    if count > caps.arguments {
        return Err(ProtocolError::ArrayLength);
    }
    for done in 0..count {
        let missing = (count - done).saturating_mul(ARGUMENT_MIN);
        match input.get(at) {
            None => return Ok(incomplete(input, at + missing)),
            Some(b'$') => {}
            Some(_) => return Err(ProtocolError::NotBulk),
        }
        let (size, start) = match length(input, at + 1, ProtocolError::BulkLength)? {
            Length::Known { value, next } => (value.ok_or(ProtocolError::BulkLength)?, next),
            Length::Incomplete => return Ok(incomplete(input, at + missing)),
        };
        if size > caps.argument {
            return Err(ProtocolError::BulkLength);
        }
        let end = start + size;
        if end > caps.command {
            return Err(ProtocolError::TooBig);
        }
        match input.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(ProtocolError::BulkEnd),
            None => return Ok(incomplete(input, end + 2 + missing - ARGUMENT_MIN)),
        }
        arguments.ranges.push((start, end));
        at = end + 2;
    }
    Ok(Parsed::Command { used: at })
}

fn incomplete(input: &[u8], needed: usize) -> Parsed {
    let next = input.len() + 1;
    let needed = if next > LOOK_ALWAYS {
        needed.max(next)
    } else {
        next
    };
    Parsed::Incomplete { needed }
}

enum Length {
    /// `None` = -1, which stands for nothing.
    Known {
        value: Option<usize>,
        next: usize,
    },
    Incomplete,
}

/// A number and the end of its line.
#[inline]
fn length(input: &[u8], start: usize, wrong: ProtocolError) -> Result<Length, ProtocolError> {
    let mut value = 0_usize;
    let mut at = start;
    loop {
        match input.get(at) {
            None => return Ok(Length::Incomplete),
            Some(digit @ b'0'..=b'9') if at - start < DIGITS_MAX => {
                value = value * 10 + usize::from(digit - b'0');
                at += 1;
            }
            Some(b'\r') if at > start => break,
            Some(b'-') if at == start => return nothing(input, at, wrong),
            Some(_) => return Err(wrong),
        }
    }
    match input.get(at + 1) {
        None => Ok(Length::Incomplete),
        Some(b'\n') => Ok(Length::Known {
            value: Some(value),
            next: at + 2,
        }),
        Some(_) => Err(wrong),
    }
}

/// `-1`: nothing, in place of a length.
fn nothing(input: &[u8], at: usize, wrong: ProtocolError) -> Result<Length, ProtocolError> {
    let expected = b"-1\r\n";
    let found = input.get(at..).unwrap_or_default();
    let seen = found.len().min(expected.len());
    if found.get(..seen) != expected.get(..seen) {
        return Err(wrong);
    }
    Ok(if seen < expected.len() {
        Length::Incomplete
    } else {
        Length::Known {
            value: None,
            next: at + expected.len(),
        }
    })
}

/// A line of words, some of them perhaps quoted.
fn line(
    input: &[u8],
    caps: &CommandCaps,
    arguments: &mut Arguments,
) -> Result<Parsed, ProtocolError> {
    let seen = input.get(..LINE_MAX.min(input.len())).unwrap_or_default();
    let Some(end) = memchr::memchr(b'\n', seen) else {
        if input.len() >= LINE_MAX {
            return Err(ProtocolError::LineTooBig);
        }
        return Ok(incomplete(input, 0));
    };
    let text = input.get(..end).unwrap_or_default();
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    arguments.is_line = true;
    arguments.line.clear();
    let mut rest = text;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Ok(Parsed::Command { used: end + 1 });
        }
        if arguments.ranges.len() >= caps.arguments {
            return Err(ProtocolError::LineTooBig);
        }
        let start = arguments.line.len();
        rest = word(rest, &mut arguments.line)?;
        arguments.ranges.push((start, arguments.line.len()));
    }
}

/// Copies one word without its quotes; the bytes behind it.
fn word<'a>(text: &'a [u8], into: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        match first {
            byte if byte.is_ascii_whitespace() => break,
            b'"' | b'\'' => {
                rest = quoted(after, *first, into)?;
                // A quote ends its word.
                return match rest.first() {
                    Some(byte) if !byte.is_ascii_whitespace() => Err(ProtocolError::Quotes),
                    _ => Ok(rest),
                };
            }
            byte => {
                into.push(*byte);
                rest = after;
            }
        }
    }
    Ok(rest)
}

/// The bytes up to the closing quote; what follows it.
fn quoted<'a>(
    mut rest: &'a [u8],
    quote: u8,
    into: &mut Vec<u8>,
) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [] => return Err(ProtocolError::Quotes),
            [byte, after @ ..] if *byte == quote => return Ok(after),
            [b'\\', b'\'', after @ ..] if quote == b'\'' => {
                into.push(b'\'');
                after
            }
            [b'\\', b'x', high, low, after @ ..]
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                into.push(hex(*high) << 4 | hex(*low));
                after
            }
            [b'\\', escaped, after @ ..] if quote == b'"' => {
                into.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                after
            }
            [byte, after @ ..] => {
                into.push(*byte);
                after
            }
        };
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        b'A'..=b'F' => digit - b'A' + 10,
        _ => 0,
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
