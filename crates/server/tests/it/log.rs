//! The log of the whole test run, so that a test can search it.

use std::io::Write;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;

static LOG: OnceLock<Log> = OnceLock::new();

/// Captures all log lines from now on, at every level. One per process: thread-local subscribers
/// miss events that were first emitted on another thread.
pub(crate) fn capture() {
    LOG.get_or_init(|| {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(log.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("no other subscriber is set");
        log
    });
}

/// Everything that any test has logged yet.
pub(crate) fn captured() -> String {
    let log = LOG.get().expect("a gateway was started");
    String::from_utf8_lossy(&log.0.lock()).into_owned()
}

#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}
