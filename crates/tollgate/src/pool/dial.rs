//! One connection: name, address, TCP, TLS, HTTP.
//!
//! Promises: calls the address that was checked, so a name whose DNS record changes cannot lead
//! into a private network. All steps share one timeout. An error names the step that failed.
//!
//! Never: sends anything of a call.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::RwLock;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tollgate_core::health::Fault;
use tollgate_core::time::Span;
use tollgate_ledger::Ledger;

use super::address::{Origin, is_private};
use super::preamble::{CountedStream, OverTcp, Preamble};
use super::tls::{Roots, TlsClient, TlsError};
use crate::event::{Event, Events};
use crate::payload::Outgoing;
use crate::timer::{Elapsed, within};

/// Addresses of one name that are tried. Each gets its part of the timeout; with more of them, each
/// would get less than a round trip.
const ADDRESSES_MAX: usize = 4;

/// The largest response head. The largest seen (cookies, CSP) are some 20 KiB; a larger one is an
/// attack or a fault.
const HEAD_MAX: usize = 64 * 1024;

/// The most headers of a response, at first. The parser needs a number and prepares room for so many
/// with every response, so a larger one makes each call dearer (ten instructions per header).
pub(super) const HEADERS_USUAL: usize = 512;

/// The most headers of an upstream that has sent more than usual. With this number the size is the
/// bound: the shortest header is `a:` and a line feed.
pub(super) const HEADERS_MAX: usize = HEAD_MAX / 3;

/// Opens connections.
pub struct Dialer {
    tls: TlsClient,
    /// Our own addresses: a call to one of them would loop forever.
    own: RwLock<Vec<SocketAddr>>,
    events: Events,
}

/// A connection that speaks HTTP.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) sender: SendRequest<Outgoing>,
    pub(crate) preamble: Preamble,
    _open: OpenConnection,
}

/// The open connections of this process.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// How many connections to upstreams this process has.
pub(crate) fn open_connections() -> usize {
    OPEN.load(Ordering::Relaxed)
}

/// Counts a connection while it is open.
#[derive(Debug)]
struct OpenConnection;

impl OpenConnection {
    fn new() -> OpenConnection {
        OPEN.fetch_add(1, Ordering::Relaxed);
        OpenConnection
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The network failed.
    Fault(Fault),
    /// The address is private, and no file names it.
    Private,
    /// The address is ours.
    OwnAddress,
    /// The origin needs TLS, and this program was built without it.
    NoTls,
    /// This process has no file descriptors left; the provider is not at fault.
    NoDescriptors,
}

impl Dialer {
    /// A dialer that trusts these root certificates.
    pub fn new(roots: &Roots, events: Events) -> Result<Dialer, TlsError> {
        Ok(Dialer {
            tls: roots.client()?,
            own: RwLock::default(),
            events,
        })
    }

    /// Adds an address of this process, which must not be called.
    pub fn add_own_address(&self, address: SocketAddr) {
        self.own.write().push(address);
    }

    /// Removes an address of this process. An address that was added twice stays after the first
    /// removal.
    pub fn remove_own_address(&self, address: SocketAddr) {
        let mut own = self.own.write();
        if let Some(index) = own.iter().position(|ours| *ours == address) {
            own.swap_remove(index);
        }
    }

    /// Opens a connection within `most`, for responses with at most so many headers. Requests that
    /// leave are stamped by the ledger's clock.
    pub(super) async fn dial(
        &self,
        origin: &Origin,
        headers_max: usize,
        most: Span,
        ledger: &Ledger,
    ) -> Result<Wire, ConnectError> {
        // Boxed, because a handshake is rare and large: inside every call's future its 5 KiB would
        // be copied with it a dozen times.
        let connecting = self.connect(origin, headers_max, most, ledger);
        within(Some(most), Box::pin(connecting))
            .await
            .unwrap_or(Err(ConnectError::Fault(Fault::Timeout)))
    }

