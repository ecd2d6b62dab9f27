//! `tollgate explain`: what Tollgate reads from a response.
//!
//! Promises: prints as JSON the same reading that the gateway acts on. With `--jsonl` a bad line is
//! reported with its number and a remedy, and the other lines are still explained.
//!
//! Never: makes a call, or waits for anything but its input.

use anyhow::Context;
use clap::Args;
use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tollgate_config::preset;
use tollgate_config::problem::nearest;
use tollgate_config::{Config, Environment, Provider, Sources, disk};
use tollgate_core::feedback::{BODY_MAX, Dialects, Response, read};
use tollgate_core::time::Wall;

mod output;
mod record;

use output::{Detail, JsonlLine};

use crate::out::PipeSafeWriter;

/// The longest input line: a body of [`BODY_MAX`] with every byte escaped, and room for the rest.
const LINE_MAX: usize = 8 * BODY_MAX;

const EXAMPLES: &str = "\
Examples:
  tollgate explain --provider github --status 403 \\
      --header 'Retry-After: 60' --header 'X-RateLimit-Remaining: 4988' --body response.json
  tollgate explain --status 429 --header 'RateLimit: \"burst\";r=0;t=30'
  tollgate explain --jsonl < responses.jsonl";

/// Show what Tollgate reads from a response: limited or not, what remains, how long to wait
///
/// Prints JSON. `wait_seconds` is null if the response gives no instruction (Tollgate then backs
/// off by itself) and 0 for "at once". `scope` is the part that must wait, as the provider names
/// it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Explain {
    /// The provider whose dialect to use: built-in or your own; `generic` = only the standard rules
    #[arg(long, value_name = "NAME", default_value = "generic", value_parser = known_provider)]
    provider: String,

    /// HTTP status of the response
    #[arg(long, value_name = "CODE", required_unless_present = "jsonl",
          value_parser = clap::value_parser!(u16).range(100..=999))]
    status: Option<u16>,

    /// A header line, as `Name: value`; repeatable
    #[arg(long = "header", short = 'H', value_name = "LINE", value_parser = header_line)]
    headers: Vec<(String, String)>,

    /// File with the response body; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,

    /// When the response arrived: RFC 3339 or seconds since 1970; default: now
    #[arg(long, value_name = "TIME", value_parser = record::instant)]
    now: Option<Wall>,

    /// Read many responses: one JSON object per line on standard input, with `id`, `provider`,
    /// `now`, `status`, `headers` and `body`; for a provider without a dialect, `generic` is used
    #[arg(long, conflicts_with_all = ["provider", "status", "headers", "body", "now"])]
    jsonl: bool,
}

impl Explain {
    /// Reads one response or many, and prints what they say.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let dialects = Dialects::built_in();
        if self.jsonl {
            return explain_lines(&dialects, io::stdin().lock(), crate::out::out());
        }
        let now = self.now.unwrap_or_else(wall_clock);
        let body = self.body.as_deref().map_or(Ok(Vec::new()), body_file)?;
        let headers: Vec<(&str, &[u8])> = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        let dialect = dialects.get(&self.provider).unwrap_or(dialects.generic());
        let status = self.status.unwrap_or_default();
        let feedback = read(
            &Response {
                status,
                headers: &headers,
                body: &body,
            },
            dialect,
            now,
        );
        let mut out = crate::out::out();
        serde_json::to_writer_pretty(&mut out, &Detail::new(dialect.name(), &feedback, now))?;
        writeln!(out)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Explains every line of `input`; exit code 1 if one of them could not be read.
fn explain_lines(
    dialects: &Dialects,
    mut input: impl BufRead,
    mut out: PipeSafeWriter<impl Write>,
) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    let mut line = Vec::new();
    for number in 1_u64.. {
        if out.is_closed() {
            break;
        }
        let problem = match next_line(&mut input, &mut line)? {
            NextLine::End => break,
            NextLine::Whole if line.trim_ascii().is_empty() => continue,
            NextLine::Whole => match record::Record::parse(&line) {
                Ok(record) => {
                    let now = record.now.unwrap_or_else(wall_clock);
                    let feedback = record.read(dialects, now);
                    serde_json::to_writer(&mut out, &JsonlLine::new(&record.id, &feedback))?;
                    writeln!(out)?;
                    continue;
                }
                Err(problem) => problem,
            },
            NextLine::TooLong => format!("is longer than {LINE_MAX} bytes; shorten its body"),
        };
        writeln!(crate::out::err(), "error: line {number}: {problem}")?;
        code = ExitCode::FAILURE;
    }
    Ok(code)
}

enum NextLine {
    Whole,
    TooLong,
    End,
}

/// Reads the next line into `line`; a line that is too long is skipped to its end.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<NextLine> {
    line.clear();
    let bound = u64::try_from(LINE_MAX).unwrap_or(u64::MAX);
    if input.by_ref().take(bound).read_until(b'\n', line)? == 0 {
        return Ok(NextLine::End);
    }
    if line.len() < LINE_MAX || line.ends_with(b"\n") {
        return Ok(NextLine::Whole);
    }
    input.skip_until(b'\n')?;
    Ok(NextLine::TooLong)
}

/// The part of a body that the gateway would read.
fn body_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    // One byte more than is read, so that the reader can see that it is too large.
    let bound = u64::try_from(BODY_MAX).unwrap_or(u64::MAX) + 1;
    let mut body = Vec::new();
    if path == Path::new("-") {
        io::stdin()
            .lock()
            .take(bound)
            .read_to_end(&mut body)
            .context("cannot read the body")?;
        return Ok(body);
    }
    let file = File::open(path).with_context(|| {
        format!(
            "cannot open the body {}; give a file with the response body",
            path.display()
        )
    })?;
    let named = || format!("cannot read the body {}", path.display());
    file.take(bound)
        .read_to_end(&mut body)
        .with_context(named)?;
    Ok(body)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the edge: a response without a time came just now"
)]
fn wall_clock() -> Wall {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Wall(u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX))
}

/// Rejects an unknown provider: a mistyped name would silently select the wrong rules.
fn known_provider(name: &str) -> Result<String, String> {
    let dialects = Dialects::built_in();
    if let Some(dialect) = dialects.get(name) {
        return Ok(dialect.name().to_owned());
    }
    let generic = || dialects.generic().name().to_owned();
    let spoken = |provider: &Provider| {
        let dialect = dialects.get(&provider.dialect);
        dialect.map_or_else(generic, |dialect| dialect.name().to_owned())
    };
    // The user's own provider takes precedence over the preset of the same name.
    let loaded = Config::load(&Sources::default(), &disk::environment()).ok();
    let own = loaded
        .as_ref()
        .and_then(|loaded| loaded.config.provider(name));
    let preset =
        preset::find(name).and_then(|preset| preset.provider(None, &Environment::empty()).provider);
    if let Some(provider) = own.map(|own| &**own).or(preset.as_ref()) {
        return Ok(spoken(provider));
    }
    let presets = preset::all().iter().map(|preset| preset.name);
    let of_files = loaded.iter().flat_map(|loaded| &loaded.config.providers);
    let of_files = of_files.map(|provider| provider.name.as_str());
    let names: Vec<&str> = dialects.names().chain(presets).chain(of_files).collect();
    let hint = nearest(name, &names)
        .map(|known| format!("did you mean `{known}`? "))
        .unwrap_or_default();
    Err(format!(
        "no dialect of this name; {hint}use `generic` for the standard rules alone"
    ))
}

fn header_line(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or("has no colon; write 'Name: value'")?;
    if name.trim().is_empty() {
        return Err("has no name; write 'Name: value'".to_owned());
    }
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}
