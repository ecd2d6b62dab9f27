//! Checks of headers that several stages ask: which ones identify a request, make it
//! conditional, ask for another protocol, belong to one connection, never hold a key, or say where
//! a response ends.
//!
//! Promises: a header that is not listed as ignored is part of the request, because any header may
//! identify a user. A response that varies by an ignored header is shared only with calls that sent
//! the same value.
//!
//! Never: ignores a header that identifies a user, or one that could make a server respond for
//! another URL, address or version.

use bytes::{Bytes, BytesMut};
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE, TRANSFER_ENCODING, UPGRADE,
};
use tollgate_core::fresh::Headers;

/// Headers that make a call conditional.
pub(crate) const CONDITIONS: [HeaderName; 6] = [
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    RANGE,
];

/// Headers whose value is never a key.
const KEYLESS_HEADERS: [&str; 4] = ["user-agent", "accept", "accept-language", "from"];

/// The headers of a message, as `core` reads them.
#[derive(Debug)]
pub(crate) struct HeaderView<'a>(pub(crate) &'a HeaderMap);

impl Headers for HeaderView<'_> {
    fn each(&self, name: &str, visit: &mut dyn FnMut(&[u8])) {
        for value in self.0.get_all(name) {
            visit(value.as_bytes());
        }
    }
}

/// A copy of the headers in memory of its own. A received value is part of the connection's read
/// buffer, and one value of a few bytes keeps all of that buffer (up to some 400 KiB) in memory.
pub(crate) fn detached(headers: &HeaderMap) -> HeaderMap {
    let bytes = headers.values().map(HeaderValue::len).sum();
    let mut buffer = BytesMut::with_capacity(bytes);
    let mut copies = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        buffer.extend_from_slice(value.as_bytes());
        copies.append(name.clone(), with_bytes(value, buffer.split().freeze()));
    }
    copies
}

/// A copy of one value in memory of its own.
pub(crate) fn detached_value(value: &HeaderValue) -> HeaderValue {
    with_bytes(value, Bytes::copy_from_slice(value.as_bytes()))
}

/// The value in other memory.
fn with_bytes(value: &HeaderValue, copy: Bytes) -> HeaderValue {
    // The same bytes are valid again; otherwise the value stays as it is.
    let Ok(mut copy) = HeaderValue::from_maybe_shared(copy) else {
        return value.clone();
    };
    copy.set_sensitive(value.is_sensitive());
    copy
}

/// The trailers of a request without those that would have been changed or removed as headers, and without
/// those that its head has, such as the provider's key: a server may merge trailers into the headers (RFC
/// 9110, 6.5.1). `None`: nothing remains.
pub(crate) fn forwarded_trailers(
    mut trailers: HeaderMap,
    in_head: &[HeaderName],
) -> Option<HeaderMap> {
    let is_forbidden = |name: &str| {
        let list = [
            "authorization",
            "cookie",
            "set-cookie",
            "host",
            "via",
            "forwarded",
            "te",
            "trailer",
            "upgrade",
            "expect",
            "connection",
            "keep-alive",
            "transfer-encoding",
            "max-forwards",
            "range",
            "cache-control",
        ];
        let begins = ["x-tollgate-", "x-forwarded-", "proxy-", "content-", "if-"];
        let is_digest = name == "content-digest";
        !is_digest && (list.contains(&name) || begins.iter().any(|begin| name.starts_with(begin)))
    };
    let names: Vec<HeaderName> = trailers.keys().cloned().collect();
    for name in names {
        if is_forbidden(name.as_str()) || in_head.contains(&name) {
            trailers.remove(name);
        }
    }
    (!trailers.is_empty()).then_some(trailers)
}

/// Ids of requests, tasks and spans that programs, proxies and tracers add; the client program and
/// its context; length and connection options.
pub(crate) fn is_ignored_header(name: &str) -> bool {
    match name {
        "user-agent"
        | "traceparent"
        | "tracestate"
        | "baggage"
        | "b3"
        | "x-request-id"
        | "x-correlation-id"
        | "x-amzn-trace-id"
        | "x-cloud-trace-context"
        | "idempotency-key"
        | "request-id"
        | "correlation-id"
        | "x-trace-id"
        | "x-client-request-id"
        | "x-ms-client-request-id"
        | "client-request-id"
        | "x-idempotency-key"
        | "sentry-trace"
        | "uber-trace-id"
        | "newrelic"
        | "elastic-apm-traceparent"
        | "x-ot-span-context"
        | "grpc-trace-bin"
        | "amz-sdk-invocation-id"
        | "amz-sdk-request"
        | "x-amz-cf-id"
        | "cf-ray"
        | "fly-request-id"
        | "x-vercel-id"
        | "x-request-start"
        | "x-queue-start"
        | "x-envoy-attempt-count"
        | "x-envoy-expected-rq-timeout-ms"
        | "grpc-timeout"
        | "dnt"
        | "sec-gpc"
        | "sec-purpose"
        | "priority"
        | "upgrade-insecure-requests"
        | "te"
        | "via"
        | "content-length" => true,
        name => match name.as_bytes() {
            [b'x', b'-', rest @ ..] => [&b"b3-"[..], b"stainless-", b"datadog-"]
                .iter()
                .any(|start| rest.starts_with(start)),
            [b's', b'e', b'c', b'-', rest @ ..] => {
                rest.starts_with(b"fetch-") || rest.starts_with(b"ch-")
            }
            _ => false,
        },
    }
}

