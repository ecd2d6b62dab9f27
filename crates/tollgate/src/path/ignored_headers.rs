//! Noise: request headers that differ from call to call, or from program to program, and by which no
//! server answers. One list for both stages that ask whether two calls are the same question.
//!
//! Promises: whatever is not known to be noise is part of the question: who asks can be said in any
//! header. An answer that says that it varies by noise is still given only to those who sent the same.
//!
//! Never: a header by which somebody is told from somebody else, or one that could make a server answer
//! for another URL, address or version.

/// Names of calls, tasks and spans that programs, proxies and tracers add; which program asks, and how
/// it came to ask; lengths and wishes of the connection.
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
