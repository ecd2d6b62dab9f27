//! Framing: is it clear where each request on a connection ends?
//!
//! The parser above reads a length beside chunks, or two equal lengths, by dropping one of them
//! without a word. Somebody in front of us may have believed the other one, and what follows would be
//! a request that he never saw (RFC 9112, 11.2). So the bytes are looked at before the parser does.
//!
//! Promises: every head with a length beside `Transfer-Encoding`, two lengths, or a length that is
//! not plain digits is found, however its bytes are cut. A body, chunked or not, is followed to its
//! end. Constant memory.
//!
//! Never: changes or keeps back a byte. After a chunked request nothing is followed any more, because
//! nothing may follow on its connection.

/// As much of a line as is looked at: the longer of the two names, and a length with room to spare.
/// A line that needs more for a length is nobody's honest work.
const LINE_MAX: usize = 64;

/// The longest length that is followed: 19 digits are below 2⁶⁴.
const DIGITS_MAX: usize = 19;

/// The largest chunk that is followed; a larger one is refused by the parser.
const CHUNK_MAX: u64 = u64::MAX >> 8;

/// Where the bytes of one connection stand.
#[derive(Debug, Default)]
pub(super) struct Framing {
    at: At,
    line: Vec<u8>,
    is_line_cut: bool,
    lengths: u32,
    length: u64,
    is_chunked: bool,
    is_odd: bool,
    heads: u64,
    unclear: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    /// Before the first byte of a request.
    #[default]
    Between,
    /// In the lines of a head.
    Head,
    /// So many bytes of a body are still to come.
    Body(u64),
    /// In the line with the size of a chunk, as far as it has come.
    Size(u64),
    /// In what may stand behind a size.
    Extension(u64),
    /// So many bytes of a chunk are still to come, with the end of its line.
    Chunk(u64),
    /// Behind the last chunk. `true`: nothing of this line has come yet.
    Trailer(bool),
    /// Not followed any more.
    Unfollowed,
}