/// Does the call ask for another protocol? Then its response cannot be shared.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(UPGRADE)
}

/// Is the value of this header never a key?
pub(crate) fn is_keyless_header(name: &str) -> bool {
    KEYLESS_HEADERS.contains(&name)
}

/// Do all parsers agree where a response with these headers ends? Not with two lengths, a length
/// and chunks, or a transfer coding other than `chunked` alone (RFC 9112, 6.3).
pub(crate) fn is_end_clear(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let (length, coding) = (lengths.next(), codings.next());
    let is_digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    lengths.next().is_none()
        && codings.next().is_none()
        && (length.is_none() || coding.is_none())
        && length.is_none_or(|length| is_digits(length.as_bytes().trim_ascii()))
        && coding.is_none_or(|coding| {
            let coding = coding.as_bytes().trim_ascii();
            coding.eq_ignore_ascii_case(b"chunked")
        })
}

/// The headers that a message lists as those of its connection.
pub(crate) fn connection_headers(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(CONNECTION).iter();
    lines
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// A read buffer that tells when it is freed.
    struct ReadBuffer {
        _holder: std::sync::Arc<()>,
    }

    impl AsRef<[u8]> for ReadBuffer {
        fn as_ref(&self) -> &[u8] {
            b"etag: 7\r\nx-a: hello\r\n"
        }
    }

    /// A former bug: `X-Api-Key`, `Cookie` and `X-Tollgate-Token` passed as trailers.
    #[test]
    fn trailers_obey_the_rules_of_headers() {
        let trailers = |names: &[&'static str]| -> HeaderMap {
            let value = HeaderValue::from_static("1");
            let each = names
                .iter()
                .map(|name| (HeaderName::from_static(name), value.clone()));
            each.collect()
        };
        let received = trailers(&[
            "x-sum",
            "x-api-key",
            "x-tollgate-token",
            "proxy-authorization",
            "cookie",
            "via",
            "content-length",
            "content-digest",
            "x-amz-checksum-crc32",
            "authorization",
            "x-monkeys",
        ]);
        let forwarded = trailers(&[
            "x-sum",
            "content-digest",
            "x-amz-checksum-crc32",
            "x-monkeys",
        ]);
        // What the provider calls its key is in the head.
        let in_head = [HeaderName::from_static("x-api-key")];
        assert_eq!(forwarded_trailers(received, &in_head), Some(forwarded));
        assert_eq!(forwarded_trailers(trailers(&["cookie"]), &[]), None);
    }

    #[test]
    fn a_detached_copy_does_not_hold_the_read_buffer() {
        let holders = std::sync::Arc::new(());
        let buffer = Bytes::from_owner(ReadBuffer {
            _holder: holders.clone(),
        });
        let received = |range| HeaderValue::from_maybe_shared(buffer.slice(range)).unwrap();
        let mut headers = HeaderMap::new();
        headers.append("etag", received(6..7));
        headers.append("x-a", received(14..19));
        headers.append("x-a", received(14..15));
        let (copies, etag) = (detached(&headers), detached_value(&headers["etag"]));
        assert_eq!((&copies, &etag), (&headers, &headers["etag"]));
        drop((headers, buffer));
        assert_eq!(std::sync::Arc::strong_count(&holders), 1);
    }

    #[test]
    fn a_response_must_have_one_end() {
        let is_clear = |lines: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, HeaderValue::from_static(value));
            }
            is_end_clear(&headers)
        };
        let (length, chunked) = (("content-length", "4"), ("transfer-encoding", "Chunked"));
        assert!(is_clear(&[]) && is_clear(&[length]) && is_clear(&[chunked]));
        assert!(!is_clear(&[length, chunked]) && !is_clear(&[length, length]));
        assert!(!is_clear(&[chunked, chunked]));
        for length in ["4, 4", "+4", "0x4", ""] {
            assert!(!is_clear(&[("content-length", length)]), "{length}");
        }
        for coding in ["gzip, chunked", "chunked, gzip", "identity", "xchunked", ""] {
            assert!(!is_clear(&[("transfer-encoding", coding)]), "{coding}");
        }
    }

    #[test]
    fn an_unknown_header_is_not_ignored() {
        for name in [
            "user-agent",
            "x-b3-traceid",
            "x-stainless-lang",
            "sec-fetch-site",
            "sec-ch-ua-platform",
        ] {
            assert!(is_ignored_header(name), "{name}");
        }
        for name in [
            "authorization",
            "cookie",
            "accept",
            "x-forwarded-for",
            "x-b3",
            "sec-websocket-key",
            "openai-organization",
            "x-uid",
            "dpop",
            "",
        ] {
            assert!(!is_ignored_header(name), "{name}");
        }
    }
}
