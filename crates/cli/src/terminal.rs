//! Turns off the echo of the terminal while a secret is typed or a key is pressed.
//!
//! Promises: the terminal is restored when [`NoEcho`] is dropped, also after a failure. If standard
//! input is not a terminal, the result is `None`.
//!
//! Never: reads.

use std::io::{self, IsTerminal};

/// A terminal without echo. Ctrl-C still ends the program, and then the shell restores the
/// terminal.
pub(crate) struct NoEcho(rustix::termios::Termios);

impl NoEcho {
    /// Reads each key at once: for single keys.
    pub(crate) fn for_keys() -> Option<NoEcho> {
        use rustix::termios::LocalModes;
        NoEcho::without(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Reads whole lines: for secrets.
    pub(crate) fn for_lines() -> Option<NoEcho> {
        NoEcho::without(rustix::termios::LocalModes::ECHO)
    }

    fn without(modes: rustix::termios::LocalModes) -> Option<NoEcho> {
        use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        let before = tcgetattr(&stdin).ok()?;
        let mut quiet = before.clone();
        quiet.local_modes -= modes;
        tcsetattr(&stdin, OptionalActions::Now, &quiet).ok()?;
        Some(NoEcho(before))
    }
}

impl Drop for NoEcho {
    fn drop(&mut self) {
        use rustix::termios::{OptionalActions, tcsetattr};
        // Best effort: there is nothing to report an error to.
        tcsetattr(io::stdin(), OptionalActions::Now, &self.0).ok();
    }
}
