//! A request body that is too large to be parsed, read as it passes: what decides, and its size.
//!
//! Promises: one pass in pieces of any size, and at most [`KEPT_MAX`] and a few KiB of memory,
//! whatever the body is. Members of the outermost object that are short are kept as they are
//! written and in order, so that a field given twice is seen twice. Long ones are counted as
//! `token_estimates` counts them in small bodies: text by its bytes, data in base64 as one medium.
//!
//! Never: fails. A body that is no JSON object, or is cut, is reported as not whole.

use crate::token_estimates::{
    MEDIA_TOKENS, MESSAGE_TOKENS, WORD_MAX, is_base64_byte, is_media, tokens_of,
};

/// The longest member that is kept: names of models and bounds are much shorter.
const MEMBER_MAX: usize = 4 * 1024;

/// All kept members together.
const KEPT_MAX: usize = 64 * 1024;

/// The most names of long members: requests have some twenty fields in all.
const LONG_MAX: usize = 64;

/// Levels, as serde_json has them; a bit each.
const LEVELS_MAX: u32 = 127;

/// How much of a text is held, to see whether it is data: longer than any `data:` prefix.
const HEAD_MAX: usize = 256;

/// A scan under way.
#[derive(Debug, Default)]
pub(crate) struct BodyScan {
    /// Bytes of the body.
    size: u64,
    /// A bit for each level: set for an object.
    levels: u128,
    depth: u32,
    state: ScanState,
    /// The current member of the outermost object, as written; with its name.
    member: Vec<u8>,
    is_long: bool,
    /// What a long member would cost.
    tokens: u64,
    text_bytes: u64,
    /// The text that has ended and may be a name: it counts if no colon follows.
    last_text: Option<TextSize>,
    kept: Vec<u8>,
    long_names: Vec<String>,
    long_tokens: u64,
    long_text_bytes: u64,
    /// It is no object, or not one that everybody reads alike.
    is_wrong: bool,
    has_ended: bool,
}

#[derive(Debug, Default)]
enum ScanState {
    #[default]
    Between,
    /// A number or a word.
    Scalar,
    Text(Box<Text>),
}

/// A text that is being read.
#[derive(Debug)]
struct Text {
    head: Vec<u8>,
    bytes: u64,
    /// What follows the head has only letters of base64.
    is_base64: bool,
    /// A backslash was the last byte.
    is_escaped: bool,
    /// So many hexadecimal digits of `\uXXXX` are still to come.
    digits: u8,
}

#[derive(Clone, Copy, Debug)]
struct TextSize {
    bytes: u64,
    tokens: u64,
}

/// What a large body states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LargeBody {
    /// The members that decide, as a JSON object.
    pub(crate) json: Vec<u8>,
    /// Bytes in all.
    pub(crate) size: u64,
    /// Tokens of everything that is not in `json`.
    pub(crate) tokens: u64,
    /// All of it was read, and it is one object.
    pub(crate) is_whole: bool,
    /// Names of members that are too long to be in `json`, in lower case.
    long_names: Vec<String>,
}

impl LargeBody {
    /// Does `json` have everything that the body says of this field?
    pub(crate) fn knows(&self, field: &str) -> bool {
        let field = field.to_ascii_lowercase();
        self.is_whole && !self.long_names.contains(&field)
    }
}

