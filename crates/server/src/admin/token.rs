//! The generated token of an admin address that other hosts can reach and that has none configured.
//!
//! Promises: generated once from the system's random source and stored in a file that only its
//! owner can read. A file that others can read is rejected.
//!
//! Never: writes a token to the log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use tollgate_config::Secret;

/// Random bytes in a token: nobody guesses 256 bits.
const TOKEN_BYTES: usize = 32;

/// The most that is read of a token file; a generated token has 64 characters.
const FILE_MAX: u64 = 4 * 1024;

/// A token that is stored in a file.
#[derive(Debug)]
pub struct TokenFile {
    /// The token.
    pub token: Secret,
    /// The file.
    pub path: PathBuf,
    /// It was generated just now, so it must be printed once.
    pub is_new: bool,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file or its folder failed.
    #[error("the admin token cannot be stored in {path}; set admin.token instead")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Other users can read it, so it is no secret.
    #[error("other users can read {0}; run `chmod 600` on it, or remove it to get a new token")]
    ReadableByOthers(PathBuf),
    /// It is empty.
    #[error("{0} contains no token; remove it to get a new one")]
    Empty(PathBuf),
}

impl TokenFile {
    /// The token file of a folder.
    #[must_use]
    pub fn path(folder: &Path) -> PathBuf {
        folder.join("admin.token")
    }

    /// The token of this folder, generated if there is none.
    pub fn ensure(folder: &Path) -> Result<TokenFile, TokenError> {
        let path = TokenFile::path(folder);
        if let Some(token) = TokenFile::read(folder)? {
            let is_new = false;
            return Ok(TokenFile {
                token,
                path,
                is_new,
            });
        }
        let failed = |source| TokenError::File {
            path: path.clone(),
            source,
        };
        let text = random().map_err(failed)?;
        let mut builder = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o700);
        builder.create(folder).map_err(failed)?;
        match write(&path, &text) {
            Ok(()) => Ok(TokenFile {
                token: Secret::new(text),
                path,
                is_new: true,
            }),
            // Another process was first: use its token.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let token = TokenFile::read(folder)?.ok_or(TokenError::Empty(path.clone()))?;
                let is_new = false;
                Ok(TokenFile {
                    token,
                    path,
                    is_new,
                })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The token of this folder; `None` if it has none.
    pub fn read(folder: &Path) -> Result<Option<Secret>, TokenError> {
        let path = TokenFile::path(folder);
        let failed = |source| TokenError::File {
            path: path.clone(),
            source,
        };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        if is_readable_by_others(&file).map_err(failed)? {
            return Err(TokenError::ReadableByOthers(path));
        }
        let mut text = String::new();
        file.take(FILE_MAX)
            .read_to_string(&mut text)
            .map_err(failed)?;
        match text.trim() {
            "" => Err(TokenError::Empty(path)),
            token => Ok(Some(Secret::new(token.to_owned()))),
        }
    }
}

/// Writes a temporary file and links it, so that nobody reads a partial token.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let temporary = path.with_extension(format!("{}.new", std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&temporary)?;
    let written = writeln!(file, "{text}").and_then(|()| file.sync_all());
    // A hard link fails if the name exists, so only one process can be first.
    let linked = written.and_then(|()| fs::hard_link(&temporary, path));
    fs::remove_file(&temporary).ok();
    linked
}

fn random() -> io::Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn is_readable_by_others(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    Ok(file.metadata()?.mode() & 0o077 != 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tollgate_sim::test_host::TempFolder;

    use super::*;

    #[test]
    fn a_token_file_that_others_or_the_group_can_use_is_rejected() {
        let folder = TempFolder::new("token");
        let folder = folder.path();
        let stored = TokenFile::ensure(folder).unwrap();
        for mode in [0o640, 0o620, 0o604, 0o602] {
            fs::set_permissions(&stored.path, fs::Permissions::from_mode(mode)).unwrap();
            let read = TokenFile::read(folder);
            let is_rejected = matches!(read, Err(TokenError::ReadableByOthers(_)));
            assert!(is_rejected, "{mode:o}");
        }
        fs::set_permissions(&stored.path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(TokenFile::read(folder).unwrap().is_some());
    }
}
