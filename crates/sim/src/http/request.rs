//! A request as the provider reads it: scope, call, priority, cost.
//!
//! | header | meaning |
//! |---|---|
//! | `X-Call-Id` | names the call; a retry carries the same one |
//! | `X-Submitted-At` | when the caller submitted the call, epoch seconds with a fraction |
//! | `X-Priority` | `high`, `normal` or `low` |
//! | `X-Cost` | `tokens=1200, points=3`; one call unless `calls=` says otherwise |
//!
//! Promises: never fails; a missing or malformed value has its default.
//!
//! Never: shows a caller's key. It is compared and counted, not printed.

use std::fmt;

use hyper::Method;
use hyper::http::request::Parts;
use tollgate_core::time::{Span, Wall};

use crate::checker::Priority;
use crate::rule::{Cost, Unit};

use super::settings::{KeyLocation, Settings};

/// Longest call id that is stored; UUIDs have 36 characters, trace ids 55. A longer one is ignored.
pub const CALL_ID_BYTES_MAX: usize = 128;

/// Characters stored of a path, an entity and a key. The log holds 10 000 paths, so 2.5 MB; names
/// that differ only beyond this are one.
pub const NAME_CHARS_MAX: usize = 256;

/// One request.
#[derive(Debug)]
pub(crate) struct SimRequest {
    pub(crate) scope: ScopeKey,
    /// First path segment after `strip`, also when limits are not per entity: some styles return it.
    pub(crate) entity: String,
    /// Without the query, which may hold a key.
    pub(crate) path: String,
    /// Whether the request is a HEAD request.
    pub(crate) head_only: bool,
    pub(crate) call: Option<String>,
    pub(crate) submitted: Option<Wall>,
    pub(crate) priority: Priority,
    pub(crate) cost: Cost,
}

/// The scope whose limits count a request.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ScopeKey {
    pub(crate) entity: Option<String>,
    pub(crate) key: Option<String>,
}

impl fmt::Debug for ScopeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.as_ref().map(|_| "(hidden)");
        f.debug_struct("ScopeKey")
            .field("entity", &self.entity)
            .field("key", &key)
            .finish()
    }
}

impl SimRequest {
    pub(crate) fn read(head: &Parts, settings: &Settings) -> SimRequest {
        let path = head.uri.path();
        let stripped = path.strip_prefix(&settings.strip).unwrap_or(path);
        let first = stripped.trim_start_matches('/').split('/').next();
        let entity = short(first.unwrap_or(""));
        let scope = ScopeKey {
            entity: settings.per_entity.then(|| entity.clone()),
            key: settings.key.as_ref().map(|place| key(head, place)),
        };
        let call = header(head, "x-call-id").filter(|id| id.len() <= CALL_ID_BYTES_MAX);
        SimRequest {
            scope,
            entity,
            path: short(path),
            head_only: head.method == Method::HEAD,
            call: call.filter(|id| !id.is_empty()).map(str::to_owned),
            submitted: header(head, "x-submitted-at").and_then(epoch),
            priority: priority(header(head, "x-priority")),
            cost: cost(header(head, "x-cost").unwrap_or(""), settings),
        }
    }
}

fn header<'a>(head: &'a Parts, name: &str) -> Option<&'a str> {
    head.headers.get(name)?.to_str().ok().map(str::trim)
}

/// All requests without a key share the empty key.
fn key(head: &Parts, place: &KeyLocation) -> String {
    let found = match place {
        KeyLocation::Header(name) => header(head, name),
        KeyLocation::Query(name) => {
            let pairs = head.uri.query().unwrap_or("").split('&');
            pairs
                .filter_map(|pair| pair.split_once('='))
                .find(|(n, _)| n == name)
                .map(|(_, v)| v)
        }
    };
    short(found.unwrap_or(""))
}

fn short(text: &str) -> String {
    text.chars().take(NAME_CHARS_MAX).collect()
}

fn priority(text: Option<&str>) -> Priority {
    match text {
        Some("high") => Priority::High,
        Some("low") => Priority::Low,
        _ => Priority::Normal,
    }
}

