//! TLS: the trusted root certificates, and the handshake.
//!
//! Promises: uses the system's roots, and a built-in list where a system has none.
//!
//! Never: accepts a certificate that does not verify.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::preamble::OverTcp;

/// The trusted root certificates.
#[derive(Clone, Debug, Default)]
pub enum Roots {
    /// The system's, or a built-in list where it has none.
    #[default]
    System,
    /// Only these.
    Only(Vec<CertificateDer<'static>>),
}

/// TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct TlsError(#[from] rustls::Error);

/// Makes the handshakes.
pub(super) struct TlsClient {
    config: Arc<ClientConfig>,
}

impl Roots {
    /// A client that trusts these root certificates.
    pub(super) fn client(&self) -> Result<TlsClient, TlsError> {
        let mut roots = RootCertStore::empty();
        match self {
            Roots::System => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
                }
            }
            Roots::Only(certificates) => {
                roots.add_parsable_certificates(certificates.iter().cloned());
            }
        }
        let crypto = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(crypto)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsClient {
            config: Arc::new(config),
        })
    }
}

impl OverTcp for TlsStream<TcpStream> {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self.get_ref().0)
    }
}

impl TlsClient {
    /// The handshake, for a certificate of this host.
    pub(super) async fn handshake(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(self.config.clone());
        connector.connect(name, stream).await
    }
}
