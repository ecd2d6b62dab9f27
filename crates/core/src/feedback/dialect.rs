//! A dialect: how one provider reports its limits, as plain data.
//!
//! Promises: everything that differs between providers is a row in one of these tables; the code
//! that reads a response knows families of fields, never providers. A provider file can build the
//! same rows. The standard rows follow a dialect's own, so a dialect lists only differences.
//!
//! Never: a closure, a compiled pattern or anything else that a file could not contain.

use super::Response;
use super::classify::LimitVerdict;
use super::field_filter::FieldFilter;
use super::wait_time::TimeUnit;
use super::window::WindowUnit;
use crate::time::Span;
use std::sync::Arc;

/// How one provider reports its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Dialect {
    name: String,
    /// The rows of this provider.
    pub(super) own: DialectRows,
    /// The rows that apply to every provider, read after the provider's own.
    standard: Arc<DialectRows>,
    /// The fields that some row reads; the rest of a response is skipped.
    pub(super) read_fields: FieldFilter,
    /// The fields that some row reads windows, waits and scopes from.
    pub(super) limit_fields: FieldFilter,
    /// The headers of rows that can match a response without a body.
    header_fields: FieldFilter,
    /// Some row matches a success that has none of the fields it reads.
    matches_empty_success: bool,
}

/// The tables of a dialect. Order matters within a table: the first row that matches decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DialectRows {
    /// How to classify a response: limited, overloaded, or neither.
    pub signatures: Vec<Signature>,
    /// Where to read an explicit wait.
    pub waits: Vec<WaitRule>,
    /// Where to read a window (limit, remaining, reset).
    pub windows: Vec<WindowRule>,
    /// Where to read an explicit scope.
    pub scopes: Vec<ScopeRule>,
    /// How long to wait if a limited response states no time.
    pub default_waits: Vec<DefaultWait>,
    /// What a bare number in a reset field means; by default its size decides.
    pub reset_unit: TimeUnit,
    /// The header that names the window of the plain limit/remaining/reset fields, and the scope
    /// where these are missing or dropped.
    pub window_name: Option<String>,
    /// The scope that a limit of 0 with 0 remaining stands for.
    pub zero_of_zero: Option<String>,
    /// When these hold, the numbers belong to a pool shared with other customers and are dropped.
    pub shared_if: Vec<Condition>,
    /// Repeated plain fields are one list with an entry per window, not one value sent twice.
    pub parallel_lists: bool,
    /// The limits that responses state and that Tollgate learns from them.
    pub learned: Vec<LearnedWindow>,
}

/// A limit that responses state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedWindow {
    /// The limit's name: `requests`, `tokens`.
    pub name: String,
    /// The unit that it counts, as in the costs of a provider file; `calls` counts calls.
    pub unit: String,
    /// The names of its windows in responses, in lower case; a `*` stands for any text.
    pub windows: Vec<String>,
    /// How long the window is, as the provider documents it.
    pub period: Span,
}

impl LearnedWindow {
    /// Does a window of this name state the limit?
    #[must_use]
    pub fn is_stated_by(&self, window: &str) -> bool {
        let window = window.to_ascii_lowercase();
        self.windows.iter().any(|pattern| fits(pattern, &window))
    }
}

/// Does a text fit a pattern in which `*` stands for any text?
fn fits(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(start) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        match text.split_once(part) {
            Some((_, after)) => text = after,
            None => return false,
        }
    }
    text.ends_with(end)
}

/// A place in a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldPlace {
    /// A header, by name.
    Header(String),
    /// JSON members joined by dots; `[]` after a name is each element (`errors[].type`).
    Body(String),
    /// The text of the first XML element of this name; `element@attribute` is the value of that
    /// attribute of it.
    Tag(String),
    /// The whole body as text (its beginning, see [`TEXT_MAX`](super::TEXT_MAX)).
    Text,
}

/// What must be true of a place. Texts compare case-insensitively.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// The place is empty.
    Absent,
    /// The value is a count of zero.
    Zero,
    /// The value equals one of these.
    Is(Vec<String>),
    /// The value contains one of these.
    Has(Vec<String>),
    /// The value begins with one of these.
    Starts(Vec<String>),
    /// The value equals one of these, without the text after a `:` and a namespace before `#`.
    Code(Vec<String>),
}

/// A test of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Where to look.
    pub place: FieldPlace,
    /// What must be true there.
    pub test: Test,
}

