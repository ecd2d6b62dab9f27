//! What a response says about limits, in whichever dialect it says it.
//!
//! Promises: [`read`] is total. Whatever bytes a provider sends, the answer is bounded: no wait
//! beyond 31 days, no count above 2^53, no more work than the bounds below allow. A value that is
//! malformed or absurd counts as absent, and absent is never taken for zero.
//!
//! Never: adds a floor or jitter to a wait, or decides what to do about it; the governor does.
//! Keeps or repeats a body: providers echo keys and addresses in them.

mod number;
pub(crate) mod date;
mod wait_time;
mod headers;
mod json;
mod window;
mod lists;
mod structured;
mod wait;
mod classify;
mod dialect;
mod field_filter;
mod table_builder;
mod standard;
mod builtin;
mod builtin_ai;
mod builtin_data;
mod builtin_web;

pub use builtin::Dialects;
pub use classify::LimitVerdict;
pub use dialect::{
    BodyFields, Condition, DefaultWait, Dialect, FieldPlace, Fields, Rows, ScopeNaming, ScopeRule,
    Signature, Test, WaitRule, WindowRule,
};
pub use headers::{ITEMS_MAX, LINES_MAX, VALUE_MAX};
pub use json::{BODY_MAX, TEXT_MAX};
pub use number::COUNT_MAX;
pub use wait_time::{HORIZON, TimeUnit};
pub use window::{Window, WindowUnit};

use crate::time::{Span, Wall};
use classify::ParsedResponse;
use headers::HeaderLines;
use json::Json;
use number::Decimal;
use wait_time::Clocks;

/// One response, as it came. The body may be cut at [`BODY_MAX`], and be empty where the dialect
/// does not read it.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The HTTP status.
    pub status: u16,
    /// Header lines in the order sent; names in any case, values as bytes.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// The body, decoded of any content encoding.
    pub body: &'a [u8],
}

/// What a response said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// Whether this call was refused, and why.
    pub verdict: LimitVerdict,
    /// What is left of the binding window.
    pub remaining: Option<u64>,
    /// What the binding window allows.
    pub limit: Option<u64>,
    /// When the wait is over, else when the binding window resets.
    pub reset_at: Option<Wall>,
    /// How long the scope must rest. `None` is no instruction (if limited: back off), zero is at
    /// once.
    pub wait: Option<Span>,
    /// What the refusal or the binding window is about, in the provider's words.
    pub scope: Option<String>,
    /// Every window described, the binding one among them.
    pub windows: Vec<Window>,
}

impl Feedback {
    /// Whether this call was refused because of a limit; not the same as nothing being left.
    #[must_use]
    pub fn limited(&self) -> bool {
        match self.verdict {
            LimitVerdict::Limited | LimitVerdict::Spent => true,
            LimitVerdict::Passed | LimitVerdict::Overloaded => false,
        }
    }
}

/// Reads one response. `now` is our wall clock when it arrived.
#[must_use]
pub fn read(response: &Response<'_>, dialect: &Dialect, now: Wall) -> Feedback {
    if dialect.can_skip(response) {
        return Feedback::default();
    }
    let opened = parse_response(response, dialect);
    let signature = opened.signature(dialect); // refused, overloaded or neither?
    let verdict = signature
        .map(|signature| signature.verdict)
        .unwrap_or_default();
    if signature.is_none() && opened.has_no_limit_fields(dialect) {
        return Feedback::default(); // most answers say nothing: every row would look in vain
    }
    if is_from_cache(&opened, verdict) {
        return Feedback::default(); // the numbers of a cached answer are somebody else's past
    }
    let clocks = Clocks::new(now, opened.headers.first("date")); // points in time are the server's
    let windows = windows(&opened, dialect, verdict, clocks); // how much of what is left?
    let binding = window::binding(&windows).unwrap_or_default(); // the tightest of them
    let scope = opened
        .scope(dialect, signature)
        .or_else(|| concurrency_scope(&binding, dialect))
        .or_else(|| binding.name.clone())
        .or_else(|| opened.window_name(dialect));
    let wait = match verdict {
        LimitVerdict::Limited => {
            let told = wait::explicit(dialect, &opened, clocks);
            limited_wait(told, &windows).or_else(|| dialect.default_wait(scope.as_deref()))
        }
        LimitVerdict::Spent => None,
        LimitVerdict::Overloaded => wait::explicit(dialect, &opened, clocks),
        LimitVerdict::Passed => binding.reset.filter(|_| binding.is_exhausted()),
    };
    let reset = match verdict {
        LimitVerdict::Limited | LimitVerdict::Spent => wait,
        LimitVerdict::Passed | LimitVerdict::Overloaded => wait.or(binding.reset),
    };
    Feedback {
        verdict,
        remaining: binding.remaining,
        limit: binding.limit,
        reset_at: reset.map(|reset| now + reset),
        wait,
        scope,
        windows,
    }
}

