//! `tollgate import`: the limits of another service, as guards for tollgate.yaml.
//!
//! Promises: what it prints passes `tollgate check`. Whatever cannot be represented is named on standard error, with its
//! place and the remedy; a file that the other service would reject is an error, and nothing is printed.
//!
//! Never: overwrites a file.

mod envoy_ratelimit;
mod envoy_rule;
mod yaml_text;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use tollgate_config::Level;

use envoy_ratelimit::Imported;

const EXAMPLES: &str = "\
Examples:
  tollgate import envoy-ratelimit config.yaml
  tollgate import envoy-ratelimit config/*.yaml --out tollgate.yaml";

/// Print the limits of another service as guards
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Import {
    #[command(subcommand)]
    from: ImportFrom,
}

/// Whose limits.
#[derive(Debug, Subcommand)]
enum ImportFrom {
    EnvoyRatelimit(EnvoyRatelimit),
}

/// Configuration files of envoyproxy/ratelimit
///
/// Each rule becomes a guard with `match.descriptor`, for `tollgate serve --grpc`. Whatever cannot be represented is named
/// on standard error.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
struct EnvoyRatelimit {
    /// Files with `domain` and `descriptors`
    #[arg(value_name = "FILE", required = true)]
    files: Vec<String>,

    /// Write a new file instead of standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Import {
    /// Converts the files and prints the guards.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let ImportFrom::EnvoyRatelimit(command) = self.from;
        command.run()
    }
}

impl EnvoyRatelimit {
    fn run(self) -> anyhow::Result<ExitCode> {
        let mut imported = Imported::default();
        for file in &self.files {
            let text = std::fs::read_to_string(file).with_context(|| {
                format!("could not read {file}; is it a file of envoyproxy/ratelimit?")
            })?;
            imported.add(file, &text);
        }
        let mut err = crate::out::err();
        for problem in imported.problems().iter() {
            writeln!(err, "{problem}")?;
        }
        let is_error = |level: Level| level == Level::Error;
        if imported
            .problems()
            .iter()
            .any(|problem| is_error(problem.level))
        {
            bail!("the files have errors; fix them and import again");
        }
        let text = imported.to_yaml();
        match &self.out {
            None => write!(crate::out::out(), "{text}")?,
            Some(path) => write_new(path, &text)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).open(path);
    let place = path.display();
    let mut file = file.with_context(|| {
        format!(
            "could not create {place}; choose a file that does not exist, and join them by hand"
        )
    })?;
    file.write_all(text.as_bytes())?;
    writeln!(
        crate::out::out(),
        "wrote {place}; next: tollgate check {place}"
    )?;
    Ok(())
}
