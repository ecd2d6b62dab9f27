//! The stream of an admin connection, which knows when a response is written.
//!
//! Promises: a response counts as running until its last byte has left for the client. A client that
//! does not read its response for some seconds loses its connection, so that it cannot keep its
//! place. A request that the parser rejects gets JSON like every other mistake.
//!
//! Never: changes a byte of anything else.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::HEAD_MAX;
use super::progress::{AdminProgress, RunningRequest};
use crate::gateway::parse_error;

/// How long a write may make no progress. Responses are small and clients near; one that does not
/// read for so long has stopped.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The stream of an admin connection.
#[derive(Debug)]
pub(super) struct AdminStream<S> {
    stream: S,
    progress: Arc<AdminProgress>,
    write_timer: Option<Pin<Box<Sleep>>>,
    /// The JSON that replaces a response of the parser, and how much of it is written.
    rejection: Vec<u8>,
    rejection_written: usize,
}

impl<S> AdminStream<S> {
    pub(super) fn new(stream: S, progress: Arc<AdminProgress>) -> AdminStream<S> {
        AdminStream {
            stream,
            progress,
            write_timer: None,
            rejection: Vec::new(),
            rejection_written: 0,
        }
    }

    /// Holds JSON instead of these bytes, if they are a response of the parser itself. No route responds
    /// without a body and without a type.
    fn replaces(&mut self, bytes: &[u8]) -> bool {
        let status = parse_error::parser_status(bytes);
        if let Some(status) = status {
            self.rejection = parse_error::response(status, HEAD_MAX);
        }
        status.is_some()
    }

    /// Applies the timeout to a write.
    #[expect(clippy::disallowed_methods, reason = "the timeout of a write")]
    fn timed<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_timer = None;
            return written;
        }
        let timer = self
            .write_timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_TIMEOUT)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AdminStream<S> {
    /// Writes what replaces a response of the parser.
    fn poll_rejection(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest @ [_, ..]) = self.rejection.get(self.rejection_written..) {
            let written = Pin::new(&mut self.stream).poll_write(cx, rest);
            match ready!(self.timed(cx, written))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.rejection_written += written,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AdminStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AdminStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.replaces(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.timed(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let [one] = pieces
            && this.replaces(one)
        {
            return Poll::Ready(Ok(one.len()));
        }
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, pieces);
        this.timed(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when all bytes that were handed over are written.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let ended = this.progress.ended();
        ready!(this.poll_rejection(cx))?;
        ready!(Pin::new(&mut this.stream).poll_flush(cx))?;
        this.progress.on_written(ended);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_rejection(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

/// The body of a response, whose request runs until the body is handed over.
#[derive(Debug)]
pub(super) struct RunningBody<B> {
    body: B,
    _running: RunningRequest,
}

impl<B> RunningBody<B> {
    pub(super) fn new(body: B, running: RunningRequest) -> RunningBody<B> {
        RunningBody {
            body,
            _running: running,
        }
    }
}

impl<B: Body + Unpin> Body for RunningBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::sync::watch;

    use super::*;
    use crate::accept_loop::ShutdownSignal;
    use crate::admin::serve_connection;
    use crate::connection_table::ConnectionTable;

    const LENGTH: usize = 1_000_000;

    /// A moment of paused time.
    #[expect(
        clippy::disallowed_methods,
        reason = "tokio's own time, which is paused"
    )]
    async fn pause() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    /// The only place of a table, taken by a client whose large response has begun.
    async fn begun(
        table: &Arc<ConnectionTable<AdminProgress>>,
    ) -> (DuplexStream, watch::Sender<bool>) {
        let large = async |_| "x".repeat(LENGTH).into_response();
        let (mut client, server) = tokio::io::duplex(1_024);
        let (sender, never) = watch::channel(false);
        let shutdown = ShutdownSignal::new(never.clone(), never.clone());
        let signals = (shutdown, never);
        let place = table.open().unwrap();
        tokio::spawn(serve_connection(server, large, place, signals));
        let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        client.write_all(request).await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'H');
        (client, sender)
    }

    /// A new connection cut a large response in the middle: its request was over when it had begun.
    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_being_written_is_not_cut_by_a_new_connection() {
        let table = ConnectionTable::new(1);
        let (mut client, _shutdown) = begun(&table).await;
        assert!(table.open().is_none(), "the response is being written");
        let mut most = vec![0; LENGTH / 2];
        client.read_exact(&mut most).await.unwrap();
        assert!(table.open().is_none(), "half of it is missing");
        let mut rest = Vec::new();
        let end = client.read_to_end(&mut rest);
        let end = tokio::time::timeout(Duration::from_secs(1), end).await;
        assert!(end.is_err(), "the connection stays open");
        assert!(rest.len() > LENGTH / 2 && rest.ends_with(b"xxx"));
        assert!(table.open().is_some(), "it is idle now");
    }

    /// hyper responds to a head above its bound with a bare status: no JSON, and no word about the bound.
    #[tokio::test(start_paused = true)]
    async fn a_head_that_the_parser_rejects_gets_json() {
        let long = format!("GET /?{} HTTP/1.1\r\n\r\n", "x".repeat(60_000));
        for (request, status) in [(long.as_str(), 431), ("GET / HTTP/1.1\r\na b\r\n\r\n", 400)] {
            let table = ConnectionTable::new(1);
            let (mut client, server) = tokio::io::duplex(100_000);
            let (_sender, never) = watch::channel(false);
            let shutdown = ShutdownSignal::new(never.clone(), never.clone());
            let signals = (shutdown, never);
            tokio::spawn(serve_connection(
                server,
                async |_| "x".into_response(),
                table.open().unwrap(),
                signals,
            ));
            client.write_all(request.as_bytes()).await.unwrap();
            let mut response = String::new();
            client.read_to_string(&mut response).await.unwrap();
            let (head, body) = response.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            let length = format!("content-length: {}", body.len());
            assert!(head.contains(&length), "{head}");
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["error"], "BadRequest");
            let hint = body["hint"].as_str().unwrap();
            assert!(status != 431 || hint.contains("32 KiB"), "{hint}");
        }
    }

    /// Clients that do not read would keep everybody else from the admin address.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_its_response_loses_its_place() {
        let table = ConnectionTable::new(1);
        let (_client, _shutdown) = begun(&table).await;
        assert!(table.open().is_none());
        let has_place = async {
            while table.open().is_none() {
                pause().await;
            }
        };
        let bound = WRITE_TIMEOUT * 2;
        assert!(tokio::time::timeout(bound, has_place).await.is_ok());
    }
}
