//! Ignored headers: request headers that differ between calls or programs and never change a
//! response. One list for both stages that compare requests.
//!
//! Promises: a header that is not listed is part of the request, because any header may identify a
//! user. A response that varies by an ignored header is shared only with calls that sent the same
//! value.
//!
//! Never: lists a header that identifies a user, or one that could make a server respond for
//! another URL, address or version.

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

#[cfg(test)]
mod tests {
    use super::*;

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
