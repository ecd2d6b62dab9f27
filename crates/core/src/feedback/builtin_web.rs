//! Dialects of services for teams, shops and developers.
//!
//! Promises: a field that is not in a table is standard. Never: a limit.

use super::builtin::Tables;
use super::dialect::{BodyFields, FieldPlace, Rows, WindowRule};
use super::table_builder::{body, header, on, when};
use super::wait_time::TimeUnit::{BySize, FractionalSeconds, Millis};
use super::window::WindowUnit;

pub(super) fn add(tables: &mut Tables) {
    tables.extend([
        // The base is locked for 30 seconds, and no header says so.
        ("airtable", Rows::default().default_wait(30)),
        (
            "brave",
            Rows {
                parallel_lists: true,
                ..Rows::default()
            },
        ),
        // Every call is blocked for the next five minutes.
        ("cloudflare", Rows::default().default_wait(300)),
        ("discord", discord()),
        ("github", github()),
        ("gitlab", Rows::default().named_by("ratelimit-name")),
        ("hubspot", hubspot()),
        ("linear", Rows::default().limited(throttled("RATELIMITED"))),
        (
            "notion",
            Rows::default()
                .scope_in(body("additional_data.rate_limit_reason"))
                .scope_in(body("rate_limit_reason")),
        ),
        // 0 remaining of 0 marks the limit on concurrent calls.
        (
            "okta",
            Rows {
                zero_of_zero: Some("concurrency".to_owned()),
                ..Rows::default()
            },
        ),
        // The only one known to count its reset in milliseconds from now.
        (
            "prisjakt",
            Rows {
                reset_unit: Millis,
                ..Rows::default()
            },
        ),
        ("salesforce", salesforce()),
        ("shopify_graphql", shopify_graphql()),
        (
            "slack",
            Rows::default().limited(when(body("error").is(&["ratelimited", "rate_limited"]))),
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
fn discord() -> Rows {
    Rows::default()
        .wait_in(body("retry_after"), FractionalSeconds)
        .scope_if(header("x-ratelimit-global").is(&["true"]), "global")
        .scope_if(body("global").is(&["true"]), "global")
        .scope_if(header("x-ratelimit-scope").is(&["global"]), "global")
        .scope_if(header("x-ratelimit-scope").is(&["shared"]), "shared")
        .scope_prefixed("bucket:", header("x-ratelimit-bucket"))
}

/// Three limits, three ways to say so. Only the secondary one has a documented default wait.
fn github() -> Rows {
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
    Rows::default()
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
fn hubspot() -> Rows {
    Rows::default()
        .scope_lower(body("policyName"))
        .default_wait_for("ten_secondly_rolling", 10)
        .default_wait_for("secondly", 1)
}

/// One code for two limits; the message distinguishes them.
fn salesforce() -> Rows {
    let mut rows = Rows::default();
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
fn shopify_graphql() -> Rows {
    let status = |field: &str| format!("extensions.cost.throttleStatus.{field}");
    let points = BodyFields::at("extensions.cost.throttleStatus")
        .named("cost")
        .counts(WindowUnit::Points)
        .limit("maximumAvailable")
        .remaining("currentlyAvailable");
    Rows::default()
        .limited(throttled("THROTTLED"))
        .refill(
            "extensions.cost.requestedQueryCost",
            &status("currentlyAvailable"),
            &status("restoreRate"),
        )
        .window(WindowRule::Body(points))
}

fn spotify() -> Rows {
    Rows::default().limited(
        on(&[429])
            .and(body("error.reason").is(&["QUOTA_EXCEEDED"]))
            .scope("quota"),
    )
}

/// A 429 without the reason header may be a lock on the object.
fn stripe() -> Rows {
    let lock = body("error.code").is(&["lock_timeout"]);
    let no_reason = header("stripe-rate-limited-reason").absent();
    Rows::default().passed(on(&[429]).and(lock).and(no_reason))
}