/// Classifies a response that has one of these statuses and meets every condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The statuses it applies to; an empty list means every status.
    pub status: Vec<u16>,
    /// All of them must hold.
    pub conditions: Vec<Condition>,
    /// The verdict on such a response.
    pub verdict: LimitVerdict,
    /// The scope of the limit, if the signature implies it.
    pub scope: Option<String>,
    /// Where the response names the scope of the limit.
    pub scope_at: Option<FieldPlace>,
}

impl Signature {
    /// Does it read the body? Then it matches no response without one.
    pub(super) fn needs_body(&self) -> bool {
        let is_in_body = |condition: &Condition| {
            condition.test != Test::Absent && !matches!(condition.place, FieldPlace::Header(_))
        };
        self.conditions.iter().any(is_in_body)
    }

    /// Can it match a success that has none of the fields it reads?
    fn matches_empty_success(&self) -> bool {
        let is_absence = |condition: &Condition| condition.test == Test::Absent;
        let fits_success = self.status.is_empty() || self.status.iter().any(|status| *status < 400);
        fits_success && self.conditions.iter().all(is_absence)
    }
}

/// Where to read an explicit wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitRule {
    /// A time in a field of its own.
    Field {
        /// Where it is; a header name may contain one `*`.
        place: FieldPlace,
        /// What a bare number means.
        unit: TimeUnit,
    },
    /// A time inside a sentence, right after these words.
    AfterWords {
        /// Where the sentence is.
        place: FieldPlace,
        /// The words before the time.
        words: String,
    },
    /// Points that refill: wait until there are enough for the cost of the call.
    Refill {
        /// Body path of the cost of the call.
        cost: String,
        /// Body path of the points available now.
        available: String,
        /// Body path of the points restored per second.
        per_second: String,
    },
}

/// Where to read a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowRule {
    /// One header per number.
    Fields(Fields),
    /// One JSON member per number.
    Body(BodyFields),
    /// IETF `RateLimit` and `RateLimit-Policy`, as structured lists or the draft-07 dictionary.
    Structured {
        /// The header with the remaining counts.
        rate: String,
        /// The header with the policies.
        policy: String,
    },
    /// `used/limit`, alone or as `name=used/limit;…`.
    UsedOfLimit {
        /// The header.
        header: String,
    },
    /// Two lists of `number:seconds`, one with limits and one with counts.
    PerPeriod {
        /// The header with the limits.
        limits: String,
        /// The header with the counts.
        counts: String,
        /// The window's name.
        name: String,
    },
    /// `name;remaining,name;remaining`.
    NamedCounts {
        /// The header.
        header: String,
    },
    /// `total=100; remaining=99; resets=41`; the `*` of the header matches the name.
    Pairs {
        /// The header, with a `*`.
        header: String,
    },
    /// A JSON object with name, limit, remaining, until and period.
    JsonHeader {
        /// The header.
        header: String,
    },
}

/// A window with one header per number. Each column lists the headers to try in order. If the
/// names contain a `*` (all of them, or none), there is a window for each text that it matches,
/// and that text is the window's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// The window's name, if the headers do not give one.
    pub name: Option<String>,
    /// The unit; `None` derives it from the name.
    pub unit: Option<WindowUnit>,
    /// The limit.
    pub limit: Vec<String>,
    /// The remaining count.
    pub remaining: Vec<String>,
    /// The used count; completes a missing limit or remaining count.
    pub used: Vec<String>,
    /// When it resets.
    pub reset: Vec<String>,
    /// The time until it resets; takes precedence over `reset`.
    pub reset_after: Vec<String>,
    /// How long the window is.
    pub period: Vec<(String, TimeUnit)>,
    /// The limit, if the provider documents it and never sends it.
    pub known_limit: Option<u64>,
    /// Texts that the `*` must not match.
    pub except: Vec<String>,
}

/// A window with one JSON member per number; paths start at `root`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyFields {
    /// Body path of the object; with `[]` there is a window for each element.
    pub root: String,
    /// The window's name.
    pub name: Option<String>,
    /// Body path of its name.
    pub name_at: Option<String>,
    /// The unit.
    pub unit: Option<WindowUnit>,
    /// Body path of the limit.
    pub limit: Option<String>,
    /// Body path of the remaining count.
    pub remaining: Option<String>,
    /// Body path of the used count.
    pub used: Option<String>,
    /// When it resets.
    pub reset: Vec<(String, TimeUnit)>,
    /// The object exists only if the window is exhausted.
    pub is_exhausted: bool,
    /// The object counts only in a limited response.
    pub only_when_limited: bool,
}

/// Where to read an explicit scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeRule {
    /// Where to look.
    pub place: FieldPlace,
    /// What must be true there; `None` accepts anything.
    pub test: Option<Test>,
    /// How to name the scope.
    pub naming: ScopeNaming,
}

