//! Commands that change a running daemon: `set`, `reload`, `pause`, `offline`, `cache-only`,
//! `resume`, `reset`.
//!
//! Promises: prints each change, and of `set` the value; prints each rejected part with its reason, and exits with 1.
//!
//! Never: changes a file.

use std::io::Write;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use hyper::Method;
use serde_json::{Map, Value};
use tollgate_config::amount;

use crate::admin_client::{AdminClient, percent_encode, segment};
use crate::options::Options;
use crate::provider_state::state_word;

const SET_EXAMPLES: &str = "\
Examples:
  tollgate set tmdb sleep_max=60 p_throttle=0.3
  tollgate set tmdb limits='[20/1s]'";

/// Change settings of the running daemon, until it stops
///
/// Either all settings apply or none. They take precedence over flags, environment and files.
/// `KEY=` removes such a change.
#[derive(Debug, Args)]
#[command(after_help = SET_EXAMPLES, after_long_help = SET_EXAMPLES)]
pub(crate) struct SetCommand {
    /// The provider
    #[arg(value_name = "PROVIDER")]
    name: String,

    /// Settings: a threshold such as sleep_max=60 (seconds), or a field such as queue.max=50
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = key_value)]
    settings: Vec<(String, Option<String>)>,

    #[command(flatten)]
    options: Options,
}

/// The error must not contain the value: it may be a key.
fn key_value(text: &str) -> Result<(String, Option<String>), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            let value = Some(value.to_owned()).filter(|value| !value.is_empty());
            Ok((key.trim().to_owned(), value))
        }
        Some(_) | None => Err("write KEY=VALUE, such as sleep_max=60".to_owned()),
    }
}

impl SetCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let body: Map<String, Value> = self
            .settings
            .into_iter()
            .map(|(key, value)| (key, value.map_or(Value::Null, Value::String)))
            .collect();
        let path = format!("/v1/providers/{}/settings", segment(&self.name)?);
        let remote = AdminClient::find(&self.options)?;
        let reply = remote.request(Method::PATCH, &path, Some(&Value::Object(body)))??;
        let mut out = crate::out::out();
        for setting in reply["settings"].as_array().into_iter().flatten() {
            writeln!(out, "{}", setting_text(&self.name, setting))?;
        }
        // Its own change is said above, with the values.
        report_changes(&reply, Some(&self.name))
    }
}

/// One effective value after a change. A value that an operator took back says who sets it now.
fn setting_text(provider: &str, setting: &Value) -> String {
    let text = |name: &str| setting[name].as_str();
    let value = text("value").unwrap_or("(hidden)");
    let key = text("key").unwrap_or_default();
    match text("by") {
        Some("set") | None => format!("{provider}: {key} = {value}"),
        Some(by) => format!("{provider}: {key} = {value} ({by})"),
    }
}

const RELOAD_EXAMPLES: &str = "\
Examples:
  tollgate reload
  tollgate check providers/ && tollgate reload";

/// Make the running daemon read its files again
///
/// An invalid file is rejected and its old version stays; the command prints the reason and exits
/// with 1.
#[derive(Debug, Args)]
#[command(after_help = RELOAD_EXAMPLES, after_long_help = RELOAD_EXAMPLES)]
pub(crate) struct Reload {
    #[command(flatten)]
    options: Options,
}

impl Reload {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let remote = AdminClient::find(&self.options)?;
        let reply = remote.request(Method::POST, "/v1/reload", None)??;
        report_changes(&reply, None)
    }
}

const CONTROL_EXAMPLES: &str = "\
Examples:
  tollgate pause tmdb --for 30m        # calls wait
  tollgate offline tmdb                # calls are rejected until `tollgate resume tmdb`
  tollgate cache-only tmdb --for 30m
  tollgate resume tmdb
  tollgate reset tmdb --entity fixtures";

/// A provider, or one entity of it
#[derive(Debug, Args)]
#[command(after_help = CONTROL_EXAMPLES, after_long_help = CONTROL_EXAMPLES)]
pub(crate) struct ControlCommand {
    /// The provider
    #[arg(value_name = "PROVIDER")]
    name: String,

    /// Only this entity; for `resume` and `reset`
    #[arg(long, value_name = "E")]
    entity: Option<String>,

    #[command(flatten)]
    options: Options,
}

/// The same, for a limited time
#[derive(Debug, Args)]
#[command(after_help = CONTROL_EXAMPLES, after_long_help = CONTROL_EXAMPLES)]
pub(crate) struct TimedControlCommand {
    /// For how long; without it, until resumed
    #[arg(long = "for", value_name = "30m", value_parser = duration)]
    lasts: Option<String>,

