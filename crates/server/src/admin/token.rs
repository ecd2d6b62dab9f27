//! The token of an admin address that other hosts reach and that was given none.
//!
//! Promises: made once, from the system's own random source, kept in a file that only its owner can
//! read; a file that others can read is refused.
//!
//! Never: writes a token to the log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use tollgate_config::Secret;

/// Bytes of chance in a token: nobody guesses 256 bits.
const TOKEN_BYTES: usize = 32;

/// The most that is read of a token file; ours have 64 characters.
const FILE_MAX: u64 = 4 * 1024;

/// A token that is kept in a file.
#[derive(Debug)]
pub struct TokenFile {
    /// The token.
    pub token: Secret,
    /// Where it is kept.
    pub path: PathBuf,
    /// It was made just now, so it must be told once.
    pub is_new: bool,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file or its folder.
    #[error("the admin token cannot be kept in {path}; set admin.token instead")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Others can read it, so it is no secret.
    #[error("others can read {0}; run `chmod 600` on it, or remove it to get a new token")]
    ReadableByOthers(PathBuf),
    /// It is empty.
    #[error("{0} holds no token; remove it to get a new one")]
    Empty(PathBuf),
}

impl TokenFile {
    /// Where a folder keeps its token.
    #[must_use]
    pub fn path(folder: &Path) -> PathBuf {
        folder.join("admin.token")
    }

    /// The token of this folder, made now if there is none.
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
        fs::create_dir_all(folder).map_err(failed)?;
        match write(&path, &text) {
            Ok(()) => Ok(TokenFile {
                token: Secret::new(text),
                path,
                is_new: true,
            }),
            // Another process was first; its token is the token.
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

/// The whole token appears at once under its name: nobody reads half of it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&beside)?;
    let written = writeln!(file, "{text}").and_then(|()| file.sync_all());
    // A link fails where the name is taken, so two processes cannot both be first.
    let linked = written.and_then(|()| fs::hard_link(&beside, path));
    fs::remove_file(&beside).ok();
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
