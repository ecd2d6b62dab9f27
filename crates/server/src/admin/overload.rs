//! Connections above the cap of the admin address.
//!
//! Promises: such a client reads 503 with `Retry-After`, not a closed connection, which it would take
//! for a daemon that is gone.
//!
//! Never: runs a request, or keeps such a connection for longer than a second.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Clients that are rejected at a time; those above it are disconnected. A few descriptors, each for
/// a second at most.
const REJECTED_MAX: usize = 32;

/// How long a client may take to send its request and to read the response.
const REJECT_TIMEOUT: Duration = Duration::from_secs(1);

const RESPONSE: &str = concat!(
    "HTTP/1.1 503 Service Unavailable\r\n",
    "content-type: application/json\r\n",
    "content-length: 167\r\n",
    "cache-control: no-store\r\n",
    "retry-after: 1\r\n",
    "connection: close\r\n\r\n",
    "{\"error\":\"QueueFull\",",
    "\"message\":\"every connection of this address is in use\",",
    "\"hint\":\"try again in a second; use fewer connections, and keep them open between requests\"}",
);

/// Places of clients that are being rejected.
#[derive(Debug)]
pub(super) struct AdminOverload(Arc<Semaphore>);

/// The place of one of them.
#[derive(Debug)]
pub(super) struct OverloadPlace {
    _place: OwnedSemaphorePermit,
}

impl Default for AdminOverload {
    fn default() -> AdminOverload {
        AdminOverload(Arc::new(Semaphore::new(REJECTED_MAX)))
    }
}

impl AdminOverload {
    /// A place to reject a client; `None` if too many are being rejected.
    pub(super) fn place(&self) -> Option<OverloadPlace> {
        let place = self.0.clone().try_acquire_owned().ok()?;
        Some(OverloadPlace { _place: place })
    }
}

impl OverloadPlace {
    /// Responds, and reads what the client sends until it leaves: to close a socket with unread bytes
    /// would reset it, and the client would lose the response.
    pub(super) async fn reject<S>(self, mut stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let respond = async {
            stream.write_all(RESPONSE.as_bytes()).await?;
            stream.shutdown().await?;
            let mut rest = [0; 1_024];
            while stream.read(&mut rest).await? > 0 {}
            std::io::Result::Ok(())
        };
        // A client that does not take it gets none.
        timeout(REJECT_TIMEOUT, respond).await.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_above_the_cap_is_told_to_come_back() {
        let overload = AdminOverload::default();
        let (mut client, server) = tokio::io::duplex(4_096);
        let rejecting = tokio::spawn(overload.place().unwrap().reject(server));
        client
            .write_all(b"GET /health HTTP/1.1\r\n\r\n")
            .await
            .unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).await.unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("retry-after: 1"));
        let length = format!("content-length: {}", body.len());
        assert!(head.contains(&length), "{length}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"], "QueueFull");
        // It stays; the place is free nevertheless.
        rejecting.await.unwrap();
        assert_eq!(overload.0.available_permits(), REJECTED_MAX);
        let all: Vec<_> = std::iter::from_fn(|| overload.place()).collect();
        assert_eq!(all.len(), REJECTED_MAX, "and others are disconnected");
    }
}
