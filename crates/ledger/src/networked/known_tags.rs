//! Which providers this host has used with which networked store, remembered in its state folder.
//!
//! A store that knows nothing of a provider that this host has used before was wiped, and so was one
//! whose rows began anew since: what was used is unknown, and its limits count as used up. A store
//! that nobody has used is empty.
//!
//! Promises: a provider is remembered before its first permit is used. A file that cannot be read
//! or written costs this knowledge and nothing else; the caller is told, and it is tried again.
//!
//! Never: names a user or a password: stores are remembered by their redacted address.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tollgate_core::ask::OwnerId;
use tollgate_core::replica::PastUse;
use tollgate_core::row::Incarnation;
use tollgate_core::time::{Micros, Span};

use super::folder_writes::FolderWrites;
use super::node_slot::NodeSlot;

/// The file in the state folder: a line per store and provider, `STORE PROVIDER<tab>INCARNATION`. The
/// last line of a provider counts. Lines of earlier versions have no incarnation.
const FILE: &str = "networked-providers";

/// A file that could not be written is tried again after this long, with the next batch.
const RETRY_AFTER: Span = Span::from_secs(1);

/// The providers that this host has used with one store.
#[derive(Debug)]
pub(crate) struct KnownTags {
    /// `None`: nothing is remembered beyond this process.
    file: Option<PathBuf>,
    store: String,
    state: Mutex<KnownTagsState>,
    writes: FolderWrites,
    /// Taken when it is first needed.
    slot: OnceLock<Option<NodeSlot>>,
}

#[derive(Debug, Default)]
struct KnownTagsState {
    tags: BTreeMap<String, PastUse>,
    /// The file could not be written then.
    failed_at: Option<Micros>,
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
            .map(|(_, entry)| read_entry(entry))
            .collect();
        let state = KnownTagsState {
            tags,
            ..KnownTagsState::default()
        };
        Arc::new(KnownTags {
            file,
            store,
            state: Mutex::new(state),
            writes: FolderWrites::default(),
            slot: OnceLock::new(),
        })
    }

    /// The number of this node; `random` is for a new one.
    pub(crate) fn node(&self, random: u64) -> Option<u64> {
        let folder = self.file.as_deref().and_then(Path::parent);
        let slot = self.slot.get_or_init(|| NodeSlot::take(folder, random));
        slot.as_ref().map(|slot| slot.node)
    }

    /// What this host knows of this provider in this store.
    pub(crate) fn past_use(&self, tag: &str) -> PastUse {
        let state = self.state.lock();
        state.tags.get(tag).copied().unwrap_or_default()
    }

    /// It uses these contents of it now. Written once per provider and incarnation; without it a
    /// wiped store counts as a new one, which is no reason not to serve a call. Returns why it could
    /// not be written, the first time.
    pub(crate) async fn remember(
        self: &Arc<KnownTags>,
        tag: &str,
        incarnation: Option<Incarnation>,
        now: Micros,
    ) -> Option<String> {
        let past_use = incarnation.map_or(PastUse::Unnamed, PastUse::Of);
        if !self.must_write(tag, past_use, now) {
            return None;
        }
        let (known, owned) = (self.clone(), tag.to_owned());
        // Whoever waits may leave at its deadline: what was written counts all the same.
        let write = move || known.write_and_note(&owned, past_use, now);
        self.writes.run(tag, write).await.flatten()
    }

    /// Is it new, and could it be written lately?
    fn must_write(&self, tag: &str, past_use: PastUse, now: Micros) -> bool {
        let state = self.state.lock();
        let is_known = state.tags.get(tag) == Some(&past_use);
        let failed_at = state.failed_at;
        !is_known && failed_at.is_none_or(|at| now >= at + RETRY_AFTER)
    }

    fn write_and_note(&self, tag: &str, past_use: PastUse, now: Micros) -> Option<String> {
        let written = self.write(tag, past_use);
        let mut state = self.state.lock();
        match written {
            Ok(()) => {
                state.tags.insert(tag.to_owned(), past_use);
                state.failed_at = None;
                None
            }
            Err(error) => {
                let is_first = state.failed_at.replace(now).is_none();
                is_first.then(|| self.complaint(&error))
            }
        }
    }

    fn complaint(&self, error: &io::Error) -> String {
        let file = self.file.as_deref().unwrap_or(FILE.as_ref());
        format!(
            "{} cannot be written ({error}): if {} is wiped while no gateway of this host runs, \
             nobody notices; make the state folder writable",
            file.display(),
            self.store
        )
    }

    /// Providers are bounded by the configuration.
    fn write(&self, tag: &str, past_use: PastUse) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        if let Some(folder) = file.parent() {
            // As all of the state: its owner's alone.
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)?;
        }
        let mut options = OpenOptions::new();
        let mut file = options.append(true).create(true).mode(0o600).open(file)?;
        let incarnation = match past_use {
            PastUse::Of(one) => format!("\t{:08x}-{:016x}", one.owner.0, one.nonce),
            PastUse::Never | PastUse::Unnamed => String::new(),
        };
        // One write, so that lines of several processes do not mix.
        file.write_all(format!("{} {tag}{incarnation}\n", self.store).as_bytes())?;
        file.sync_data()
    }
}

