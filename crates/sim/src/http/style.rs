//! How providers report an exceeded limit, and how they advertise limits on success.
//!
//! Promises: pure; each style has the status, headers and body of its real model (taken from public
//! documentation and observed responses, not invented). Waits in whole seconds are rounded up, so
//! that a client that applies them is never early.
//!
//! Never: decides whether a request is limited, nor reads a clock: the caller passes both.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use tollgate_core::time::{Span, Wall};

/// How a provider responds above a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// 429 with `Retry-After: 7` (seconds). The most common one.
    #[default]
    RetryAfter,
    /// 429 with `Retry-After: Sun, 15 Nov 2026 12:00:07 GMT`.
    RetryAfterDate,
    /// 429 without a time to retry (Stripe, Slack web, many small ones).
    Bare,
    /// 429 with `X-RateLimit-Limit`, `-Remaining` and `-Reset` (epoch seconds); also on success.
    XRateLimit,
    /// 429 with the structured fields of the IETF draft (08 and later): `RateLimit-Policy:
    /// "rule0";q=40;w=10` and `RateLimit: "rule0";r=0;t=7`, one member per rule; also on success.
    Ietf,
    /// 429 with `retry-after-ms: 6543` and `Retry-After` (OpenAI on Azure).
    RetryAfterMs,
    /// 429 with SportMonks' body object `rate_limit{resets_in_seconds, remaining,
    /// requested_entity}`; also in the body of successes. No headers at all.
    SportMonks,
    /// 429 with Discord's body `retry_after` (seconds with a fraction) and its bucket headers; the
    /// headers also on success.
    Discord,
    /// 503 with MusicBrainz' text; zone headers also on success.
    MusicBrainz,
    /// 403 with GitHub's message and `x-ratelimit-*`; the headers also on success.
    GitHub,
    /// 200 with Alpha Vantage's `Note` instead of data.
    AlphaVantage,
    /// 401 with OMDb's "Request limit reached!".
    Omdb,
}

/// The status of one rule at the time of a response, as it is advertised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvertisedLimit {
    /// The advertised limit.
    pub limit: u64,
    /// The advertised remaining count.
    pub remaining: u64,
    /// Length of its window; `None` for a limit on calls in flight.
    pub window: Option<Span>,
    /// Time until a limited request would be accepted, or until the rule is unused again.
    pub reset: Span,
}

/// Everything that a response may advertise.
#[derive(Clone, Debug)]
pub struct LimitFacts<'a> {
    /// The rules in the order of the settings.
    pub rules: &'a [AdvertisedLimit],
    /// Index of the rule to report: the one that limits, otherwise the one with the least
    /// remaining.
    pub binding: usize,
    /// The provider's wall time, wrong if its clock is skewed.
    pub wall: Wall,
    /// The requested entity, as the provider names it.
    pub entity: &'a str,
}

/// The part of a response that is about limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitInfo {
    /// Headers to add, names in the spelling of the model.
    pub headers: Vec<(&'static str, String)>,
    /// Top-level members of the JSON body.
    pub members: serde_json::Map<String, Value>,
}

const MUSICBRAINZ_TEXT: &str = "Your requests are exceeding the allowable rate limit. Please see \
    http://wiki.musicbrainz.org/XMLWebService for more information.";
const ALPHA_VANTAGE_TEXT: &str = "Thank you for using Alpha Vantage! Our standard API call \
    frequency is 5 calls per minute and 500 calls per day.";

/// Every style with its name on the command line.
pub const STYLES: [(&str, Style); 12] = [
    ("retry-after", Style::RetryAfter),
    ("retry-after-date", Style::RetryAfterDate),
    ("bare", Style::Bare),
    ("x-ratelimit", Style::XRateLimit),
    ("ietf", Style::Ietf),
    ("retry-after-ms", Style::RetryAfterMs),
    ("sportmonks", Style::SportMonks),
    ("discord", Style::Discord),
    ("musicbrainz", Style::MusicBrainz),
    ("github", Style::GitHub),
    ("alphavantage", Style::AlphaVantage),
    ("omdb", Style::Omdb),
];

