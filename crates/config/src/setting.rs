//! Settings: how one value of a file is read into a typed value, and how it is written.
//!
//! Promises: what [`Setting::read`] reads, [`Setting::written`] writes, so defaults and effective
//! values are shown in the words that a user would write.
//!
//! Never: repeats a value in a problem.

use std::net::{Ipv4Addr, SocketAddr};

use tollgate_core::health::Rate;
use tollgate_core::limit::AMOUNT_MAX;
use tollgate_core::ratio::Ppm;
use tollgate_core::time::Span;

use crate::amount::{self, ByteRate, HumanSpan, Lifetime, Millionths, Part, Size};
use crate::field::{At, Fields};
use crate::problem::{Problem, Problems, nearest};
use crate::shape::Shape;

/// Something that can be read from one value.
pub(crate) trait Setting: Sized {
    /// The form of its value.
    const SHAPE: Shape;

    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Self>;

    /// As a user would write it; empty for blocks, whose fields are written one by one.
    fn written(&self) -> String {
        String::new()
    }
}

/// Reads a single value by a function; `what` and `remedy` are its problem.
pub(crate) fn read_text<T>(
    at: &At<'_>,
    problems: &mut Problems,
    read: impl FnOnce(&str) -> Option<T>,
    what: &str,
    remedy: &str,
) -> Option<T> {
    let text = at.text(problems)?;
    let value = read(text.trim());
    if value.is_none() {
        problems.push(at.error(what, remedy));
    }
    value
}

/// A setting that is read from a single text.
macro_rules! scalar {
    ($kind:ty, $shape:expr, $read:expr, $written:expr, $what:literal, $remedy:literal) => {
        impl Setting for $kind {
            const SHAPE: Shape = $shape;
            fn read(at: &At<'_>, problems: &mut Problems) -> Option<$kind> {
                read_text(at, problems, $read, $what, $remedy)
            }
            fn written(&self) -> String {
                let written: fn(&$kind) -> String = $written;
                written(self)
            }
        }
    };
}

scalar!(
    Span,
    Shape::Duration,
    amount::span,
    |span| HumanSpan(*span).to_string(),
    "is not a duration or has no unit",
    "write `10s`, `5m`, `6h`, `1d` or `1m30s`"
);
/// A whole number up to `most`: one that is larger is a number all the same, and is told so.
fn read_number(at: &At<'_>, problems: &mut Problems, most: u64) -> Option<u64> {
    let text = at.text(problems)?.trim();
    let value = amount::number(text).filter(|number| *number <= most);
    if value.is_none() {
        let digits = || {
            text.bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'_')
        };
        let is_number = text.starts_with(|first: char| first.is_ascii_digit()) && digits();
        problems.push(match is_number && !text.ends_with('_') {
            true => at.error("is too large", &format!("write {most} or less")),
            false => at.error("is not a whole number", "write digits, such as `40`"),
        });
    }
    value
}

impl Setting for u64 {
    const SHAPE: Shape = Shape::Integer;
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<u64> {
        read_number(at, problems, AMOUNT_MAX)
    }
    fn written(&self) -> String {
        self.to_string()
    }
}

impl Setting for u32 {
    const SHAPE: Shape = Shape::Integer;
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<u32> {
        let number = read_number(at, problems, u64::from(u32::MAX))?;
        u32::try_from(number).ok()
    }
    fn written(&self) -> String {
        self.to_string()
    }
}

