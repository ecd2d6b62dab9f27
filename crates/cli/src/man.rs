//! `tollgate man`: manual pages of all commands.
//!
//! Promises: generated from the commands themselves, so they are always complete.
//!
//! Never: installs anything.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory};

const EXAMPLES: &str = "\
Examples:
  tollgate man | man -l -
  tollgate man --out /usr/local/share/man/man1";

/// Print the manual page, or write the pages of all commands to a folder
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Man {
    /// An existing folder: one page per command, `tollgate.1`, `tollgate-serve.1`, …
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Man {
    /// Prints or writes them.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let program = crate::Program::command();
        match self.out {
            Some(folder) => clap_mangen::generate_to(program, &folder)
                .with_context(|| format!("cannot write manual pages to {}", folder.display()))?,
            None => {
                let mut page = Vec::new();
                clap_mangen::Man::new(program).render(&mut page)?;
                crate::out::out().write_all(&page)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
