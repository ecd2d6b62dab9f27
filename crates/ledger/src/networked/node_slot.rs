//! The number of this node, which the next process in its place has too.
//!
//! A state folder has a few numbers, each in a file that one process at a time has locked. A process
//! that was killed has given up its lock, so whoever takes the number next stands in for it.
//!
//! Promises: no two processes of a host have the same number. Without a folder that can be written there
//! is none.
//!
//! Never: waits for a lock.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Processes of a host that have a number: more than any host runs gateways.
const SLOTS: u32 = 64;

/// A number, for as long as this lives.
#[derive(Debug)]
pub(crate) struct NodeSlot {
    pub(crate) node: u64,
    /// Locked.
    _file: File,
}

impl NodeSlot {
    /// The first number of this folder that nobody has; `random` is for a new one.
    pub(crate) fn take(state_dir: Option<&Path>, random: u64) -> Option<NodeSlot> {
        let folder = state_dir?;
        (0..SLOTS).find_map(|slot| {
            let path = folder.join(format!("networked-node-{slot}"));
            NodeSlot::open(folder, &path, random).ok().flatten()
        })
    }

    /// `Ok(None)`: another process has it.
    fn open(folder: &Path, path: &Path, random: u64) -> io::Result<Option<NodeSlot>> {
        // As all of the state: its owner's alone.
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.mode(0o600).open(path)?;
        if file.try_lock().is_err() {
            return Ok(None);
        }
        let mut text = String::new();
        // A name of 64 bits in hexadecimal; what cannot be read is replaced.
        let read = (&mut file).take(64).read_to_string(&mut text);
        let known = u64::from_str_radix(text.trim(), 16).ok();
        let node = match known.filter(|_| read.is_ok()) {
            Some(node) => node,
            None => {
                file.set_len(0)?;
                file.rewind()?;
                file.write_all(format!("{random:016x}\n").as_bytes())?;
                file.sync_data()?;
                random
            }
        };
        Ok(Some(NodeSlot { node, _file: file }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_belongs_to_one_process_at_a_time_and_then_to_the_next_one() {
        let folder = std::env::temp_dir().join(format!("node-slot-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&folder));
        let take = |random| NodeSlot::take(Some(&folder), random);
        let (one, two) = (take(7).expect("a number"), take(8).expect("a number"));
        assert_eq!((one.node, two.node), (7, 8));
        drop(one);
        assert_eq!(take(9).expect("a number").node, 7);
        std::fs::write(folder.join("networked-node-0"), "?").unwrap();
        assert_eq!(take(u64::MAX).expect("a number").node, u64::MAX);
        assert!(NodeSlot::take(None, 1).is_none());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
