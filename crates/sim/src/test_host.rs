//! What tests need of the host that they run on: a folder and an address of their own.
//!
//! Promises: no two tests get the same, in whatever processes they run at the same time. A folder is
//! removed with its test; what a killed process of the same number has left is removed before.
//!
//! Never: in the product.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Ports that the kernel gives to nobody by itself: below those of its ephemeral range.
const PORTS: std::ops::Range<u32> = 12_000..32_000;

/// An address that is free, and that no other socket gets by chance.
///
/// # Panics
///
/// Never: every port fits.
#[must_use]
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test processes that run at the same time begin at different ports.
    let first = std::process::id().wrapping_mul(97);
    loop {
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + number % (PORTS.end - PORTS.start);
        let port = u16::try_from(port).expect("all of them are below 65,536");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// A folder that is removed with its test.
#[derive(Debug)]
pub struct TempFolder {
    path: PathBuf,
}

impl TempFolder {
    /// An empty folder.
    ///
    /// # Panics
    ///
    /// If the host has no folder for temporary files.
    #[must_use]
    pub fn new(name: &str) -> TempFolder {
        let folder = TempFolder::unmade(name);
        fs::create_dir_all(&folder.path).expect("a folder for temporary files");
        folder
    }

    /// The path of a folder that is not there: whoever is tested makes it.
    #[must_use]
    pub fn unmade(name: &str) -> TempFolder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Left by a process of this number that was killed.
        drop(fs::remove_dir_all(&path));
        TempFolder { path }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // Whoever is tested may have removed it.
        drop(fs::remove_dir_all(&self.path));
    }
}
