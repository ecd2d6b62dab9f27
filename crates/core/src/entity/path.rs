//! Paths: the bytes that are sent, and every way in which a provider may read them.
//!
//! Promises: `normalize` is idempotent and its result has no dot segments, plain or encoded;
//! `readings` lists every way in which servers are known to split the same bytes into segments.
//!
//! Never: decodes characters that a provider may distinguish. An encoded slash stays encoded.

use std::borrow::Cow;

use super::EntityError;

/// The longest path: what common servers accept in a request line.
pub const PATH_MAX: usize = 8_192;

/// The most segments: deeper than any API, and a bound for every loop over them.
pub const SEGMENTS_MAX: usize = 256;

/// How often a value may be percent-encoded repeatedly; more is an attack.
const ENCODINGS_MAX: usize = 4;

/// Suffixes that frameworks read as a format, not as part of the name.
const FORMATS: [&str; 8] = [
    ".json", ".xml", ".csv", ".yaml", ".html", ".rss", ".atom", ".txt",
];

/// One segment as the most lenient server compares it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    text: String,
    /// It has letters outside ASCII, which servers compare differently.
    non_ascii: bool,
}

/// One way to read a path.
pub(super) type PathReading = Vec<Segment>;

impl Segment {
    /// The text, if all servers read it the same way.
    pub(super) fn ascii_text(&self) -> Result<&str, EntityError> {
        if self.non_ascii {
            Err(EntityError::NotAscii)
        } else {
            Ok(&self.text)
        }
    }

    /// As [`Segment::ascii_text`], without a copy.
    pub(super) fn into_ascii_text(self) -> Result<String, EntityError> {
        self.ascii_text()?;
        Ok(self.text)
    }

    /// `3`, `v3`, `v12`.
    pub(super) fn is_version(&self) -> bool {
        let digits = self.text.strip_prefix('v').unwrap_or(&self.text);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    }
}

/// The path to send: unreserved characters decoded, dot segments resolved.
pub(super) fn normalize(path: &str) -> Result<String, EntityError> {
    if !path.starts_with('/') {
        return Err(EntityError::NoSlash);
    }
    if path.len() > PATH_MAX || path.matches('/').count() > SEGMENTS_MAX {
        return Err(EntityError::TooLong);
    }
    if is_plain(path) {
        return Ok(path.to_owned());
    }
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'?' | b'#');
    if !path.bytes().all(plain) {
        return Err(EntityError::Character);
    }
    let decoded = decode_unreserved(path)?;
    let resolved = resolve_dots(&decoded);
    check_bytes(resolved.as_bytes())?;
    check_dots(&resolved)?;
    Ok(resolved)
}

/// Only letters, digits, `-_~` and dots inside names: every server reads it as written.
fn is_plain(path: &str) -> bool {
    let mut before = b'/';
    path.bytes().all(|byte| {
        let is_plain = byte.is_ascii_alphanumeric()
            || matches!(byte, b'/' | b'-' | b'_' | b'~')
            || (byte == b'.' && !matches!(before, b'/' | b'.'));
        before = byte;
        is_plain
    })
}

/// A path that has only one reading, such as a prefix in a provider file.
pub(super) fn single_reading(path: &str) -> Result<Vec<Segment>, EntityError> {
    let mut all = readings(&normalize(path)?).into_iter();
    let first = all.next().unwrap_or_default();
    for segment in &first {
        segment.ascii_text()?;
    }
    if all.any(|other| other != first) {
        return Err(EntityError::Path);
    }
    Ok(first)
}

/// The segments of a normalized path that every server reads alike, because nothing in it is encoded.
pub(super) fn only_reading(normalized: &str) -> Option<impl Iterator<Item = Segment>> {
    let is_plain = !normalized.contains('%');
    is_plain.then(|| {
        normalized
            .as_bytes()
            .split(|byte| *byte == b'/')
            .filter_map(segment)
    })
}

/// Every way to read a normalized path: servers differ in what they decode, how often, and when
/// they split at slashes.
pub(super) fn readings(normalized: &str) -> Vec<PathReading> {
    if let Some(only) = only_reading(normalized) {
        return vec![only.collect()];
    }
    let bytes = normalized.as_bytes();
    let once = decode(bytes);
    let fully = decode_fully(bytes);
    // The first reading splits before it decodes; the others decode first.
    let mut readings = vec![
        normalized
            .split('/')
            .filter_map(|part| segment(&decode(part.as_bytes())))
            .collect(),
        segments(&once, b"/"),
        segments(&once, b"/\\"),
        segments(&fully, b"/\\"),
    ];
    readings.dedup();
    readings
}

fn segments(bytes: &[u8], slashes: &[u8]) -> PathReading {
    bytes
        .split(|byte| slashes.contains(byte))
        .filter_map(segment)
        .collect()
}

