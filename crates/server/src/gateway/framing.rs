//! Framing: detects requests whose end is ambiguous (request smuggling).
//!
//! If a request has both a length and chunks, or two equal lengths, the parser above silently drops
//! one. A proxy in front may have used the other one, and would then not see the request that
//! follows (RFC 9112, 11.2). So this module inspects the bytes before the parser does.
//!
//! Promises: finds every head with a length and `Transfer-Encoding`, with two lengths, or with a
//! length that is not plain digits, however its bytes are split. Tracks every body, chunked or not,
//! to its end. Constant memory.
//!
//! Chunks are plain if every parser sees the same end: sizes of hex digits, lines that end with CR LF, no
//! extensions, no trailers.
//!
//! Never: changes or delays a byte. After chunks that are not plain tracking stops, because no request
//! may follow on their connection.

/// How much of a line is inspected: the longer of the two names and a length, with room to spare.
/// No honest client needs more for a length.
const LINE_MAX: usize = 64;

/// The longest length that is tracked: 19 digits are below 2⁶⁴.
const DIGITS_MAX: usize = 19;

/// The largest chunk that is tracked; the parser rejects a larger one.
const CHUNK_MAX: u64 = u64::MAX >> 8;

/// The position within the requests of one connection.
#[derive(Debug, Default)]
pub(super) struct Framing {
    position: Position,
    line: Vec<u8>,
    is_line_truncated: bool,
    length_count: u32,
    length: u64,
    is_chunked: bool,
    has_bad_length: bool,
    heads: u64,
    first_ambiguous: Option<u64>,
    /// The chunks of the current body are plain so far.
    is_plain: bool,
    /// The byte before, in a line of a chunk; 0 at its beginning.
    before: u8,
    last_plain_chunks: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    /// Before the first byte of a request.
    #[default]
    Between,
    /// In the lines of a head.
    Head,
    /// This many bytes of a body remain.
    Body(u64),
    /// In the line with the size of a chunk; the size as parsed so far.
    ChunkSize(u64),
    /// In the extension after a chunk size.
    ChunkExtension(u64),
    /// This many bytes of a chunk remain, including the end of its line.
    Chunk(u64),
    /// After the last chunk. `true`: this line is empty so far.
    Trailer(bool),
    /// No longer tracked.
    Untracked,
}

