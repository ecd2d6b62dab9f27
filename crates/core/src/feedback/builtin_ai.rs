//! Dialects of language-model providers and of the clouds that host them.
//!
//! Promises: a field that is not in a table is standard. Never: a limit.

use super::builtin::Tables;
use super::dialect::{BodyFields, DialectRows, FieldPlace, WindowRule};
use super::table_builder::{body, header, on, when};
use super::wait_time::TimeUnit::Seconds;
use crate::time::Span;

/// The windows of language models.
const SECOND: Span = Span::from_secs(1);
const MINUTE: Span = Span::from_secs(60);
const DAY: Span = Span::from_secs(86_400);
const MONTH: Span = Span::from_secs(31 * 86_400);

/// The codes that AWS SDKs treat as throttling.
const AWS_THROTTLES: &[&str] = &[
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "LimitExceededException",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "TransactionInProgressException",
];

pub(super) fn add(tables: &mut Tables) {
    tables.push(("cloudru", openai()));
    for name in ["openai", "azure_openai"] {
        let rows = openai().learns("requests", "calls", &["requests"], MINUTE);
        tables.push((name, rows.learns("tokens", "tokens", &["tokens"], MINUTE)));
    }
    // Calls are counted by the day, tokens by the minute.
    let groq = openai().learns("requests", "calls", &["requests"], DAY);
    tables.push(("groq", groq.learns("tokens", "tokens", &["tokens"], MINUTE)));
    tables.push(("anthropic", anthropic()));
    tables.push(("mistral", mistral()));
    tables.push(("gemini", gemini()));
    tables.push(("aws", aws()));
    tables.push(("azure_arm", azure_arm()));
}

/// Three windows of a minute. An empty balance is 402, or 400 with a sentence. `tokens` is whichever of the two binds, so it is not a limit of its own.
fn anthropic() -> DialectRows {
    let credit = &["credit balance is too low"];
    DialectRows::default()
        .spent(
            on(&[402])
                .and(body("error.type").is(&["billing_error"]))
                .scope("quota"),
        )
        .spent(
            on(&[400, 403])
                .and(body("error.message").has(credit))
                .scope("quota"),
        )
        .learns("requests", "calls", &["requests"], MINUTE)
        .learns("input tokens", "input_tokens", &["input-tokens"], MINUTE)
        .learns("output tokens", "output_tokens", &["output-tokens"], MINUTE)
}

/// An unpaid bill is 402. Older responses name the windows of tokens by size, newer ones by unit and window.
fn mistral() -> DialectRows {
    DialectRows::default()
        .spent(on(&[402]).scope("quota"))
        .learns("requests", "calls", &["req-minute", "requests"], MINUTE)
        .learns("requests per second", "calls", &["req-second"], SECOND)
        .learns("tokens", "tokens", &["tokens-minute", "tokens"], MINUTE)
        .learns("tokens per month", "tokens", &["tokens-month"], MONTH)
}

/// An empty balance causes a 429, sometimes with a `Retry-After` that cannot help.
fn openai() -> DialectRows {
    let quota = &["insufficient_quota", "billing_hard_limit_reached"];
    DialectRows::default()
        .spent(on(&[429]).and(body("error.code").is(quota)).scope("quota"))
        .spent(on(&[429]).and(body("error.type").is(quota)).scope("quota"))
}

/// The time is in `RetryInfo` (standard) or only in the sentence. A project whose billing is off, or
/// whose prepaid credits are used up, gets a status of its own, or a sentence.
fn gemini() -> DialectRows {
    let violation = |root: &str| {
        let fields = BodyFields::at(root)
            .name_at("quotaId")
            .limit("quotaValue")
            .exhausted();
        WindowRule::Body(fields.only_when_limited())
    };
    let billing = &[
        "prepayment credits are depleted",
        "billing account",
        "enable billing",
        "billing to be enabled",
    ];
    DialectRows::default()
        .spent(
            on(&[400, 403, 429])
                .and(body("error.message").has(billing))
                .scope("quota"),
        )
        .spent(
            on(&[400, 403, 429])
                .and(body("[].error.message").has(billing))
                .scope("quota"),
        )
        .wait_after(body("error.message"), "retry in ")
        .wait_after(body("[].error.message"), "retry in ")
        .window(violation("error.details[].violations[]"))
        .window(violation("[].error.details[].violations[]"))
        .learns("requests", "calls", &["*requests*perminute*"], MINUTE)
        .learns("requests per day", "calls", &["*requests*perday*"], DAY)
        .learns(
            "input tokens",
            "input_tokens",
            &["*token*perminute*"],
            MINUTE,
        )
}

/// Throttling has many names, in a header, in JSON or in XML, under 400, 429 and 503.
fn aws() -> DialectRows {
    let places = [
        header("x-amzn-errortype"),
        body("__type"),
        body("code"),
        body("Code"),
        FieldPlace::Tag("Code".to_owned()),
    ];
    let rows = DialectRows::default().wait_in(body("retryAfterSeconds"), Seconds);
    let statuses = &[400, 403, 429, 500, 502, 503];
    places.into_iter().fold(rows, |rows, place| {
        rows.limited(on(statuses).and(place.code(AWS_THROTTLES)))
    })
}

/// One 429 is a lock held by another operation. Like Stripe's it is neither a limit nor overload:
/// its `Retry-After` is about one object, so no other call has to wait for it.
fn azure_arm() -> DialectRows {
    let lock = body("error.code").is(&["RetryableErrorDueToAnotherOperation"]);
    DialectRows::default().passed(when(lock))
}