impl Framing {
    /// Looks at the next bytes.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.at {
                At::Unfollowed => return,
                At::Body(left) | At::Chunk(left) => {
                    let here = usize::try_from(left).map_or(bytes.len(), |n| n.min(bytes.len()));
                    bytes = bytes.get(here..).unwrap_or_default();
                    self.at = match (self.at, left - here as u64) {
                        (At::Chunk(_), 0) => At::Size(0),
                        (At::Chunk(_), left) => At::Chunk(left),
                        (_, 0) => At::Between,
                        (_, left) => At::Body(left),
                    };
                }
                At::Size(_) | At::Extension(_) | At::Trailer(_) => {
                    let [first, rest @ ..] = bytes else { return };
                    self.at = self.at.after(*first);
                    bytes = rest;
                }
                At::Between | At::Head => bytes = self.feed_line(bytes),
            }
        }
    }

    /// Has a head begun that is not yet whole?
    pub(super) fn is_in_head(&self) -> bool {
        match self.at {
            At::Head => true,
            At::Between => !self.line.is_empty(),
            At::Body(_)
            | At::Size(_)
            | At::Extension(_)
            | At::Chunk(_)
            | At::Trailer(_)
            | At::Unfollowed => false,
        }
    }

    /// Does the next byte begin a request?
    pub(super) fn is_between(&self) -> bool {
        self.at == At::Between && self.line.is_empty()
    }

    /// A whole request without a body has passed that was not fed.
    pub(super) fn passed(&mut self) {
        self.heads += 1;
    }

    /// Is more of a body still to come?
    pub(super) fn is_in_body(&self) -> bool {
        match self.at {
            At::Body(_) | At::Size(_) | At::Extension(_) | At::Chunk(_) | At::Trailer(_) => true,
            At::Between | At::Head | At::Unfollowed => false,
        }
    }

    /// How many heads have come whole or in part.
    pub(super) fn heads(&self) -> u64 {
        self.heads + u64::from(self.is_in_head())
    }

    /// The number of the first request, counted from 1, whose end is not clear.
    pub(super) fn unclear(&self) -> Option<u64> {
        self.unclear
    }

    /// Takes bytes up to the end of a line, and gives back the rest.
    fn feed_line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = memchr::memchr(b'\n', bytes);
        let (part, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        if end.is_some() && self.line.is_empty() {
            // Nearly always a line comes whole, and need not be put together.
            self.line_ended(part.get(..LINE_MAX).unwrap_or(part), part.len() > LINE_MAX);
            return rest.get(1..).unwrap_or_default();
        }
        let room = LINE_MAX - self.line.len();
        self.is_line_cut |= part.len() > room;
        self.line
            .extend_from_slice(part.get(..room).unwrap_or(part));
        if end.is_none() {
            return rest;
        }
        let mut line = std::mem::take(&mut self.line);
        self.line_ended(&line, self.is_line_cut);
        line.clear();
        self.line = line;
        self.is_line_cut = false;
        rest.get(1..).unwrap_or_default()
    }

    /// A line is here, or the beginning of one that was cut.
    fn line_ended(&mut self, line: &[u8], is_cut: bool) {
        let line = match line {
            [whole @ .., b'\r'] if !is_cut => whole,
            _ => line,
        };
        match (self.at, line.is_empty()) {
            // Empty lines before a request are skipped, as the parser does.
            (At::Between, true) => {}
            (At::Between, false) => self.at = At::Head,
            (At::Head, true) => self.head_ended(),
            (At::Head, false) => self.header(line, is_cut),
            (
                At::Body(_)
                | At::Size(_)
                | At::Extension(_)
                | At::Chunk(_)
                | At::Trailer(_)
                | At::Unfollowed,
                _,
            ) => {}
        }
    }

    fn header(&mut self, line: &[u8], is_cut: bool) {
        let Some(colon) = memchr::memchr(b':', line) else {
            return;
        };
        let (name, value) = line.split_at(colon);
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            self.lengths += 1;
            let value = value.get(1..).unwrap_or_default().trim_ascii();
            let is_plain = !is_cut
                && (1..=DIGITS_MAX).contains(&value.len())
                && value.iter().all(u8::is_ascii_digit);
            self.is_odd |= !is_plain;
            self.length = value.iter().take(DIGITS_MAX).fold(0, |sum: u64, digit| {
                sum.wrapping_mul(10)
                    .wrapping_add(u64::from(digit.wrapping_sub(b'0')))
            });
        }
    }

    fn head_ended(&mut self) {
        self.heads += 1;
        let is_unclear = self.is_odd || self.lengths > 1 || (self.lengths > 0 && self.is_chunked);
        if is_unclear {
            self.unclear.get_or_insert(self.heads);
        }
        self.at = match self.length {
            _ if is_unclear => At::Unfollowed,
            _ if self.is_chunked => At::Size(0),
            0 => At::Between,
            length => At::Body(length),
        };
        (self.lengths, self.length) = (0, 0);
        (self.is_chunked, self.is_odd) = (false, false);
    }
}

