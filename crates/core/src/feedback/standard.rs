//! The rows that apply to every provider: standards, de facto families, and vendor headers whose
//! names are unambiguous.
//!
//! Promises: nothing here matches free text in a body. Bodies count only where they are typed:
//! `application/problem+json` and `google.rpc.Status`.
//!
//! Never: a default wait; only a provider's own documentation can give one.

use super::dialect::{DialectRows, Fields, WindowRule};
use super::table_builder::{body, header, on, texts, when};
use super::wait_time::TimeUnit::{BySize, Millis};
use super::window::WindowUnit;

/// The rows read after every dialect's own.
pub(super) fn rows() -> DialectRows {
    families(scopes(bodies(waits(DialectRows::default()))))
}

fn waits(rows: DialectRows) -> DialectRows {
    rows.wait_in(header("retry-after"), BySize)
        .wait_in(header("x-ratelimit-retry-after"), BySize)
        .wait_in(header("x-rate-limit-retry-after"), BySize)
        .wait_in(header("retry-after-ms"), Millis)
        .wait_in(header("x-ms-retry-after-ms"), Millis)
        .wait_in(header("x-amz-retry-after"), Millis)
        .wait_in(header("requestlimit-*-retryafter"), Millis)
        .wait_in(body("error.details[].retryDelay"), BySize)
        .wait_in(body("[].error.details[].retryDelay"), BySize)
}

fn bodies(rows: DialectRows) -> DialectRows {
    let problem = || header("content-type").starts(&["application/problem+json"]);
    let registered = |name: &str| {
        let places = [
            "https://iana.org",
            "https://www.iana.org",
            "http://iana.org",
        ];
        let types = places.map(|host| format!("{host}/assignments/http-problem-types#{name}"));
        body("type").is(&types.each_ref().map(String::as_str))
    };
    let typed = |name: &str| {
        when(problem())
            .and(registered(name))
            .scope_at(body("violated-policies[]"))
    };
    rows.limited(typed("quota-exceeded"))
        .limited(typed("abnormal-usage-detected"))
        .limited(when(body("error.status").is(&["RESOURCE_EXHAUSTED"])))
        .limited(when(body("[].error.status").is(&["RESOURCE_EXHAUSTED"])))
        .limited(on(&[429, 420, 509]))
        .overloaded(typed("temporary-reduced-capacity"))
        .overloaded(on(&[503, 529]))
}

/// Fields that name the limit that rejected the call, whichever provider sends them.
fn scopes(rows: DialectRows) -> DialectRows {
    rows.scope_in(header("x-rate-limit-type"))
        .scope_in(header("ratelimit-reason"))
        .scope_in(header("stripe-rate-limited-reason"))
}

fn families(rows: DialectRows) -> DialectRows {
    let standard = rows
        .window(structured(""))
        .window(structured("beta-"))
        .window(plain(
            "ratelimit",
            &["-limit"],
            &["ratelimit-observed", "ratelimit-used"],
        ))
        .window(plain("x-ratelimit", &["-limit"], &["x-ratelimit-used"]))
        .window(plain(
            "x-rate-limit",
            &["-limit", ""],
            &["x-rate-limit-used"],
        ))
        .window(wildcard(
            "x-ratelimit-limit-*",
            "x-ratelimit-remaining-*",
            "x-ratelimit-reset-*",
        ))
        .window(wildcard(
            "x-ratelimit-*-limit",
            "x-ratelimit-*-remaining",
            "x-ratelimit-*-reset",
        ));
    vendors(standard)
}

fn vendors(rows: DialectRows) -> DialectRows {
    rows.window(wildcard(
        "anthropic-ratelimit-*-limit",
        "anthropic-ratelimit-*-remaining",
        "anthropic-ratelimit-*-reset",
    ))
    .window(triple("user-24h", "x-user-limit-24hour"))
    .window(triple("app-24h", "x-app-limit-24hour"))
    .window(mistral_minute())
    .window(counted(
        "tokens-month",
        "x-ratelimitbysize-limit-month",
        "x-ratelimitbysize-remaining-month",
    ))
    .window(hubspot_rolling())
    .window(counted(
        "secondly",
        "x-hubspot-ratelimit-secondly",
        "x-hubspot-ratelimit-secondly-remaining",
    ))
    .window(counted(
        "daily",
        "x-hubspot-ratelimit-daily",
        "x-hubspot-ratelimit-daily-remaining",
    ))
    .window(discogs())
    .window(azure())
    .window(WindowRule::NamedCounts {
        header: "x-ms-ratelimit-remaining-resource".to_owned(),
    })
    .window(WindowRule::UsedOfLimit {
        header: "x-shopify-shop-api-call-limit".to_owned(),
    })
    .window(WindowRule::UsedOfLimit {
        header: "sforce-limit-info".to_owned(),
    })
    .window(riot("application", "x-app-rate-limit"))
    .window(riot("method", "x-method-rate-limit"))
    .window(WindowRule::Pairs {
        header: "zendesk-ratelimit-*".to_owned(),
    })
    .window(WindowRule::JsonHeader {
        header: "x-ratelimit".to_owned(),
    })
}