scalar!(
    Millionths,
    Shape::Decimal,
    decimal,
    ToString::to_string,
    "is not a number",
    "write `0.2`, `20%` or `1.5`, with six decimals at most"
);
scalar!(
    Ppm,
    Shape::Decimal,
    |text| u32::try_from(decimal(text)?.0).ok().map(Ppm),
    |ppm| Millionths(u64::from(ppm.0)).to_string(),
    "is not a number",
    "write `0.2`, `20%` or `1.5`, with six decimals at most"
);
scalar!(
    Rate,
    Shape::Decimal,
    |text| amount::millionths(text).map(|rate| Rate::from_millionths(rate.0)),
    ToString::to_string,
    "is not a number of calls a second",
    "write `3` or `0.5`"
);
scalar!(
    Part,
    Shape::Part,
    amount::part,
    |part| match part {
        Part::Number(number) => number.to_string(),
        Part::Share(share) => share.to_string(),
    },
    "is not a number or a share",
    "write `50` or `5%`"
);
scalar!(
    Lifetime,
    Shape::Lifetime,
    amount::lifetime,
    |lifetime| match lifetime {
        Lifetime::Off => "0s".to_owned(),
        other => other.to_string(),
    },
    "is not a lifetime",
    "write `24h`, `5m..10m` (shortest first), `forever`, or `0s` for none"
);
scalar!(
    Size,
    Shape::Size,
    amount::size,
    ToString::to_string,
    "is not a number of bytes",
    "write `50MiB`, `512KiB` or a whole number"
);
scalar!(
    ByteRate,
    Shape::Text,
    amount::byte_rate,
    ToString::to_string,
    "is not a number of bytes a second",
    "write `1KiB/s` or `0B/s`"
);
scalar!(
    bool,
    Shape::Boolean,
    parse_bool,
    ToString::to_string,
    "is not a boolean",
    "write `true` or `false`"
);
scalar!(
    SocketAddr,
    Shape::Address,
    parse_address,
    ToString::to_string,
    "is not an address with a port",
    "write `127.0.0.1:4301`, or `:4301` for this machine only"
);
scalar!(
    String,
    Shape::Text,
    |text| (!text.is_empty()).then(|| text.to_owned()),
    Clone::clone,
    "is empty",
    "write a value or remove the line"
);

/// An address with a port. Without an IP address, or with `localhost`, it is loopback: the safe
/// reading, because any other one opens the port to other machines. Names are never resolved.
#[must_use]
pub fn parse_address(text: &str) -> Option<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let port = text.strip_prefix("localhost").unwrap_or(text);
    let port = port.strip_prefix(':')?;
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let port: u16 = port.parse().ok().filter(|_| is_number)?;
    Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

fn decimal(text: &str) -> Option<Millionths> {
    match text.strip_suffix('%') {
        Some(_) => amount::share(text),
        None => amount::millionths(text),
    }
}

fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Some(true),
        "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// `off`, or a value.
impl<T: Setting> Setting for Option<T> {
    const SHAPE: Shape = Shape::OrOff(&T::SHAPE);

    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Option<T>> {
        let off = at
            .node
            .text()
            .is_some_and(|text| text == "off" || text == "false");
        if off {
            Some(None)
        } else {
            T::read(at, problems).map(Some)
        }
    }

    fn written(&self) -> String {
        self.as_ref().map_or("off".to_owned(), T::written)
    }
}

/// One value, or a list of them.
impl<T: Setting> Setting for Vec<T> {
    const SHAPE: Shape = Shape::List(&T::SHAPE);

    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Vec<T>> {
        match at.list() {
            Some(items) => Some(
                items
                    .iter()
                    .filter_map(|item| T::read(item, problems))
                    .collect(),
            ),
            None => T::read(at, problems).map(|one| vec![one]),
        }
    }

    fn written(&self) -> String {
        let items: Vec<String> = self.iter().map(T::written).collect();
        format!("[{}]", items.join(", "))
    }
}

/// `off`, or a length of time of which a bare number is minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OffOrMinutes(pub(crate) Option<Span>);

impl Setting for OffOrMinutes {
    const SHAPE: Shape = Shape::OrOff(&Shape::Minutes);

    fn read(at: &At<'_>, problems: &mut Problems) -> Option<OffOrMinutes> {
        let read = |text: &str| match amount::number(text) {
            _ if text == "off" || text == "false" => Some(OffOrMinutes(None)),
            Some(minutes) => Some(OffOrMinutes(Some(Span::from_secs(
                minutes.saturating_mul(60),
            )))),
            None => amount::span(text).map(|span| OffOrMinutes(Some(span))),
        };
        read_text(
            at,
            problems,
            read,
            "is not a duration",
            "write `15m`, a number of minutes, or `off`",
        )
    }

    fn written(&self) -> String {
        self.0.written()
    }
}

