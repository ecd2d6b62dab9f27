//! Request heads: the options that callers send, the headers that are not forwarded, and the heads
//! that are rejected.
//!
//! Promises: a documented `X-Tollgate-*` header is applied or rejected, others of that prefix are
//! ignored, and none is forwarded. Hop-by-hop headers, `Host` and `Expect` are not forwarded
//! either. An ambiguous request is rejected.
//!
//! Never: changes any other header.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN,
    REFERER, TE, TRANSFER_ENCODING,
};
use http::{Method, Uri, Version, request};
use smallvec::SmallVec;
use tollgate::Error;
use tollgate::path::{CallOptions, UseCache};
use tollgate_config::provider::METHODS;
use tollgate_config::{Secret, amount};
use tollgate_core::ask::Priority;
use tollgate_core::fresh::is_hop_by_hop;
use tollgate_core::time::Span;

use super::address::parse_caller;
use crate::call_words::{self, CostsError};

/// The longest timeout that a caller can set; no connection lives longer.
const TIMEOUT_MAX: Span = Span::from_secs(24 * 3_600);

/// The prefix of our own headers.
const OWN_PREFIX: &str = "x-tollgate-";

/// The headers that set options. Others of the prefix are ignored.
const OPTION_HEADERS: [&str; 8] = [
    "x-tollgate-priority",
    "x-tollgate-caller",
    "x-tollgate-token",
    "x-tollgate-entity",
    "x-tollgate-cost",
    "x-tollgate-timeout",
    "x-tollgate-dedup",
    "x-tollgate-cache",
];

/// How the page that made the request relates to its target, as the browser reports it (Fetch
/// Metadata).
const FETCH_SITE: &str = "sec-fetch-site";

/// Headers that reverse proxies add. A page cannot send them: the browser's preflight request is
/// rejected.
const FORWARDED_BY: [&str; 4] = ["x-forwarded-for", "x-real-ip", "forwarded", "via"];

/// The options that a caller sends for a call.
#[derive(Debug, Default)]
pub(super) struct OptionHeaders {
    pub(super) options: CallOptions,
}

/// Rejects requests that two servers could parse differently.
pub(super) fn check(head: &request::Parts, is_end_clear: bool) -> Result<(), Error> {
    if !is_end_clear {
        return Err(Error::Malformed(
            "the request must have either one decimal Content-Length or Transfer-Encoding, not both",
        ));
    }
    if !is_chunked_only(&head.headers) {
        return Err(Error::Malformed(
            "Transfer-Encoding must be `chunked` and nothing else",
        ));
    }
    if head.method == Method::CONNECT {
        return Err(Error::MethodNotAllowed {
            provider: None,
            method: Method::CONNECT,
            allowed: METHODS.to_owned(),
        });
    }
    let hosts = head.headers.get_all(HOST).iter().count();
    if hosts > 1 || (hosts == 0 && head.version >= Version::HTTP_11) {
        return Err(Error::Malformed("the request must have one Host header"));
    }
    Ok(())
}

/// Has the request no transfer coding but `chunked`? Of several, or an unknown one, two servers may
/// undo a different part (RFC 9112, 6.1).
fn is_chunked_only(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let first = codings.next().map(HeaderValue::as_bytes);
    let is_chunked = |coding: &[u8]| coding.trim_ascii().eq_ignore_ascii_case(b"chunked");
    first.is_none_or(is_chunked) && codings.next().is_none()
}

/// Did a page of another site make a local browser send this request? Loopback has no other
/// protection, and the call would carry a configured key. Programs do not send these headers, local
/// pages belong to the user, and a reverse proxy has its own rules.
pub(super) fn is_cross_site(headers: &HeaderMap) -> bool {
    let is_cross = headers
        .get(FETCH_SITE)
        .is_some_and(|site| site == "cross-site");
    if !is_cross {
        return false;
    }
    let is_forwarded = FORWARDED_BY.iter().any(|name| headers.contains_key(*name));
    let page = headers.get(ORIGIN).or_else(|| headers.get(REFERER));
    let page = page.and_then(|page| page.to_str().ok()?.parse::<Uri>().ok());
    let is_here = page.is_some_and(|page| page.host().is_some_and(is_loopback_host));
    !is_forwarded && !is_here
}

