//! The key of a limited caller: a 128-bit seeded fingerprint in place of the name.
//!
//! Promises: the table never holds a name, so a snapshot, a dump or a log of it names nobody. Two
//! names share a fingerprint with a chance of about 2^-128; without the seed nobody can target
//! another caller's bucket, and the hash of one class says nothing about another class.
//!
//! Never: draws the seed itself; it is an argument.

use std::fmt;
use std::hash::Hasher;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

/// The secret of a table's fingerprints. Two tables with the same seed agree on every key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub [u64; 2]);

/// The fingerprint of one name in one class.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GuardKey {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

/// Makes the keys of one class of callers (`ip`, `user`, …).
#[derive(Clone)]
pub struct Keys {
    halves: [HashHalf; 2],
}

/// One half of the fingerprint: a hash with its own secrets.
#[derive(Clone)]
struct HashHalf {
    start: u64,
    secrets: SharedSeed,
}

impl Keys {
    pub(crate) fn new(seed: Seed, class: &str) -> Keys {
        Keys {
            halves: seed.0.map(|half| HashHalf::new(half, class)),
        }
    }

    /// The key of a caller with this name, as bytes.
    #[must_use]
    #[inline]
    pub fn key(&self, name: &[u8]) -> GuardKey {
        let [low, high] = &self.halves;
        GuardKey {
            low: low.hash(name),
            high: high.hash(name),
        }
    }

    /// The key of a caller with a numeric name: an account, an IPv4 address, an IPv6 network.
    #[must_use]
    #[inline]
    pub fn number(&self, name: u64) -> GuardKey {
        self.key(&name.to_le_bytes())
    }
}

impl HashHalf {
    fn new(half: u64, class: &str) -> HashHalf {
        let secrets = SharedSeed::from_u64(half);
        let mut start = FoldHasher::with_seed(half.rotate_left(32), &secrets);
        start.write(class.as_bytes());
        HashHalf {
            start: start.finish(),
            secrets,
        }
    }

    #[inline]
    fn hash(&self, name: &[u8]) -> u64 {
        let mut hash = FoldHasher::with_seed(self.start, &self.secrets);
        hash.write(name);
        hash.finish()
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(secret)")
    }
}

impl fmt::Debug for GuardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(fingerprint)")
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(secret)")
    }
}
