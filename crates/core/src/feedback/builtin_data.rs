//! Dialects of data providers: markets, media, science, maps.
//!
//! Promises: a field that is not in a table is standard. Never: a limit, with one exception:
//! Binance sends the used count and only documents the limit.

use super::builtin::Tables;
use super::dialect::{BodyFields, DialectRows, FieldPlace, Fields, WindowRule};
use super::table_builder::{body, header, on, texts, when};
use super::wait_time::TimeUnit::{BySize, Seconds};
use super::window::WindowUnit;

pub(super) fn add(tables: &mut Tables) {
    tables.extend(markets());
    tables.extend(media());
    tables.extend(knowledge());
}

fn markets() -> Tables {
    vec![
        ("alphavantage", alphavantage()),
        ("binance", binance()),
        ("fmp", fmp()),
        ("kraken", kraken()),
        ("polygon", DialectRows::default().default_wait(60)),
        ("yahoo", yahoo()),
    ]
}

/// A limited call gets a 200 with a note. The note about the daily limit states no time.
fn alphavantage() -> DialectRows {
    let mut rows = DialectRows::default();
    for place in [body("Note"), body("Information")] {
        let mentions = |words: &[&str]| when(place.clone().has(words));
        rows = rows
            .passed(mentions(&["this is a premium endpoint"]))
            .limited(mentions(&["request per second", "requests per second"]).scope("second"))
            .limited(mentions(&["per minute"]).scope("minute"))
            .limited(mentions(&["per day", "daily rate limit"]).scope("day"))
            .limited(mentions(&["rate limit", "call frequency"]));
    }
    rows.default_wait_for("minute", 60)
        .default_wait_for("second", 1)
}

/// 418 is a ban whose end may be in the text only; the weight limit is never sent.
fn binance() -> DialectRows {
    DialectRows::default()
        .limited(on(&[418]).scope("ip-ban"))
        .limited(on(&[429]).and(body("code").is(&["-1015"])).scope("orders"))
        .limited(on(&[429]).and(body("code").is(&["-1003"])).scope("ip"))
        .wait_after(body("msg"), "banned until ")
        .window(WindowRule::Fields(Fields {
            name: Some("ip".to_owned()),
            unit: Some(WindowUnit::Points),
            used: texts(&["x-mbx-used-weight-1m", "x-mbx-used-weight"]),
            known_limit: Some(6_000),
            ..Fields::default()
        }))
}

/// A used-up bandwidth quota lasts up to 30 days; waiting does not help in time.
fn fmp() -> DialectRows {
    DialectRows::default()
        .spent(when(body("Error Message").has(&["bandwidth limit reach"])).scope("bandwidth"))
        .limited(when(body("Error Message").has(&["limit reach"])))
}

/// Errors come with 200. `EService:Throttled` names the second when it ends. Orders have a limiter
/// of their own; everything else is charged to the account.
fn kraken() -> DialectRows {
    let mut rows = DialectRows::default();
    for place in [body("error[]"), body("error")] {
        let starts = |text: &[&str]| when(place.clone().starts(text));
        let exceeded = when(place.clone().has(&[":Rate limit exceeded"]));
        rows = rows
            .limited(starts(&["EOrder:Rate limit exceeded"]).scope("orders"))
            .limited(exceeded.scope("account"))
            .limited(starts(&["EService:Throttled", "EService: Throttled"]).scope("account"))
            .wait_after(place.clone(), "Throttled:");
    }
    rows
}

/// The whole body is the error text; it may also come in place of a requested crumb.
fn yahoo() -> DialectRows {
    let text = &[
        "Too Many Requests",
        "Too Many Requests.",
        "Edge: Too Many Requests",
    ];
    DialectRows::default().limited(when(FieldPlace::Text.is(text)))
}

fn media() -> Tables {
    vec![
        ("discogs", DialectRows::default().default_wait(60)),
        (
            "lastfm",
            [body("error"), FieldPlace::Tag("error@code".to_owned())]
                .into_iter()
                .fold(DialectRows::default(), |rows, place| {
                    rows.limited(when(place.is(&["29"])).scope("ip"))
                }),
        ),
        ("musicbrainz", musicbrainz()),
        ("omdb", omdb()),
        ("sportmonks", sportmonks()),
        // 420 is about the size of the account's lists; waiting does not change it.
        ("trakt", DialectRows::default().passed(on(&[420]))),
    ]
}

/// Under 200 a film's plot may contain any text, so only the field counts there.
fn omdb() -> DialectRows {
    let text = &["limit reached"];
    DialectRows::default()
        .limited(when(body("Error").has(text)).scope("daily"))
        .limited(on(&[401]).and(FieldPlace::Text.has(text)).scope("daily"))
}

/// A busy server sheds load with 503 and sends the numbers of a zone that all clients share.
fn musicbrainz() -> DialectRows {
    let text = &["exceeding the allowable rate limit"];
    let mut rows = DialectRows::default()
        .limited(on(&[503]).and(FieldPlace::Text.has(text)))
        .limited(when(body("error").has(text)))
        .named_by("x-ratelimit-zone");
    rows.shared_if = vec![header("x-ratelimit-zone").is(&["global"])];
    rows
}

/// The body carries the entity's quota beside the data; both documented spellings are read.
fn sportmonks() -> DialectRows {
    let fields = BodyFields::at("rate_limit")
        .name_at("requested_entity")
        .limit("limit")
        .remaining("remaining")
        .reset("resets_in_seconds", Seconds)
        .reset("reset_at", BySize);
    DialectRows::default().window(WindowRule::Body(fields))
}

fn knowledge() -> Tables {
    let ip_api = Fields {
        remaining: texts(&["x-rl"]),
        reset: texts(&["x-ttl"]),
        unit: Some(WindowUnit::Requests),
        ..Fields::default()
    };
    vec![
        (
            "ip_api",
            DialectRows::default().window(WindowRule::Fields(ip_api)),
        ),
        (
            "nominatim",
            DialectRows::default().limited(on(&[403]).and(FieldPlace::Text.has(&["usage limit"]))),
        ),
        ("pubmed", pubmed()),
        ("wikipedia", wikipedia()),
    ]
}

/// Numbers are strings here, and `api-key` echoes the caller's key: only the numbers are read.
fn pubmed() -> DialectRows {
    let fields = BodyFields::at("")
        .limit("limit")
        .used("count")
        .only_when_limited();
    DialectRows::default()
        .limited(when(body("error").has(&["API rate limit exceeded"])))
        .window(WindowRule::Body(fields))
}

/// `maxlag` is replication lag of the databases, not a limit of ours.
fn wikipedia() -> DialectRows {
    let mut rows = DialectRows::default();
    for place in [
        body("error.code"),
        body("errors[].code"),
        header("mediawiki-api-error"),
    ] {
        rows = rows
            .limited(when(place.clone().is(&["ratelimited"])))
            .overloaded(when(place.is(&["maxlag"])).scope("maxlag"));
    }
    rows
}
