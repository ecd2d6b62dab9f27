//! Overload: rejects connections above the cap instead of letting them wait.
//!
//! Promises: a rejected client gets a `503 QueueFull` in JSON and a closed connection. As many as there
//! are descriptors for get it after their request has arrived; further ones at once. Without a free
//! descriptor, a spare one serves to close a connection, so the listener never blocks.
//!
//! Never: reads more from a rejected client than the delivery of the response needs.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tollgate_core::time::{Micros, Span};

/// The fewest rejections that wait for their request at a time. Each takes a reserved descriptor.
const REJECTIONS_MIN: usize = 8;

/// The most of them: a task of some KiB each, for at most a second.
const REJECTIONS_MAX: usize = 256;

/// How long a rejection may take. Closing at once would reset the connection, and the client would
/// lose the response.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// How many bytes of the request are discarded meanwhile.
const DISCARD_MAX: u64 = 64 * 1024;

/// How often a lack of descriptors is reported.
const REPORT_EVERY: Span = Span::from_secs(1);

/// Rejects connections.
#[derive(Debug)]
pub(super) struct Overload {
    rejections: Arc<Semaphore>,
    spare: Mutex<Option<File>>,
    /// When a lack of descriptors was last reported.
    reported_at: Mutex<Option<Micros>>,
}

impl Overload {
    /// `spare`: descriptors that no call can use.
    pub(super) fn new(spare: usize) -> Overload {
        let rejections = spare.clamp(REJECTIONS_MIN, REJECTIONS_MAX);
        Overload {
            rejections: Arc::new(Semaphore::new(rejections)),
            spare: Mutex::new(open_spare()),
            reported_at: Mutex::default(),
        }
    }

    /// Sends a client the rejection.
    pub(super) fn reject(&self, stream: TcpStream) {
        if let Ok(turn) = self.rejections.clone().try_acquire_owned() {
            tokio::spawn(async move {
                let _sent = tokio::time::timeout(REJECTION_TIMEOUT, send_rejection(stream)).await;
                drop(turn);
            });
        } else {
            reject_at_once(&stream);
        }
    }

    /// Must a lack of descriptors be reported now? A loop that cannot accept tries a hundred times
    /// per second.
    pub(super) fn claim_report(&self, now: Micros) -> bool {
        let mut reported_at = self.reported_at.lock();
        let is_due = reported_at.is_none_or(|at| now.since(at) >= REPORT_EVERY);
        if is_due {
            *reported_at = Some(now);
        }
        is_due
    }

    /// No descriptor is free: closes the spare one, accepts one connection with it and drops that.
    pub(super) async fn close_one(&self, listener: &TcpListener) {
        let given_up = self.spare.lock().take();
        if given_up.is_some() {
            drop(given_up);
            let _gone = tokio::time::timeout(Duration::ZERO, listener.accept()).await;
        }
        *self.spare.lock() = open_spare();
    }
}

/// Sends the rejection without waiting for anything. What has arrived of the request is read, because
/// unread bytes would reset the connection when it is closed.
fn reject_at_once(stream: &TcpStream) {
    let mut request = [0; 4_096];
    let _read = recv(stream, &mut request, RecvFlags::DONTWAIT);
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _sent = send(stream, response().as_bytes(), flags);
    let _closed = shutdown(stream, Shutdown::Write);
}

async fn send_rejection(mut stream: TcpStream) -> io::Result<()> {
    // A response before the request confuses clients.
    let mut first = [0; 1_024];
    let _read = stream.read(&mut first).await?;
    stream.write_all(response().as_bytes()).await?;
    stream.shutdown().await?;
    let mut rest = stream.take(DISCARD_MAX);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Ok(())
}

fn response() -> String {
    let id = super::id_without_call();
    let body = serde_json::json!({
        "error": "QueueFull",
        "message": "The gateway has reached its maximum number of connections",
        "hint": "close idle connections, or raise the open-file limit of tollgate (`ulimit -n`)",
        "id": id,
        "reason": "queue_full",
        "retryIn": 1_000,
    });
    let body = body.to_string();
    let length = body.len();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         x-tollgate-id: {id}\r\nx-tollgate-source: tollgate\r\nx-tollgate-decision: reject\r\n\
         retry-after: 1\r\nretry-after-ms: 1000\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// Any descriptor will do.
fn open_spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Has the process or the system run out of descriptors?
pub(super) fn is_out_of_descriptors(error: &io::Error) -> bool {
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    matches!(error.raw_os_error(), Some(EMFILE | ENFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_is_logged_once_a_second() {
        let overload = Overload::new(0);
        let start = Micros(5);
        assert!(overload.claim_report(start));
        assert!(!overload.claim_report(start + Span(999_999)));
        assert!(overload.claim_report(start + REPORT_EVERY));
        assert!(!overload.claim_report(start), "a clock that went back");
    }

    #[test]
    fn the_rejection_is_json_with_a_correct_content_length() {
        let text = response();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("\r\nx-tollgate-id: "), "{head}");
        assert!(
            head.contains(&format!("content-length: {}", body.len())),
            "{}",
            body.len()
        );
        let json: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(
            (&json["error"], &json["retryIn"]),
            (&"QueueFull".into(), &1_000.into())
        );
    }
}
