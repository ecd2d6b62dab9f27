//! A dialect: how one provider talks about its limits, as plain data.
//!
//! Promises: everything that differs between providers is a row in one of these tables; the code
//! that reads a response knows families, never providers. A provider file can build the same
//! rows. The standard rows follow a dialect's own, so a dialect only says what is different.
//!
//! Never: a closure, a compiled pattern or anything else that could not be written in a file.

use super::Response;
use super::classify::LimitVerdict;
use super::field_filter::FieldFilter;
use super::wait_time::TimeUnit;
use super::window::WindowUnit;
use crate::time::Span;
use std::sync::Arc;

/// How one provider talks about its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Dialect {
    name: String,
    /// The rows of this provider.
    pub(super) own: Rows,
    /// The rows that hold for everybody, read after the provider's own.
    standard: Arc<Rows>,
    /// What some row looks at; everything else of a response is passed over.
    pub(super) read_fields: FieldFilter,
    /// The part of it that tells of windows, waits and scopes.
    pub(super) limit_fields: FieldFilter,
    /// The headers that some row names.
    header_fields: FieldFilter,
    /// Some row takes a success without a word for something.
    matches_empty_success: bool,
}

/// The tables of a dialect. Order matters within a table: the first row that fits decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// What a response is: refused, overloaded, or neither.
    pub signatures: Vec<Signature>,
    /// Where an explicit wait is written.
    pub waits: Vec<WaitRule>,
    /// Where a window (limit, remaining, reset) is written.
    pub windows: Vec<WindowRule>,
    /// Where the scope is named outright.
    pub scopes: Vec<ScopeRule>,
    /// What to wait if refused without a word about time.
    pub default_waits: Vec<DefaultWait>,
    /// What a bare number in a reset field means; size decides otherwise.
    pub reset_unit: TimeUnit,
    /// The header that names the window of the plain limit/remaining/reset fields, and the scope
    /// where these are missing or dropped.
    pub window_name: Option<String>,
    /// The scope that a limit of 0 with 0 left stands for.
    pub zero_of_zero: Option<String>,
    /// When these hold, the numbers belong to a pool shared with strangers and are dropped.
    pub shared_if: Vec<Condition>,
    /// Repeated plain fields are one list with an entry per window, not one value said twice.
    pub parallel_lists: bool,
}

/// Where in a response to look.
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

/// What must be true of a place. Texts compare without regard to case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// Nothing is there.
    Absent,
    /// A count of zero is there.
    Zero,
    /// One of these is there, exactly.
    Is(Vec<String>),
    /// One of these is part of what is there.
    Has(Vec<String>),
    /// What is there begins with one of these.
    Starts(Vec<String>),
    /// One of these is there once what follows a `:` and a namespace before `#` are dropped.
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

/// What a response is, if it has one of these statuses and every condition holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The statuses it applies to; none means every status.
    pub status: Vec<u16>,
    /// All of them must hold.
    pub conditions: Vec<Condition>,
    /// What the response then is.
    pub verdict: LimitVerdict,
    /// The scope it is about, if the signature tells.
    pub scope: Option<String>,
    /// Where the scope it is about is written.
    pub scope_at: Option<FieldPlace>,
}

impl Signature {
    /// Does it look for something in the body? Then it fits none that has no body.
    pub(super) fn needs_body(&self) -> bool {
        let is_in_body = |condition: &Condition| {
            condition.test != Test::Absent && !matches!(condition.place, FieldPlace::Header(_))
        };
        self.conditions.iter().any(is_in_body)
    }

    /// Could it fit a success that has nothing which it looks at?
    fn matches_empty_success(&self) -> bool {
        let is_absence = |condition: &Condition| condition.test == Test::Absent;
        let fits_success = self.status.is_empty() || self.status.iter().any(|status| *status < 400);
        fits_success && self.conditions.iter().all(is_absence)
    }
}

/// Where an explicit wait is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitRule {
    /// A time in a place of its own.
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
    /// Points that refill: wait until there are enough for what the call costs.
    Refill {
        /// Body path: what the call costs.
        cost: String,
        /// Body path: what is there now.
        available: String,
        /// Body path: what comes back per second.
        per_second: String,
    },
}

