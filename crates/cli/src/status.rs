//! `tollgate status`: the current state of the providers.
//!
//! Promises: shows the state in the running daemon if one responds and no `--store` is given;
//! otherwise notes that no daemon responds and shows the state in the ledger, which is the same for
//! every process that shares it. A lost store is reported first; a store that this command cannot
//! read is an error.
//!
//! Never: shows a key; creates a ledger where there is none.

use crate::provider_state::{ProviderState, reset_text};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use hyper::Method;
use serde_json::{Value, json};
use tollgate::ProviderRegistry;
use tollgate::providers::Options as RegistryOptions;
use tollgate_config::config::Store;
use tollgate_config::{Config, disk};
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, Ledger};
use tollgate_server::Daemon;

use crate::admin_client::{AdminClient, NoDaemon, percent_encode, segment};
use crate::open_ledger::try_open_ledger;
use crate::options::Options;
use crate::times::time_of_day;

const EXAMPLES: &str = "\
Examples:
  tollgate status
  tollgate status tmdb
  tollgate status tmdb --entity fixtures --json";

/// Show health, limits and waiting calls
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct StatusCommand {
    /// The provider; default: all that have a file or were called
    #[arg(value_name = "PROVIDER")]
    name: Option<String>,

    /// Also show this entity of the provider
    #[arg(long, value_name = "E", requires = "name")]
    entity: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    options: Options,
}

impl StatusCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let status = self.status()?;
        let mut out = crate::out::out();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &status)?;
            writeln!(out)?;
        } else if self.name.is_some() {
            print_one(&mut out, &status)?;
        } else {
            print_all(&mut out, &status)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn status(&self) -> anyhow::Result<Value> {
        if self.options.store.is_some() {
            return self.read_ledger();
        }
        let remote = AdminClient::find(&self.options)?;
        let path = match &self.name {
            None => "/v1/providers".to_owned(),
            Some(name) => {
                let entity = self.entity.as_deref().map(percent_encode);
                let query = entity.map_or(String::new(), |entity| format!("?entity={entity}"));
                format!("/v1/providers/{}{query}", segment(name)?)
            }
        };
        match remote.request(Method::GET, &path, None) {
            Ok(response) if self.name.is_none() => {
                let mut status = response?;
                // An older daemon, or one whose desk cannot be read, has none to show.
                if let Ok(Ok(reply)) = remote.request(Method::GET, "/v1/sources", None) {
                    status["sources"] = reply["sources"].clone();
                }
                Ok(status)
            }
            Ok(response) => Ok(response?),
            // No daemon on a named address is a mistake; on the default address it is not.
            Err(error) if error.is::<NoDaemon>() && self.options.admin.is_none() => {
                writeln!(crate::out::err(), "note: {error}")?;
                self.read_ledger()
            }
            Err(error) => Err(error),
        }
    }

    /// The state in the ledger, without a daemon.
    fn read_ledger(&self) -> anyhow::Result<Value> {
        let sources = self.options.sources();
        let loaded = match Config::load(&sources, &disk::environment()) {
            Ok(loaded) => loaded,
            Err(problems) => bail!("the configuration has errors:\n{problems}"),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("the runtime could not start")?;
        runtime.block_on(async {
            let ledger = self.existing_ledger(&loaded.config).await?;
            let providers = loaded
                .config
                .all_providers()
                .map(|provider| (**provider).clone());
            let registry =
                ProviderRegistry::build(providers.collect(), ledger, RegistryOptions::default())?;
            let daemon = Daemon::new(registry, sources, loaded, disk::environment);
            Ok(match &self.name {
                Some(name) => json!(daemon.describe(name, self.entity.as_deref()).await?),
                None => json!({ "providers": daemon.list().await, "problems": daemon.problems() }),
            })
        })
    }
}

impl StatusCommand {
    /// The existing ledger. A missing default ledger counts as empty; a missing ledger that
    /// `--store` names is an error.
    async fn existing_ledger(&self, config: &Config) -> anyhow::Result<Ledger> {
        if let Store::Sqlite(folder) = &config.store
            && !has_ledger(Path::new(folder))
        {
            if self.options.store.is_some() {
                bail!("there is no ledger in {folder}; name the folder that `tollgate serve` uses");
            }
            let mut err = crate::out::err();
            writeln!(
                err,
                "note: there is no ledger in {folder}: nothing was called yet"
            )?;
            return Ok(Ledger::memory(Clock::System));
        }
        match try_open_ledger(config).await? {
            (ledger, None) => Ok(ledger),
            (_, Some(why)) => bail!("{why}"),
        }
    }
}

/// Whether any file of a ledger exists: if a part is missing, opening it reports the problem.
fn has_ledger(folder: &Path) -> bool {
    let parts = ["ledger.db", "ledger.lock"];
    parts.iter().any(|name| folder.join(name).exists())
}

fn print_all(out: &mut impl Write, status: &Value) -> io::Result<()> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut providers: Vec<(ProviderState, Value)> = list(&status["providers"])
        .into_iter()
        .map(|one| (ProviderState::of(&one), one))
        .collect();
    // Worst first, otherwise in the order of the files.
    providers.sort_by_key(|(state, _)| state.rank);
    if providers.is_empty() {
        writeln!(
            out,
            "No provider has a file or was called; `tollgate provider list` shows the built-in ones, `tollgate init NAME` configures one"
        )?;
    }
    let widths = providers
        .iter()
        .map(|(state, _)| &state.text)
        .map(|text| text.chars().count());
    let width = widths.max().unwrap_or(0).max(12);
    for (ProviderState { text: state, .. }, provider) in &providers {
        let text = |name: &str| provider[name].as_str().unwrap_or_default().to_owned();
        let waiting = &provider["waiting"];
        writeln!(
            out,
            "{:<16} {state:<width$} {waiting:>5} waiting  {}",
            text("name"),
            text("source")
        )?;
        let cooldowns = list(&provider["cooldowns"]);
        // That of the whole provider is its state.
        for one in cooldowns.iter().filter(|one| one["of"] != "provider") {
            writeln!(out, "  {}", cooldown_text(one))?;
        }
    }
    if let Some(sources) = crate::source::summary(&status["sources"]) {
        writeln!(out, "{sources}")?;
    }
    for problem in list(&status["problems"]).iter().filter_map(Value::as_str) {
        writeln!(out, "{problem}")?;
    }
    Ok(())
}

