//! Which providers this host has used with which networked store, remembered in its state folder.
//!
//! A store that knows nothing of a provider that this host has used before was wiped: what was
//! used is unknown, and its limits count as used up. A store that nobody has used is empty.
//!
//! Promises: a provider is remembered before its first permit is used. A file that cannot be read
//! or written costs this knowledge and nothing else.
//!
//! Never: names a user or a password: stores are remembered by their redacted address.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

/// The file in the state folder: a line per store and provider.
const FILE: &str = "networked-providers";

/// The providers that this host has used with one store.
#[derive(Debug)]
pub(crate) struct KnownTags {
    /// `None`: nothing is remembered beyond this process.
    file: Option<PathBuf>,
    store: String,
    tags: Mutex<BTreeSet<String>>,
}

impl KnownTags {
    /// What the state folder remembers of the store at this redacted address.
    pub(crate) fn load(state_dir: Option<PathBuf>, store: String) -> Arc<KnownTags> {
        let file = state_dir.map(|folder| folder.join(FILE));
        let text = file
            .as_ref()
            .and_then(|file| std::fs::read_to_string(file).ok());
        let lines = text.as_deref().unwrap_or_default().lines();
        let tags = lines
            .filter_map(|line| line.split_once(' '))
            .filter(|(of, _)| *of == store)
            .map(|(_, tag)| tag.to_owned())
            .collect();
        Arc::new(KnownTags {
            file,
            store,
            tags: Mutex::new(tags),
        })
    }

    /// Has this host used the provider with this store?
    pub(crate) fn knows(&self, tag: &str) -> bool {
        self.tags.lock().contains(tag)
    }

    /// It uses it now. Written once per provider; without it a wiped store counts as a new one,
    /// which is no reason not to serve a call.
    pub(crate) async fn remember(self: &Arc<KnownTags>, tag: &str) {
        if !self.knows(tag) {
            let (known, tag) = (self.clone(), tag.to_owned());
            let write = move || drop(known.write(&tag));
            drop(tokio::task::spawn_blocking(write).await);
        }
    }

    /// Providers are bounded by the configuration.
    fn write(&self, tag: &str) -> io::Result<()> {
        if !self.tags.lock().insert(tag.to_owned()) {
            return Ok(());
        }
        let Some(file) = &self.file else {
            return Ok(());
        };
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut file = OpenOptions::new().append(true).create(true).open(file)?;
        // One write, so that lines of several processes do not mix.
        file.write_all(format!("{} {tag}\n", self.store).as_bytes())?;
        file.sync_data()
    }
}
