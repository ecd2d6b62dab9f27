//! The log of the gateway: `log:` of tollgate.yaml, and `TOLLGATE_LOG` for its level.
//!
//! Promises: an event is one line, whatever a provider or a caller put into it. Lines of the rate
//! limiter have all standard keys in order, `none` where a value is unknown (A16). Log files never
//! exceed `max_size` and `keep`.
//!
//! Never: contains a key; events have none. Never holds up a call: a thread writes the lines, and a
//! line that cannot be written is lost.

mod file;
mod line;
mod queue;

use std::fmt;
use std::io;

use anyhow::Context;
use tollgate_config::config::{Log, LogFormat};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

pub(crate) use file::LogFile;
use line::LogLine;
use queue::LineQueue;
pub(crate) use queue::LogGuard;

/// Starts the log of this process. What is queued is written when the result is dropped.
pub(crate) fn init(log: &Log) -> anyhow::Result<LogGuard> {
    let levels = levels()?;
    let report_lost = |lines| tracing::warn!(event = "log_lines_lost", lines);
    let (queue, guard) = match &log.file {
        None => LineQueue::start(io::stderr(), report_lost)?,
        Some(path) => {
            let file = LogFile::open(path.as_ref(), log.max_size.0, log.keep)
                .with_context(|| format!("could not open the log file {path}; see log.file"))?;
            LineQueue::start(file, report_lost)?
        }
    };
    start(log.format, levels, queue);
    Ok(guard)
}

fn start(format: LogFormat, levels: Targets, queue: LineQueue) {
    let builder = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(queue);
    // A second log in one process is a bug, but no reason not to serve.
    let _begun = builder
        .event_format(LogFormatter { format })
        .finish()
        .with(levels)
        .try_init();
}

/// Now, as log lines write it.
pub(crate) fn timestamp() -> String {
    let mut ts = String::new();
    // A String can be written to.
    SystemTime.format_time(&mut Writer::new(&mut ts)).ok();
    ts
}

/// `TOLLGATE_LOG`, such as `debug` or `warn,tollgate=debug`; the default is `info`.
fn levels() -> anyhow::Result<Targets> {
    let Ok(wanted) = std::env::var("TOLLGATE_LOG") else {
        return Ok(Targets::new().with_default(LevelFilter::INFO));
    };
    // `Targets` would take a misspelt level for the name of a component.
    let is_level = |part: &str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
    let levels = wanted.split(',').all(is_level).then(|| wanted.parse().ok());
    levels.flatten().with_context(|| {
        format!(
            "TOLLGATE_LOG is `{wanted}`; use a level (error, warn, info, debug) or one for each \
             component, such as warn,tollgate=debug"
        )
    })
}

/// Formats lines.
#[derive(Debug)]
struct LogFormatter {
    format: LogFormat,
}

impl<S, N> FormatEvent<S, N> for LogFormatter
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let ts = timestamp();
        let level = event.metadata().level();
        let mut line = LogLine::new(ts, level.as_str(), event.metadata().target());
        event.record(&mut line);
        match self.format {
            LogFormat::Logfmt => writeln!(writer, "{}", line.logfmt()),
            LogFormat::Json => writeln!(writer, "{}", line.json()),
            LogFormat::Pretty => writeln!(writer, "{}", line.pretty()),
        }
    }
}