/// A provider, and what is known of it. What follows its name and cannot be read says only that it
/// was used.
fn read_entry(entry: &str) -> (String, PastUse) {
    let (tag, incarnation) = entry.split_once('\t').unwrap_or((entry, ""));
    let past_use = read_incarnation(incarnation).map_or(PastUse::Unnamed, PastUse::Of);
    (tag.to_owned(), past_use)
}

fn read_incarnation(text: &str) -> Option<Incarnation> {
    let (owner, nonce) = text.split_once('-')?;
    Some(Incarnation {
        owner: OwnerId(u32::from_str_radix(owner, 16).ok()?),
        nonce: u64::from_str_radix(nonce, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Incarnation = Incarnation {
        owner: OwnerId(u32::MAX),
        nonce: 7,
    };

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&folder));
        folder
    }

    fn load(folder: &std::path::Path) -> Arc<KnownTags> {
        KnownTags::load(Some(folder.to_owned()), "redis://a:1/0".into())
    }

    /// A folder that hangs was written to again with every batch, and no call was served.
    #[tokio::test]
    async fn a_folder_that_hangs_is_waited_for_once() {
        let folder = folder("known-tags-hang");
        std::fs::create_dir(&folder).unwrap();
        let known = load(&folder);
        let file = folder.join(FILE);
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &file, mode).unwrap();
        let first = tokio::spawn({
            let known = known.clone();
            async move { known.remember("p", Some(ONE), Micros(0)).await }
        });
        while known.writes.is_idle() {
            tokio::task::yield_now().await;
        }
        // Its caller leaves at its deadline; the next one does not wait.
        first.abort();
        assert_eq!(known.remember("p", Some(ONE), Micros(1)).await, None);
        // Somebody reads at last: the one write ends.
        let text = std::thread::spawn(move || std::fs::read_to_string(file).unwrap());
        while !known.writes.is_idle() {
            tokio::task::yield_now().await;
        }
        assert_eq!(text.join().unwrap().matches(" p\t").count(), 1);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn what_is_remembered_is_read_by_the_next_process() {
        let folder = folder("known-tags");
        let other = Incarnation { nonce: 8, ..ONE };
        for incarnation in [ONE, other] {
            let known = load(&folder);
            let told = known.remember("p q", Some(incarnation), Micros(0)).await;
            assert_eq!(told, None);
            assert_eq!(load(&folder).past_use("p q"), PastUse::Of(incarnation));
        }
        assert_eq!(load(&folder).past_use("q"), PastUse::Never);
        let file = folder.join(FILE);
        for (path, mode) in [(&folder, 0o700), (&file, 0o600)] {
            use std::os::unix::fs::PermissionsExt;
            let found = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode, "only the owner may read {path:?}");
        }
        // As earlier versions have written it.
        std::fs::write(&file, "redis://a:1/0 p q\nredis://b:1/0 r\n").unwrap();
        assert_eq!(load(&folder).past_use("p q"), PastUse::Unnamed);
        assert_eq!(load(&folder).past_use("r"), PastUse::Never);
        drop(std::fs::remove_dir_all(&folder));
    }

    /// A failed write was swallowed, and the provider counted as remembered.
    #[tokio::test]
    async fn a_write_that_failed_is_told_once_and_tried_again() {
        let folder = folder("known-tags-full");
        // A file where the folder should be.
        std::fs::write(&folder, "").unwrap();
        let known = load(&folder);
        let told = known.remember("p", Some(ONE), Micros(0)).await;
        assert!(told.is_some_and(|why| why.contains("cannot be written")));
        assert_eq!(known.remember("p", Some(ONE), Micros(1)).await, None);
        assert_eq!(known.past_use("p"), PastUse::Never);
        std::fs::remove_file(&folder).unwrap();
        let later = Micros(0) + RETRY_AFTER;
        assert_eq!(known.remember("p", Some(ONE), later).await, None);
        assert_eq!(load(&folder).past_use("p"), PastUse::Of(ONE));
        drop(std::fs::remove_dir_all(&folder));
    }
}