fn parse_response<'a>(response: &Response<'a>, dialect: &Dialect) -> ParsedResponse<'a> {
    ParsedResponse {
        status: response.status,
        headers: HeaderLines::new(response.headers, &dialect.read_fields),
        json: Json::read(response.body, &dialect.read_fields.members),
        body: response.body,
    }
}

/// Whether a cache answered: then the quota fields are those of an earlier call.
fn is_from_cache(opened: &ParsedResponse<'_>, verdict: LimitVerdict) -> bool {
    let age = opened.headers.all("age").filter_map(Decimal::parse).max();
    verdict == LimitVerdict::Passed
        && opened.status < 400
        && age.is_some_and(|age| age > Decimal::ZERO)
}

/// Every window of every family.
fn windows(
    opened: &ParsedResponse<'_>,
    dialect: &Dialect,
    verdict: LimitVerdict,
    clocks: Clocks,
) -> Vec<Window> {
    let mut found = Vec::new();
    if !dialect.own.shared_if.is_empty() && opened.holds(&dialect.own.shared_if) {
        return found;
    }
    for rule in dialect.windows() {
        match rule {
            WindowRule::Fields(fields) => {
                window::from_headers(fields, opened, dialect, clocks, &mut found);
            }
            WindowRule::Body(fields)
                if fields.only_when_limited && verdict == LimitVerdict::Passed => {}
            WindowRule::Body(fields) => {
                if let Some(json) = &opened.json {
                    window::from_body(fields, json, clocks, &mut found);
                }
            }
            WindowRule::Structured { rate, policy } => {
                structured::windows(rate, policy, opened, &mut found);
            }
            WindowRule::UsedOfLimit { header } => lists::used_of_limit(header, opened, &mut found),
            WindowRule::PerPeriod {
                limits,
                counts,
                name,
            } => {
                lists::per_period((limits, counts), name, opened, &mut found);
            }
            WindowRule::NamedCounts { header } => lists::named_counts(header, opened, &mut found),
            WindowRule::Pairs { header } => lists::pairs(header, opened, clocks, &mut found),
            WindowRule::JsonHeader { header } => {
                lists::json_header(header, opened, clocks, &mut found);
            }
        }
    }
    if let Some(name) = opened.window_name(dialect) {
        let unnamed = found.iter_mut().filter(|window| window.name.is_none());
        unnamed.for_each(|window| window.name = Some(name.clone()));
    }
    found
}

/// The wait of a refusal: what was told, else the reset of what is used up or uncounted. If every
/// window has something left, another limiter refused, and their resets mean nothing.
fn limited_wait(told: Option<Span>, windows: &[Window]) -> Option<Span> {
    let latest = |fits: &dyn Fn(&&Window) -> bool| {
        windows
            .iter()
            .filter(fits)
            .filter_map(|window| window.reset)
            .max()
    };
    let exhausted = latest(&|window| window.is_exhausted());
    match told {
        // "At once" beside an empty window that resets later only means that nobody filled it in.
        Some(Span::ZERO) => exhausted.or(told),
        Some(_) => told,
        None => exhausted.or_else(|| latest(&|window| window.remaining.is_none())),
    }
}

/// Some providers mark their concurrency limit as zero left of zero.
fn concurrency_scope(binding: &Window, dialect: &Dialect) -> Option<String> {
    let marked = binding.is_exhausted() && binding.limit == Some(0);
    dialect.own.zero_of_zero.clone().filter(|_| marked)
}
