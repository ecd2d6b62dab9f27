//! A scope as bytes, for stores.
//!
//! A fixed layout of little-endian numbers, so that a short script can read it: version, state, how
//! it reopens, whether it has an end, the end, the probe's owner and number, checksum. In an open
//! scope the owner field holds the number of failures in a row, and the number field their path
//! (0 = unknown, all ones = several); programs that do not know these write 0 there and ignore them.
//!
//! An estimated limit is a field of its own in the row (`row/estimate.rs`).
//!
//! Promises: a scope reads back as it was written. The checksum detects a changed byte.
//!
//! Never: writes another layout without raising [`VERSION`].

use super::{FailureRun, Scope, ScopeState};
use crate::ask::{OwnerId, PathTag, PermitId, Reopen};
use crate::limit::Damaged;
use crate::time::{Micros, Span};

/// The newest format. Version 1 had no cache-only state, version 2 no pause; both are still read,
/// and a scope that is not paused is written as version 2, so that older programs can read it.
const VERSION: u8 = 3;

/// Bytes before the checksum.
const BODY: usize = 24;

/// Bytes of checksum: damaged bytes pass once in four thousand million.
const CHECKSUM: usize = 4;

/// How long a scope stays closed when its state is lost: the longest sleep that health sets by
/// itself.
const LOST_CLOSED_FOR: Span = Span::from_secs(300);