fn is_loopback_host(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    host == "localhost"
        || host.ends_with(".localhost")
        || address.is_some_and(|address| address.is_loopback())
}

/// Is the end of this request in its chunks?
pub(super) fn is_chunked(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING)
}

impl OptionHeaders {
    /// Reads the options and removes their headers.
    pub(super) fn take(headers: &mut HeaderMap) -> Result<OptionHeaders, Error> {
        if !headers.keys().any(|name| is_option(name.as_str())) {
            strip(headers);
            let options = CallOptions {
                uses_default_priority: true,
                ..CallOptions::default()
            };
            return Ok(OptionHeaders { options });
        }
        check_option_headers(headers)?;
        let mut head = OptionHeaders::default();
        let options = &mut head.options;
        match text(headers, "x-tollgate-priority") {
            Some(word) => options.priority = parse_priority(word)?,
            None => options.uses_default_priority = true,
        }
        (options.caller, options.token) = proxy_user(headers);
        if let Some(name) = text(headers, "x-tollgate-caller") {
            options.caller = Some(parse_caller(name)?);
        }
        if let Some(token) = text(headers, "x-tollgate-token") {
            options.token = Some(Secret::new(token.to_owned()));
        }
        options.entity = text(headers, "x-tollgate-entity").map(str::to_owned);
        if let Some(costs) = text(headers, "x-tollgate-cost") {
            options.costs = self::parse_costs(costs)?;
        }
        options.timeout = timeout(headers)?;
        options.no_dedup = match text(headers, "x-tollgate-dedup") {
            Some(word) => parse_dedup(word)?,
            None => false,
        };
        if let Some(word) = text(headers, "x-tollgate-cache") {
            options.cache = parse_cache(word)?;
        }
        strip(headers);
        Ok(head)
    }
}

/// Can this header set an option?
fn is_option(name: &str) -> bool {
    name.starts_with(OWN_PREFIX)
        || name == "proxy-authorization"
        || name == "x-stainless-read-timeout"
        || name == "x-envoy-expected-rq-timeout-ms"
        || name == "grpc-timeout"
}

/// A repeated or non-ASCII option is rejected, not ignored.
fn check_option_headers(headers: &HeaderMap) -> Result<(), Error> {
    for name in headers
        .keys()
        .filter(|name| OPTION_HEADERS.contains(&name.as_str()))
    {
        let mut values = headers.get_all(name).iter();
        let is_text = values.next().is_some_and(|value| value.to_str().is_ok());
        if !is_text || values.next().is_some() {
            return Err(Error::Malformed(
                "an X-Tollgate- header is repeated or contains non-ASCII characters",
            ));
        }
    }
    Ok(())
}

/// Name and token as proxy clients send them: `http://name:token@127.0.0.1:4290`. A malformed value
/// is ignored.
fn proxy_user(headers: &HeaderMap) -> (Option<String>, Option<Secret>) {
    let pair = text(headers, "proxy-authorization").and_then(|value| {
        let (scheme, coded) = value.split_once(' ')?;
        let is_basic = scheme.eq_ignore_ascii_case("basic");
        let decoded = BASE64.decode(coded.trim()).ok().filter(|_| is_basic)?;
        let pair = String::from_utf8(decoded).ok()?;
        let (name, token) = pair.split_once(':')?;
        Some((parse_caller(name).ok()?, token.to_owned()))
    });
    let (name, token) = pair.unzip();
    let token = token.filter(|token| !token.is_empty());
    (name, token.map(Secret::new))
}

/// A header that concerns neither the call nor its connection or body: the gateway only forwards
/// it, unchanged.
pub(super) fn is_passed_through(name: &HeaderName) -> bool {
    !is_hop_by_hop(name.as_str())
        && name != EXPECT
        && name != CONTENT_LENGTH
        && name != FETCH_SITE
        && name != COOKIE
        && !is_option(name.as_str())
}