fn structured(prefix: &str) -> WindowRule {
    WindowRule::Structured {
        rate: format!("{prefix}ratelimit"),
        policy: format!("{prefix}ratelimit-policy"),
    }
}

/// `<family>-Limit`, `-Remaining`, `-Reset` and the fields that some providers add. Zendesk's older
/// limit field has the bare name of its family.
fn plain(family: &str, limit: &[&str], used: &[&str]) -> WindowRule {
    let name = |field: &str| format!("{family}{field}");
    WindowRule::Fields(Fields {
        unit: Some(WindowUnit::Requests),
        limit: limit.iter().map(|field| name(field)).collect(),
        remaining: vec![name("-remaining")],
        used: texts(used),
        reset: vec![name("-reset"), name("-resettime")],
        reset_after: vec![name("-reset-after")],
        period: vec![(name("-interval"), BySize)],
        ..Fields::default()
    })
}

/// A window for each text that the `*` matches.
fn wildcard(limit: &str, remaining: &str, reset: &str) -> WindowRule {
    WindowRule::Fields(Fields {
        limit: texts(&[limit]),
        remaining: texts(&[remaining]),
        reset: texts(&[reset]),
        // `X-RateLimit-Reset-After` is a field of the plain family.
        except: texts(&["after"]),
        ..Fields::default()
    })
}

fn triple(name: &str, family: &str) -> WindowRule {
    WindowRule::Fields(Fields {
        name: Some(name.to_owned()),
        unit: Some(WindowUnit::Requests),
        limit: vec![format!("{family}-limit")],
        remaining: vec![format!("{family}-remaining")],
        reset: vec![format!("{family}-reset")],
        ..Fields::default()
    })
}

/// A window without a reset; its name gives the unit.
fn counted(name: &str, limit: &str, remaining: &str) -> WindowRule {
    WindowRule::Fields(Fields {
        name: Some(name.to_owned()),
        limit: texts(&[limit]),
        remaining: texts(&[remaining]),
        ..Fields::default()
    })
}

fn mistral_minute() -> WindowRule {
    WindowRule::Fields(Fields {
        name: Some("tokens-minute".to_owned()),
        unit: Some(WindowUnit::Tokens),
        limit: texts(&["x-ratelimitbysize-limit-minute", "ratelimitbysize-limit"]),
        remaining: texts(&[
            "x-ratelimitbysize-remaining-minute",
            "ratelimitbysize-remaining",
        ]),
        reset: texts(&["ratelimitbysize-reset"]),
        ..Fields::default()
    })
}

fn hubspot_rolling() -> WindowRule {
    WindowRule::Fields(Fields {
        name: Some("ten_secondly_rolling".to_owned()),
        unit: Some(WindowUnit::Requests),
        limit: texts(&["x-hubspot-ratelimit-max"]),
        remaining: texts(&["x-hubspot-ratelimit-remaining"]),
        period: vec![(
            "x-hubspot-ratelimit-interval-milliseconds".to_owned(),
            Millis,
        )],
        ..Fields::default()
    })
}

fn discogs() -> WindowRule {
    WindowRule::Fields(Fields {
        unit: Some(WindowUnit::Requests),
        limit: texts(&["x-discogs-ratelimit"]),
        remaining: texts(&["x-discogs-ratelimit-remaining"]),
        used: texts(&["x-discogs-ratelimit-used"]),
        ..Fields::default()
    })
}

fn azure() -> WindowRule {
    WindowRule::Fields(Fields {
        unit: Some(WindowUnit::Requests),
        remaining: texts(&["x-ms-ratelimit-remaining-*"]),
        except: texts(&["resource"]),
        ..Fields::default()
    })
}

fn riot(name: &str, limits: &str) -> WindowRule {
    WindowRule::PerPeriod {
        limits: limits.to_owned(),
        counts: format!("{limits}-count"),
        name: name.to_owned(),
    }
}
