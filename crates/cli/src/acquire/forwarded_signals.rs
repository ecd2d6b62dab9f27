//! Signals that end `tollgate acquire -- CMD` are for the command: they are passed on.
//!
//! Promises: TERM, INT and HUP reach the command, and this process waits for its end, so that no command
//! goes on whose permit nobody renews or reports. Ctrl-C reaches a command of the same terminal anyway,
//! and is not sent twice.
//!
//! Never: signals a process that is not the command.

use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;
use std::process::Child;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal as Arriving, SignalKind, signal};

/// Signals that wait for a command to go to.
#[derive(Debug)]
pub(super) struct ForwardedSignals {
    runtime: Runtime,
    terminate: Arriving,
    interrupt: Arriving,
    hang_up: Arriving,
}

impl ForwardedSignals {
    /// From now on these signals do not end this process.
    pub(super) fn catch() -> io::Result<ForwardedSignals> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let entered = runtime.enter();
        let signals = (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        );
        drop(entered);
        let (terminate, interrupt, hang_up) = signals;
        Ok(ForwardedSignals {
            runtime,
            terminate,
            interrupt,
            hang_up,
        })
    }

    /// Passes them on to this command, which nobody has waited for yet. Ends with this process.
    pub(super) fn to(self, child: &Child) {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // A descriptor of the process: its number may be another's once it has ended.
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(process) = process {
            std::thread::spawn(move || self.forward(&process));
        }
    }

    fn forward(self, process: &OwnedFd) {
        let ForwardedSignals {
            runtime,
            mut terminate,
            mut interrupt,
            mut hang_up,
        } = self;
        let shares_terminal = io::stdin().is_terminal();
        loop {
            let next = async {
                tokio::select! {
                    Some(()) = terminate.recv() => Some(Signal::TERM),
                    Some(()) = interrupt.recv() => Some(Signal::INT),
                    Some(()) = hang_up.recv() => Some(Signal::HUP),
                    else => None,
                }
            };
            let Some(signal) = runtime.block_on(next) else {
                return;
            };
            if signal == Signal::INT && shares_terminal {
                continue;
            }
            // It may have ended just now.
            pidfd_send_signal(process, signal).ok();
        }
    }
}
