//! `tollgate cache stats | purge`: shows or purges the cached responses.
//!
//! Promises: asks the running daemon if one responds and no `--store` is given, and then also shows
//! the calls that the cache saved; otherwise works on `cache.db` directly, and gateways on the same
//! folder drop purged responses within a second.
//!
//! Never: shows a response, or whose it is.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::Value;
use tollgate::cache::{self as disk_cache, CacheUsage};
use tollgate_config::amount::Size;
use tollgate_config::config::Store;
use tollgate_config::{Config, Loaded, disk};

use crate::admin_client::{AdminClient, NoDaemon, percent_encode};
use crate::options::Options;

const EXAMPLES: &str = "\
Examples:
  tollgate cache stats
  tollgate cache purge                      # everything
  tollgate cache purge tmdb
  tollgate cache purge sportmonks --entity odds";

/// Show or purge the cached responses
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Cache {
    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Debug, Subcommand)]
enum CacheCommand {
    /// Count and size of the cached responses by provider and entity, and the calls they saved
    #[command(after_help = "Example:\n  tollgate cache stats --store sqlite:/var/lib/tollgate")]
    Stats {
        #[command(flatten)]
        options: Options,
    },
    /// Purge all cached responses, or those of a provider or entity
    #[command(after_help = "Example:\n  tollgate cache purge tmdb --entity movie")]
    Purge {
        /// The provider; default: all providers
        #[arg(value_name = "PROVIDER")]
        name: Option<String>,
        /// Only this entity of the provider
        #[arg(long, value_name = "E", requires = "name")]
        entity: Option<String>,
        #[command(flatten)]
        options: Options,
    },
}

impl Cache {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut out = crate::out::out();
        match self.command {
            CacheCommand::Stats { options } => {
                if let Some(reply) = from_daemon(&options, Method::GET, "/v1/cache")? {
                    show(&mut out, "memory and on disk", &rows(&reply))?;
                    saved(&mut out, &reply)?;
                } else {
                    let folder = configured_dir(&options)?;
                    let rows = disk_cache::usage(&folder)
                        .context("the cached responses cannot be read")?;
                    show(&mut out, &folder.display().to_string(), &rows)?;
                }
            }
            CacheCommand::Purge {
                name,
                entity,
                options,
            } => {
                let (provider, of_it) = (name.as_deref(), entity.as_deref());
                let named = |key: &str, value: Option<&str>| {
                    value.map(|value| format!("{key}={}", percent_encode(value)))
                };
                let which = [named("provider", provider), named("entity", of_it)];
                let which: Vec<String> = which.into_iter().flatten().collect();
                let path = format!("/v1/cache?{}", which.join("&"));
                let gone = match from_daemon(&options, Method::DELETE, &path)? {
                    Some(reply) => reply["purged"].as_u64().unwrap_or(0),
                    None => purge(&options, provider, of_it)?,
                };
                let word = if gone == 1 { "response" } else { "responses" };
                writeln!(out, "{gone} {word} purged")?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The response of the running daemon; `None` = no daemon runs, or `--store` names another store.
fn from_daemon(options: &Options, method: Method, path: &str) -> anyhow::Result<Option<Value>> {
    if options.store.is_some() {
        return Ok(None);
    }
    match AdminClient::find(options)?.request(method, path, None) {
        Ok(response) => Ok(Some(response?)),
        // No daemon on a named address is a mistake; on the default address it is not.
        Err(error) if error.is::<NoDaemon>() && options.admin.is_none() => Ok(None),
        Err(error) => Err(error),
    }
}

fn rows(reply: &Value) -> Vec<CacheUsage> {
    let stored = reply["stored"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let row = |row: &Value| CacheUsage {
        provider: text(&row["provider"]).unwrap_or_default(),
        entity: text(&row["entity"]),
        responses: row["responses"].as_u64().unwrap_or(0),
        bytes: row["bytes"].as_u64().unwrap_or(0),
    };
    stored.iter().map(row).collect()
}

/// The calls that were saved since the daemon started.
fn saved(out: &mut impl Write, reply: &Value) -> io::Result<()> {
    const COUNTS: [&str; 7] = [
        "hits",
        "stale",
        "revalidated",
        "misses",
        "not_stored",
        "shared",
        "merged",
    ];
    let saved = reply["saved"].as_array().cloned().unwrap_or_default();
    if saved.is_empty() {
        return Ok(());
    }
    write!(out, "\n{:<20}", "since the start")?;
    for name in COUNTS {
        write!(out, " {name:>11}")?;
    }
    writeln!(out)?;
    for provider in &saved {
        write!(
            out,
            "{:<20}",
            provider["provider"].as_str().unwrap_or_default()
        )?;
        for name in COUNTS {
            write!(out, " {:>11}", provider[name].as_u64().unwrap_or(0))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn show(out: &mut impl Write, place: &str, rows: &[CacheUsage]) -> io::Result<()> {
    if rows.is_empty() {
        return writeln!(out, "nothing is cached in {place}");
    }
    writeln!(
        out,
        "{:<20} {:<20} {:>9} {:>10}",
        "provider", "entity", "responses", "size"
    )?;
    let line = |out: &mut dyn Write, provider: &str, entity: &str, responses: u64, bytes: u64| {
        // Whole KiB, so that columns can be compared.
        let size = Size(bytes.div_ceil(1024) * 1024);
        writeln!(
            out,
            "{provider:<20} {entity:<20} {responses:>9} {:>10}",
            size.to_string()
        )
    };
    for row in rows {
        let entity = row.entity.as_deref().unwrap_or("-");
        line(out, &row.provider, entity, row.responses, row.bytes)?;
    }
    let responses = rows.iter().map(|row| row.responses).sum();
    let bytes = rows.iter().map(|row| row.bytes).sum();
    line(out, "all", "", responses, bytes)
}

/// Purges without a daemon. Responses of a provider that is no longer configured can be purged too.
fn purge(options: &Options, provider: Option<&str>, entity: Option<&str>) -> anyhow::Result<u64> {
    let loaded = load(options)?;
    let folder = dir_of(&loaded)?;
    if let Some(name) = provider.filter(|name| loaded.provider(name).is_none()) {
        let rows = disk_cache::usage(&folder).context("the cached responses cannot be read")?;
        if !rows.iter().any(|row| row.provider == name) {
            return Err(crate::provider::unknown_provider(name, &loaded));
        }
    }
    disk_cache::purge(&folder, provider, entity).context("the cached responses cannot be purged")
}

fn load(options: &Options) -> anyhow::Result<Loaded> {
    Config::load(&options.sources(), &disk::environment()).map_err(|problems| {
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}", all.join("\n"))
    })
}

/// The folder in which the configuration caches responses.
fn configured_dir(options: &Options) -> anyhow::Result<PathBuf> {
    dir_of(&load(options)?)
}

fn dir_of(loaded: &Loaded) -> anyhow::Result<PathBuf> {
    match cache_dir(&loaded.config) {
        Some(folder) => Ok(folder),
        None => bail!(
            "responses are cached in memory or in Redis, and no daemon responds; start one with `tollgate serve`"
        ),
    }
}

/// The folder of `cache.db`; `None` = memory, or Redis.
pub(crate) fn cache_dir(config: &Config) -> Option<PathBuf> {
    match config.cache_store.as_ref().unwrap_or(&config.store) {
        Store::Sqlite(folder) => Some(PathBuf::from(folder)),
        Store::Memory | Store::Postgres(_) | Store::Redis(_) => None,
    }
}