    #[command(flatten)]
    command: ControlCommand,
}

fn duration(text: &str) -> Result<String, String> {
    match amount::span(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("write a duration such as `30m`, `2h` or `1d`".to_owned()),
    }
}

impl ControlCommand {
    /// Sends this command.
    pub(crate) fn run(self, word: &str) -> anyhow::Result<ExitCode> {
        self.send(word, None)
    }

    fn send(self, word: &str, lasts: Option<&str>) -> anyhow::Result<ExitCode> {
        let mut query = Vec::new();
        if let Some(entity) = &self.entity {
            query.push(format!("entity={}", percent_encode(entity)));
        }
        if let Some(lasts) = lasts {
            query.push(format!("for={}", percent_encode(lasts)));
        }
        let path = format!(
            "/v1/providers/{}/{word}?{}",
            segment(&self.name)?,
            query.join("&")
        );
        let remote = AdminClient::find(&self.options)?;
        let reply = remote.request(Method::POST, &path, None)??;
        let mut out = crate::out::out();
        let state = reply["state"].as_str().unwrap_or_default();
        let state = state_word(state, reply["hold"].as_str());
        match &self.entity {
            Some(entity) => writeln!(out, "{}/{entity}: {word}", self.name)?,
            None => writeln!(out, "{}: {word}; its state: {state}", self.name)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl TimedControlCommand {
    pub(crate) fn run(self, word: &str) -> anyhow::Result<ExitCode> {
        let lasts = self.lasts;
        self.command.send(word, lasts.as_deref())
    }
}

/// Prints the result of a change, except the changes of one provider.
fn report_changes(reply: &Value, except: Option<&str>) -> anyhow::Result<ExitCode> {
    let mut out = crate::out::out();
    let list = |name: &str| reply[name].as_array().cloned().unwrap_or_default();
    let changed = list("changed");
    if changed.is_empty() {
        writeln!(out, "nothing has changed")?;
    }
    let is_shown = |change: &&Value| except.is_some() && change["provider"].as_str() == except;
    for change in changed.iter().filter(|change| !is_shown(change)) {
        writeln!(out, "{}", change_text(change))?;
    }
    let mut err = crate::out::err();
    for warning in list("warnings").iter().filter_map(Value::as_str) {
        writeln!(err, "{warning}")?;
    }
    let rejected = list("rejected");
    for problem in rejected.iter().filter_map(Value::as_str) {
        writeln!(err, "{problem}")?;
    }
    if rejected.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    bail!("a part was rejected, and its old version stays; fix it and reload")
}

fn change_text(change: &Value) -> String {
    let text = |name: &str| change[name].as_str();
    let fields = change["fields"].as_array().cloned().unwrap_or_default();
    let fields: Vec<&str> = fields.iter().filter_map(Value::as_str).collect();
    let fields = fields.join(", ");
    match (
        text("added"),
        text("removed"),
        text("renamed"),
        text("provider"),
    ) {
        (Some(name), ..) => format!("{name}: added"),
        (_, Some(name), ..) => format!("{name}: removed"),
        (_, _, Some(name), _) => format!("{name}: renamed to {}", text("to").unwrap_or_default()),
        (_, _, _, Some(name)) if fields.is_empty() => format!("{name}: changed"),
        (_, _, _, Some(name)) => format!("{name}: {fields}"),
        (None, None, None, None) => format!("tollgate.yaml: {fields}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_escape_its_path_segment() {
        assert_eq!(percent_encode("a/../b?c"), "a%2F%2E%2E%2Fb%3Fc");
        assert_eq!(percent_encode("tmdb-legacy_2"), "tmdb-legacy_2");
    }

    #[test]
    fn a_value_is_shown_with_its_origin_and_a_key_is_not() {
        let shown = |setting| setting_text("x", &setting);
        let set = serde_json::json!({ "key": "queue.max", "value": "5", "by": "set" });
        assert_eq!(shown(set), "x: queue.max = 5");
        let reverted = serde_json::json!({ "key": "queue.max", "value": "1000", "by": "default" });
        assert_eq!(shown(reverted), "x: queue.max = 1000 (default)");
        let key = serde_json::json!({ "key": "api_key", "value": null, "by": "set" });
        assert_eq!(shown(key), "x: api_key = (hidden)");
    }

    #[test]
    fn a_setting_without_a_value_is_reset() {
        assert_eq!(key_value("sleep_max="), Ok(("sleep_max".to_owned(), None)));
        assert_eq!(key_value("a=b=c").unwrap().1.as_deref(), Some("b=c"));
        assert!(key_value("sleep_max").is_err() && key_value("=1").is_err());
    }
}