/// Where a window is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowRule {
    /// One header per number.
    Fields(Fields),
    /// One JSON member per number.
    Body(BodyFields),
    /// IETF `RateLimit` and `RateLimit-Policy`, as structured lists or the draft-07 dictionary.
    Structured {
        /// The header with what is left.
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
    /// `name;left,name;left`.
    NamedCounts {
        /// The header.
        header: String,
    },
    /// `total=100; remaining=99; resets=41`, the `*` of the header being the name.
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
/// names contain a `*` (all of them, or none), there is a window for each text that it stands for,
/// and that text is its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// The window's name, if the headers do not give one.
    pub name: Option<String>,
    /// What is counted; none means that the name tells.
    pub unit: Option<WindowUnit>,
    /// What is allowed.
    pub limit: Vec<String>,
    /// What is left.
    pub remaining: Vec<String>,
    /// What was used; tells a missing limit or remaining count.
    pub used: Vec<String>,
    /// When it resets.
    pub reset: Vec<String>,
    /// In how long it resets; beats `reset`.
    pub reset_after: Vec<String>,
    /// How long the window is.
    pub period: Vec<(String, TimeUnit)>,
    /// The limit, where the provider documents it and never sends it.
    pub known_limit: Option<u64>,
    /// Texts that the `*` must not stand for.
    pub except: Vec<String>,
}

/// A window with one JSON member per number; paths start at `root`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyFields {
    /// Body path of the object; through `[]` there is a window for each.
    pub root: String,
    /// The window's name.
    pub name: Option<String>,
    /// Where its name is written.
    pub name_at: Option<String>,
    /// What is counted.
    pub unit: Option<WindowUnit>,
    /// What is allowed.
    pub limit: Option<String>,
    /// What is left.
    pub remaining: Option<String>,
    /// What was used.
    pub used: Option<String>,
    /// When it resets.
    pub reset: Vec<(String, TimeUnit)>,
    /// The object exists only because the window is used up.
    pub is_exhausted: bool,
    /// The object means something only in a refusal.
    pub only_when_limited: bool,
}

/// Where the scope is named outright.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeRule {
    /// Where to look.
    pub place: FieldPlace,
    /// What must be true there; none means that anything will do.
    pub test: Option<Test>,
    /// How to name the scope.
    pub naming: ScopeNaming,
}

/// How a scope is named after what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopeNaming {
    /// As written.
    AsWritten,
    /// As written, in lower case.
    Lower,
    /// As written, after this prefix.
    Prefixed(String),
    /// Always this.
    Fixed(String),
}

/// What to wait if a refusal says nothing about time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultWait {
    /// The scope it holds for; none means every scope.
    pub scope: Option<String>,
    /// How long.
    pub wait: Span,
}

impl Dialect {
    /// A dialect of its own rows, followed by the standard ones.
    #[must_use]
    pub fn new(name: &str, own: Rows, standard: Arc<Rows>) -> Dialect {
        let interest = FieldFilter::of(&[&own, &*standard]);
        let told = FieldFilter::limits_only(&[&own, &*standard]);
        let named = FieldFilter::without_body(&[&own, &*standard]);
        let mut signatures = own.signatures.iter().chain(&standard.signatures);
        let silence_speaks = signatures.any(Signature::matches_empty_success);
        Dialect {
            name: name.to_owned(),
            own,
            standard,
            read_fields: interest,
            limit_fields: told,
            header_fields: named,
            matches_empty_success: silence_speaks,
        }
    }

    /// A success without a body to read and without any header that a row names: most answers are
    /// such, and every row would look in vain.
    pub(super) fn can_skip(&self, response: &Response<'_>) -> bool {
        let is_quiet =
            response.status < 400 && response.body.is_empty() && !self.matches_empty_success;
        is_quiet
            && !response
                .headers
                .iter()
                .any(|line| self.header_fields.has_header(line.0))
    }

    /// Is a header of this name about limits, and so about one moment?
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
    pub fn rows(&self) -> &Rows {
        &self.own
    }

    /// The rows that hold for everybody.
    #[must_use]
    pub fn standard(&self) -> Arc<Rows> {
        Arc::clone(&self.standard)
    }

    /// Whether a success of this provider can carry news in its body. If not, the caller need not
    /// hold the body back to have it read.
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

    /// The wait for a refusal about `scope` that says nothing about time.
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
