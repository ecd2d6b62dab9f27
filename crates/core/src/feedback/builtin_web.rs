//! Dialects of services for teams, shops and developers.
//!
//! Promises: a field that is not in a table is standard. Never: a limit.

use super::builtin::Tables;
use super::dialect::{BodyFields, DialectRows, FieldPlace, WindowRule};
use super::table_builder::{body, header, on, when};
use super::wait_time::TimeUnit::{BySize, FractionalSeconds, Millis};
use super::window::WindowUnit;

pub(super) fn add(tables: &mut Tables) {
    tables.extend([
        // The base is locked for 30 seconds, and no header says so.
        ("airtable", DialectRows::default().default_wait(30)),
        (
            "brave",
            DialectRows {
                parallel_lists: true,
                ..DialectRows::default()
            },
        ),
        // Every call is blocked for the next five minutes.
        ("cloudflare", DialectRows::default().default_wait(300)),
        ("discord", discord()),
        ("github", github()),
        ("gitlab", DialectRows::default().named_by("ratelimit-name")),
        ("hubspot", hubspot()),
        (
            "linear",
            DialectRows::default().limited(throttled("RATELIMITED")),
        ),
        (
            "notion",
            DialectRows::default()
                .scope_in(body("additional_data.rate_limit_reason"))
                .scope_in(body("rate_limit_reason")),
        ),
        // 0 remaining of 0 marks the limit on concurrent calls.
        (
            "okta",
            DialectRows {
                zero_of_zero: Some("concurrency".to_owned()),
                ..DialectRows::default()
            },
        ),
        // The only one known to count its reset in milliseconds from now.
        (
            "prisjakt",
            DialectRows {
                reset_unit: Millis,
                ..DialectRows::default()
            },
        ),
        ("salesforce", salesforce()),
        ("shopify_graphql", shopify_graphql()),
        (
            "slack",
            DialectRows::default()
                .limited(when(body("error").is(&["ratelimited", "rate_limited"]))),
        ),
        ("spotify", spotify()),
        ("stripe", stripe()),
    ]);
}

/// A limited GraphQL call: 200 or 400 with a code among the errors.
fn throttled(code: &str) -> super::table_builder::SignatureBuilder {
    when(body("errors[].extensions.code").is(&[code]))
}

/// The body's fraction is finer than the header; global and shared limits belong to no bucket.
fn discord() -> DialectRows {
    DialectRows::default()
        .wait_in(body("retry_after"), FractionalSeconds)
        .scope_if(header("x-ratelimit-global").is(&["true"]), "global")
        .scope_if(body("global").is(&["true"]), "global")
        .scope_if(header("x-ratelimit-scope").is(&["global"]), "global")
        .scope_if(header("x-ratelimit-scope").is(&["shared"]), "shared")
        .scope_prefixed("bucket:", header("x-ratelimit-bucket"))
}

/// Three limits, three ways to say so. Only the secondary one has a documented default wait.
fn github() -> DialectRows {
    let secondary = &["secondary rate limit", "abuse detection mechanism"];
    let codes = &["RATE_LIMITED", "RATE_LIMIT"];
    let graphql = BodyFields::at("data.rateLimit")
        .named("graphql")
        .counts(WindowUnit::Requests)
        .limit("limit")
        .remaining("remaining")
        .used("used")
        .reset("resetAt", BySize);
    let limited = || on(&[403, 429]).scope("secondary");
    // The edge responds in HTML; in JSON only the message counts.
    let no_message = body("message").absent();
    DialectRows::default()
        .limited(limited().and(body("message").has(secondary)))
        .limited(
            limited()
                .and(no_message)
                .and(FieldPlace::Text.has(secondary)),
        )
        .limited(on(&[403]).and(header("x-ratelimit-remaining").zero()))
        .limited(when(body("errors[].type").is(codes)).scope("graphql"))
        .limited(throttled("RATE_LIMITED").scope("graphql"))
        .window(WindowRule::Body(graphql))
        .named_by("x-ratelimit-resource")
        .default_wait_for("secondary", 60)
}

/// The policy names the window, and its length is the wait.
fn hubspot() -> DialectRows {
    DialectRows::default()
        .scope_lower(body("policyName"))
        .default_wait_for("ten_secondly_rolling", 10)
        .default_wait_for("secondly", 1)
}

/// One code for two limits; the message distinguishes them.
fn salesforce() -> DialectRows {
    let mut rows = DialectRows::default();
    for (code, message) in [("[].errorCode", "[].message"), ("errorCode", "message")] {
        let limited = || when(body(code).is(&["REQUEST_LIMIT_EXCEEDED"]));
        let concurrent = body(message).has(&["concurrent"]);
        rows = rows
            .limited(limited().and(concurrent).scope("concurrent"))
            .limited(limited().scope("daily"));
    }
    rows
}

/// Points come back at a known rate, so the wait can be computed.
fn shopify_graphql() -> DialectRows {
    let status = |field: &str| format!("extensions.cost.throttleStatus.{field}");
    let points = BodyFields::at("extensions.cost.throttleStatus")
        .named("cost")
        .counts(WindowUnit::Points)
        .limit("maximumAvailable")
        .remaining("currentlyAvailable");
    DialectRows::default()
        .limited(throttled("THROTTLED"))
        .refill(
            "extensions.cost.requestedQueryCost",
            &status("currentlyAvailable"),
            &status("restoreRate"),
        )
        .window(WindowRule::Body(points))
}

fn spotify() -> DialectRows {
    DialectRows::default().limited(
        on(&[429])
            .and(body("error.reason").is(&["QUOTA_EXCEEDED"]))
            .scope("quota"),
    )
}

/// A 429 without the reason header may be a lock on the object.
fn stripe() -> DialectRows {
    let lock = body("error.code").is(&["lock_timeout"]);
    let no_reason = header("stripe-rate-limited-reason").absent();
    DialectRows::default().passed(on(&[429]).and(lock).and(no_reason))
}