/// What cools down, until when and why.
fn cooldown_text(one: &Value) -> String {
    let word = |name: &str| one[name].as_str().unwrap_or_default();
    let until = time_of_day(&one["until"]);
    format!(
        "{}: cooling down until {until} ({})",
        word("of"),
        word("reason")
    )
}

fn print_one(out: &mut impl Write, status: &Value) -> io::Result<()> {
    let health = &status["health"];
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let name = word(&status["name"]);
    writeln!(
        out,
        "{name}: {}{}",
        ProviderState::of(status).text,
        hold_text(&name, health)
    )?;
    if let Some(why) = status["store"]["trouble"].as_str() {
        writeln!(out, "  error: the store is lost: {why}")?;
    }
    writeln!(
        out,
        "  recent responses: {} ok, {} × 429, {} × 5xx, {} network errors",
        health["count_2xx"], health["count_429"], health["count_5xx"], health["net_errors"]
    )?;
    let queue = &status["queue"];
    writeln!(
        out,
        "  waiting: {} high, {} normal, {} low",
        queue["high"], queue["normal"], queue["low"]
    )?;
    print_eta(out, queue)?;
    print_holds(out, status)?;
    let saved = &status["saved"];
    writeln!(
        out,
        "  permits saved: {} cached, {} stale, {} shared, {} merged",
        saved["hits"], saved["stale"], saved["shared"], saved["merged"]
    )?;
    print_limits(out, status)?;
    let problems = status["problems"].as_array().cloned().unwrap_or_default();
    for problem in problems.iter().filter_map(Value::as_str) {
        writeln!(out, "  {problem}")?;
    }
    Ok(())
}

/// When the waiting calls are served: the last of all, and the last of each caller.
fn print_eta(out: &mut impl Write, queue: &Value) -> io::Result<()> {
    let words = |eta: &Value| match eta.as_f64().map(Duration::try_from_secs_f64) {
        Some(Ok(eta)) => {
            let eta = u64::try_from(eta.as_micros()).unwrap_or(u64::MAX);
            format!("in about {}", Span(eta).in_words())
        }
        Some(Err(_)) | None => "when an operator resumes the provider".to_owned(),
    };
    let words = |part: &Value, last: &str| {
        let starved = part["starved"].as_u64().unwrap_or(0);
        let sent = format!("{last} is sent {}", words(&part["eta"]));
        match (part["eta"].is_null(), starved) {
            (_, 0) => sent,
            (true, _) => "none is sent while calls of higher priority take everything".to_owned(),
            (false, _) => {
                let verb = if starved == 1 { "is" } else { "are" };
                format!(
                    "{sent}; {starved} {verb} not sent while calls of higher priority take everything"
                )
            }
        }
    };
    let waiting = ["high", "normal", "low"].map(|name| queue[name].as_u64().unwrap_or(0));
    if waiting.iter().sum::<u64>() == 0 {
        return Ok(());
    }
    writeln!(out, "    {}", words(queue, "the last of them"))?;
    for (caller, part) in queue["callers"].as_object().into_iter().flatten() {
        let (count, eta) = (&part["waiting"], words(part, "the last"));
        writeln!(out, "    {caller}: {count} waiting, {eta}")?;
    }
    Ok(())
}

