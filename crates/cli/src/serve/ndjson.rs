//! Metrics as NDJSON, to a file or to standard output (A17).
//!
//! Promises: every `metrics.every`, one line per sample. The file is rotated like the log: at `log.max_size`, with
//! `log.keep` old ones.
//!
//! Never: holds up a call; a file that cannot be written is reported once.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tollgate_config::Config;
use tollgate_server::{Daemon, ndjson_lines};

use crate::log::LogFile;

/// Where lines go.
type Lines = Arc<Mutex<Box<dyn Write + Send>>>;

/// Starts to write, if the configuration says so.
pub(super) fn start(daemon: &Daemon, config: &Config) -> anyhow::Result<()> {
    let Some(target) = &config.metrics.ndjson else {
        return Ok(());
    };
    let lines: Box<dyn Write + Send> = if target == "-" {
        Box::new(io::stdout())
    } else {
        let log = &config.log;
        let file = LogFile::open(Path::new(target), log.max_size.0, log.keep);
        Box::new(file.with_context(|| format!("could not open {target}; see metrics.ndjson"))?)
    };
    let (daemon, lines): (Daemon, Lines) = (daemon.clone(), Arc::new(Mutex::new(lines)));
    let mut ticks = interval(config.metrics.every.into());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::spawn(async move {
        let mut has_failed = false;
        loop {
            ticks.tick().await;
            let ts = crate::log::timestamp();
            let text = ndjson_lines(&daemon.metrics().await, &ts);
            let lines = lines.clone();
            let written = tokio::task::spawn_blocking(move || write(&mut *lines.lock(), &text));
            let failed = written.await.map_or(true, |written| written.is_err());
            if failed && !has_failed {
                tracing::error!(
                    event = "metrics_not_written",
                    why = "see metrics.ndjson and its disk"
                );
            }
            has_failed = failed;
        }
    });
    Ok(())
}

/// Line by line: the file is rotated between two of them.
fn write(out: &mut (dyn Write + Send), text: &str) -> io::Result<()> {
    for line in text.split_inclusive('\n') {
        out.write_all(line.as_bytes())?;
    }
    out.flush()
}
