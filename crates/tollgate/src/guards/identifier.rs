//! For whom a guard counts, as metrics name it.
//!
//! Promises: fits into an ask without memory of its own; a long identifier is cut.
//!
//! Never: decides anything; the table knows keys only.

use std::fmt;
use std::net::IpAddr;

/// How much of an identifier metrics show: a UUID has 36 bytes, an IPv6 address at most 39.
const SHOWN_MAX: usize = 40;

/// For whom a guard counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Identifier {
    /// All requests share one key.
    #[default]
    Global,
    /// An address.
    Ip(IpAddr),
    /// The beginning of a text, and its length.
    Text([u8; SHOWN_MAX], u8),
}

impl Identifier {
    pub(super) fn of_text(text: &[u8]) -> Identifier {
        let mut shown = [0; SHOWN_MAX];
        let length = text.len().min(SHOWN_MAX);
        shown[..length].copy_from_slice(&text[..length]);
        Identifier::Text(shown, u8::try_from(length).unwrap_or(0))
    }
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identifier::Global => f.write_str("global"),
            Identifier::Ip(ip) => ip.fmt(f),
            Identifier::Text(shown, length) => {
                let text = &shown[..usize::from(*length).min(SHOWN_MAX)];
                let text = String::from_utf8_lossy(text);
                text.chars()
                    .filter(|one| !one.is_control())
                    .try_for_each(|one| write!(f, "{one}"))
            }
        }
    }
}