impl BodyScan {
    /// Reads the next piece.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.size = self.size.saturating_add(piece.len() as u64);
        let mut rest = piece;
        while let Some((&byte, after)) = rest.split_first()
            && !self.is_wrong
        {
            rest = match std::mem::take(&mut self.state) {
                ScanState::Text(text) => self.text(text, rest),
                state @ (ScanState::Between | ScanState::Scalar) => {
                    self.structure(&state, byte);
                    after
                }
            };
        }
    }

    /// What it has found. `announced`: the length of the body, as far as its client has said.
    /// `is_cut`: more is still to come.
    pub(crate) fn finish(self, announced: u64, is_cut: bool) -> LargeBody {
        let is_whole = self.has_ended && !self.is_wrong && !is_cut;
        let mut json = vec![b'{'];
        json.extend_from_slice(&self.kept);
        json.push(b'}');
        LargeBody {
            json,
            size: self.size.max(announced),
            tokens: self.long_tokens + tokens_of(self.long_text_bytes),
            is_whole,
            long_names: self.long_names,
        }
    }

    /// A byte outside of texts.
    fn structure(&mut self, state: &ScanState, byte: u8) {
        let is_blank = matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        if self.has_ended || (self.depth == 0 && byte != b'{') {
            self.is_wrong |= !is_blank;
            return;
        }
        let ends_member = self.depth == 1 && matches!(byte, b',' | b'}');
        if !ends_member && self.depth > 0 {
            self.keep(&[byte]);
        }
        match byte {
            b'"' => {
                self.state = ScanState::Text(Box::new(Text::new()));
            }
            b'{' | b'[' => self.open(byte == b'{'),
            b'}' | b']' => self.close(byte == b'}'),
            b',' => self.end_value(),
            // It was a name.
            b':' => self.last_text = None,
            _ if is_blank => {}
            _ => {
                if matches!(state, ScanState::Between) {
                    self.text_bytes += 4;
                }
                self.state = ScanState::Scalar;
            }
        }
    }

    fn open(&mut self, is_object: bool) {
        if self.depth >= LEVELS_MAX {
            self.is_wrong = true;
            return;
        }
        self.levels = (self.levels << 1) | u128::from(is_object);
        self.depth += 1;
        if is_object && self.depth > 1 {
            self.tokens += MESSAGE_TOKENS;
        }
    }

    fn close(&mut self, is_object: bool) {
        if (self.levels & 1 == 1) != is_object {
            self.is_wrong = true;
            return;
        }
        self.end_value();
        self.levels >>= 1;
        self.depth -= 1;
        self.has_ended = self.depth == 0;
    }

    fn end_value(&mut self) {
        if let Some(text) = self.last_text.take() {
            self.text_bytes += text.bytes;
            self.tokens += text.tokens;
        }
        if self.depth == 1 {
            self.end_member();
        }
    }

    /// Bytes of a text, up to its end. The rest.
    fn text<'a>(&mut self, mut text: Box<Text>, bytes: &'a [u8]) -> &'a [u8] {
        let taken = text.take(bytes);
        let (own, rest) = bytes.split_at(taken);
        self.keep(own);
        match rest.split_first() {
            // The closing quote.
            Some((_, after)) => {
                self.keep(b"\"");
                self.last_text = Some(text.size());
                after
            }
            None => {
                self.state = ScanState::Text(text);
                rest
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = MEMBER_MAX.saturating_sub(self.member.len());
        self.is_long |= bytes.len() > room;
        let kept = bytes.get(..room).unwrap_or(bytes);
        self.member.extend_from_slice(kept);
    }

    /// A member of the outermost object is complete.
    fn end_member(&mut self) {
        let member = std::mem::take(&mut self.member);
        let (tokens, bytes) = (self.tokens, self.text_bytes);
        (self.tokens, self.text_bytes) = (0, 0);
        let has_room = self.kept.len() + member.len() < KEPT_MAX;
        if !std::mem::take(&mut self.is_long) && has_room {
            if !member.iter().all(u8::is_ascii_whitespace) {
                if !self.kept.is_empty() {
                    self.kept.push(b',');
                }
                self.kept.extend_from_slice(&member);
            }
            return;
        }
        self.long_tokens = self.long_tokens.saturating_add(tokens);
        self.long_text_bytes = self.long_text_bytes.saturating_add(bytes);
        let mut names = serde_json::Deserializer::from_slice(&member).into_iter::<String>();
        match names.next() {
            Some(Ok(name)) if self.long_names.len() < LONG_MAX => {
                self.long_names.push(name.to_ascii_lowercase());
            }
            Some(_) | None => self.is_wrong = true,
        }
    }
}

impl Text {
    fn new() -> Text {
        Text {
            head: Vec::new(),
            bytes: 0,
            is_base64: true,
            is_escaped: false,
            digits: 0,
        }
    }

