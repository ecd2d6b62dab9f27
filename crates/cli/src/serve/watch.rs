//! What reaches a running daemon from outside: signals and changed files.
//!
//! Promises: every reason to look again leads to one look, one at a time; a watch that cannot be kept
//! leaves SIGHUP and the API. The order to end waits for no reload.
//!
//! Never: decides what a configuration means.

use std::io;

use tollgate_config::watch::{DEBOUNCE, ReloadReason, Watch};
use tollgate_server::Daemon;

use super::systemd;

/// Orders by signal, and changed files.
#[derive(Debug)]
pub(super) struct DaemonEvents {
    signals: Signals,
    watched: Vec<String>,
    watch: Option<Watch>,
    /// The file of our own log, which changes with every look.
    log: Option<String>,
}

impl DaemonEvents {
    /// Hears signals from now on, so that none of them ends the process while it starts. Must be
    /// called inside a tokio runtime.
    pub(super) fn listen(log: Option<String>) -> io::Result<DaemonEvents> {
        Ok(DaemonEvents {
            log,
            signals: Signals::listen()?,
            watched: Vec::new(),
            watch: None,
        })
    }

    /// Waits for the order to end.
    pub(super) async fn wait_for_stop(&mut self) {
        self.signals.wait_for_stop().await;
    }

    /// Watches the files from now on, and looks at them once: what changed between the load and the
    /// watch is seen too.
    pub(super) async fn watch(&mut self, daemon: &Daemon) {
        self.watched = daemon.watched();
        self.watch = start_watch(&self.watched, self.log.as_deref());
        reload(daemon).await;
    }

    /// Reloads whenever there is a reason to, until the order to end.
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

/// Reads files beside the tasks that serve. What it finds is logged where it is found.
async fn reload(daemon: &Daemon) {
    let daemon = daemon.clone();
    let looked = tokio::task::spawn_blocking(move || daemon.reload());
    drop(looked.await);
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

/// Waits until a file has changed. The watch hears hang-ups too; here they come by the signals, which
/// are heard from the start.
async fn file_change(watch: &mut Option<Watch>) {
    let Some(watch) = watch else {
        return std::future::pending().await;
    };
    while watch.next().await != ReloadReason::Files {}
}

/// What a signal wants.
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

    /// The order to end alone: a hang-up that comes meanwhile waits.
    async fn wait_for_stop(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
