//! A separate folder for one test, in which the program runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Removed when the test ends.
pub(crate) struct Folder {
    path: PathBuf,
    env: Vec<(String, String)>,
}

/// Output and exit code of the program.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) code: Option<i32>,
}

impl CommandOutput {
    /// Everything as one text, for a snapshot.
    pub(crate) fn to_snapshot(&self) -> String {
        let code = self.code.map_or("none".to_owned(), |code| code.to_string());
        format!(
            "{}--- standard error\n{}--- exit {code}",
            self.out, self.err
        )
    }
}

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tollgate-cli-{name}-{}", std::process::id()));
        // Left by a process of this number that was killed.
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).expect("a temporary folder");
        Folder {
            path,
            env: Vec::new(),
        }
    }

    pub(crate) fn file(self, name: &str, text: &str) -> Folder {
        let path = self.path.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).expect("a folder that can be made");
        }
        fs::write(&path, text).expect("a file that can be written");
        // Whatever the machine's umask, only the owner may read these files.
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let own = fs::Permissions::from_mode(0o600);
            fs::set_permissions(&path, own).expect("a mode that can be set");
        }
        self
    }

    /// Replaces a file as an editor does: writes a temporary file and renames it.
    pub(crate) fn rewrite(&self, name: &str, text: &str) {
        let (new, old) = (self.path.join("new.tmp"), self.path.join(name));
        fs::write(&new, text).expect("a file that can be written");
        fs::rename(new, old).expect("a file that can be replaced");
    }

    /// Makes a command run here, with only its own environment and the one set here.
    pub(crate) fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let own: Vec<_> = command
            .get_envs()
            .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
            .collect();
        command.current_dir(&self.path).env_clear();
        for (name, value) in own {
            command.env(name, value.unwrap_or_default());
        }
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.envs(self.env.iter().map(|(name, value)| (name, value)))
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Folder {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path.join(name)).expect("a file that can be read")
    }

    /// Runs the program here, with only the environment set here.
    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(args)
            .current_dir(&self.path)
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .output()
            .expect("the program runs");
        CommandOutput {
            out: crate::text(&output.stdout).to_owned(),
            err: crate::text(&output.stderr).to_owned(),
            code: output.status.code(),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
    }
}