impl From<OffOrMinutes> for Option<Span> {
    fn from(minutes: OffOrMinutes) -> Option<Span> {
        minutes.0
    }
}

impl From<Option<Span>> for OffOrMinutes {
    fn from(span: Option<Span>) -> OffOrMinutes {
        OffOrMinutes(span)
    }
}

pub(crate) fn not_a_word(at: &At<'_>, other: &str, words: &[&str]) -> Problem {
    let list = words
        .iter()
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(", ");
    let remedy = match nearest(other, words) {
        Some(word) => format!("did you mean `{word}`?"),
        None => "write one of these".to_owned(),
    };
    at.error(&format!("is none of {list}"), &remedy)
}

/// Opens a block with the fields of a table.
pub(crate) fn open<'a>(
    at: &At<'a>,
    fields: &'static [crate::shape::Field],
    problems: &mut Problems,
) -> Option<Fields<'a>> {
    Fields::open(at, &crate::shape::names(fields), problems)
}

/// Words of a file for an enum. The first form also makes the enum (its first word is the
/// default); the second, with `for`, is for an enum of `core`.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $(#[$first_doc:meta])* $first:ident = $first_word:literal, $( $(#[$variant_doc:meta])* $variant:ident = $word:literal, )* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            $(#[$first_doc])* #[default] $first,
            $( $(#[$variant_doc])* $variant, )*
        }

        impl $name {
            /// The word as it is written.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { Self::$first => $first_word, $( Self::$variant => $word, )* }
            }
        }

        $crate::setting::words! { for $name { $first = $first_word, $( $variant = $word, )* } }
    };
    (for $name:ty { $( $variant:ident = $word:literal, )* }) => {
        impl $crate::setting::Setting for $name {
            const SHAPE: $crate::shape::Shape = $crate::shape::Shape::Words(&[$( $word, )*]);

            fn read(at: &$crate::field::At<'_>, problems: &mut $crate::problem::Problems) -> Option<Self> {
                match at.text(problems)?.trim() {
                    $( $word => Some(Self::$variant), )*
                    other => {
                        problems.push($crate::setting::not_a_word(at, other, &[$( $word, )*]));
                        None
                    }
                }
            }

            fn written(&self) -> String {
                match self { $( Self::$variant => $word.to_owned(), )* }
            }
        }
    };
}
pub(crate) use words;

/// A block of settings: names, meanings, types and defaults in one place. The first form also makes
/// the struct; the second, with `for`, fills a struct of `core` and uses its defaults;
/// `base(backoff.base)` is a nested field of that struct.
macro_rules! block {
    ($(#[$doc:meta])* $name:ident { $( #[doc = $field_doc:literal] $field:ident: $kind:ty = $default:expr, )* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $( #[doc = $field_doc] pub $field: $kind, )* }

        impl Default for $name {
            fn default() -> Self {
                $name { $( $field: $default, )* }
            }
        }

        $crate::setting::block! { for $name { $( #[doc = $field_doc] $field($field): $kind, )* } }
    };
    (for $name:ty { $( #[doc = $field_doc:literal] $field:ident($($way:ident).+): $kind:ty, )* }) => {
        impl $crate::setting::Setting for $name {
            const SHAPE: $crate::shape::Shape = $crate::shape::Shape::Block(&[$(
                $crate::shape::Field {
                    name: stringify!($field),
                    doc: $field_doc,
                    shape: <$kind as $crate::setting::Setting>::SHAPE,
                    default: || {
                        let value = <$kind>::from(<$name>::default().$($way).+);
                        $crate::setting::Setting::written(&value)
                    },
                },
            )*]);

            fn read(at: &$crate::field::At<'_>, problems: &mut $crate::problem::Problems) -> Option<Self> {
                let names: &[&str] = &[$( stringify!($field), )*];
                let fields = $crate::field::Fields::open(at, names, problems)?;
                let mut block = Self::default();
                $( if let Some(value) = fields.read::<$kind>(stringify!($field), problems) {
                    block.$($way).+ = value.into();
                } )*
                Some(block)
            }
        }
    };
}
pub(crate) use block;
