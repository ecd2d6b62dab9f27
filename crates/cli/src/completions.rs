//! `tollgate completions`: shell completions of all commands.
//!
//! Promises: generated from the commands themselves, so they are always complete.
//!
//! Never: installs anything.

use std::io;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

const EXAMPLES: &str = "\
Examples:
  tollgate completions bash > /etc/bash_completion.d/tollgate
  tollgate completions zsh > ~/.zfunc/_tollgate";

/// Print completions for a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Prints them.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        // Into memory first: the generator panics if its output is closed.
        let mut script = Vec::new();
        clap_complete::generate(
            self.shell,
            &mut crate::Program::command(),
            "tollgate",
            &mut script,
        );
        io::Write::write_all(&mut crate::out::out(), &script)?;
        Ok(ExitCode::SUCCESS)
    }
}