impl At {
    /// Where a chunked body stands after this byte. What the parser refuses is not followed.
    fn after(self, byte: u8) -> At {
        match (self, byte) {
            (At::Size(0) | At::Extension(0), b'\n') => At::Trailer(true),
            // The line behind a chunk ends with two bytes.
            (At::Size(size) | At::Extension(size), b'\n') => At::Chunk(size.saturating_add(2)),
            (At::Size(size), b'\r') => At::Size(size),
            (At::Size(size), b';' | b' ' | b'\t') => At::Extension(size),
            (At::Size(size), digit) => match char::from(digit).to_digit(16) {
                Some(digit) if size <= CHUNK_MAX => At::Size(size << 4 | u64::from(digit)),
                Some(_) | None => At::Unfollowed,
            },
            (At::Extension(size), _) => At::Extension(size),
            (At::Trailer(true), b'\n') => At::Unfollowed,
            (At::Trailer(is_empty), b'\r') => At::Trailer(is_empty),
            (At::Trailer(_), byte) => At::Trailer(byte == b'\n'),
            (At::Between | At::Head | At::Body(_) | At::Chunk(_) | At::Unfollowed, _) => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fed whole and byte by byte; both must agree.
    fn unclear(text: &str) -> Option<u64> {
        let mut whole = Framing::default();
        whole.feed(text.as_bytes());
        let mut drops = Framing::default();
        for byte in text.as_bytes() {
            drops.feed(&[*byte]);
        }
        assert_eq!(whole.unclear(), drops.unclear(), "{text:?}");
        assert_eq!(whole.is_in_head(), drops.is_in_head(), "{text:?}");
        whole.unclear()
    }

    fn post(lines: &str) -> String {
        format!("POST / HTTP/1.1\r\nHost: g\r\n{lines}\r\n\r\n")
    }

    #[test]
    fn two_ways_to_find_the_end_are_unclear() {
        for lines in [
            "Content-Length: 4\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked\r\nContent-Length: 4",
            "transfer-encoding: chunked\r\nCONTENT-LENGTH: 4",
            "Content-Length: 4\r\nContent-Length: 4",
            "Content-Length: 4\r\nX: y\r\nContent-Length: 5",
            "Content-Length: +4",
            "Content-Length: 4, 4",
            "Content-Length: 0x4",
            "Content-Length:",
            "Content-Length: 99999999999999999999",
            "Content-Length:                                                                 4",
        ] {
            assert_eq!(unclear(&post(lines)), Some(1), "{lines}");
        }
    }

    #[test]
    fn plain_requests_are_clear() {
        for lines in [
            "X: y",
            "Content-Length: 0",
            "Transfer-Encoding: chunked",
            "X-Content-Length: 4\r\nTransfer-Encoding: chunked",
        ] {
            assert_eq!(unclear(&post(lines)), None, "{lines}");
        }
    }

    #[test]
    fn bodies_are_not_read_as_heads_and_the_next_head_is_found() {
        let inside = "Content-Length: 1\r\nTransfer-Encoding: x\r\n\r\n";
        let length = inside.len();
        let first = format!("{}{inside}", post(&format!("Content-Length: {length}")));
        assert_eq!(unclear(&first), None);
        let second = format!(
            "{first}\r\n{}{}",
            post("X: y"),
            post("Content-Length: 1\r\nContent-Length: 1")
        );
        assert_eq!(unclear(&second), Some(3));
    }

    #[test]
    fn a_head_is_under_way_from_its_first_byte_to_its_empty_line() {
        for (text, expected) in [
            ("", false),
            ("\r\n", false),
            ("G", true),
            ("GET / HTTP/1.1\r\n", true),
            ("GET / HTTP/1.1\nHost: g\n\n", false),
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab", false),
        ] {
            let mut framing = Framing::default();
            framing.feed(text.as_bytes());
            assert_eq!(framing.is_in_head(), expected, "{text:?}");
        }
    }

    /// R-E1: whoever waits for more of a chunked body can tell that from waiting for its answer.
    #[test]
    fn a_chunked_body_is_followed_to_its_end() {
        let text = format!(
            "{}4\r\nfour\r\n0A;x=\"y\"\r\n0123456789\r\n0\r\nX-Sum: 6\r\n\r\n",
            post("Transfer-Encoding: chunked")
        );
        let head = text.find("\r\n\r\n").unwrap() + 4;
        let mut drops = Framing::default();
        for (at, byte) in text.bytes().enumerate() {
            assert_eq!(drops.is_in_body(), at >= head, "{at}");
            drops.feed(&[byte]);
        }
        assert!(!drops.is_in_body() && !drops.is_in_head());
        let mut whole = Framing::default();
        whole.feed(text.as_bytes());
        assert_eq!(whole.at, At::Unfollowed);
    }

    #[test]
    fn what_is_no_size_of_a_chunk_is_not_followed() {
        for size in ["x\r\n", "-1\r\n", "fffffffffffffffffff\r\n"] {
            let mut framing = Framing::default();
            let text = format!("{}{size}", post("Transfer-Encoding: chunked"));
            framing.feed(text.as_bytes());
            assert_eq!(framing.at, At::Unfollowed, "{size:?}");
        }
    }

    #[test]
    fn a_line_without_end_takes_no_memory() {
        let mut framing = Framing::default();
        for _ in 0..1_000 {
            framing.feed(&[b'a'; 1_000]);
        }
        assert!(framing.line.capacity() <= 2 * LINE_MAX);
    }
}