impl Scope {
    /// The scope as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BODY + CHECKSUM] {
        let mut bytes = [0; BODY + CHECKSUM];
        bytes[..BODY].copy_from_slice(&self.to_body());
        let sum = blake3::hash(&bytes[..BODY]);
        bytes[BODY..].copy_from_slice(&sum.as_bytes()[..CHECKSUM]);
        bytes
    }

    /// The scope without a checksum, for a row that has one of its own.
    pub(crate) fn to_body(self) -> [u8; BODY] {
        let (tag, reopen, until, permit) = match self.state {
            ScopeState::Open { failures, run } => {
                let owner = OwnerId(failures);
                let seq = match run {
                    FailureRun::Empty => 0,
                    FailureRun::OnePath(path) => path.0,
                    FailureRun::Several => u64::MAX,
                };
                (0, Reopen::All, None, PermitId { owner, seq })
            }
            ScopeState::Closed { until, reopen } => (1, reopen, until, PermitId::default()),
            ScopeState::Probe { permit, until } => (2, Reopen::Probe, Some(until), permit),
        };
        let mut bytes = [0; BODY];
        bytes[0] = match reopen {
            Reopen::Paused => VERSION,
            Reopen::All | Reopen::Probe | Reopen::ByOperator => VERSION - 1,
        };
        bytes[1] = tag;
        bytes[2] = match reopen {
            Reopen::All => 0,
            Reopen::Probe => 1,
            Reopen::ByOperator => 2,
            Reopen::Paused => 3,
        };
        bytes[3] = u8::from(until.is_some());
        bytes[4..12].copy_from_slice(&until.unwrap_or_default().0.to_le_bytes());
        bytes[12..16].copy_from_slice(&permit.owner.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&permit.seq.to_le_bytes());
        bytes
    }

    /// Decodes a scope.
    pub fn from_bytes(bytes: &[u8]) -> Result<Scope, Damaged> {
        let bytes: &[u8; BODY + CHECKSUM] = bytes.try_into().map_err(|_| Damaged::Bytes)?;
        if blake3::hash(&bytes[..BODY]).as_bytes()[..CHECKSUM] != bytes[BODY..] {
            return Err(Damaged::Bytes);
        }
        Scope::from_body(&bytes[..BODY])
    }

    /// A scope from a row, which has a checksum of its own.
    pub(crate) fn from_body(bytes: &[u8]) -> Result<Scope, Damaged> {
        let bytes: &[u8; BODY] = bytes.try_into().map_err(|_| Damaged::Bytes)?;
        if !(1..=VERSION).contains(&bytes[0]) {
            return Err(Damaged::Newer(bytes[0]));
        }
        let number = |from: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[from..from + 8]);
            u64::from_le_bytes(eight)
        };
        let until = (bytes[3] == 1).then(|| Micros(number(4)));
        let reopen = match bytes[2] {
            0 => Reopen::All,
            1 => Reopen::Probe,
            2 => Reopen::ByOperator,
            3 => Reopen::Paused,
            _ => return Err(Damaged::Bytes),
        };
        let permit = PermitId {
            owner: OwnerId(u32::from_le_bytes([
                bytes[12], bytes[13], bytes[14], bytes[15],
            ])),
            seq: number(16),
        };
        let state = match (bytes[1], until) {
            (0, _) => ScopeState::Open {
                failures: permit.owner.0,
                run: match permit.seq {
                    0 => FailureRun::Empty,
                    u64::MAX => FailureRun::Several,
                    path => FailureRun::OnePath(PathTag(path)),
                },
            },
            (1, until) => ScopeState::Closed { until, reopen },
            (2, Some(until)) => ScopeState::Probe { permit, until },
            _ => return Err(Damaged::Bytes),
        };
        Ok(Scope {
            state,
            estimate: None,
        })
    }

    /// A scope whose state was lost at `at`: it is closed, and then one call probes.
    #[must_use]
    pub fn lost(at: Micros) -> Scope {
        let (until, reopen) = (Some(at + LOST_CLOSED_FOR), Reopen::Probe);
        Scope {
            state: ScopeState::Closed { until, reopen },
            estimate: None,
        }
    }

    /// The same state on another clock: `then` on the old clock is `now` on the new one. A probe
    /// ended with its host, so the next call may probe.
    #[must_use]
    pub fn rebased(&self, then: Micros, now: Micros) -> Scope {
        let state = match self.state {
            ScopeState::Open { .. } => self.state,
            ScopeState::Closed { until, reopen } => ScopeState::Closed {
                until: until.map(|until| now + until.since(then)),
                reopen,
            },
            ScopeState::Probe { .. } => ScopeState::Closed {
                until: Some(now),
                reopen: Reopen::Probe,
            },
        };
        let estimate = self.estimate;
        let estimate = estimate.map(|known| known.moved(then, now).restarted());
        Scope { state, estimate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::ScopeView;

    fn every_state() -> Vec<Scope> {
        let permit = PermitId {
            owner: OwnerId(7),
            seq: 1 << 40,
        };
        let until = Some(Micros(1_000));
        let states = [
            ScopeState::HEALTHY,
            ScopeState::Open {
                failures: 3,
                run: FailureRun::Several,
            },
            ScopeState::Open {
                failures: 4,
                run: FailureRun::OnePath(PathTag(77)),
            },
            ScopeState::Closed {
                until,
                reopen: Reopen::All,
            },
            ScopeState::Closed {
                until: None,
                reopen: Reopen::Probe,
            },
            ScopeState::Closed {
                until: None,
                reopen: Reopen::ByOperator,
            },
            ScopeState::Closed {
                until,
                reopen: Reopen::Paused,
            },
            ScopeState::Probe {
                permit,
                until: Micros(5),
            },
        ];
        let estimate = None;
        states.map(|state| Scope { state, estimate }).to_vec()
    }

    #[test]
    fn a_scope_reads_back_as_it_was_written() {
        for scope in every_state() {
            assert_eq!(Scope::from_bytes(&scope.to_bytes()), Ok(scope));
        }
    }

    /// Only a pause needs the newest version: programs of the version before can read the rest.
    #[test]
    fn only_a_pause_is_written_in_the_newest_version() {
        for scope in every_state() {
            let is_paused = matches!(scope.peek(Micros(1)), ScopeView::Paused { .. });
            assert_eq!(scope.to_bytes()[0], if is_paused { 3 } else { 2 });
        }
    }

    #[test]
    fn a_changed_byte_is_detected() {
        for scope in every_state() {
            for place in 0..scope.to_bytes().len() {
                let mut bytes = scope.to_bytes();
                bytes[place] ^= 0x10;
                assert_eq!(Scope::from_bytes(&bytes), Err(Damaged::Bytes));
            }
        }
        assert_eq!(Scope::from_bytes(&[]), Err(Damaged::Bytes));
    }

    #[test]
    fn a_cool_down_keeps_its_length_on_another_clock() {
        let mut scope = Scope::default();
        scope.close(Some(Micros(1_000)), Reopen::All);
        let scope = scope.rebased(Micros(400), Micros(3));
        assert_eq!(
            scope.peek(Micros(3)),
            ScopeView::Closed {
                remaining: Some(Span(600))
            }
        );
        assert_eq!(scope.peek(Micros(603)), ScopeView::Open);
    }

    #[test]
    fn a_lost_scope_is_closed_and_then_probes() {
        let scope = Scope::lost(Micros(0));
        assert!(matches!(scope.peek(Micros(1)), ScopeView::Closed { .. }));
        assert_eq!(scope.peek(Micros(0) + LOST_CLOSED_FOR), ScopeView::Probing);
    }
}
