//! Dialects of language-model providers and of the clouds that host them.
//!
//! Promises: a field that is not in a table is standard. Never: a limit.

use super::builtin::Tables;
use super::dialect::{BodyFields, DialectRows, FieldPlace, WindowRule};
use super::table_builder::{body, header, on, when};
use super::wait_time::TimeUnit::Seconds;

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
    for name in ["openai", "azure_openai", "groq", "cloudru"] {
        tables.push((name, openai()));
    }
    tables.push(("gemini", gemini()));
    tables.push(("aws", aws()));
    tables.push(("azure_arm", azure_arm()));
}

/// An empty balance causes a 429, sometimes with a `Retry-After` that cannot help.
fn openai() -> DialectRows {
    let quota = &["insufficient_quota", "billing_hard_limit_reached"];
    DialectRows::default()
        .spent(on(&[429]).and(body("error.code").is(quota)).scope("quota"))
        .spent(on(&[429]).and(body("error.type").is(quota)).scope("quota"))
}

/// The time is in `RetryInfo` (standard) or only in the sentence.
fn gemini() -> DialectRows {
    let violation = |root: &str| {
        let fields = BodyFields::at(root)
            .name_at("quotaId")
            .limit("quotaValue")
            .exhausted();
        WindowRule::Body(fields.only_when_limited())
    };
    DialectRows::default()
        .wait_after(body("error.message"), "retry in ")
        .wait_after(body("[].error.message"), "retry in ")
        .window(violation("error.details[].violations[]"))
        .window(violation("[].error.details[].violations[]"))
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