/// An unknown style.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no style `{0}`; known are {names}", names = STYLES.map(|(name, _)| name).join(", "))]
pub struct UnknownStyle(String);

impl FromStr for Style {
    type Err = UnknownStyle;

    fn from_str(text: &str) -> Result<Style, UnknownStyle> {
        let known = STYLES.iter().find(|(name, _)| *name == text);
        known
            .map(|(_, style)| *style)
            .ok_or_else(|| UnknownStyle(text.to_owned()))
    }
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = STYLES
            .iter()
            .find(|(_, style)| style == self)
            .map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl Style {
    /// The status of a limited response.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Style::RetryAfter
            | Style::RetryAfterDate
            | Style::Bare
            | Style::XRateLimit
            | Style::Ietf
            | Style::RetryAfterMs
            | Style::SportMonks
            | Style::Discord => 429,
            Style::MusicBrainz => 503,
            Style::GitHub => 403,
            Style::AlphaVantage => 200,
            Style::Omdb => 401,
        }
    }

    /// The media type of a limited response's body.
    #[must_use]
    pub fn limited_media_type(self) -> &'static str {
        if self == Style::Ietf {
            "application/problem+json"
        } else {
            "application/json"
        }
    }

    /// Headers and body of a limited response.
    #[must_use]
    pub fn limited_response(self, facts: &LimitFacts<'_>) -> LimitInfo {
        let mut info = self.every_response(facts);
        // A wait that is not known is never sent as zero.
        let wait = facts.binding().reset.max(Span(1));
        let body = match self {
            Style::RetryAfter | Style::RetryAfterDate | Style::Bare | Style::XRateLimit => {
                json!({"error": "rate limit exceeded"})
            }
            Style::Ietf => json!({
                "type": QUOTA_EXCEEDED,
                "title": "Quota exceeded",
                "violated-policies": [format!("rule{}", facts.binding)],
            }),
            Style::RetryAfterMs => {
                json!({"error": {"code": "429", "message": "Rate limit is exceeded."}})
            }
            Style::SportMonks => json!({"message": "Too Many Attempts."}),
            Style::Discord => json!({
                "message": "You are being rate limited.",
                "retry_after": millis_up(wait) as f64 / 1_000.0,
                "global": false,
            }),
            Style::MusicBrainz => json!({"error": MUSICBRAINZ_TEXT}),
            Style::GitHub => json!({"message": "API rate limit exceeded for 203.0.113.9."}),
            Style::AlphaVantage => json!({"Note": ALPHA_VANTAGE_TEXT}),
            Style::Omdb => json!({"Response": "False", "Error": "Request limit reached!"}),
        };
        if let Value::Object(members) = body {
            info.members.extend(members);
        }
        match self {
            Style::RetryAfter | Style::Discord | Style::MusicBrainz => {
                info.header("Retry-After", secs_up(wait));
            }
            Style::RetryAfterDate => {
                let at = facts.wall + wait;
                info.header("Retry-After", http_date(epoch_secs_up(at)));
            }
            Style::RetryAfterMs => {
                info.header("retry-after-ms", millis_up(wait));
                info.header("Retry-After", secs_up(wait));
            }
            Style::Bare
            | Style::XRateLimit
            | Style::Ietf
            | Style::SportMonks
            | Style::GitHub
            | Style::AlphaVantage
            | Style::Omdb => {}
        }
        info
    }

    /// Headers and body members of every response, success or not.
    #[must_use]
    pub fn every_response(self, facts: &LimitFacts<'_>) -> LimitInfo {
        let mut info = LimitInfo::default();
        let AdvertisedLimit {
            limit,
            remaining,
            reset,
            ..
        } = *facts.binding();
        let reset_epoch = epoch_secs_up(facts.wall + reset);
        match self {
            Style::RetryAfter
            | Style::RetryAfterDate
            | Style::Bare
            | Style::RetryAfterMs
            | Style::AlphaVantage
            | Style::Omdb => {}
            Style::XRateLimit => {
                info.header("X-RateLimit-Limit", limit);
                info.header("X-RateLimit-Remaining", remaining);
                info.header("X-RateLimit-Reset", reset_epoch);
            }
            Style::GitHub => {
                info.header("x-ratelimit-limit", limit);
                info.header("x-ratelimit-remaining", remaining);
                info.header("x-ratelimit-used", limit.saturating_sub(remaining));
                info.header("x-ratelimit-reset", reset_epoch);
                info.header("x-ratelimit-resource", "core");
            }
            Style::MusicBrainz => {
                info.header("X-RateLimit-Zone", "ip");
                info.header("X-RateLimit-Limit", limit);
                info.header("X-RateLimit-Remaining", remaining);
                info.header("X-RateLimit-Reset", reset_epoch);
            }
            Style::Discord => {
                let epoch_ms = (facts.wall + reset).0.div_ceil(1_000);
                info.header("X-RateLimit-Limit", limit);
                info.header("X-RateLimit-Remaining", remaining);
                info.header("X-RateLimit-Reset", Thousandths(epoch_ms));
                info.header("X-RateLimit-Reset-After", Thousandths(millis_up(reset)));
                info.header("X-RateLimit-Bucket", "sim");
                info.header("X-RateLimit-Scope", "user");
            }
            Style::Ietf => {
                info.header("RateLimit-Policy", facts.list(policy));
                info.header("RateLimit", facts.list(service_limit));
            }
            Style::SportMonks => {
                let object = json!({
                    "resets_in_seconds": secs_up(reset),
                    "remaining": remaining,
                    "requested_entity": facts.entity,
                });
                info.members.insert("rate_limit".to_owned(), object);
            }
        }
        info
    }
}

