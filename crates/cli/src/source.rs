//! `tollgate source add | list | remove`: the URLs that are fetched regularly (H5).
//!
//! Promises: adding a source prints which provider will limit it, or that none will. The running
//! daemon checks the file, keeps the sources and fetches them; the list shows when, and how it went.
//!
//! Never: fetches a source itself.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Map, Value, json};
use tollgate_config::raw;

use crate::admin_client::{AdminClient, segment};
use crate::options::Options;
use crate::times::time_of_day;

const EXAMPLES: &str = "\
Examples:
  tollgate source add news.yaml
  tollgate source list --json
  tollgate source remove news";

const ADD_EXAMPLES: &str = "\
Example:
  tollgate source add news.yaml

A file has name and url, and may have every (5m) or cron (\"0 6 * * *\", in UTC), priority and output
(`-` for standard output, an http or https URL, or a path below results/ of the state folder):
  name: news
  url: https://api.example.org/news
  every: 5m
  output: news/{name}.{ext}";

/// Add, list or remove the URLs that are fetched regularly
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct SourceCommands {
    #[command(subcommand)]
    command: SourceCommand,
}

#[derive(Debug, Subcommand)]
enum SourceCommand {
    /// Add the source of a file; prints which provider will limit it
    #[command(after_help = ADD_EXAMPLES, after_long_help = ADD_EXAMPLES)]
    Add {
        /// The file
        #[arg(value_name = "FILE")]
        file: String,
        #[command(flatten)]
        options: Options,
    },
    /// List the sources: which provider limits each, when it runs next, and how it went
    #[command(after_help = "Example:\n  tollgate source list --json")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        options: Options,
    },
    /// Remove a source
    #[command(after_help = "Example:\n  tollgate source remove news")]
    Remove {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        options: Options,
    },
}

impl SourceCommands {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut out = crate::out::out();
        match self.command {
            SourceCommand::Add { file, options } => {
                let body = read(&file)?;
                let daemon = AdminClient::find(&options)?;
                let added = daemon.request(Method::POST, "/v1/sources", Some(&body))??;
                writeln!(out, "{}", source_text(&added))?;
            }
            SourceCommand::List { json, options } => {
                let daemon = AdminClient::find(&options)?;
                let reply = daemon.request(Method::GET, "/v1/sources", None)??;
                if json {
                    writeln!(out, "{reply}")?;
                    return Ok(ExitCode::SUCCESS);
                }
                for source in reply["sources"].as_array().into_iter().flatten() {
                    writeln!(out, "{}", source_text(source))?;
                }
            }
            SourceCommand::Remove { name, options } => {
                let path = format!("/v1/sources/{}", segment(&name)?);
                let daemon = AdminClient::find(&options)?;
                daemon.request(Method::DELETE, &path, None)??;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The fields of a file; the daemon checks them.
fn read(file: &str) -> anyhow::Result<Value> {
    let size = std::fs::metadata(file).with_context(|| format!("{file} cannot be read"))?;
    if size.len() > raw::FILE_MAX as u64 {
        bail!("{file} is too large for a source; write name and url");
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("{file} cannot be read"))?;
    let tree = match raw::read(file, &text) {
        Ok(tree) => tree,
        Err(problem) => bail!("{problem}"),
    };
    let Some(entries) = tree.entries().filter(|entries| !entries.is_empty()) else {
        bail!("{file} is not a source; write `name: news` and `url: https://…`");
    };
    let mut fields = Map::new();
    for entry in entries {
        let Some(text) = entry.node.text() else {
            bail!("{}: `{}` is not a text", entry.place, entry.name);
        };
        fields.insert(entry.name.clone(), json!(text));
    }
    Ok(Value::Object(fields))
}

/// One line of a source, and who limits it.
fn source_text(source: &Value) -> String {
    let text = |name: &str| source[name].as_str();
    let when = match (text("every"), text("cron")) {
        (Some(every), _) => format!(", every {every}"),
        (None, Some(cron)) => format!(", at {cron}"),
        (None, None) => String::new(),
    };
    let limited = match (text("provider"), source["limited"].as_bool()) {
        (Some(provider), Some(true)) => format!("limited by {provider}"),
        (Some(provider), _) => format!("not limited: {provider} has no limits"),
        (None, _) => "not limited: no provider has this domain".to_owned(),
    };
    let (name, url) = (text("name").unwrap_or("?"), text("url").unwrap_or("?"));
    format!("{name}: {url}{when}; {limited}{}", run_text(source))
}

/// When it runs next, and how its last fetch went; nothing in the reply to `add`.
fn run_text(source: &Value) -> String {
    let mut text = match (&source["queued"], &source["next_run"]) {
        (Value::Bool(true), _) => "; queued".to_owned(),
        (_, next @ Value::Number(_)) => format!("; next run {}", time_of_day(next)),
        _ => String::new(),
    };
    let last = &source["last"];
    let at = || time_of_day(&last["at"]);
    match last["result"].as_str() {
        None => {}
        Some("ok") => {
            text += &format!(
                "; last: {}, {} bytes at {}",
                last["status"],
                last["bytes"],
                at()
            );
            if let Some(output) = last["output"].as_str() {
                text += &format!(" to {output}");
            }
        }
        Some(result) => {
            let why = last["error"].as_str().unwrap_or("?");
            text += &format!("; last: {result} at {}: {why}", at());
        }
    }
    text
}

/// One line about all sources, for `tollgate status`; `None` = there are none.
pub(crate) fn summary(sources: &Value) -> Option<String> {
    let sources = sources.as_array().filter(|sources| !sources.is_empty())?;
    let count = |is_one: fn(&Value) -> bool| sources.iter().filter(|one| is_one(one)).count();
    let queued = count(|one| one["queued"] == true);
    let failing = count(|one| {
        one["last"]["result"]
            .as_str()
            .is_some_and(|last| last != "ok")
    });
    let next = sources.iter().filter_map(|one| one["next_run"].as_f64());
    let next = next.min_by(f64::total_cmp);
    let mut text = format!(
        "{} sources: {queued} queued, {failing} failing",
        sources.len()
    );
    if let Some(next) = next {
        text += &format!("; next run {}", time_of_day(&json!(next)));
    }
    Some(text)
}
