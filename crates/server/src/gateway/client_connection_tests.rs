//! A client connection whose client is gone at an awkward moment.

use std::io;
use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tollgate::ProviderRegistry;
use tollgate::cache::MemfdBody;
use tollgate::providers::Options;
use tollgate_config::{Environment, ProviderFile};
use tollgate_ledger::{Clock, Ledger};

use super::*;
use crate::gateway::GatewayOptions;
use crate::gateway::hang_up::SocketHandle;

const REQUEST: &[u8] = b"GET /x/chat HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\n\r\n";

/// A client that has sent its request and reset the connection: reads do not show it yet, and every
/// write fails.
struct ResetClient {
    has_sent: bool,
}

impl AsyncRead for ResetClient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if std::mem::replace(&mut self.has_sent, true) {
            return Poll::Pending;
        }
        buf.put_slice(REQUEST);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ResetClient {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        _bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Not a socket, so no sendfile.
impl SendFile for ResetClient {
    fn give_handle(&self, _to: &SocketHandle) {}

    fn poll_send_more(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write(cx, bytes)
    }

    fn poll_sendfile(
        &mut self,
        _cx: &mut Context<'_>,
        _memfd: &MemfdBody,
        _from: usize,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
}

/// The state of a gateway whose provider `x` is this upstream.
fn state(upstream: std::net::SocketAddr) -> Arc<GatewayState> {
    let file = format!("name: x\nupstream: http://{upstream}\nlimits: [9/1s]\n");
    let draft = ProviderFile::read("x.yaml", &file).unwrap();
    let provider = draft.check(&Environment::empty()).provider.unwrap();
    let ledger = Ledger::memory(Clock::System);
    let registry = ProviderRegistry::build(vec![provider], ledger, Options::default()).unwrap();
    Arc::new(GatewayState::new(registry, GatewayOptions::default()))
}

/// A client that reset its connection when its upgrade was accepted left a task that waited for
/// ever, with the connection at the provider and the permit: hyper's part of the connection, which
/// would have reported the failure, was kept until the task ended.
#[tokio::test]
async fn a_client_that_resets_during_an_upgrade_leaves_nothing_behind() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = upstream.local_addr().unwrap();
    let accepts = tokio::spawn(async move {
        let (mut stream, _) = upstream.accept().await.unwrap();
        let mut request = [0; 4_096];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        let accepted = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
            Upgrade: websocket\r\n\r\n";
        stream.write_all(accepted).await.unwrap();
        // Until the gateway closes it.
        stream.read_to_end(&mut Vec::new()).await.ok();
    });
    let (_sender, never) = watch::channel(false);
    let shutdown = ShutdownSignal::new(never.clone(), never);
    let kind = Arc::new(ListenerKind::All);
    let client = ClientConnection::new(state(address), kind, Ipv4Addr::LOCALHOST.into(), shutdown);
    let served = serve_stream(ResetClient { has_sent: false }, client);
    let bound = Duration::from_secs(10);
    let ended = tokio::time::timeout(bound, async { tokio::join!(served, accepts).1 }).await;
    ended.expect("the connection has ended").unwrap();
}
