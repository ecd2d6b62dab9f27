//! `tollgate init`: a first tollgate.yaml, with the keys that are found in the environment or asked
//! for.
//!
//! Promises: overwrites a file only with `--force`; never writes a key into it, only the name of
//! the variable or the file that holds it. Prints each base URL to use instead of the provider's.
//!
//! Never: makes a call.

mod prompt;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use tollgate_config::preset::{self, Preset};
use tollgate_config::problem::nearest;
use tollgate_config::provider::AuthStyle;
use tollgate_config::{Config, Environment, Sources, disk};

/// The file to write, in the folder where `serve` finds it.
const FILE: &str = "tollgate.yaml";

const EXAMPLES: &str = "\
Examples:
  tollgate init tmdb omdb
  tollgate init                  # the providers whose keys are in the environment";

/// Write ./tollgate.yaml, find or ask for keys, and print each base URL
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Init {
    /// Built-in providers; default: those whose keys are in the environment
    #[arg(value_name = "PRESET", value_parser = known_preset)]
    presets: Vec<String>,

    /// Overwrite ./tollgate.yaml if it exists
    #[arg(long)]
    force: bool,
}

impl Init {
    /// Writes the file and prints the next steps.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let environment = disk::environment();
        let chosen = self.chosen(&environment);
        if !self.force && std::path::Path::new(FILE).exists() {
            return Err(already_exists()); // before the user is asked for a key
        }
        let chosen = chosen
            .into_iter()
            .map(|preset| Ok((preset, self.key(preset, &environment)?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let text = file_text(&chosen);
        write(&text, self.force)?;
        let mut out = crate::out::out();
        writeln!(out, "wrote {FILE}")?;
        for (preset, key) in &chosen {
            write!(out, "{}", summary(preset, key))?;
        }
        if chosen.is_empty() {
            writeln!(
                out,
                "\nNo key of a built-in provider is in the environment, so none is listed."
            )?;
            writeln!(
                out,
                "Tollgate applies the limits of known domains anyway. To list a provider, name it: tollgate init tmdb"
            )?;
        }
        writeln!(out, "\nnext: tollgate check, then tollgate serve")?;
        Ok(ExitCode::SUCCESS)
    }

    /// Where its key is: found in a variable, or prompted for.
    fn key(&self, preset: &Preset, environment: &Environment<'_>) -> anyhow::Result<KeySource> {
        let usual = preset.usual_variables().into_iter().next();
        if let Some(name) = variable(preset, environment) {
            return Ok(KeySource::Variable(name));
        }
        let Some(usual) = usual.filter(|_| wants_key(preset)) else {
            return Ok(KeySource::NotNeeded);
        };
        let Some(key) = prompt::prompt_key(preset.name)? else {
            return Ok(KeySource::Missing(usual));
        };
        let bare = Sources {
            only_named: true,
            ..Sources::default()
        };
        let loaded =
            Config::load(&bare, environment).map_err(|problems| anyhow::anyhow!("{problems}"))?;
        let folder = std::path::absolute(&loaded.config.state_dir)?;
        let path = prompt::save_key(&folder, preset.name, &key, self.force)?;
        Ok(KeySource::File(path.display().to_string()))
    }

    /// The named presets, or those whose keys are in the environment.
    fn chosen(&self, environment: &Environment<'_>) -> Vec<&'static Preset> {
        if !self.presets.is_empty() {
            let mut chosen: Vec<&'static Preset> = Vec::new();
            for preset in self.presets.iter().filter_map(|name| preset::find(name)) {
                if chosen.iter().all(|known| known.name != preset.name) {
                    chosen.push(preset);
                }
            }
            return chosen;
        }
        let with_key =
            |preset: &&Preset| !preset.is_variant() && variable(preset, environment).is_some();
        preset::all().iter().filter(with_key).collect()
    }
}

/// Where a provider's key is.
enum KeySource {
    /// In this variable.
    Variable(String),
    /// In this file.
    File(String),
    /// Nowhere yet; this is the usual variable.
    Missing(String),
    /// The provider needs no key.
    NotNeeded,
}

/// The variable that holds its key.
fn variable(preset: &Preset, environment: &Environment<'_>) -> Option<String> {
    let is_set = |name: &String| (environment.env)(name).is_some_and(|value| !value.is_empty());
    preset.usual_variables().into_iter().find(is_set)
}

fn wants_key(preset: &Preset) -> bool {
    let provider = preset.provider(None, &Environment::empty()).provider;
    provider.is_some_and(|provider| !matches!(provider.auth.style, AuthStyle::None))
}

fn file_text(chosen: &[(&Preset, KeySource)]) -> String {
    let mut text = "\
# Written by `tollgate init`. Every field: docs/configuration.md
listen: 127.0.0.1:4290
"
    .to_owned();
    if chosen.is_empty() {
        text.push_str(
            "# Tollgate applies the limits of known domains without a provider file.\npresets: auto\n",
        );
        return text;
    }
    text.push_str("providers:\n");
    for (preset, key) in chosen {
        text.push_str(&format!(
            "  {}:\n    preset: {}\n",
            preset.name, preset.name
        ));
        if let Some(host) = wildcard_host(preset) {
            text.push_str(&format!(
                "    # upstream: https://YOURS.{host}   # write your own host; the key is sent only there\n"
            ));
        }
        let tiers: Vec<&str> = preset.tiers().collect();
        if !tiers.is_empty() {
            text.push_str(&format!("    # tier: {}\n", tiers.join(" | ")));
        }
        match key {
            KeySource::Variable(name) => text.push_str(&format!("    api_key: ${{{name}}}\n")),
            KeySource::File(path) => text.push_str(&format!("    api_key: file:{path}\n")),
            KeySource::Missing(name) => text.push_str(&format!("    # api_key: ${{{name}}}\n")),
            KeySource::NotNeeded => {}
        }
    }
    text
}

/// The parent host of a provider that gives each user a host of their own.
fn wildcard_host(preset: &Preset) -> Option<String> {
    let provider = preset.provider(None, &Environment::empty()).provider?;
    provider
        .wildcard_only_domain()
        .map(|domain| domain.host().to_string())
}

fn already_exists() -> anyhow::Error {
    anyhow::anyhow!("{FILE} already exists; use --force to overwrite it")
}

fn write(text: &str, force: bool) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    let mut file = options.open(FILE).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => already_exists(),
        _ => anyhow::Error::new(error).context(format!("cannot write {FILE}")),
    })?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("cannot write {FILE}"))
}