impl Framing {
    /// Inspects the next bytes.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.position {
                Position::Untracked => return,
                Position::Body(remaining) | Position::Chunk(remaining) => {
                    let here =
                        usize::try_from(remaining).map_or(bytes.len(), |n| n.min(bytes.len()));
                    bytes = bytes.get(here..).unwrap_or_default();
                    self.before = 0;
                    self.position = match (self.position, remaining - here as u64) {
                        (Position::Chunk(_), 0) => Position::ChunkSize(0),
                        (Position::Chunk(_), remaining) => Position::Chunk(remaining),
                        (_, 0) => Position::Between,
                        (_, remaining) => Position::Body(remaining),
                    };
                }
                Position::ChunkSize(_) | Position::ChunkExtension(_) | Position::Trailer(_) => {
                    let [first, rest @ ..] = bytes else { return };
                    self.on_chunk_byte(*first);
                    bytes = rest;
                }
                Position::Between | Position::Head => bytes = self.feed_line(bytes),
            }
        }
    }

    /// Has a head begun that is not complete?
    pub(super) fn is_in_head(&self) -> bool {
        match self.position {
            Position::Head => true,
            Position::Between => !self.line.is_empty(),
            Position::Body(_)
            | Position::ChunkSize(_)
            | Position::ChunkExtension(_)
            | Position::Chunk(_)
            | Position::Trailer(_)
            | Position::Untracked => false,
        }
    }

    /// Does the next byte begin a request?
    pub(super) fn is_between(&self) -> bool {
        self.position == Position::Between && self.line.is_empty()
    }

    /// Counts a complete request without a body that was not fed.
    pub(super) fn skip_request(&mut self) {
        self.heads += 1;
    }

    /// Does more of a body follow?
    pub(super) fn is_in_body(&self) -> bool {
        match self.position {
            Position::Body(_)
            | Position::ChunkSize(_)
            | Position::ChunkExtension(_)
            | Position::Chunk(_)
            | Position::Trailer(_) => true,
            Position::Between | Position::Head | Position::Untracked => false,
        }
    }

    /// The number of the last request that ended with plain chunks; 0 = none yet.
    pub(super) fn last_plain_chunks(&self) -> u64 {
        self.last_plain_chunks
    }

    /// A byte between the chunks of a body.
    fn on_chunk_byte(&mut self, byte: u8) {
        self.is_plain &= self.position.is_plain(self.before, byte);
        self.before = byte;
        let is_end = self.position == Position::Trailer(true) && byte == b'\n';
        self.position = self.position.next(byte);
        if is_end && self.is_plain {
            self.last_plain_chunks = self.heads;
            self.position = Position::Between;
        }
    }

    /// The number of heads, complete or begun.
    pub(super) fn heads(&self) -> u64 {
        self.heads + u64::from(self.is_in_head())
    }

    /// The number of the first request, counted from 1, whose end is ambiguous.
    pub(super) fn first_ambiguous(&self) -> Option<u64> {
        self.first_ambiguous
    }

    /// Consumes bytes up to the end of a line, and returns the rest.
    fn feed_line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = memchr::memchr(b'\n', bytes);
        let (part, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        if end.is_some() && self.line.is_empty() {
            // Nearly always a line arrives whole and needs no copy.
            self.on_line(part.get(..LINE_MAX).unwrap_or(part), part.len() > LINE_MAX);
            return rest.get(1..).unwrap_or_default();
        }
        let room = LINE_MAX - self.line.len();
        self.is_line_truncated |= part.len() > room;
        self.line
            .extend_from_slice(part.get(..room).unwrap_or(part));
        if end.is_none() {
            return rest;
        }
        let mut line = std::mem::take(&mut self.line);
        self.on_line(&line, self.is_line_truncated);
        line.clear();
        self.line = line;
        self.is_line_truncated = false;
        rest.get(1..).unwrap_or_default()
    }

    /// A line, or the beginning of one that was truncated.
    fn on_line(&mut self, line: &[u8], is_cut: bool) {
        let line = match line {
            [whole @ .., b'\r'] if !is_cut => whole,
            _ => line,
        };
        match (self.position, line.is_empty()) {
            // Empty lines before a request are skipped, as the parser does.
            (Position::Between, true) => {}
            (Position::Between, false) => self.position = Position::Head,
            (Position::Head, true) => self.on_head_end(),
            (Position::Head, false) => self.on_header(line, is_cut),
            (
                Position::Body(_)
                | Position::ChunkSize(_)
                | Position::ChunkExtension(_)
                | Position::Chunk(_)
                | Position::Trailer(_)
                | Position::Untracked,
                _,
            ) => {}
        }
    }

    fn on_header(&mut self, line: &[u8], is_cut: bool) {
        let Some(colon) = memchr::memchr(b':', line) else {
            return;
        };
        let (name, value) = line.split_at(colon);
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            self.length_count += 1;
            let value = value.get(1..).unwrap_or_default().trim_ascii();
            let is_plain = !is_cut
                && (1..=DIGITS_MAX).contains(&value.len())
                && value.iter().all(u8::is_ascii_digit);
            self.has_bad_length |= !is_plain;
            self.length = value.iter().take(DIGITS_MAX).fold(0, |sum: u64, digit| {
                sum.wrapping_mul(10)
                    .wrapping_add(u64::from(digit.wrapping_sub(b'0')))
            });
        }
    }

    fn on_head_end(&mut self) {
        self.heads += 1;
        let is_unclear = self.has_bad_length
            || self.length_count > 1
            || (self.length_count > 0 && self.is_chunked);
        if is_unclear {
            self.first_ambiguous.get_or_insert(self.heads);
        }
        self.position = match self.length {
            _ if is_unclear => Position::Untracked,
            _ if self.is_chunked => Position::ChunkSize(0),
            0 => Position::Between,
            length => Position::Body(length),
        };
        (self.is_plain, self.before) = (true, 0);
        (self.length_count, self.length) = (0, 0);
        (self.is_chunked, self.has_bad_length) = (false, false);
    }
}

impl Position {
    /// Does every parser agree on this byte of a chunk's line, after this one?
    fn is_plain(self, before: u8, byte: u8) -> bool {
        match self {
            Position::ChunkSize(_) => match byte {
                b'\r' => before.is_ascii_hexdigit(),
                b'\n' => before == b'\r',
                digit => digit.is_ascii_hexdigit() && before != b'\r',
            },
            Position::Trailer(true) => match byte {
                b'\r' => before == b'\n',
                b'\n' => before == b'\r',
                _trailer => false,
            },
            Position::ChunkExtension(_) | Position::Trailer(false) => false,
            Position::Between
            | Position::Head
            | Position::Body(_)
            | Position::Chunk(_)
            | Position::Untracked => true,
        }
    }

