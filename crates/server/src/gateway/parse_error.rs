//! Requests that the HTTP parser rejects: hyper responds with a bare status, and this module
//! replaces that response.
//!
//! Promises: JSON like every other rejection, with the parser's own status.
//!
//! Never: repeats a byte of the request.

use http::StatusCode;

/// The longest head that the parser itself writes has some 110 bytes.
const PARSER_HEAD_MAX: usize = 256;

/// The status of a response that is only the parser's own head. Other responses differ: those of the
/// gateway have `x-tollgate-` headers, those of the API have a type.
pub(crate) fn parser_status(bytes: &[u8]) -> Option<u16> {
    let is_head = bytes.len() <= PARSER_HEAD_MAX && bytes.ends_with(b"\r\n\r\n");
    let rest = bytes.strip_prefix(b"HTTP/1.").filter(|_| is_head)?;
    let text = str::from_utf8(rest).ok()?.to_ascii_lowercase();
    let status = text.get(2..5)?.parse().ok()?;
    let is_empty = text.contains("content-length: 0\r\n");
    let is_ours = text.contains("x-tollgate-") || text.contains("content-type:");
    ((400..500).contains(&status) && is_empty && !is_ours).then_some(status)
}

/// The JSON response with this status, where a head may have so many bytes. It closes the connection.
pub(crate) fn response(status: u16, head_max: usize) -> Vec<u8> {
    let too_large = format!("send at most {} KiB and 100 headers", head_max / 1_024);
    let (message, hint) = match status {
        408 => (
            "The request head did not arrive in time",
            "send the whole head at once",
        ),
        414 | 431 => ("The request head is too large", too_large.as_str()),
        _ => (
            "The request is not valid HTTP",
            "check the URL and the headers; TLS and HTTP/2 are not supported on this address",
        ),
    };
    let id = super::id_without_call();
    let body =
        serde_json::json!({ "error": "BadRequest", "message": message, "hint": hint, "id": id });
    let body = body.to_string();
    let known = StatusCode::from_u16(status).ok();
    let reason = known.and_then(|status| status.canonical_reason());
    let reason = reason.unwrap_or("Bad Request");
    let length = body.len();
    format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\nx-tollgate-id: {id}\r\nx-tollgate-source: tollgate\r\n\
         x-tollgate-decision: reject\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_error_responses_of_the_parser_are_recognised() {
        let bare_400 =
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        assert_eq!(parser_status(bare_400), Some(400));
        for other in [
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nx-tollgate-id: 1\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 7\r\n\r\n",
            "",
        ] {
            assert_eq!(parser_status(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn the_response_is_json_with_a_correct_content_length() {
        for status in [400, 408, 414, 431] {
            let text = String::from_utf8(response(status, 64 * 1_024)).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("content-length: {}", body.len())));
            assert!(head.contains("\r\nx-tollgate-id: "), "{head}");
            let json: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(json["error"], "BadRequest");
        }
    }
}
