//! The trusted root certificates.
//!
//! Promises: uses the system's roots, and a built-in list where a system has none.
//!
//! Never: accepts a certificate that does not verify.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;

/// The trusted root certificates.
#[derive(Clone, Debug, Default)]
pub enum Roots {
    /// The system's, or a built-in list where it has none.
    #[default]
    System,
    /// Only these.
    Only(Vec<CertificateDer<'static>>),
}

impl Roots {
    /// The TLS configuration of a connection.
    pub(super) fn config(&self) -> Result<Arc<ClientConfig>, rustls::Error> {
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
        Ok(Arc::new(config))
    }
}
