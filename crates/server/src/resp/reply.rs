//! Replies in bytes, for both versions of the protocol.
//!
//! Promises: what a version does not have is written as its nearest form: a map is a list of names
//! and values, a boolean is 1 or 0. An error is one line.
//!
//! Never: fails.

/// The version of the protocol that a client has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// RESP2.
    #[default]
    Two,
    /// RESP3, after `HELLO 3`.
    Three,
}

/// Writes replies to the end of a buffer.
#[derive(Debug)]
pub(crate) struct ReplyWriter<'o> {
    out: &'o mut Vec<u8>,
    protocol: Protocol,
}

impl<'o> ReplyWriter<'o> {
    pub(super) fn new(out: &'o mut Vec<u8>, protocol: Protocol) -> ReplyWriter<'o> {
        ReplyWriter { out, protocol }
    }

    pub(super) fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// A short text without line breaks.
    pub(super) fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// An error: `ERR …`; the first word says of which kind.
    pub(super) fn error(&mut self, text: &str) {
        self.line(b'-', text);
    }

    pub(super) fn integer(&mut self, value: i64) {
        self.out.push(b':');
        let mut digits = itoa::Buffer::new();
        self.out.extend_from_slice(digits.format(value).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// A count; the protocol has 63 bits.
    pub(super) fn count(&mut self, value: u64) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.head(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    pub(super) fn array(&mut self, length: usize) {
        self.head(b'*', length);
    }

    /// A map of so many pairs; each is written as its name and its value.
    pub(super) fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Two => self.head(b'*', pairs * 2),
            Protocol::Three => self.head(b'%', pairs),
        }
    }

    pub(super) fn boolean(&mut self, value: bool) {
        match self.protocol {
            Protocol::Two => self.integer(i64::from(value)),
            Protocol::Three if value => self.out.extend_from_slice(b"#t\r\n"),
            Protocol::Three => self.out.extend_from_slice(b"#f\r\n"),
        }
    }

    pub(super) fn null(&mut self) {
        match self.protocol {
            Protocol::Two => self.out.extend_from_slice(b"$-1\r\n"),
            Protocol::Three => self.out.extend_from_slice(b"_\r\n"),
        }
    }

    /// A number with decimals.
    pub(super) fn decimal(&mut self, value: f64) {
        let text = value.to_string();
        match self.protocol {
            Protocol::Two => self.text(&text),
            Protocol::Three => self.line(b',', &text),
        }
    }

    pub(super) fn text_or_null(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.null(),
        }
    }

    pub(super) fn count_or_null(&mut self, value: Option<u64>) {
        match value {
            Some(value) => self.count(value),
            None => self.null(),
        }
    }

    /// The five integers of `CL.THROTTLE`.
    pub(super) fn five(&mut self, values: [i64; 5]) {
        self.out.extend_from_slice(b"*5\r\n");
        for value in values {
            self.integer(value);
        }
    }

    fn head(&mut self, kind: u8, length: usize) {
        self.out.push(kind);
        let mut digits = itoa::Buffer::new();
        self.out.extend_from_slice(digits.format(length).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// One line; a line break in the text would begin another reply.
    fn line(&mut self, kind: u8, text: &str) {
        self.out.push(kind);
        let plain = |byte: u8| if byte < b' ' { b' ' } else { byte };
        self.out.extend(text.bytes().map(plain));
        self.out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl Fn(&mut ReplyWriter<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut ReplyWriter::new(&mut out, protocol));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_version_without_a_type_gets_its_nearest_form() {
        let all = |reply: &mut ReplyWriter<'_>| {
            reply.map(2);
            reply.text("a");
            reply.boolean(true);
            reply.text("b");
            reply.null();
            reply.decimal(0.5);
        };
        let two = "*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n$-1\r\n$3\r\n0.5\r\n";
        let three = "%2\r\n$1\r\na\r\n#t\r\n$1\r\nb\r\n_\r\n,0.5\r\n";
        assert_eq!(written(Protocol::Two, all), two);
        assert_eq!(written(Protocol::Three, all), three);
    }

    /// A line break in an error began a reply that nobody had asked for.
    #[test]
    fn an_error_is_one_line() {
        let error = written(Protocol::Two, |reply| reply.error("ERR a\r\n+OK"));
        assert_eq!(error, "-ERR a  +OK\r\n");
    }
}