    /// The position in a chunked body after this byte. Untracked if the parser rejects it.
    fn next(self, byte: u8) -> Position {
        match (self, byte) {
            (Position::ChunkSize(0) | Position::ChunkExtension(0), b'\n') => {
                Position::Trailer(true)
            }
            // Two bytes end the line after a chunk.
            (Position::ChunkSize(size) | Position::ChunkExtension(size), b'\n') => {
                Position::Chunk(size.saturating_add(2))
            }
            (Position::ChunkSize(size), b'\r') => Position::ChunkSize(size),
            (Position::ChunkSize(size), b';' | b' ' | b'\t') => Position::ChunkExtension(size),
            (Position::ChunkSize(size), digit) => match char::from(digit).to_digit(16) {
                Some(digit) if size <= CHUNK_MAX => {
                    Position::ChunkSize(size << 4 | u64::from(digit))
                }
                Some(_) | None => Position::Untracked,
            },
            (Position::ChunkExtension(size), _) => Position::ChunkExtension(size),
            (Position::Trailer(true), b'\n') => Position::Untracked,
            (Position::Trailer(is_empty), b'\r') => Position::Trailer(is_empty),
            (Position::Trailer(_), byte) => Position::Trailer(byte == b'\n'),
            (
                Position::Between
                | Position::Head
                | Position::Body(_)
                | Position::Chunk(_)
                | Position::Untracked,
                _,
            ) => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fed whole and byte by byte; both must agree.
    fn first_ambiguous(text: &str) -> Option<u64> {
        let mut whole = Framing::default();
        whole.feed(text.as_bytes());
        let mut drops = Framing::default();
        for byte in text.as_bytes() {
            drops.feed(&[*byte]);
        }
        assert_eq!(whole.first_ambiguous(), drops.first_ambiguous(), "{text:?}");
        assert_eq!(whole.is_in_head(), drops.is_in_head(), "{text:?}");
        whole.first_ambiguous()
    }

    fn post(lines: &str) -> String {
        format!("POST / HTTP/1.1\r\nHost: g\r\n{lines}\r\n\r\n")
    }

    #[test]
    fn conflicting_lengths_are_ambiguous() {
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
            assert_eq!(first_ambiguous(&post(lines)), Some(1), "{lines}");
        }
    }

    #[test]
    fn plain_requests_are_not_ambiguous() {
        for lines in [
            "X: y",
            "Content-Length: 0",
            "Transfer-Encoding: chunked",
            "X-Content-Length: 4\r\nTransfer-Encoding: chunked",
        ] {
            assert_eq!(first_ambiguous(&post(lines)), None, "{lines}");
        }
    }

    #[test]
    fn bodies_are_not_read_as_heads_and_the_next_head_is_found() {
        let inside = "Content-Length: 1\r\nTransfer-Encoding: x\r\n\r\n";
        let length = inside.len();
        let first = format!("{}{inside}", post(&format!("Content-Length: {length}")));
        assert_eq!(first_ambiguous(&first), None);
        let second = format!(
            "{first}\r\n{}{}",
            post("X: y"),
            post("Content-Length: 1\r\nContent-Length: 1")
        );
        assert_eq!(first_ambiguous(&second), Some(3));
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

    /// R-E1: waiting for more of a chunked body is distinct from waiting for its response.
    #[test]
    fn a_chunked_body_is_tracked_to_its_end() {
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
        assert_eq!(whole.position, Position::Untracked);
    }

    /// A request may follow plain chunks on the same connection, and its head is inspected too.
    #[test]
    fn only_plain_chunks_have_an_end_that_everybody_sees() {
        let ends = |body: &str| {
            let text = format!("{}{body}", post("Transfer-Encoding: chunked"));
            let (mut whole, mut drops) = (Framing::default(), Framing::default());
            whole.feed(text.as_bytes());
            text.bytes().for_each(|byte| drops.feed(&[byte]));
            assert_eq!(whole.position, drops.position, "{body:?}");
            assert_eq!(
                whole.last_plain_chunks(),
                drops.last_plain_chunks(),
                "{body:?}"
            );
            (whole.last_plain_chunks(), whole.is_between())
        };
        for plain in [
            "4\r\nfour\r\n0\r\n\r\n",
            "0\r\n\r\n",
            "00A\r\n0123456789\r\n000\r\n\r\n",
        ] {
            assert_eq!(ends(plain), (1, true), "{plain:?}");
        }
        for odd in [
            "4\nfour\r\n0\r\n\r\n",
            "4;x=y\r\nfour\r\n0\r\n\r\n",
            "4 \r\nfour\r\n0\r\n\r\n",
            "4\r\r\nfour\r\n0\r\n\r\n",
            "4\r\nfour\r\n0\r\nX: y\r\n\r\n",
            "4\r\nfour\r\n0\r\n\n",
            "4\r\nfour\r\n0\n\r\n",
            "\r\n\r\n",
            "4\r\nfour\r\n0\r\n\r",
            "4\r\nfour\r\n",
        ] {
            assert_eq!(ends(odd), (0, false), "{odd:?}");
        }
        let chunked = format!("{}0\r\n\r\n", post("Transfer-Encoding: chunked"));
        let second = format!(
            "{chunked}{}",
            post("Content-Length: 1\r\nContent-Length: 1")
        );
        assert_eq!(first_ambiguous(&second), Some(2));
    }

    #[test]
    fn an_invalid_chunk_size_ends_the_tracking() {
        for size in ["x\r\n", "-1\r\n", "fffffffffffffffffff\r\n"] {
            let mut framing = Framing::default();
            let text = format!("{}{size}", post("Transfer-Encoding: chunked"));
            framing.feed(text.as_bytes());
            assert_eq!(framing.position, Position::Untracked, "{size:?}");
        }
    }

    #[test]
    fn an_endless_line_uses_bounded_memory() {
        let mut framing = Framing::default();
        for _ in 0..1_000 {
            framing.feed(&[b'a'; 1_000]);
        }
        assert!(framing.line.capacity() <= 2 * LINE_MAX);
    }
}
