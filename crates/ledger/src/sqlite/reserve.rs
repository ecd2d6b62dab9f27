//! A file that reserves a little disk space for the moment when the disk is full.
//!
//! To move the log into the database the database may have to grow; on a full disk it cannot, so the
//! log could never be written over and every permit would wait for somebody to free space. So a file
//! of some pages is kept, and given up then.
//!
//! Promises: best effort. A disk without room for the file has none; nothing fails for it.
//!
//! Never: holds data.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// 64 pages: the rows of a few hundred limits that were new since the last checkpoint.
const RESERVE_BYTES: usize = 256 * 1_024;

const RESERVE: &str = "ledger.reserve";

/// Makes the file, unless it is there.
pub(super) fn create(folder: &Path) {
    let path = folder.join(RESERVE);
    let mut options = OpenOptions::new();
    let Ok(mut file) = options.create_new(true).write(true).mode(0o600).open(&path) else {
        return;
    };
    // Written, not only made longer: a hole takes no room.
    if file.write_all(&vec![0; RESERVE_BYTES]).is_err() {
        drop(fs::remove_file(&path));
    }
}

/// Gives the room up.
pub(super) fn give_up(folder: &Path) {
    // Without the file there is no room to give up.
    drop(fs::remove_file(folder.join(RESERVE)));
}
