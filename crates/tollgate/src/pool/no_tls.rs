//! TLS in a build without the feature `tls`: there is none.
//!
//! Promises: a call to an `https:` upstream fails before it connects and says why.
//!
//! Never: sends such a call in the clear.

use std::io;

use tokio::net::TcpStream;

/// The trusted root certificates: none are needed.
#[derive(Clone, Copy, Debug, Default)]
pub enum Roots {
    /// The system's.
    #[default]
    System,
}

/// TLS cannot be set up; without it, nothing fails.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum TlsError {}

/// Makes no handshakes.
pub(super) struct TlsClient;

impl Roots {
    #[expect(
        clippy::unnecessary_wraps,
        clippy::trivially_copy_pass_by_ref,
        reason = "as in the build with TLS"
    )]
    pub(super) fn client(&self) -> Result<TlsClient, TlsError> {
        Ok(TlsClient)
    }
}

impl TlsClient {
    pub(super) async fn handshake(&self, _: &str, _: TcpStream) -> io::Result<TcpStream> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}