    /// How many bytes of this belong to it; its closing quote comes next.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            if self.digits > 0 {
                self.digits -= 1;
            } else if std::mem::take(&mut self.is_escaped) {
                self.escaped(byte);
            } else if byte == b'\\' {
                self.is_escaped = true;
            } else if byte == b'"' {
                return at;
            } else {
                let rest = bytes.get(at..).unwrap_or_default();
                let length = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'));
                let run = rest.get(..length.unwrap_or(rest.len())).unwrap_or(rest);
                self.plain(run);
                at += run.len();
                continue;
            }
            at += 1;
        }
        at
    }

    fn escaped(&mut self, byte: u8) {
        match byte {
            b'u' => {
                self.digits = 4;
                // A letter beyond ASCII has up to three bytes.
                self.plain("\u{fffd}".as_bytes());
            }
            b'n' => self.plain(b"\n"),
            b'r' => self.plain(b"\r"),
            b'/' => self.plain(b"/"),
            _ => self.plain(b" "),
        }
    }

    fn plain(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        let room = HEAD_MAX.saturating_sub(self.head.len()).min(bytes.len());
        let (head, rest) = bytes.split_at(room);
        self.head.extend_from_slice(head);
        self.is_base64 = self.is_base64 && rest.iter().copied().all(is_base64_byte);
    }

    fn size(&self) -> TextSize {
        let is_url = self.head.starts_with(b"data:");
        let is_long = is_url || self.bytes > WORD_MAX as u64;
        let head = String::from_utf8_lossy(&self.head);
        // The head of a long text stands for all of it.
        let is_data = match is_url {
            true => is_media(&head),
            false => head.bytes().all(is_base64_byte),
        };
        match is_long && self.is_base64 && is_data {
            true => TextSize {
                bytes: 0,
                tokens: MEDIA_TOKENS,
            },
            false => TextSize {
                bytes: self.bytes,
                tokens: 0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::token_estimates::prompt_tokens;

    fn scanned(body: &str, piece: usize) -> LargeBody {
        let mut scan = BodyScan::default();
        body.as_bytes()
            .chunks(piece)
            .for_each(|piece| scan.push(piece));
        scan.finish(body.len() as u64, false)
    }

    fn tokens(large: &LargeBody) -> u64 {
        let json: Value = serde_json::from_slice(&large.json).unwrap();
        large.tokens + prompt_tokens(Some(&json), b"")
    }

    #[test]
    fn what_decides_is_kept_and_an_image_counts_as_one_in_pieces_of_any_size() {
        let image = format!("data:image/png;base64,{}", "iVBORw0KGgo/+=".repeat(10_000));
        let body = json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}, {"text": "what \"is\" \\ this?"}]}],
            "model": "GPT", "max_tokens": 50, "stream": true, "n": 2});
        let body = body.to_string();
        for piece in [1, 7, 4_096, body.len()] {
            let large = scanned(&body, piece);
            assert!(large.is_whole && large.knows("model"), "{piece}");
            assert!(!large.knows("messages"));
            let json: Value = serde_json::from_slice(&large.json).unwrap();
            let kept = json!({"model": "GPT", "max_tokens": 50, "stream": true, "n": 2});
            assert_eq!(json, kept);
            assert!((MEDIA_TOKENS..MEDIA_TOKENS + 60).contains(&tokens(&large)));
        }
    }

    /// The same estimate as of a small body, give or take what is rounded.
    #[test]
    fn a_long_text_counts_as_it_does_in_a_small_body() {
        for text in [
            "漢".repeat(3_000),
            "some words ".repeat(900),
            "f(a){\"b\"}\n".repeat(900),
            "A".repeat(9_000),
        ] {
            let body =
                json!({"model": "m", "messages": [{"role": "user", "content": text}, 7, null]});
            let whole = prompt_tokens(Some(&body), b"");
            let body = body.to_string();
            assert!(scanned(&body, 100).tokens.abs_diff(whole) <= 4, "{whole}");
        }
    }

    #[test]
    fn a_field_that_is_written_twice_or_escaped_is_kept_as_it_is() {
        let long = "x".repeat(9_000);
        let large = scanned(
            &format!(" {{\"model\":\"a\", \"input\":\"{long}\",\"mo\\u0064el\" : \"b\"}}\n"),
            50,
        );
        assert!(large.is_whole);
        let text = String::from_utf8(large.json).unwrap();
        assert_eq!(text, "{\"model\":\"a\",\"mo\\u0064el\" : \"b\"}");
        let hidden = scanned(&format!("{{\"Model\":\"{long}\"}}"), 50);
        assert!(hidden.is_whole && !hidden.knows("model"));
    }

    #[test]
    fn what_is_no_object_or_cut_is_not_whole() {
        let cut = scanned("{\"model\":\"m\",\"messages\":[\"some te", 9);
        assert!(!cut.is_whole && !cut.knows("model"));
        assert_eq!(cut.json, b"{\"model\":\"m\"}");
        for wrong in ["", "no json", "[1]", "{]", "{} {}", "\u{1}", "{\"a\":1}x"] {
            assert!(!scanned(wrong, 1).is_whole, "{wrong}");
        }
        assert!(!scanned(&format!("{{\"a\":{}", "[".repeat(10_000)), 64).is_whole);
        let mut short = BodyScan::default();
        short.push(b"{}");
        let short = short.finish(3, true);
        assert_eq!((short.is_whole, short.size), (false, 3), "more is to come");
    }

    #[test]
    fn memory_is_bounded_whatever_the_body_is() {
        let many: Vec<String> = (0..200_000)
            .map(|index| format!("\"f{index}\":1"))
            .collect();
        let large = scanned(&format!("{{{}}}", many.join(",")), 8_192);
        assert!(large.json.len() <= KEPT_MAX + 2 && large.long_names.len() <= LONG_MAX);
        assert!(!large.knows("model"), "not all names are known");
        let name = scanned(&format!("{{\"{}\":1}}", "n".repeat(100_000)), 8_192);
        assert!(!name.is_whole);
    }
}
