//! One message to one webhook, signed.
//!
//! Promises: `X-Tollgate-Signature` is the HMAC-SHA256 of the body with the webhook's secret; without a secret
//! there is none. A response other than 2xx is a failure.
//!
//! Never: sends the secret, or repeats a response.

use std::time::Duration;

use aws_lc_rs::{digest, hmac};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::timeout;
use tollgate::{ProviderRegistry, path};
use tollgate_config::config::Webhook;

use crate::desk::OutboxMessage;

/// How long a receiver may take.
const RECEIVER_TIMEOUT: Duration = Duration::from_secs(15);

const SIGNATURE: HeaderName = HeaderName::from_static("x-tollgate-signature");
const EVENT_ID: HeaderName = HeaderName::from_static("x-tollgate-event-id");

/// Sends a message. An error is a sentence without the address.
pub(super) async fn send(
    registry: &ProviderRegistry,
    webhook: &Webhook,
    message: &OutboxMessage,
) -> Result<(), String> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static("tollgate"));
    if let Ok(id) = HeaderValue::try_from(&message.event) {
        headers.insert(EVENT_ID, id);
    }
    if let Some(secret) = &webhook.secret
        && let Ok(signature) = HeaderValue::try_from(signature(secret.expose(), &message.body))
    {
        headers.insert(SIGNATURE, signature);
    }
    let body = Bytes::from(message.body.clone());
    let posting = path::deliver::post(registry, &webhook.url, headers, body);
    match timeout(RECEIVER_TIMEOUT, posting).await {
        Ok(Ok(200..=299)) => Ok(()),
        Ok(Ok(status)) => Err(format!("it responded with {status}")),
        Ok(Err(_)) => Err("it could not be reached".to_owned()),
        Err(_late) => Err("it did not respond in time".to_owned()),
    }
}

/// `sha256=` and the HMAC of the body in hex.
fn signature(secret: &str, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    format!("sha256={}", hex(hmac::sign(&key, body.as_bytes()).as_ref()))
}

/// What stands for the address of a webhook in the outbox.
pub(super) fn fingerprint(webhook: &Webhook) -> String {
    let url = &webhook.url;
    digest(&format!(
        "{} {} {} {}",
        url.tls, url.host, url.port, url.base
    ))
}

/// The first half of a SHA-256 in hex.
pub(super) fn digest(text: &str) -> String {
    let whole = digest::digest(&digest::SHA256, text.as_bytes());
    hex(&whole.as_ref()[..16])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test case 2.
    #[test]
    fn s10_the_signature_is_hmac_sha256_of_the_body() {
        let expected = "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(signature("Jefe", "what do ya want for nothing?"), expected);
    }
}
