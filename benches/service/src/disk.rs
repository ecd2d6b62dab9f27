//! A folder on a real disk, and how often that disk can be synced.
//!
//! Promises: it is below `target`, never on a file system in memory, where a sync costs nothing and
//! the row about durable permits would mean nothing; it is removed when this is dropped.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;

pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> anyhow::Result<Folder> {
        let name = format!("target/bench-service-{}", std::process::id());
        fs::create_dir_all(&name)?;
        let folder = Folder(Path::new(&name).canonicalize()?);
        let kind = Command::new("stat")
            .args(["-f", "-c", "%T"])
            .arg(&folder.0)
            .output()?;
        let kind = String::from_utf8_lossy(&kind.stdout).trim().to_owned();
        ensure!(
            kind != "tmpfs" && kind != "ramfs",
            "`target` is in memory ({kind}): a sync there costs nothing; put it on a disk"
        );
        Ok(folder)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Appends and syncs, one after the other: what a store without group commit would reach.
pub fn syncs_per_second(folder: &Folder, each: Duration) -> anyhow::Result<f64> {
    let mut file = File::create(folder.join("syncs"))?;
    let (mut made, began) = (0_u32, Instant::now());
    while began.elapsed() < each {
        file.write_all(&[0; 64])?;
        file.sync_data()?;
        made += 1;
    }
    Ok(f64::from(made) / began.elapsed().as_secs_f64())
}
