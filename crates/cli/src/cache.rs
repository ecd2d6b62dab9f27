//! `tollgate cache stats | purge`: what is kept, and out with it.
//!
//! Promises: works on `cache.db` directly, with or without a running gateway; gateways on the same
//! folder forget what was purged within a second.
//!
//! Never: shows an answer, or whose it is.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use tollgate::cache::{self as kept, Row};
use tollgate_config::amount::Size;
use tollgate_config::config::Store;
use tollgate_config::{Config, disk};

use crate::options::Options;

const EXAMPLES: &str = "\
Examples:
  tollgate cache stats
  tollgate cache purge                      # everything
  tollgate cache purge tmdb
  tollgate cache purge sportmonks --entity odds";

/// Show what answers are kept, or forget them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Cache {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// How many answers of each provider and entity are kept, and their size
    #[command(after_help = "Example:\n  tollgate cache stats --store sqlite:/var/lib/tollgate")]
    Stats {
        #[command(flatten)]
        options: Options,
    },
    /// Forget all answers, or those of a provider or entity
    #[command(after_help = "Example:\n  tollgate cache purge tmdb --entity movie")]
    Purge {
        /// The provider; without it, all of them
        #[arg(value_name = "PROVIDER")]
        name: Option<String>,
        /// Only this entity of it
        #[arg(long, value_name = "E", requires = "name")]
        entity: Option<String>,
        #[command(flatten)]
        options: Options,
    },
}

impl Cache {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut out = io::stdout().lock();
        match self.what {
            What::Stats { options } => {
                let folder = folder(&options)?;
                let rows = kept::rows(&folder).context("the kept answers cannot be read")?;
                show(&mut out, &folder, &rows)?;
            }
            What::Purge {
                name,
                entity,
                options,
            } => {
                let folder = folder(&options)?;
                let gone = kept::purge(&folder, name.as_deref(), entity.as_deref())
                    .context("the kept answers cannot be purged")?;
                let word = if gone == 1 { "answer" } else { "answers" };
                writeln!(out, "{gone} {word} forgotten")?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show(out: &mut impl Write, folder: &Path, rows: &[Row]) -> io::Result<()> {
    if rows.is_empty() {
        return writeln!(out, "nothing is kept in {}", folder.display());
    }
    writeln!(
        out,
        "{:<20} {:<20} {:>9} {:>10}",
        "provider", "entity", "answers", "size"
    )?;
    let line = |out: &mut dyn Write, provider: &str, entity: &str, answers: u64, bytes: u64| {
        // Whole KiB, so that columns can be compared.
        let size = Size(bytes.div_ceil(1024) * 1024);
        writeln!(
            out,
            "{provider:<20} {entity:<20} {answers:>9} {:>10}",
            size.to_string()
        )
    };
    for row in rows {
        let entity = row.entity.as_deref().unwrap_or("-");
        line(out, &row.provider, entity, row.answers, row.bytes)?;
    }
    let answers = rows.iter().map(|row| row.answers).sum();
    let bytes = rows.iter().map(|row| row.bytes).sum();
    line(out, "all", "", answers, bytes)
}

/// Where the configuration keeps answers on disk.
fn folder(options: &Options) -> anyhow::Result<PathBuf> {
    let loaded = Config::load(&options.sources(), &disk::world()).map_err(|problems| {
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}", all.join("\n"))
    })?;
    match place(&loaded.config) {
        Some(folder) => Ok(folder),
        None => bail!("answers are kept in memory only; restart the gateway to forget them"),
    }
}

/// The folder of `cache.db`; `None` = memory.
pub(crate) fn place(config: &Config) -> Option<PathBuf> {
    match config.cache_store.as_ref().unwrap_or(&config.store) {
        Store::Sqlite(folder) => Some(PathBuf::from(folder)),
        Store::Memory | Store::Postgres(_) | Store::Redis(_) => None,
    }
}
