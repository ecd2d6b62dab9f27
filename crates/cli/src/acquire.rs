//! `tollgate acquire`, `capacity`, `report`, `release`: permits for shell scripts.
//!
//! Promises: exit 0 granted, 75 denied ("try later"). `acquire -- CMD` runs CMD under its permit,
//! reports how it ended, and exits as CMD did; the permit is held while CMD runs, and signals that would
//! end this process go to CMD. If CMD cannot be started, the permit is given back.
//! With a daemon and without one the replies are the same.
//!
//! Never: makes a call itself.

mod decision_source;
mod forwarded_signals;
mod permit_files;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use hyper::Method;
use serde_json::{Map, Value, json};
use tollgate_config::amount;
use tollgate_core::time::Span;

use crate::admin_client::percent_encode;
use crate::options::Options;
use decision_source::DecisionSource;
pub(crate) use decision_source::permit_files;
use forwarded_signals::ForwardedSignals;
use permit_files::Ending;

/// "Try later": sysexits' EX_TEMPFAIL.
const DENIED: u8 = 75;

/// A command that could not be started, as shells say it.
const NOT_STARTED: u8 = 127;

/// How long a daemon may take beside the time that the request waits.
const MARGIN: Duration = Duration::from_secs(40);

/// How often a permit is renewed while its command runs: a permit lives for 30 s at least.
const RENEW_EVERY: Duration = Duration::from_secs(10);

/// As long as any request waits.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3_600);