/// Normalizes one decoded segment; `None` if some server reads it as empty.
fn segment(decoded: &[u8]) -> Option<Segment> {
    let cut = decoded
        .split(|&byte| byte == b';')
        .next()
        .unwrap_or_default();
    let non_ascii = !cut.is_ascii();
    let whole = String::from_utf8_lossy(cut);
    let mut text = trimmed(&whole);
    let formats = FORMATS.iter().filter(|_| text.contains('.'));
    if let Some(name) = formats
        .copied()
        .find_map(|format| strip_suffix_ignore_case(text, format))
    {
        text = trimmed(name);
    }
    (!text.is_empty()).then(|| Segment {
        text: text.to_ascii_lowercase(),
        non_ascii,
    })
}

/// The text without this suffix, in any case.
fn strip_suffix_ignore_case<'a>(text: &'a str, ending: &str) -> Option<&'a str> {
    let at = text.len().checked_sub(ending.len())?;
    let (name, last) = text.split_at_checked(at)?;
    last.eq_ignore_ascii_case(ending).then_some(name)
}

/// The text without surrounding blanks and trailing dots, which some file systems ignore.
fn trimmed(text: &str) -> &str {
    text.trim_start_matches(' ').trim_end_matches(['.', ' '])
}

/// Decodes unreserved characters and writes the other encodings in upper case (RFC 3986 section
/// 6.2.2).
fn decode_unreserved(path: &str) -> Result<Cow<'_, str>, EntityError> {
    if !path.contains('%') {
        return Ok(Cow::Borrowed(path));
    }
    let bytes = path.as_bytes();
    let mut plain = String::with_capacity(path.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte != b'%' {
            plain.push(char::from(byte));
            at += 1;
            continue;
        }
        let value = encoded_at(bytes, at).ok_or(EntityError::Percent)?;
        if value.is_ascii_alphanumeric() || matches!(value, b'-' | b'.' | b'_' | b'~') {
            plain.push(char::from(value));
        } else {
            plain.push_str(&format!("%{value:02X}"));
        }
        at += 3;
    }
    Ok(Cow::Owned(plain))
}

/// RFC 3986 section 5.2.4; `..` at the root is dropped.
fn resolve_dots(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_open = false;
    for part in path.split('/').skip(1) {
        ends_open = matches!(part, "." | "..");
        match part {
            "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(part),
        }
    }
    let mut resolved = String::with_capacity(path.len());
    for part in &segments {
        resolved.push('/');
        resolved.push_str(part);
    }
    if ends_open || segments.is_empty() {
        resolved.push('/');
    }
    resolved
}

/// No control characters and no overlong UTF-8, however often they are encoded.
fn check_bytes(normalized: &[u8]) -> Result<(), EntityError> {
    let mut bytes = Cow::Borrowed(normalized);
    for _ in 0..ENCODINGS_MAX {
        if bytes.iter().any(u8::is_ascii_control) {
            return Err(EntityError::Control);
        }
        let overlong = |pair: &[u8]| {
            matches!(
                pair,
                [0xc0 | 0xc1, _] | [0xe0, 0x80..=0x9f] | [0xf0, 0x80..=0x8f]
            )
        };
        if bytes.windows(2).any(overlong) || matches!(bytes.last(), Some(0xc0 | 0xc1)) {
            return Err(EntityError::Overlong);
        }
        // Most paths have no encoding left and need no copy.
        if !bytes.contains(&b'%') {
            return Ok(());
        }
        let next = decode(&bytes);
        if next == *bytes {
            return Ok(());
        }
        bytes = Cow::Owned(next);
    }
    // Still encoded after four rounds: no honest client encodes five times.
    Err(EntityError::HiddenDots)
}

/// No segment that some server reads as `.` or `..`.
fn check_dots(normalized: &str) -> Result<(), EntityError> {
    let hides = |bytes: &[u8]| {
        bytes
            .split(|byte| matches!(byte, b'/' | b'\\'))
            .any(is_dots)
    };
    let mut bytes = Cow::Borrowed(normalized.as_bytes());
    for _ in 0..=ENCODINGS_MAX {
        if hides(&bytes) {
            return Err(EntityError::HiddenDots);
        }
        if !bytes.contains(&b'%') {
            break;
        }
        bytes = Cow::Owned(decode(&bytes));
    }
    Ok(())
}

/// Dots and nothing else, apart from blanks and a `;` part.
fn is_dots(part: &[u8]) -> bool {
    let name = part.split(|&byte| byte == b';').next().unwrap_or_default();
    let mut name = name.iter().filter(|byte| **byte != b' ').peekable();
    name.peek().is_some() && name.all(|byte| *byte == b'.')
}

/// Decodes one level of percent-encoding. Invalid encodings stay unchanged.
pub(super) fn decode(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if let Some(value) = encoded_at(bytes, at) {
            plain.push(value);
            at += 3;
        } else {
            plain.push(byte);
            at += 1;
        }
    }
    plain
}

/// Decodes every level of percent-encoding, up to the bound that `check_bytes` enforces.
fn decode_fully(bytes: &[u8]) -> Vec<u8> {
    let mut plain = bytes.to_vec();
    for _ in 0..ENCODINGS_MAX {
        plain = decode(&plain);
    }
    plain
}

fn encoded_at(bytes: &[u8], at: usize) -> Option<u8> {
    let (b'%', high, low) = (*bytes.get(at)?, *bytes.get(at + 1)?, *bytes.get(at + 2)?) else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}