/// The base URL, and where the key is or should be.
fn summary(preset: &Preset, key: &KeySource) -> String {
    let listen = Config::load(
        &Sources {
            only_named: true,
            ..Sources::default()
        },
        &Environment::empty(),
    )
    .map_or_else(|_| String::new(), |loaded| loaded.config.listen.to_string());
    let provider = preset.provider(None, &Environment::empty()).provider;
    let upstream = provider
        .as_ref()
        .and_then(|provider| provider.upstream.as_ref());
    let domain = provider
        .as_ref()
        .and_then(|provider| provider.domains.first());
    let instead = match (upstream, domain) {
        (Some(upstream), _) => format!("instead of https://{}{}", upstream.host, upstream.base),
        (None, Some(domain)) => format!("instead of https://{domain}"),
        (None, None) => "(permits only)".to_owned(),
    };
    let mut text = match wildcard_host(preset) {
        None => format!(
            "\n{}: http://{listen}/{} {instead}\n",
            preset.name, preset.name
        ),
        Some(host) => format!(
            "\n{name}: http://{listen}/https://YOURS.{host} instead of https://YOURS.{host}\n  \
             after you set `upstream` to your own address: also http://{listen}/{name}\n",
            name = preset.name
        ),
    };
    match key {
        KeySource::Variable(name) => text.push_str(&format!("  key: found in ${name}\n")),
        KeySource::File(path) => text.push_str(&format!("  key: stored in {path}\n")),
        KeySource::Missing(name) => text.push_str(&format!(
            "  key: none found; export {name} and remove the # before api_key, or send a key with each call\n"
        )),
        KeySource::NotNeeded => {}
    }
    text
}

fn known_preset(name: &str) -> Result<String, String> {
    if preset::find(name).is_some() {
        return Ok(name.to_owned());
    }
    let names: Vec<&str> = preset::all().iter().map(|preset| preset.name).collect();
    let hint = nearest(name, &names).map(|near| format!("did you mean `{near}`? "));
    Err(format!(
        "there is no preset of this name; {}`tollgate provider list` shows them all",
        hint.unwrap_or_default()
    ))
}