impl LimitFacts<'_> {
    fn binding(&self) -> &AdvertisedLimit {
        const NOTHING: &AdvertisedLimit = &AdvertisedLimit {
            limit: 0,
            remaining: 0,
            window: None,
            reset: Span::ZERO,
        };
        self.rules.get(self.binding).unwrap_or(NOTHING)
    }

    fn list(&self, member: fn((usize, &AdvertisedLimit)) -> String) -> String {
        let members: Vec<String> = self.rules.iter().enumerate().map(member).collect();
        members.join(", ")
    }
}

impl LimitInfo {
    fn header(&mut self, name: &'static str, value: impl fmt::Display) {
        self.headers.push((name, value.to_string()));
    }
}

/// The draft's problem type for an exceeded quota.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

fn policy((index, rule): (usize, &AdvertisedLimit)) -> String {
    match rule.window {
        Some(window) => format!("\"rule{index}\";q={};w={}", rule.limit, secs_up(window)),
        None => format!(
            "\"rule{index}\";q={};qu=\"concurrent-requests\"",
            rule.limit
        ),
    }
}

fn service_limit((index, rule): (usize, &AdvertisedLimit)) -> String {
    format!(
        "\"rule{index}\";r={};t={}",
        rule.remaining,
        secs_up(rule.reset)
    )
}

/// Milliseconds written as seconds with three decimals, as Discord does.
struct Thousandths(u64);

impl fmt::Display for Thousandths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}

/// Epoch seconds as an HTTP-date.
pub(crate) fn http_date(epoch_secs: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(epoch_secs.min(YEAR_9999)))
}

/// Last second that an HTTP-date can name; the formatter panics beyond it.
const YEAR_9999: u64 = 253_402_300_799;

fn epoch_secs_up(at: Wall) -> u64 {
    at.0.div_ceil(1_000_000)
}

fn secs_up(span: Span) -> u64 {
    span.0.div_ceil(1_000_000)
}

fn millis_up(span: Span) -> u64 {
    span.0.div_ceil(1_000)
}