/// The limits of the provider, then those of each entity with the entity's name.
fn print_limits(out: &mut impl Write, status: &Value) -> io::Result<()> {
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    // A limit per key has a row for each, which the number tells apart.
    let named = |limit: &Value| match limit["key"].as_u64() {
        Some(key) => format!("{}, key {key}", word(&limit["name"])),
        None => word(&limit["name"]),
    };
    let own = status["limits"].as_array().into_iter().flatten();
    let mut rows: Vec<(String, &Value)> = own.map(|limit| (named(limit), limit)).collect();
    let entities = status["entities"].as_object().into_iter().flatten();
    let entities = entities.map(|(entity, part)| (entity, &part["limits"]));
    let budgets = status["budgets"].as_object().into_iter().flatten();
    for (of, limits) in entities.chain(budgets) {
        let limits = limits.as_array().into_iter().flatten();
        rows.extend(limits.map(|limit| (format!("{of} {}", named(limit)), limit)));
    }
    let labels = rows.iter().map(|(label, _)| label.chars().count());
    let width = labels.max().unwrap_or(0).clamp(16, 40);
    for (label, limit) in rows {
        let used = match limit["used"].as_u64() {
            Some(used) => {
                let unit = limit["unit"].as_str().filter(|unit| *unit != "calls");
                let unit = unit.map(|unit| format!(" {unit}")).unwrap_or_default();
                let remaining = &limit["remaining"];
                format!(
                    "{used} used, {remaining} remaining{unit}{}",
                    reset_text(limit)
                )
            }
            None => format!("counted per {}", word(&limit["per"])),
        };
        writeln!(
            out,
            "  {label:<width$} {used}{}",
            learned_text(&limit["learned"])
        )?;
    }
    Ok(())
}

/// `; 500 in 60 s, learned 12:01:07`.
pub(crate) fn learned_text(learned: &Value) -> String {
    match learned["limit"].as_u64() {
        Some(limit) => {
            let (period, since) = (&learned["period"], time_of_day(&learned["since"]));
            format!("; {limit} in {period} s, learned {since}")
        }
        None => String::new(),
    }
}

/// What holds calls: their reasons, cool-downs, closed paths, degrade mode.
fn print_holds(out: &mut impl Write, status: &Value) -> io::Result<()> {
    for (reason, calls) in status["queue"]["waiting_for"]
        .as_object()
        .into_iter()
        .flatten()
    {
        writeln!(out, "    {calls} because of: {reason}")?;
    }
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or("other paths").to_owned();
    for one in list(&status["cooldowns"]) {
        writeln!(out, "  {}", cooldown_text(&one))?;
    }
    for one in list(&status["keys"]) {
        if let Some(reason) = one["reason"].as_str() {
            let (key, until) = (&one["key"], time_of_day(&one["set_aside_until"]));
            writeln!(out, "  key {key}: set aside until {until} ({reason})")?;
        }
    }
    for one in list(&status["estimated_limits"]) {
        let of = word(&one["of"]);
        match one["rate"].as_f64() {
            Some(rate) => writeln!(
                out,
                "  {of}: estimated limit {rate:.2} calls a second, learned from 429s; configure `limits` if you know them"
            )?,
            None => writeln!(
                out,
                "  {of}: after a 429, calls go as the provider accepts them"
            )?,
        }
    }
    for one in list(&status["health"]["paths"]) {
        let (path, failures) = (word(&one["path"]), &one["failure_count"]);
        match one["sleep_until"].as_f64() {
            Some(_) => writeln!(
                out,
                "  path {path}: sleeping until {} ({failures} failures in a row)",
                time_of_day(&one["sleep_until"])
            )?,
            None => writeln!(out, "  path {path}: {failures} failures in a row")?,
        }
    }
    print_degraded(out, status)
}

/// Which quota is so low that only the cache is used: the provider's or an entity's.
fn print_degraded(out: &mut impl Write, status: &Value) -> io::Result<()> {
    let entities = status["entities"].as_object().into_iter().flatten();
    let entities = entities.map(|(entity, part)| (format!("{entity}: "), part));
    for (of, part) in std::iter::once((String::new(), status)).chain(entities) {
        if part["degraded"] == true {
            writeln!(
                out,
                "  {of}degrade mode: little of the quota remains, so only the cache is used"
            )?;
        }
    }
    Ok(())
}

/// Until when its calls are stopped.
fn hold_text(name: &str, health: &Value) -> String {
    let seconds = health["reset_in"].as_f64().unwrap_or(0.0);
    let is_held = matches!(health["state"].as_str(), Some("sleep" | "cache_only"));
    match Duration::try_from_secs_f64(seconds) {
        _ if !is_held => String::new(),
        Ok(remaining) if !remaining.is_zero() => {
            let remaining = u64::try_from(remaining.as_micros()).unwrap_or(u64::MAX);
            format!(", for another {}", Span(remaining).in_words())
        }
        Ok(_) | Err(_) => format!(", until `tollgate resume {name}`"),
    }
}

#[cfg(test)]
mod tests;