/// Removes the headers that are not forwarded.
fn strip(headers: &mut HeaderMap) {
    let wants_trailers = headers.get_all(TE).iter().any(|value| {
        value
            .as_bytes()
            .windows(8)
            .any(|part| part.eq_ignore_ascii_case(b"trailers"))
    });
    remove_hop_by_hop(headers);
    // The gateway reads the body, so it has sent `100 Continue` already.
    headers.remove(EXPECT);
    headers.remove(HOST);
    remove_own(headers);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes hop-by-hop headers, and those that `Connection` names.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: SmallVec<[HeaderName; 4]> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        // These name no header, and nearly every client sends one of them.
        .filter(|name| {
            !name.eq_ignore_ascii_case("keep-alive") && !name.eq_ignore_ascii_case("close")
        })
        .filter_map(|name| HeaderName::try_from(name).ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    remove_all(headers, |name| is_hop_by_hop(name.as_str()));
}

/// Scans the few present headers, instead of a lookup for each possible name.
fn remove_all(headers: &mut HeaderMap, is_unwanted: impl Fn(&HeaderName) -> bool) {
    while let Some(name) = headers.keys().find(|name| is_unwanted(name)).cloned() {
        headers.remove(name);
    }
}

/// Removes `X-Tollgate-` headers: those of callers are options, those of upstreams would be false.
pub(super) fn remove_own(headers: &mut HeaderMap) {
    remove_all(headers, |name| name.as_str().starts_with(OWN_PREFIX));
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn parse_priority(word: &str) -> Result<Priority, Error> {
    call_words::priority(word).ok_or(Error::Malformed(
        "X-Tollgate-Priority must be high, normal or low (also user, webhook, ui, manual, background)",
    ))
}

/// `no` = an upstream call of its own.
fn parse_dedup(word: &str) -> Result<bool, Error> {
    match word.to_ascii_lowercase().as_str() {
        "no" | "off" => Ok(true),
        _ => Err(Error::Malformed(
            "X-Tollgate-Dedup must be `no`; leave it out to use the provider's setting",
        )),
    }
}

fn parse_cache(word: &str) -> Result<UseCache, Error> {
    match word.to_ascii_lowercase().as_str() {
        "no" => Ok(UseCache::No),
        "only" => Ok(UseCache::Only),
        "refresh" => Ok(UseCache::Refresh),
        _ => Err(Error::Malformed(
            "X-Tollgate-Cache must be no, only or refresh",
        )),
    }
}

/// `tokens=1200, points=3`; a bare number is calls.
fn parse_costs(text: &str) -> Result<Vec<(String, u64)>, Error> {
    call_words::costs(text).map_err(|error| {
        Error::Malformed(match error {
            CostsError::Repeated => {
                "X-Tollgate-Cost names a unit twice; send one number for each unit"
            }
            CostsError::Invalid => {
                "X-Tollgate-Cost must be a unit and a number, such as `tokens=1200`; units are calls, requests, tokens, input_tokens, output_tokens, points, weight, request_units, orders, credits and bytes"
            }
        })
    })
}

/// How long the call may wait and run: our header, otherwise the timeout that an SDK reports.
fn timeout(headers: &HeaderMap) -> Result<Option<Span>, Error> {
    if let Some(text) = text(headers, "x-tollgate-timeout") {
        return match amount::span(text) {
            Some(span) if span > TIMEOUT_MAX => Err(Error::Malformed(
                "X-Tollgate-Timeout may be at most one day, `24h`",
            )),
            Some(span) => Ok(Some(span)),
            None => Err(Error::Malformed(
                "X-Tollgate-Timeout must be a duration with a unit, such as `10s` or `500ms`",
            )),
        };
    }
    let number = |name: &str| text(headers, name)?.parse::<u64>().ok().filter(|n| *n > 0);
    let sdk = text(headers, "x-stainless-read-timeout")
        .and_then(seconds)
        .or_else(|| number("x-envoy-expected-rq-timeout-ms").map(Span::from_millis))
        .or_else(|| text(headers, "grpc-timeout").and_then(grpc_timeout));
    Ok(sdk.map(|timeout| timeout.min(TIMEOUT_MAX)))
}

/// `600`, or `20.0` and `6.666666666666667` as SDKs write floats; digits below microseconds are
/// dropped.
fn seconds(text: &str) -> Option<Span> {
    let end = text.find('.').map_or(text.len(), |dot| dot + 7);
    let amount = amount::millionths(text.get(..end).unwrap_or(text))?;
    Some(Span(amount.0)).filter(|span| *span > Span::ZERO)
}

/// `100m`: at most eight digits and a unit.
fn grpc_timeout(text: &str) -> Option<Span> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let amount: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    let micros = match unit {
        "H" => 3_600_000_000,
        "M" => 60_000_000,
        "S" => 1_000_000,
        "m" => 1_000,
        "u" => 1,
        "n" => return Some(Span(amount / 1_000)),
        _ => return None,
    };
    Some(Span(amount.saturating_mul(micros)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_config::provider::Cost;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn options_of(lines: &[(&'static str, &'static str)]) -> CallOptions {
        OptionHeaders::take(&mut headers(lines)).unwrap().options
    }

    #[test]
    fn a_priority_accepts_its_three_names_and_their_aliases() {
        for (word, expected) in [
            ("high", Priority::High),
            ("UI", Priority::High),
            ("webhook", Priority::High),
            ("normal", Priority::Normal),
            ("background", Priority::Low),
        ] {
            assert_eq!(parse_priority(word).unwrap(), expected, "{word}");
        }
        parse_priority("urgent").unwrap_err();
    }

    #[test]
    fn the_timeout_comes_from_our_header_or_from_an_sdk_header() {
        let timeout = |lines: &[(&'static str, &'static str)]| options_of(lines).timeout;
        assert_eq!(
            timeout(&[("x-tollgate-timeout", "500ms"), ("grpc-timeout", "9S")]),
            Some(Span::from_millis(500))
        );
        assert_eq!(
            timeout(&[("x-stainless-read-timeout", "600")]),
            Some(Span::from_secs(600))
        );
        assert_eq!(
            timeout(&[("x-envoy-expected-rq-timeout-ms", "250")]),
            Some(Span::from_millis(250))
        );
        assert_eq!(
            timeout(&[("grpc-timeout", "100m")]),
            Some(Span::from_millis(100))
        );
        for (written, micros) in [
            ("20.0", 20_000_000),
            ("0.5", 500_000),
            ("6.666666666666667", 6_666_666),
        ] {
            let sdk = timeout(&[("x-stainless-read-timeout", written)]);
            assert_eq!(sdk, Some(Span(micros)), "{written}");
        }
        for nothing in ["0", "0.0", "-1", "NaN", "None", ""] {
            assert_eq!(timeout(&[("x-stainless-read-timeout", nothing)]), None);
        }
        assert_eq!(timeout(&[("grpc-timeout", "x")]), None);
        assert_eq!(timeout(&[]), None);
    }

    #[test]
    fn costs_have_units() {
        assert_eq!(
            options_of(&[("x-tollgate-cost", "tokens=1200, points=3")]).costs,
            [("tokens".to_owned(), 1200), ("points".to_owned(), 3)]
        );
        assert_eq!(
            options_of(&[("x-tollgate-cost", "2")]).costs,
            [("calls".to_owned(), 2)]
        );
        assert_eq!(
            parse_costs("Requests=2").unwrap(),
            [("calls".to_owned(), 2)]
        );
        parse_costs("tokens=0").unwrap_err();
        let unknown = parse_costs("tokenz=5").unwrap_err().to_string();
        for unit in Cost::units() {
            assert!(unknown.contains(unit), "{unit} is not named: {unknown}");
        }
        parse_costs("tokens").unwrap_err();
        for twice in [
            "1000,1000",
            "calls=1, requests=2",
            "tokens=1,points=2,tokens=3",
        ] {
            let error = parse_costs(twice).unwrap_err().to_string();
            assert!(error.contains("twice"), "{twice}: {error}");
        }
    }

    #[test]
    fn own_and_hop_by_hop_headers_are_not_forwarded() {
        let mut headers = headers(&[
            ("host", "localhost"),
            ("connection", "keep-alive, x-mine"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic eA=="),
            ("proxy-authentication-info", "x"),
            ("te", "trailers, deflate"),
            ("x-tollgate-priority", "low"),
            ("x-tollgate-anything", "1"),
            ("accept", "*/*"),
            ("trailer", "x-sum"),
        ]);
        OptionHeaders::take(&mut headers).unwrap();
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "te", "trailer"]);
        assert_eq!(headers["te"], "trailers");
    }
}
