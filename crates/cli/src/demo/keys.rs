//! Keys pressed while the demonstration runs.
//!
//! Promises: the terminal is restored on drop, also after a failure. Without a terminal there are
//! no keys.
//!
//! Never: blocks the runtime; a thread of its own reads.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::terminal::NoEcho;

/// The action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DemoKey {
    Outage,
    Halve,
    Burst,
    Quit,
}

/// The most pending keys: more than a person presses in one frame.
const PRESSED_MAX: usize = 16;

/// See the module.
pub(super) struct Keys {
    pressed: Option<Receiver<DemoKey>>,
    _terminal: Option<NoEcho>,
}

impl Keys {
    pub(super) fn listen() -> Keys {
        let terminal = NoEcho::for_keys();
        let pressed = terminal.is_some().then(|| {
            let (keys, pressed) = sync_channel(PRESSED_MAX);
            std::thread::spawn(move || read(&keys));
            pressed
        });
        Keys {
            pressed,
            _terminal: terminal,
        }
    }

    /// The next key, if one was pressed.
    pub(super) fn pressed(&mut self) -> Option<DemoKey> {
        self.pressed.as_ref()?.try_recv().ok()
    }
}

fn read(keys: &SyncSender<DemoKey>) {
    for byte in io::stdin().lock().bytes() {
        let Ok(byte) = byte else { return };
        if let Some(key) = key(byte)
            && keys.send(key).is_err()
        {
            return;
        }
    }
}

fn key(byte: u8) -> Option<DemoKey> {
    match byte.to_ascii_lowercase() {
        b'o' => Some(DemoKey::Outage),
        b'h' => Some(DemoKey::Halve),
        b'u' => Some(DemoKey::Burst),
        b'q' => Some(DemoKey::Quit),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_documented_keys_do_something() {
        let pressed: Vec<Option<DemoKey>> = b"oHuq x".iter().map(|byte| key(*byte)).collect();
        let meant = [
            DemoKey::Outage,
            DemoKey::Halve,
            DemoKey::Burst,
            DemoKey::Quit,
        ]
        .map(Some);
        assert_eq!(pressed[..4], meant);
        assert_eq!(pressed[4..], [None, None]);
    }
}
