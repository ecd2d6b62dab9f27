//! Events for a running daemon: signals and changed files.
//!
//! Promises: every event causes one reload, one at a time; if files cannot be watched, SIGHUP and
//! the API still work. A stop signal does not wait for a reload.
//!
//! Never: interprets a configuration.

use std::io;
use std::time::Duration;

use tollgate_config::watch::{DEBOUNCE, ReloadReason, Watch};
use tollgate_server::Daemon;

use super::systemd;

/// Process managers and terminals send a stop signal to the process and to its group, and so twice
/// within milliseconds. A person who wants to end it at once presses again after a second.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// Signals and changed files.
#[derive(Debug)]
pub(super) struct DaemonEvents {
    signals: Signals,
    watched: Vec<String>,
    watch: Option<Watch>,
    /// The daemon's own log file, which changes with every reload.
    log: Option<String>,
}

impl DaemonEvents {
    /// Handles signals from now on, so that none of them kills the process while it starts. Must be
    /// called inside a tokio runtime.
    pub(super) fn listen(log: Option<String>) -> io::Result<DaemonEvents> {
        Ok(DaemonEvents {
            log,
            signals: Signals::listen()?,
            watched: Vec::new(),
            watch: None,
        })
    }

    /// Waits for another stop signal, after the first one. A signal within [`SAME_SIGNAL`] is the
    /// same order once more.
    pub(super) async fn wait_for_second_stop(&mut self) {
        let repeated = async {
            loop {
                self.signals.wait_for_stop().await;
                tracing::info!(
                    event = "draining",
                    why = "a repeated signal does not end it"
                );
            }
        };
        let _over = tokio::time::timeout(SAME_SIGNAL, repeated).await;
        self.signals.wait_for_stop().await;
    }

    /// Watches the files from now on, and reloads once, in case a file changed between the load and
    /// the watch.
    pub(super) async fn watch(&mut self, daemon: &Daemon) {
        self.watched = daemon.watched();
        self.watch = start_watch(&self.watched, self.log.as_deref());
        reload(daemon).await;
    }

    /// Reloads on every event, until a stop signal.
    pub(super) async fn run(&mut self, daemon: &Daemon) {
        loop {
            let is_signal = tokio::select! {
                order = self.signals.next() => match order {
                    SignalAction::Stop => return,
                    SignalAction::Reload => true,
                },
                () = file_change(&mut self.watch) => false,
            };
            if is_signal {
                systemd::reloading();
            }
            tokio::select! {
                () = self.signals.wait_for_stop() => return,
                () = reload(daemon) => {}
            }
            if is_signal {
                systemd::ready();
            }
            let watched = daemon.watched();
            if watched != self.watched {
                self.watch = start_watch(&watched, self.log.as_deref());
                self.watched = watched;
            }
        }
    }
}

/// Reloads on a blocking thread, beside the tasks that serve. The daemon logs the result.
async fn reload(daemon: &Daemon) {
    let daemon = daemon.clone();
    let reloaded = tokio::task::spawn_blocking(move || daemon.reload());
    drop(reloaded.await);
}

fn start_watch(paths: &[String], log: Option<&str>) -> Option<Watch> {
    match Watch::start(paths, log, DEBOUNCE) {
        Ok(watch) => Some(watch),
        Err(error) => {
            tracing::warn!(event = "not_watching", %error);
            None
        }
    }
}

/// Waits until a file has changed. The watch also reports SIGHUP, which is ignored here: the signal
/// handlers have it from the start.
async fn file_change(watch: &mut Option<Watch>) {
    let Some(watch) = watch else {
        return std::future::pending().await;
    };
    while watch.next().await != ReloadReason::Files {}
}

/// The action of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalAction {
    Reload,
    Stop,
}

#[derive(Debug)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.interrupt.recv() => SignalAction::Stop,
            _ = self.terminate.recv() => SignalAction::Stop,
            _ = self.hangup.recv() => SignalAction::Reload,
        }
    }

    /// Waits for a stop signal only: a SIGHUP that comes meanwhile stays pending.
    async fn wait_for_stop(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
