//! A certificate for the servers of tests.
//!
//! Promises: it is made for the test, and is the root that it can be verified with.
//!
//! Never: in the product.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::test_host::TempFolder;

/// Characters per line.
const WIDTH: usize = 64;

/// A certificate that is signed by itself, and its key.
#[derive(Debug)]
pub struct Certificate {
    folder: TempFolder,
}

impl Certificate {
    /// For a host of this name or address.
    ///
    /// # Panics
    ///
    /// If it cannot be made or written.
    #[must_use]
    pub fn for_host(name: &str) -> Certificate {
        let made = rcgen::generate_simple_self_signed([name.to_owned()])
            .unwrap_or_else(|error| panic!("{error}"));
        let certificate = Certificate {
            folder: TempFolder::new("certificate"),
        };
        let write = |path: PathBuf, text: String| {
            fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        };
        write(certificate.path(), pem("CERTIFICATE", made.cert.der()));
        write(
            certificate.key(),
            pem("PRIVATE KEY", made.signing_key.serialized_der()),
        );
        certificate
    }

    /// The file of the certificate.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("server.crt")
    }

    /// The file of its key.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.folder.path().join("server.key")
    }

    /// Copies both into a folder.
    pub(super) fn copy_to(&self, folder: &Path) {
        for file in [self.path(), self.key()] {
            let to = folder.join(file.file_name().unwrap_or_default());
            fs::copy(&file, &to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
        }
    }
}

/// As text between markers.
fn pem(name: &str, bytes: &[u8]) -> String {
    let mut text = format!("-----BEGIN {name}-----\n");
    let encoded: Vec<char> = STANDARD.encode(bytes).chars().collect();
    for line in encoded.chunks(WIDTH) {
        text.extend(line);
        text.push('\n');
    }
    text + &format!("-----END {name}-----\n")
}
