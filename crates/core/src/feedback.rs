//! Reads what a response says about limits, in the provider's own dialect.
//!
//! Promises: [`read`] is total. Whatever bytes a provider sends, the result is bounded: no wait
//! beyond 31 days, no count above 2^53, no more work than the bounds below allow. A malformed or
//! absurd value counts as absent, and an absent value never counts as zero.
//!
//! Never: adds a floor or jitter to a wait, or decides what to do about it; the governor does.
//! Stores or repeats a body: providers echo keys and addresses in them.

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
    BodyFields, Condition, DefaultWait, Dialect, DialectRows, FieldPlace, Fields, LearnedWindow,
    ScopeNaming, ScopeRule, Signature, Test, WaitRule, WindowRule,
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

/// One response as received. The body may be cut at [`BODY_MAX`]; it may be empty if the dialect
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

/// What a response says about limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// Whether the provider limited this call, and why.
    pub verdict: LimitVerdict,
    /// What remains of the binding window.
    pub remaining: Option<u64>,
    /// What the binding window allows.
    pub limit: Option<u64>,
    /// When the wait ends; without a wait, when the binding window resets.
    pub reset_at: Option<Wall>,
    /// How long the scope must pause. `None` is no instruction (if limited: back off), zero means
    /// that calls may continue at once.
    pub wait: Option<Span>,
    /// What the limit or the binding window applies to, as the provider names it.
    pub scope: Option<String>,
    /// Every window that the response describes, including the binding one.
    pub windows: Vec<Window>,
}

impl Feedback {
    /// Whether the provider rejected this call because of a limit. A response with nothing
    /// remaining is not limited yet.
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
    let parsed = parse_response(response, dialect);
    let signature = parsed.signature(dialect); // limited, overloaded or neither?
    let verdict = signature
        .map(|signature| signature.verdict)
        .unwrap_or_default();
    if signature.is_none() && parsed.has_no_limit_fields(dialect) {
        return Feedback::default(); // most responses say nothing, so no row can match
    }
    if is_from_cache(&parsed, verdict) {
        return Feedback::default(); // the numbers of a cached response belong to an earlier call
    }
    let clocks = Clocks::new(now, parsed.headers.first("date")); // the server's clock, if sent
    let windows = windows(&parsed, dialect, verdict, clocks); // what remains of each limit
    let binding = window::binding(&windows).unwrap_or_default(); // the tightest of them
    let scope = parsed
        .scope(dialect, signature)
        .or_else(|| concurrency_scope(&binding, dialect))
        .or_else(|| binding.name.clone())
        .or_else(|| parsed.window_name(dialect));
    let wait = match verdict {
        LimitVerdict::Limited => {
            let stated = wait::explicit(dialect, &parsed, clocks);
            limited_wait(stated, &windows).or_else(|| dialect.default_wait(scope.as_deref()))
        }
        LimitVerdict::Spent => None,
        LimitVerdict::Overloaded => wait::explicit(dialect, &parsed, clocks),
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

/// Whether the response comes from a cache. Then its quota fields describe an earlier call.
fn is_from_cache(parsed: &ParsedResponse<'_>, verdict: LimitVerdict) -> bool {
    let age = parsed.headers.all("age").filter_map(Decimal::parse).max();
    verdict == LimitVerdict::Passed
        && parsed.status < 400
        && age.is_some_and(|age| age > Decimal::ZERO)
}

/// Every window of every family.
fn windows(
    parsed: &ParsedResponse<'_>,
    dialect: &Dialect,
    verdict: LimitVerdict,
    clocks: Clocks,
) -> Vec<Window> {
    let mut found = Vec::new();
    if !dialect.own.shared_if.is_empty() && parsed.holds(&dialect.own.shared_if) {
        return found;
    }
    for rule in dialect.windows() {
        match rule {
            WindowRule::Fields(fields) => {
                window::from_headers(fields, parsed, dialect, clocks, &mut found);
            }
            WindowRule::Body(fields)
                if fields.only_when_limited && verdict == LimitVerdict::Passed => {}
            WindowRule::Body(fields) => {
                if let Some(json) = &parsed.json {
                    window::from_body(fields, json, clocks, &mut found);
                }
            }
            WindowRule::Structured { rate, policy } => {
                structured::windows(rate, policy, parsed, &mut found);
            }
            WindowRule::UsedOfLimit { header } => lists::used_of_limit(header, parsed, &mut found),
            WindowRule::PerPeriod {
                limits,
                counts,
                name,
            } => {
                lists::per_period((limits, counts), name, parsed, &mut found);
            }
            WindowRule::NamedCounts { header } => lists::named_counts(header, parsed, &mut found),
            WindowRule::Pairs { header } => lists::pairs(header, parsed, clocks, &mut found),
            WindowRule::JsonHeader { header } => {
                lists::json_header(header, parsed, clocks, &mut found);
            }
        }
    }
    if let Some(name) = parsed.window_name(dialect) {
        let unnamed = found.iter_mut().filter(|window| window.name.is_none());
        unnamed.for_each(|window| window.name = Some(name.clone()));
    }
    found
}

/// The wait of a limited call: the stated wait, else the reset of a window that is exhausted or
/// has no count. If every window has something remaining, another limiter rejected the call, and
/// the resets of these windows mean nothing.
fn limited_wait(stated: Option<Span>, windows: &[Window]) -> Option<Span> {
    let latest = |fits: &dyn Fn(&&Window) -> bool| {
        windows
            .iter()
            .filter(fits)
            .filter_map(|window| window.reset)
            .max()
    };
    let exhausted = latest(&|window| window.is_exhausted());
    match stated {
        // A wait of zero beside an exhausted window that resets later means that the field was never set.
        Some(Span::ZERO) => exhausted.or(stated),
        Some(_) => stated,
        None => exhausted.or_else(|| latest(&|window| window.remaining.is_none())),
    }
}

/// Some providers mark their concurrency limit as 0 remaining of 0.
fn concurrency_scope(binding: &Window, dialect: &Dialect) -> Option<String> {
    let marked = binding.is_exhausted() && binding.limit == Some(0);
    dialect.own.zero_of_zero.clone().filter(|_| marked)
}
