//! `tollgate provider list | show`: built-in and configured providers.
//!
//! Promises: shows the current settings and where each was set, and what a running daemon has learned.
//! Keys are counted, never shown (H3).
//!
//! Never: makes a call to a provider.

use std::io::Write;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::Value;
use tollgate_config::{Config, Environment, Loaded, LoadedProvider, Origin, disk, preset};

use crate::admin_client::{AdminClient, segment};
use crate::options::Options;
use crate::status::learned_text;

const EXAMPLES: &str = "\
Examples:
  tollgate provider list
  tollgate provider show tmdb
  tollgate provider show mine --provider mine.yaml --all";

/// List providers, or show one: limits, plans, advice, settings and where each was set
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Provider {
    #[command(subcommand)]
    command: ProviderCommand,
}

#[derive(Debug, Subcommand)]
enum ProviderCommand {
    /// List every configured provider, then every built-in provider
    #[command(
        after_help = "Example:\n  tollgate provider list --provider-dir /etc/tollgate/providers"
    )]
    List {
        #[command(flatten)]
        options: Options,
    },
    /// Show the current settings of one provider, and where each was set
    #[command(after_help = "Example:\n  tollgate provider show tvdb")]
    Show {
        /// The provider's name
        name: String,
        /// Also show settings that have their default value
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        options: Options,
    },
}

impl Provider {
    /// Prints the list, or one provider.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut out = crate::out::out();
        match self.command {
            ProviderCommand::List { options } => {
                let loaded = load(&options)?;
                let own = loaded.providers.iter().filter(|one| is_own(one));
                for one in own.clone() {
                    let limits = preset::limits_in_short(&one.provider);
                    writeln!(out, "{:<17} {}: {limits}", one.provider.name, one.source)?;
                }
                if own.count() > 0 {
                    writeln!(out, "\nbuilt in:")?;
                }
                write!(out, "{}", preset::list())?;
            }
            ProviderCommand::Show { name, all, options } => {
                let loaded = load(&options)?;
                let own = loaded.provider(&name).filter(|one| is_own(one) || all);
                let text = match (own, preset::show(&name)) {
                    (Some(one), built_in) => {
                        let advice = built_in
                            .filter(|_| !is_own(one))
                            .unwrap_or_else(|| describe_loaded(one));
                        advice + &settings(one, all)
                    }
                    (None, Some(text)) => text,
                    (None, None) => return Err(unknown_provider(&name, &loaded)),
                };
                write!(out, "{text}")?;
                for line in learned(&name, &options) {
                    writeln!(out, "{line}")?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What a running daemon has learned from the provider's responses; nothing if there is none.
///
/// Only a provider that the daemon lists is asked for: a request by name starts a built-in one, and the daemon would
/// list it from then on, although nobody has called it.
fn learned(name: &str, options: &Options) -> Vec<String> {
    let asked = || {
        let daemon = AdminClient::find(options).ok()?;
        let list = daemon
            .request(Method::GET, "/v1/providers", None)
            .ok()?
            .ok()?;
        let mut listed = list["providers"].as_array()?.iter();
        listed.find(|one| one["name"] == name)?;
        let path = format!("/v1/providers/{}", segment(name).ok()?);
        daemon.request(Method::GET, &path, None).ok()?.ok()
    };
    let Some(status) = asked() else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    let mut add = |of: &str, limits: &Value| {
        for limit in limits.as_array().into_iter().flatten() {
            let learned = learned_text(&limit["learned"]);
            if learned.is_empty() {
                continue;
            }
            let key = limit["key"].as_u64();
            let key = key.map(|key| format!(", key {key}")).unwrap_or_default();
            let what = limit["name"].as_str().unwrap_or("-");
            let of = [of, what].join(" ");
            lines.push(format!(
                "  {:<28} {}",
                of.trim_start().to_owned() + &key,
                learned.trim_start_matches("; ")
            ));
        }
    };
    add("", &status["limits"]);
    for (entity, part) in status["entities"].as_object().into_iter().flatten() {
        add(entity, &part["limits"]);
    }
    if !lines.is_empty() {
        lines.insert(
            0,
            "learned from responses (by the running daemon):".to_owned(),
        );
    }
    lines
}

/// The variables of keys are often set only where the daemon runs, and nothing is sent from here.
fn load(options: &Options) -> anyhow::Result<Loaded> {
    let environment = Environment {
        missing_key: Some("not set here"),
        ..disk::environment()
    };
    Config::load(&options.sources(), &environment)
        .map_err(|problems| anyhow!("the configuration cannot be loaded\n{problems}"))
}

fn is_own(one: &LoadedProvider) -> bool {
    !one.source.starts_with("preset ")
}

fn describe_loaded(one: &LoadedProvider) -> String {
    let from = one.provider.preset.map(|name| format!(", preset {name}"));
    let head = format!(
        "{}: {}{}\n",
        one.provider.name,
        one.source,
        from.unwrap_or_default()
    );
    head + &preset::describe(&one.provider)
}

/// The settings that are not defaults, or all, each with its origin.
fn settings(one: &LoadedProvider, all: bool) -> String {
    let name = &one.provider.name;
    let mut text = format!(
        "settings of files, flags and variables (changes made to a running daemon: tollgate status {name} --json):\n"
    );
    for value in &one.values {
        if all || value.origin != Origin::Default {
            let shown = value.text.as_deref().unwrap_or("(set, not shown)");
            text.push_str(&format!(
                "  {:<28} {shown:<20} {}\n",
                value.path, value.origin
            ));
        }
    }
    text
}

/// The error for an unknown provider, with the nearest name.
pub(crate) fn unknown_provider(name: &str, loaded: &Loaded) -> anyhow::Error {
    let hint = loaded
        .nearest(name)
        .map(|near| format!("; did you mean `{near}`?"));
    let hint = hint.unwrap_or_else(|| "; `tollgate provider list` shows them all".to_owned());
    anyhow!("there is no provider `{name}`{hint}")
}
