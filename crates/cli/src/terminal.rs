//! The terminal that commands read from: silent while a key is typed or pressed.
//!
//! Promises: it is as it was once [`NoEcho`] is dropped, also after a failure. Where standard input is
//! no terminal there is nothing to change, and `None`.
//!
//! Never: reads.

use std::io::{self, IsTerminal};

/// A terminal that does not echo. Ctrl-C still ends the program, and then the shell puts it right.
pub(crate) struct NoEcho(rustix::termios::Termios);

impl NoEcho {
    /// Gives each key at once: for single keys.
    pub(crate) fn for_keys() -> Option<NoEcho> {
        use rustix::termios::LocalModes;
        NoEcho::without(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Gives whole lines: for secrets.
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
        // Best effort: there is nobody left to tell.
        tcsetattr(io::stdin(), OptionalActions::Now, &self.0).ok();
    }
}