    async fn connect(
        &self,
        origin: &Origin,
        headers_max: usize,
        most: Span,
        ledger: &Ledger,
    ) -> Result<Wire, ConnectError> {
        if origin.tls && !cfg!(feature = "tls") {
            return Err(ConnectError::NoTls);
        }
        let addresses = self.resolve(origin).await?;
        let stream = connect_any(&addresses, most).await?;
        // Heads are small and urgent.
        stream.set_nodelay(true).map_err(connect_failed)?;
        if !origin.tls {
            return http_handshake(stream, headers_max, ledger).await;
        }
        let host = origin.host.as_str();
        let stream = self.tls.handshake(host, stream).await.map_err(|error| {
            let (host, why) = (host.into(), error.to_string().into());
            self.events.emit(Event::TlsFailed { host, why });
            connect_failed(error)
        })?;
        http_handshake(stream, headers_max, ledger).await
    }

    /// Every address that may be called.
    async fn resolve(&self, origin: &Origin) -> Result<Vec<SocketAddr>, ConnectError> {
        let host = origin.host.as_str();
        let found: Vec<SocketAddr> = match host.parse::<IpAddr>() {
            Ok(ip) => vec![SocketAddr::new(ip, origin.port)],
            Err(_) => tokio::net::lookup_host((host, origin.port))
                .await
                .map_err(|_| ConnectError::Fault(Fault::Dns))?
                .take(ADDRESSES_MAX)
                .collect(),
        };
        if found.is_empty() {
            return Err(ConnectError::Fault(Fault::Dns));
        }
        let own = self.own.read();
        if found.iter().any(|address| is_own(&own, *address)) {
            return Err(ConnectError::OwnAddress);
        }
        // One private address among public ones is an attack, not a mirror.
        if !origin.private && found.iter().any(|address| is_private(address.ip())) {
            return Err(ConnectError::Private);
        }
        Ok(found)
    }
}

/// The wildcard address is every address of this host.
fn is_own(own: &[SocketAddr], address: SocketAddr) -> bool {
    own.iter().any(|ours| {
        ours.port() == address.port()
            && (ours.ip() == address.ip()
                || ours.ip().is_unspecified() && address.ip().is_loopback())
    })
}

/// Tries one address after the other, each with its part of the timeout.
async fn connect_any(addresses: &[SocketAddr], most: Span) -> Result<TcpStream, ConnectError> {
    let count = u64::try_from(addresses.len()).unwrap_or(1).max(1);
    let mut last = ConnectError::Fault(Fault::Connect);
    for address in addresses {
        match within(Some(Span(most.0 / count)), TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = connect_failed(error),
            Err(Elapsed) => last = ConnectError::Fault(Fault::Timeout),
        }
    }
    Err(last)
}

async fn http_handshake<S>(
    stream: S,
    headers_max: usize,
    ledger: &Ledger,
) -> Result<Wire, ConnectError>
where
    S: AsyncRead + AsyncWrite + OverTcp + Send + Unpin + 'static,
{
    let (stream, preamble) = CountedStream::new(stream, ledger.clone());
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_MAX)
        .max_header_size(HEAD_MAX)
        .max_headers(headers_max)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|_| ConnectError::Fault(Fault::Connect))?;
    // It ends with the sender, or when the peer closes; its errors reach the call that uses it.
    tokio::spawn(connection.with_upgrades());
    Ok(Wire {
        sender,
        preamble,
        _open: OpenConnection::new(),
    })
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "`map_err` passes the error by value"
)]
fn connect_failed(error: io::Error) -> ConnectError {
    // EMFILE and ENFILE: `io::ErrorKind` has no stable variant for them.
    if matches!(error.raw_os_error(), Some(23 | 24)) {
        return ConnectError::NoDescriptors;
    }
    match error.kind() {
        io::ErrorKind::TimedOut => ConnectError::Fault(Fault::Timeout),
        _ => ConnectError::Fault(Fault::Connect),
    }
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer")
            .field("own", &self.own.read())
            .finish()
    }
}
