//! Prompts for the keys that were not found, and writes each into a file of its own.
//!
//! Promises: prompts only at a terminal, without echo; only its owner can read a key file (0600, in
//! a folder of 0700), and an old one is overwritten only with `--force`.
//!
//! Never: shows a key, or writes it into tollgate.yaml.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::terminal::NoEcho;

/// The longest key: what the configuration reads of a key file.
const KEY_MAX: usize = 16 * 1024;

/// Prompts for one key. `None`: there is no terminal, or nothing was typed.
pub(super) fn prompt_key(provider: &str) -> anyhow::Result<Option<String>> {
    if !io::stdout().is_terminal() {
        return Ok(None);
    }
    let Some(_quiet) = NoEcho::for_lines() else {
        return Ok(None);
    };
    let mut out = io::stdout().lock();
    write!(
        out,
        "key of {provider} (input is hidden; press Enter if calls send their own key): "
    )?;
    out.flush()?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    writeln!(out)?;
    let key = line.trim();
    anyhow::ensure!(key.len() <= KEY_MAX, "this is too long for a key");
    Ok((!key.is_empty()).then(|| key.to_owned()))
}

/// Writes a key where only its owner can read it.
pub(super) fn save_key(
    folder: &Path,
    provider: &str,
    key: &str,
    force: bool,
) -> anyhow::Result<PathBuf> {
    let folder = folder.join("keys");
    create_private_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(provider);
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        // Remove the old file first: its mode may be too open, and a new file gets the right one.
        fs::remove_file(&path).ok();
    }
    options.create_new(true);
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let mut file = options.open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => anyhow::anyhow!(
            "{} already exists; use --force to overwrite it, or write `api_key: file:{}`",
            path.display(),
            path.display()
        ),
        _ => anyhow::Error::new(error).context(format!("cannot write {}", path.display())),
    })?;
    writeln!(file, "{key}").with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn create_private_dir(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// H3: only its owner can read the key file, and it is not overwritten by accident.
    #[test]
    fn h3_a_key_file_is_readable_by_its_owner_only() {
        let folder = std::env::temp_dir().join(format!("tollgate-ask-{}", std::process::id()));
        let path = save_key(&folder, "tmdb", "CANARY", false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "CANARY\n");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let again = save_key(&folder, "tmdb", "CANARY2", false)
            .unwrap_err()
            .to_string();
        assert!(
            again.contains("--force") && !again.contains("CANARY"),
            "{again}"
        );
        save_key(&folder, "tmdb", "other", true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "other\n");
        fs::remove_dir_all(&folder).unwrap();
    }
}
