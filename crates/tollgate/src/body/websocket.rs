//! As much of WebSocket (RFC 6455) as it takes to end one: where a frame ends, and the close frame.
//!
//! Promises: follows frames of any length, however their bytes are split, in constant memory.
//!
//! Never: reads a payload.

/// The code of an endpoint that goes away.
const GOING_AWAY: u16 = 1_001;

/// A final close frame.
const CLOSE: u8 = 0x88;

/// The bit of a masked payload, beside its length.
const MASKED: u8 = 0x80;

/// The key that masks our frame. A key is random so that nobody can choose the bytes on the wire; of
/// our payload nobody chooses a byte.
const MASK: [u8; 4] = [1, 2, 3, 4];

/// Why we end a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    Idle,
    ShuttingDown,
}

impl CloseReason {
    /// At most 123 bytes, so that the frame has a short length.
    fn text(self) -> &'static [u8] {
        match self {
            CloseReason::Idle => b"idle for timeout.tunnel",
            CloseReason::ShuttingDown => b"the gateway is shutting down",
        }
    }

    fn payload(self) -> Vec<u8> {
        [&GOING_AWAY.to_be_bytes()[..], self.text()].concat()
    }

    /// The frame as a server sends it.
    pub(super) fn frame(self) -> Vec<u8> {
        let payload = self.payload();
        let length = u8::try_from(payload.len()).unwrap_or_default();
        [&[CLOSE, length][..], &payload].concat()
    }

    /// The frame as a client sends it.
    pub(super) fn masked_frame(self) -> Vec<u8> {
        let (mut payload, key) = (self.payload(), MASK);
        for (byte, mask) in payload.iter_mut().zip(key.iter().cycle()) {
            *byte ^= mask;
        }
        let length = u8::try_from(payload.len()).unwrap_or_default();
        [&[CLOSE, MASKED | length][..], &key, &payload].concat()
    }
}

/// The position within the frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FrameTracker {
    /// Before the first byte of a frame.
    #[default]
    Between,
    /// Before the byte with the short length.
    Length,
    /// So many bytes of a long length remain, and its value so far.
    LongLength(u8, u64, bool),
    /// So many bytes of mask and payload remain.
    Payload(u64),
}

impl FrameTracker {
    /// Does the next byte begin a frame?
    pub(super) fn is_between(&self) -> bool {
        *self == FrameTracker::Between
    }

    /// Follows the next bytes.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while let [first, rest @ ..] = bytes {
            bytes = rest;
            *self = match *self {
                FrameTracker::Between => FrameTracker::Length,
                FrameTracker::Length => {
                    let is_masked = first & MASKED != 0;
                    match first & !MASKED {
                        126 => FrameTracker::LongLength(2, 0, is_masked),
                        127 => FrameTracker::LongLength(8, 0, is_masked),
                        length => FrameTracker::rest(u64::from(length), is_masked),
                    }
                }
                FrameTracker::LongLength(1, length, is_masked) => {
                    FrameTracker::rest(length << 8 | u64::from(*first), is_masked)
                }
                FrameTracker::LongLength(remaining, length, is_masked) => FrameTracker::LongLength(
                    remaining - 1,
                    length << 8 | u64::from(*first),
                    is_masked,
                ),
                FrameTracker::Payload(remaining) => {
                    // This byte, and as many of the others as belong to it.
                    let others =
                        usize::try_from(remaining - 1).map_or(rest.len(), |n| n.min(rest.len()));
                    bytes = rest.get(others..).unwrap_or_default();
                    FrameTracker::payload(remaining - 1 - others as u64)
                }
            };
        }
    }

    fn rest(length: u64, is_masked: bool) -> FrameTracker {
        FrameTracker::payload(length.saturating_add(if is_masked { 4 } else { 0 }))
    }

    fn payload(remaining: u64) -> FrameTracker {
        match remaining {
            0 => FrameTracker::Between,
            remaining => FrameTracker::Payload(remaining),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(bytes: &[u8]) -> FrameTracker {
        let mut whole = FrameTracker::default();
        whole.feed(bytes);
        let mut single = FrameTracker::default();
        bytes.iter().for_each(|byte| single.feed(&[*byte]));
        assert_eq!(whole, single, "{bytes:?}");
        whole
    }

    #[test]
    fn frames_of_every_length_are_followed_to_their_ends() {
        for (head, length) in [
            (vec![0x81, 0], 0),
            (vec![0x81, 5], 5),
            (vec![0x82, 0x85, 1, 2, 3, 4], 5),
            (vec![0x02, 126, 1, 0], 256),
            (vec![0x82, 0xfe, 1, 0, 9, 9, 9, 9], 256),
            (vec![0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0], 65_536),
        ] {
            let frame = [head.clone(), vec![0x81; length]].concat();
            assert!(after(&frame).is_between(), "{head:?}");
            for cut in [1, head.len() - 1, frame.len() - 1] {
                assert!(
                    !after(frame.get(..cut).unwrap()).is_between(),
                    "{head:?} {cut}"
                );
            }
            assert!(
                after(&[frame.clone(), frame].concat()).is_between(),
                "{head:?}"
            );
        }
    }

    #[test]
    fn a_close_frame_is_one_whole_frame() {
        for reason in [CloseReason::Idle, CloseReason::ShuttingDown] {
            assert!(after(&reason.frame()).is_between());
            assert_eq!(reason.frame().get(2..4), Some(&1_001_u16.to_be_bytes()[..]));
            let masked = reason.masked_frame();
            assert!(after(&masked).is_between());
            assert_eq!(masked.get(6), Some(&(3 ^ 1)));
        }
    }
}
