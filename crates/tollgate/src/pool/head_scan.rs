//! Finds the end of a response head, to see whether a valid chunk follows it.
//!
//! hyper reports a response as soon as its head is complete, and an invalid chunk only when the
//! body is read. By then the caller has a `200`. What arrived together with the head is known
//! earlier.
//!
//! Promises: skips 1xx responses. Reads each byte of a head once, however the bytes are split.
//!
//! Never: keeps or changes a byte. What arrives later is judged by the parser.

/// The most digits of a chunk size after its leading zeros: 16 are 64 bits.
const DIGITS_MAX: usize = 16;

/// The position of the class digit in `HTTP/1.1 200`.
const CLASS_AT: usize = 9;

/// The position within a response.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeadScan {
    /// Bytes of the current line.
    line: usize,
    /// Lines of the current head.
    lines: usize,
    /// The head is of a 1xx response: another one follows.
    is_interim: bool,
    is_done: bool,
}

impl HeadScan {
    /// Reads the next bytes. `true`: the head ends here, and what follows it is no chunk.
    pub(super) fn ends_in_bad_chunk(&mut self, mut bytes: &[u8]) -> bool {
        while !self.is_done && !bytes.is_empty() {
            let Some(end) = memchr::memchr(b'\n', bytes) else {
                self.on_part(bytes);
                return false;
            };
            let (part, rest) = bytes.split_at(end);
            self.on_part(part.strip_suffix(b"\r").unwrap_or(part));
            bytes = rest.get(1..).unwrap_or_default();
            if self.on_line_end() {
                return is_bad_chunk(bytes);
            }
        }
        false
    }

    fn on_part(&mut self, part: &[u8]) {
        if self.lines == 0
            && let Some(class) = CLASS_AT
                .checked_sub(self.line)
                .and_then(|at| part.get(at..))
                .filter(|class| !class.is_empty())
        {
            // 101 is final, and no chunks follow it.
            self.is_interim = class.starts_with(b"1") && !class.starts_with(b"101");
        }
        // A `\r` that arrives without its `\n` is no part of the line.
        self.line += part.len() - usize::from(part == b"\r");
    }

    /// `true`: this was the empty line after the head of a response.
    fn on_line_end(&mut self) -> bool {
        let is_empty = std::mem::take(&mut self.line) == 0;
        if !is_empty {
            self.lines += 1;
            return false;
        }
        if self.lines == 0 {
            return false; // empty lines before a response
        }
        self.lines = 0;
        self.is_done = !std::mem::take(&mut self.is_interim);
        self.is_done
    }
}

/// Can these bytes not be the beginning of a chunk? Decides as hyper does.
fn is_bad_chunk(bytes: &[u8]) -> bool {
    let zeros = bytes.iter().take_while(|byte| **byte == b'0').count();
    let digits = bytes.iter().skip(zeros);
    let digits = digits.take_while(|byte| byte.is_ascii_hexdigit()).count();
    let is_too_large = digits > DIGITS_MAX;
    match bytes.get(zeros + digits..) {
        None | Some([]) => is_too_large,
        Some([b'\r', next, ..]) if *next != b'\n' => true,
        Some([b'\r' | b' ' | b'\t' | b';', ..]) => zeros + digits == 0 || is_too_large,
        Some(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_bad(text: &str) -> bool {
        HeadScan::default().ends_in_bad_chunk(text.as_bytes())
    }

    #[test]
    fn a_bad_chunk_after_the_head_is_found() {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        for bad in [
            "zz\r\n",
            "\r\n",
            "-1\r\n",
            "4\n",
            "4\rx",
            "4x",
            "11111111111111111\r\n",
            "0011111111111111111\r\n",
        ] {
            assert!(is_bad(&format!("{head}{bad}")), "{bad:?}");
            let hints = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
            assert!(is_bad(&format!("{hints}{head}{bad}")), "{bad:?}");
            assert!(
                is_bad(&format!("{}{bad}", head.replace('\r', ""))),
                "{bad:?}"
            );
        }
        for good in [
            "",
            "4",
            "4\r",
            "4\r\nfour\r\n",
            "A;x=y\r\n",
            "0a \r\n",
            "0\r\n\r\n",
            "00000000000000000004\r\nfour\r\n",
            "0000ffffffffffffffff\r\n",
            "00000000000000000",
        ] {
            assert!(!is_bad(&format!("{head}{good}")), "{good:?}");
        }
    }

    #[test]
    fn a_split_head_is_read_as_a_whole_one() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX: 1\r\n\r\n";
        for at in 0..text.len() {
            let mut scan = HeadScan::default();
            let (first, second) = text.split_at(at);
            assert!(!scan.ends_in_bad_chunk(first.as_bytes()), "{at}");
            assert!(!scan.is_done, "{at}");
            let last = format!("{second}zz\r\n");
            assert!(scan.ends_in_bad_chunk(last.as_bytes()), "{at}");
        }
    }

    /// Only what arrives with the head: the parser judges the rest.
    #[test]
    fn later_bytes_are_not_read() {
        let mut scan = HeadScan::default();
        assert!(!scan.ends_in_bad_chunk(b"HTTP/1.1 200 OK\r\n\r\n"));
        assert!(!scan.ends_in_bad_chunk(b"zz\r\n"));
    }
}
