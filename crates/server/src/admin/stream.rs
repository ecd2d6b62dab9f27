//! The stream of an admin connection, which knows when a response is written.
//!
//! Promises: a response counts as running until its last byte has left for the client. A client that
//! does not read its response for some seconds loses its connection, so that it cannot keep its
//! place.
//!
//! Never: changes a byte.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::progress::{AdminProgress, RunningRequest};

/// How long a write may make no progress. Responses are small and clients near; one that does not
/// read for so long has stopped.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The stream of an admin connection.
#[derive(Debug)]
pub(super) struct AdminStream<S> {
    stream: S,
    progress: Arc<AdminProgress>,
    write_timer: Option<Pin<Box<Sleep>>>,
}

impl<S> AdminStream<S> {
    pub(super) fn new(stream: S, progress: Arc<AdminProgress>) -> AdminStream<S> {
        AdminStream {
            stream,
            progress,
            write_timer: None,
        }
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
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.timed(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
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
        ready!(Pin::new(&mut this.stream).poll_flush(cx))?;
        this.progress.on_written(ended);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
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
    use axum::routing::get;
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
        let router = axum::Router::new().route("/", get(|| async { "x".repeat(LENGTH) }));
        let (mut client, server) = tokio::io::duplex(1_024);
        let (sender, never) = watch::channel(false);
        let shutdown = ShutdownSignal::new(never.clone(), never);
        let place = table.open().unwrap();
        tokio::spawn(serve_connection(server, router, place, shutdown));
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