const ACQUIRE_EXAMPLES: &str = "\
Examples:
  tollgate acquire tmdb && curl https://api.themoviedb.org/3/movie/550
  tollgate acquire tmdb --wait --timeout 5m -- curl -f https://api.themoviedb.org/3/movie/550
  permit=$(tollgate acquire https://api.example.org/v1/x) && tollgate report \"$permit\" --status 200

Exit codes: 0 granted, 75 denied. With a command: its own; a permit whose command succeeds is reported as
200, one whose command exits with 75 as 429, any other as the caller's own failure. The permit
is held until the command ends.";

/// Get one permit for a call that a script makes itself
///
/// Prints the permit. A permit that is neither reported nor released counts as used.
#[derive(Debug, Args)]
#[command(after_help = ACQUIRE_EXAMPLES, after_long_help = ACQUIRE_EXAMPLES)]
pub(crate) struct Acquire {
    #[command(flatten)]
    call: CallArgs,

    /// Wait until there is a permit; without a --timeout as long as the provider's queue.timeout
    #[arg(long)]
    wait: bool,

    /// Wait at most this long, such as 5m
    #[arg(long, value_name = "TIME", value_parser = span)]
    timeout: Option<Span>,

    /// Run this command with the permit, and report how it ended
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,

    #[command(flatten)]
    options: Options,
}

const CAPACITY_EXAMPLES: &str = "\
Examples:
  tollgate capacity tmdb
  tollgate capacity https://api.example.org/v1/x --json

Exit codes: 0 there is room, 75 there is none.";

/// Ask whether a call would get a permit now, without taking one
#[derive(Debug, Args)]
#[command(name = "capacity", after_help = CAPACITY_EXAMPLES, after_long_help = CAPACITY_EXAMPLES)]
pub(crate) struct CapacityCommand {
    #[command(flatten)]
    call: CallArgs,

    #[command(flatten)]
    options: Options,
}

const REPORT_EXAMPLES: &str = "\
Examples:
  tollgate report \"$permit\" --status 200
  tollgate report \"$permit\" --status 429 --header 'Retry-After: 30'
  tollgate report \"$permit\" --error timeout";

/// Report what became of the call of a permit
///
/// May be sent again: the first report counts. Works with a daemon and, for a permit that was acquired
/// without one, on the store.
#[derive(Debug, Args)]
#[command(name = "report", after_help = REPORT_EXAMPLES, after_long_help = REPORT_EXAMPLES)]
pub(crate) struct ReportCommand {
    /// The permit that `acquire` printed
    #[arg(value_name = "PERMIT")]
    permit: String,

    /// The status of the response
    #[arg(long, value_name = "STATUS", conflicts_with = "error")]
    status: Option<u16>,

    /// Why there was no response: timeout, dns, connect or reset
    #[arg(long, value_name = "WORD")]
    error: Option<String>,

    /// A header of the response; repeatable
    #[arg(long, value_name = "NAME: VALUE", requires = "status", value_parser = header)]
    header: Vec<(String, String)>,

    /// What the call has cost, such as tokens=1200
    #[arg(long, value_name = "COST", allow_hyphen_values = true)]
    cost: Option<String>,

    #[command(flatten)]
    options: Options,
}

const RELEASE_EXAMPLES: &str = "\
Examples:
  tollgate release \"$permit\"";

/// Give a permit back that was not used
///
/// Works with a daemon and, for a permit that was acquired without one, on the store.
#[derive(Debug, Args)]
#[command(name = "release", after_help = RELEASE_EXAMPLES, after_long_help = RELEASE_EXAMPLES)]
pub(crate) struct ReleaseCommand {
    /// The permit that `acquire` printed
    #[arg(value_name = "PERMIT")]
    permit: String,

    #[command(flatten)]
    options: Options,
}

/// The call that a permit is for.
#[derive(Debug, Args)]
struct CallArgs {
    /// The provider, or the URL that will be called
    #[arg(value_name = "PROVIDER|URL")]
    target: String,

    /// The entity, if the path does not determine it
    #[arg(long, value_name = "E")]
    entity: Option<String>,

    /// high, normal or low
    #[arg(long, value_name = "P")]
    priority: Option<String>,

    /// What the call costs: a number of calls, or such as tokens=1200
    #[arg(long, value_name = "COST", allow_hyphen_values = true)]
    cost: Option<String>,

    /// Who calls, as under `callers:` in tollgate.yaml
    #[arg(long, value_name = "NAME")]
    caller: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CallArgs {
    /// The fields of the request.
    fn fields(&self) -> Vec<(&'static str, &str)> {
        let what = if self.target.contains("://") {
            "url"
        } else {
            "provider"
        };
        let mut fields = vec![(what, self.target.as_str())];
        for (name, value) in [
            ("entity", &self.entity),
            ("priority", &self.priority),
            ("cost", &self.cost),
            ("caller", &self.caller),
        ] {
            fields.extend(value.as_deref().map(|value| (name, value)));
        }
        fields
    }
}

impl Acquire {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let source = DecisionSource::find(&self.options)?;
        let is_waiting = self.wait || self.timeout.is_some();
        let fields = self.call.fields().into_iter();
        let mut body: Map<String, Value> = fields
            .map(|(name, value)| (name.to_owned(), json!(value)))
            .collect();
        body.insert("wait".to_owned(), json!(is_waiting));
        if let Some(timeout) = self.timeout {
            body.insert(
                "timeout".to_owned(),
                json!(format!("{}ms", timeout.0.div_ceil(1_000))),
            );
        }
        let patience = match self.timeout {
            Some(timeout) => Duration::from(timeout).min(LONGEST_WAIT),
            None if is_waiting => LONGEST_WAIT,
            None => Duration::ZERO,
        };
        let asked = ("/v1/acquire", Some(Value::Object(body)));
        let reply = source.ask(Method::POST, asked.0, asked.1.as_ref(), patience + MARGIN)?;
        let permit = reply["permit"].as_str();
        match permit.filter(|_| reply["granted"] == true) {
            None => denied(&reply, self.call.json),
            Some(permit) if !self.command.is_empty() => run_with(&source, permit, &self.command),
            Some(permit) => {
                if let Err(error) = source.keep(permit) {
                    writeln!(crate::out::err(), "note: {error:#}")?;
                }
                let mut out = crate::out::out();
                if self.call.json {
                    writeln!(out, "{reply}")?;
                } else {
                    writeln!(out, "{permit}")?;
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Runs a command under a permit, and reports how it ended.
fn run_with(source: &DecisionSource, permit: &str, command: &[String]) -> anyhow::Result<ExitCode> {
    let (program, arguments) = command.split_first().context("no command was given")?;
    let mut child = Command::new(program);
    child.args(arguments).env("TOLLGATE_PERMIT", permit);
    let renew = || {
        let body = json!({ "permit": permit });
        // If it cannot be renewed, the report says so.
        drop(source.ask(Method::POST, "/v1/renew", Some(&body), MARGIN));
    };
    let ended = run_to_its_end(child, RENEW_EVERY, renew);
    // Whatever becomes of the permit, the exit is the command's.
    let settle = |path: &str, body: &Value| match source.ask(Method::POST, path, Some(body), MARGIN)
    {
        Ok(_) => Ok(()),
        Err(error) => writeln!(
            crate::out::err(),
            "note: the permit counts as used: {error:#}"
        ),
    };
    let status = match ended {
        Ok(status) => status,
        Err(error) => {
            settle("/v1/release", &json!({ "permit": permit }))?;
            writeln!(
                crate::out::err(),
                "error: could not run `{program}`: {error}"
            )?;
            return Ok(ExitCode::from(NOT_STARTED));
        }
    };
    let response = match status.code() {
        Some(0) => 200,
        Some(code) if code == i32::from(DENIED) => 429,
        // Nobody knows whose fault it is: it says nothing about the provider.
        Some(_) | None => 400,
    };
    settle(
        "/v1/report",
        &json!({ "permit": permit, "status": response }),
    )?;
    // A signal is 128 and its number, as in a shell.
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    let code = code.and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

/// Runs a command to its end, and does something regularly meanwhile.
fn run_to_its_end(
    mut command: Command,
    every: Duration,
    meanwhile: impl Fn(),
) -> std::io::Result<ExitStatus> {
    let signals = ForwardedSignals::catch()?;
    let mut child = command.spawn()?;
    signals.to(&child);
    let (sender, ended) = sync_channel(1);
    // It ends with the command.
    std::thread::spawn(move || sender.send(child.wait()));
    loop {
        match ended.recv_timeout(every) {
            Ok(status) => return status,
            Err(RecvTimeoutError::Timeout) => meanwhile(),
            Err(RecvTimeoutError::Disconnected) => return Err(std::io::ErrorKind::Other.into()),
        }
    }
}

impl CapacityCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let source = DecisionSource::find(&self.options)?;
        let fields = self.call.fields().into_iter();
        let query: Vec<String> = fields
            .map(|(name, value)| format!("{name}={}", percent_encode(value)))
            .collect();
        let path = format!("/v1/capacity?{}", query.join("&"));
        let reply = source.ask(Method::GET, &path, None, MARGIN)?;
        let is_available = reply["available"] == true;
        if !is_available {
            return denied(&reply, self.call.json);
        }
        let mut out = crate::out::out();
        match reply["remaining"].as_u64() {
            _ if self.call.json => writeln!(out, "{reply}")?,
            Some(remaining) => writeln!(out, "available, {remaining} remaining")?,
            None => writeln!(out, "available, no limit applies")?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ReportCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut body = json!({ "permit": self.permit });
        // A header that occurs twice has two values.
        let mut headers: Map<String, Value> = Map::new();
        for (name, value) in self.header {
            let values = headers.entry(name).or_insert_with(|| json!([]));
            if let Value::Array(values) = values {
                values.push(json!(value));
            }
        }
        for (name, value) in [
            ("status", self.status.map(|status| json!(status))),
            ("error", self.error.map(|error| json!(error))),
            ("cost", self.cost.map(|cost| json!(cost))),
            ("headers", (!headers.is_empty()).then(|| json!(headers))),
        ] {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        let source = DecisionSource::of_permit(&self.options, &self.permit)?;
        let reply = source.settle(Ending::Reported, &body)?;
        if reply["first"] == false {
            writeln!(
                crate::out::err(),
                "note: it was reported before; nothing has changed"
            )?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl ReleaseCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let body = json!({ "permit": self.permit });
        let source = DecisionSource::of_permit(&self.options, &self.permit)?;
        source.settle(Ending::Released, &body)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Says what denied the call, and when to come back.
fn denied(reply: &Value, as_json: bool) -> anyhow::Result<ExitCode> {
    if as_json {
        writeln!(crate::out::out(), "{reply}")?;
        return Ok(ExitCode::from(DENIED));
    }
    let limit = reply["limit"]["name"].as_str();
    let Some(limit) = limit.filter(|_| reply["reason"] != "too_costly") else {
        // The message names what is closed, and until when, or that waiting does not help.
        let reason = reply["reason"].as_str().unwrap_or("limit");
        let message = reply["message"].as_str().unwrap_or(reason);
        writeln!(crate::out::err(), "denied: {message}")?;
        return Ok(ExitCode::from(DENIED));
    };
    let when = match reply["retry_in"].as_f64().map(Duration::try_from_secs_f64) {
        Some(Ok(wait)) if !wait.is_zero() => {
            let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
            format!("; try again in {}", Span(micros).in_words())
        }
        _ => String::new(),
    };
    let why = reply["id"].as_str();
    let why = why.map_or_else(String::new, |id| format!(" (tollgate why {id})"));
    writeln!(crate::out::err(), "denied: limit {limit}{when}{why}")?;
    Ok(ExitCode::from(DENIED))
}

fn span(text: &str) -> Result<Span, String> {
    let seconds = || text.parse().ok().map(Span::from_secs);
    let span = amount::span(text).or_else(seconds);
    span.ok_or_else(|| "write a duration such as 30s or 5m".to_owned())
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        Some(_) | None => Err("write NAME: VALUE, such as 'Retry-After: 30'".to_owned()),
    }
}

/// The service does not understand an argument of this command.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongUsage(String);

/// An error of the service, in its own words.
fn rejected(reply: &Value) -> anyhow::Error {
    let text = |name: &str| reply[name].as_str().unwrap_or_default().to_owned();
    let words = format!("{}; {}", text("message"), text("hint"));
    match reply["error"] == "BadRequest" {
        true => WrongUsage(words).into(),
        false => anyhow::anyhow!(words),
    }
}

/// The reply, unless it is an error. A denial is none.
fn into_reply(status: u16, reply: Value) -> anyhow::Result<Value> {
    let is_denial = status == 429 && reply["granted"] == false;
    if status == 200 || is_denial {
        return Ok(reply);
    }
    if reply["error"].is_string() {
        return Err(rejected(&reply));
    }
    bail!("the daemon responded with status {status} and no reason; is it another version?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A command that ran longer than a minute lost its permit, and another took its place.
    #[test]
    fn a_permit_is_renewed_until_the_command_ends() {
        let file = std::env::temp_dir().join(format!("tollgate-renewed-{}", std::process::id()));
        let mut command = Command::new("/bin/sh");
        command.args([
            "-c",
            "while [ ! -e \"$FILE\" ]; do sleep 0.01; done; exit 3",
        ]);
        command.env("FILE", &file);
        let renewals = Cell::new(0);
        let ended = run_to_its_end(command, Duration::from_millis(1), || {
            renewals.set(renewals.get() + 1);
            if renewals.get() == 3 {
                std::fs::write(&file, "").unwrap();
            }
        });
        std::fs::remove_file(&file).unwrap();
        assert_eq!(ended.unwrap().code(), Some(3));
        assert!(renewals.get() >= 3);
    }
}