fn cost(text: &str, settings: &Settings) -> Cost {
    let answer_bytes = u64::try_from(settings.body_bytes).unwrap_or(u64::MAX);
    let start = Cost::CALL.with(Unit::Bytes, answer_bytes);
    let parts = text
        .split(',')
        .filter_map(|part| part.trim().split_once('='));
    let known = parts.filter_map(|(unit, n)| Some((unit.parse::<Unit>().ok()?, n.parse().ok()?)));
    known.fold(start, |cost, (unit, amount)| cost.with(unit, amount))
}

/// Epoch seconds with at most six decimals, parsed without floats.
fn epoch(text: &str) -> Option<Wall> {
    let (secs, fraction) = text.split_once('.').unwrap_or((text, ""));
    let secs = Span::from_secs(secs.parse().ok()?);
    let micros: String = fraction.chars().chain("000000".chars()).take(6).collect();
    let micros: u64 = micros.parse().ok()?;
    Some(Wall(0) + secs + Span(micros))
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn read(settings: &Settings, uri: &str, headers: &[(&str, &str)]) -> SimRequest {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request
            .body(())
            .expect("a request of this test")
            .into_parts();
        SimRequest::read(&head, settings)
    }

    #[test]
    fn everything_has_a_default() {
        let request = read(&Settings::default(), "/", &[]);
        assert_eq!(request.scope, ScopeKey::default());
        assert_eq!((request.call, request.submitted), (None, None));
        assert_eq!(
            (request.priority, request.cost),
            (Priority::Normal, Cost::CALL)
        );
    }

    #[test]
    fn headers_carry_call_id_time_priority_and_cost() {
        let headers = [
            ("X-Call-Id", "a-1"),
            ("X-Submitted-At", "1794744000.25"),
            ("X-Priority", "low"),
            ("X-Cost", "tokens=1200, points=3, pears=9, calls=x"),
        ];
        let request = read(&Settings::default(), "/v/x?q=1", &headers);
        assert_eq!(request.call.as_deref(), Some("a-1"));
        assert_eq!(request.submitted, Some(Wall(1_794_744_000_250_000)));
        assert_eq!(request.priority, Priority::Low);
        assert_eq!(
            request.cost,
            Cost::CALL.with(Unit::Tokens, 1_200).with(Unit::Points, 3)
        );
        assert_eq!(
            (request.entity.as_str(), request.path.as_str()),
            ("v", "/v/x")
        );
    }

    #[test]
    fn a_call_id_that_is_too_long_is_ignored() {
        let long = "x".repeat(CALL_ID_BYTES_MAX + 1);
        assert_eq!(
            read(&Settings::default(), "/", &[("X-Call-Id", &long)]).call,
            None
        );
    }

    #[test]
    fn long_names_are_cut() {
        let path = format!("/{}", "x".repeat(2 * NAME_CHARS_MAX));
        let request = read(&Settings::default(), &path, &[]);
        assert_eq!(
            (request.path.len(), request.entity.len()),
            (NAME_CHARS_MAX, NAME_CHARS_MAX)
        );
    }

    #[test]
    fn limits_per_entity_and_key_are_separate_scopes() {
        let key = Some(KeyLocation::Query("api_key".to_owned()));
        let settings = Settings {
            per_entity: true,
            key,
            ..Settings::default()
        };
        let scope = read(&settings, "/odds/7?x=1&api_key=s3cret", &[]).scope;
        assert_eq!(scope.entity.as_deref(), Some("odds"));
        assert_eq!(scope.key.as_deref(), Some("s3cret"));
        assert!(!format!("{scope:?}").contains("s3cret"));
        let settings = Settings {
            strip: "/v3/football".to_owned(),
            ..settings
        };
        let scope = read(&settings, "/v3/football/odds/7", &[]).scope;
        assert_eq!(scope.entity.as_deref(), Some("odds"));
    }

    #[test]
    fn a_key_may_be_in_a_header() {
        let key = Some(KeyLocation::Header("x-api-key".to_owned()));
        let settings = Settings {
            key,
            ..Settings::default()
        };
        let scope = read(&settings, "/", &[("X-Api-Key", "k")]).scope;
        assert_eq!(scope.key.as_deref(), Some("k"));
    }
}