/// How to name a scope after the value found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopeNaming {
    /// As written.
    AsWritten,
    /// As written, in lower case.
    Lower,
    /// As written, after this prefix.
    Prefixed(String),
    /// Always this name.
    Fixed(String),
}

/// How long to wait if a limited response states no time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultWait {
    /// The scope it applies to; `None` means every scope.
    pub scope: Option<String>,
    /// How long.
    pub wait: Span,
}

impl Dialect {
    /// A dialect of its own rows, followed by the standard ones.
    #[must_use]
    pub fn new(name: &str, own: DialectRows, standard: Arc<DialectRows>) -> Dialect {
        let read_fields = FieldFilter::of(&[&own, &*standard]);
        let limit_fields = FieldFilter::limits_only(&[&own, &*standard]);
        let header_fields = FieldFilter::without_body(&[&own, &*standard]);
        let mut signatures = own.signatures.iter().chain(&standard.signatures);
        let matches_empty_success = signatures.any(Signature::matches_empty_success);
        Dialect {
            name: name.to_owned(),
            own,
            standard,
            read_fields,
            limit_fields,
            header_fields,
            matches_empty_success,
        }
    }

    /// A success without a body and without any header that a row names. Most responses are like
    /// this, and no row can match them.
    pub(super) fn can_skip(&self, response: &Response<'_>) -> bool {
        let is_quiet =
            response.status < 400 && response.body.is_empty() && !self.matches_empty_success;
        is_quiet
            && !response
                .headers
                .iter()
                .any(|line| self.header_fields.has_header(line.0))
    }

    /// Does a header of this name report limits? Then it is valid only at the time it was sent.
    #[must_use]
    pub fn is_limit_header(&self, name: &str) -> bool {
        self.limit_fields.has_header(name)
    }

    /// The provider's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The provider's own rows, for a dialect that starts from this one.
    #[must_use]
    pub fn rows(&self) -> &DialectRows {
        &self.own
    }

    /// The rows that apply to every provider.
    #[must_use]
    pub fn standard(&self) -> Arc<DialectRows> {
        Arc::clone(&self.standard)
    }

    /// Whether a success of this provider can report limits in its body. If not, the caller need
    /// not buffer the body to have it read.
    #[must_use]
    pub fn reads_success_bodies(&self) -> bool {
        let in_success = |signature: &Signature| {
            let reads = signature
                .conditions
                .iter()
                .any(|c| !matches!(c.place, FieldPlace::Header(_)));
            let fits = signature.status.is_empty() || signature.status.iter().any(|s| *s < 400);
            reads && fits
        };
        self.own.signatures.iter().any(in_success)
            || self.own.windows.iter().any(|rule| match rule {
                WindowRule::Body(fields) => !fields.only_when_limited && !fields.is_exhausted,
                WindowRule::Fields(_)
                | WindowRule::Structured { .. }
                | WindowRule::UsedOfLimit { .. }
                | WindowRule::PerPeriod { .. }
                | WindowRule::NamedCounts { .. }
                | WindowRule::Pairs { .. }
                | WindowRule::JsonHeader { .. } => false,
            })
    }

    /// The limits that its responses state.
    #[must_use]
    pub fn learned(&self) -> &[LearnedWindow] {
        &self.own.learned
    }

    pub(super) fn signatures(&self) -> impl Iterator<Item = &Signature> {
        self.own.signatures.iter().chain(&self.standard.signatures)
    }

    pub(super) fn waits(&self) -> impl Iterator<Item = &WaitRule> {
        self.own.waits.iter().chain(&self.standard.waits)
    }

    pub(super) fn windows(&self) -> impl Iterator<Item = &WindowRule> {
        self.own.windows.iter().chain(&self.standard.windows)
    }

    pub(super) fn scopes(&self) -> impl Iterator<Item = &ScopeRule> {
        self.own.scopes.iter().chain(&self.standard.scopes)
    }

    /// The wait for a limited response about `scope` that states no time.
    pub(super) fn default_wait(&self, scope: Option<&str>) -> Option<Span> {
        let fits = |row: &&DefaultWait| row.scope.is_none() || row.scope.as_deref() == scope;
        self.own.default_waits.iter().find(fits).map(|row| row.wait)
    }
}

impl Fields {
    /// The headers that make it a window.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> + Clone {
        let Fields {
            limit,
            remaining,
            used,
            reset,
            reset_after,
            ..
        } = self;
        [limit, remaining, used, reset, reset_after]
            .into_iter()
            .flatten()
    }
}
