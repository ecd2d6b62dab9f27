//! The files and variables of this machine, as an [`Environment`].
//!
//! Promises: reads no more of a file than the size limit; reports whether other users can read it.
//!
//! Never: writes anything. Only programs use this; all other code is given an [`Environment`].

use std::fs::{self, File, Metadata};
use std::io::{self, Read};

use crate::raw::FILE_MAX;
use crate::secret::{Environment, FileContent, PathKind};

/// The environment of this process.
#[must_use]
pub fn environment() -> Environment<'static> {
    Environment {
        env: &|name| std::env::var(name).ok(),
        env_names: &|| {
            let names = std::env::vars_os().map(|(name, _)| name.into_string());
            names.filter_map(Result::ok).collect()
        },
        read_file: &read,
        path_kind: &path_kind,
        missing_key: None,
    }
}

fn read(path: &str) -> Result<FileContent, String> {
    // Before it is opened: to open a pipe waits until somebody writes to it.
    let about = fs::metadata(path).map_err(reason)?;
    if about.is_dir() {
        return Err("it is a folder".to_owned());
    }
    if !about.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let file = File::open(path).map_err(reason)?;
    // One byte more than is allowed, so that the reader sees that it is too large.
    let bound = u64::try_from(FILE_MAX).unwrap_or(u64::MAX) + 1;
    let mut text = String::new();
    file.take(bound).read_to_string(&mut text).map_err(reason)?;
    Ok(FileContent {
        text,
        readable_by_others: is_readable_by_others(&about),
    })
}

fn path_kind(path: &str) -> Result<PathKind, String> {
    let about = match fs::metadata(path) {
        Ok(about) => about,
        // A link to nothing was meant to be something.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_link(path) => {
            return Ok(PathKind::Nothing);
        }
        Err(error) => return Err(reason(error)),
    };
    if !about.is_dir() {
        return Ok(PathKind::File);
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(reason)? {
        // A name that is not UTF-8 is not the name of a provider file.
        if let Ok(name) = entry.map_err(reason)?.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(PathKind::Folder(names))
}

fn is_link(path: &str) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink())
}

/// Group or others may read it.
fn is_readable_by_others(about: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    about.mode() & 0o044 != 0
}

/// The system's reason in short words; nothing of a file's content.
#[expect(
    clippy::needless_pass_by_value,
    reason = "made for map_err, which hands the error over"
)]
fn reason(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::InvalidData => "it is not text in UTF-8".to_owned(),
        kind => kind.to_string(),
    }
}
