//! Upgrades: a request that asks to go on in another protocol, such as WebSocket.
//!
//! Promises: one call, one permit. Only a `101` of the upstream opens a tunnel. Any other status is
//! a normal response.
//!
//! Never: offers a protocol that carries further requests (HTTP, or TLS around it): those would
//! bypass every limit. Such offers are removed, as HTTP allows.

use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use http::{StatusCode, Version, request};
use hyper::upgrade::OnUpgrade;
use tollgate::body::ReplyBody;
use tollgate::path::Reply;

use super::client_connection::ClientConnection;

/// The protocols that a request offers; `None` = no upgrade. A request with a body is not upgraded:
/// two servers could disagree where the body ends and the other protocol begins.
pub(super) fn requested(head: &request::Parts) -> Option<HeaderValue> {
    let headers = &head.headers;
    let has_body = headers.contains_key(TRANSFER_ENCODING)
        || headers
            .get(CONTENT_LENGTH)
            .is_some_and(|length| length != "0");
    if head.version != Version::HTTP_11 || has_body || !names_upgrade(headers) {
        return None;
    }
    let offers: Vec<&str> = tokens(headers, UPGRADE.as_str())
        .filter(|offer| !carries_requests(offer))
        .collect();
    HeaderValue::try_from(offers.join(", "))
        .ok()
        .filter(|offers| !offers.is_empty())
}

/// Adds `Connection: upgrade` and the protocols.
pub(super) fn add_headers(headers: &mut HeaderMap, protocols: Option<HeaderValue>) {
    if let Some(protocols) = protocols {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocols);
    }
}

/// If the upstream accepted, the connection becomes a tunnel after this response. Returns the
/// chosen protocol.
pub(super) fn accept(
    connection: &ClientConnection,
    caller: OnUpgrade,
    reply: &mut Reply,
) -> Option<HeaderValue> {
    if reply.head.status != StatusCode::SWITCHING_PROTOCOLS {
        return None;
    }
    let tunnel = std::mem::take(&mut reply.body).into_tunnel()?;
    reply.body = ReplyBody::default();
    let protocol = reply.head.headers.get(UPGRADE).cloned();
    connection.become_tunnel(caller, tunnel.speaking(protocol.as_ref()));
    protocol
}

fn names_upgrade(headers: &HeaderMap) -> bool {
    tokens(headers, CONNECTION.as_str()).any(|token| token.eq_ignore_ascii_case("upgrade"))
}

fn tokens<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}

fn carries_requests(offer: &str) -> bool {
    let name = offer.split('/').next().unwrap_or(offer);
    let carriers = ["h2", "h2c", "h3", "http", "tls"];
    carriers
        .iter()
        .any(|carrier| name.eq_ignore_ascii_case(carrier))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn requested_by(lines: &[(&str, &str)]) -> Option<String> {
        let mut request = Request::builder();
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        requested(&head).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn an_upgrade_must_be_named_in_the_connection_header() {
        let upgrade = ("upgrade", "websocket");
        let asks = [("connection", "keep-alive, Upgrade"), upgrade];
        assert_eq!(requested_by(&asks).as_deref(), Some("websocket"));
        assert_eq!(requested_by(&[("connection", "keep-alive"), upgrade]), None);
        assert_eq!(requested_by(&[upgrade]), None);
        assert_eq!(requested_by(&[("connection", "upgrade")]), None);
    }

    #[test]
    fn protocols_that_carry_requests_are_not_offered() {
        let ask = |offers| requested_by(&[("connection", "upgrade"), ("upgrade", offers)]);
        for offer in ["h2c", "H2C", "HTTP/2.0", "TLS/1.3", "h2"] {
            assert_eq!(ask(offer), None, "{offer}");
        }
        assert_eq!(ask("h2c, websocket").as_deref(), Some("websocket"));
    }

    #[test]
    fn a_request_with_a_body_is_not_upgraded() {
        let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
        for body in [("transfer-encoding", "chunked"), ("content-length", "3")] {
            assert_eq!(
                requested_by(&[upgrade[0], upgrade[1], body]),
                None,
                "{body:?}"
            );
        }
    }
}
