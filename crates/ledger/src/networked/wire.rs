//! Keys and versions as text and bytes, the same for every networked store.
//!
//! Promises: what is written is read back as it was; two versions are equal exactly if their bytes
//! are.
//!
//! Never: reads a row's bytes.

use tollgate_core::ask::{CellId, OwnerId, ScopeId};
use tollgate_core::replica::{RowKey, StoredRow};
use tollgate_core::row::RowVersion;

/// The bytes of a version.
pub(crate) const VERSION_BYTES: usize = 20;

/// A row's key as text: a letter and numbers in hexadecimal digits.
pub(crate) fn key_text(key: RowKey) -> String {
    match key {
        RowKey::Provider => "p".to_owned(),
        RowKey::Owner(owner, process) => format!("o{:x}.{process:x}", owner.0),
        RowKey::Cell(cell) => format!("c{:x}", cell.0),
        RowKey::Scope(scope) => format!("s{:x}", scope.0),
    }
}

/// The key that was written so; `None` if this program writes no such text.
pub(crate) fn read_key(text: &str) -> Option<RowKey> {
    let mut chars = text.chars();
    let (kind, rest) = (chars.next()?, chars.as_str());
    let number = |text: &str| u128::from_str_radix(text, 16).ok();
    match kind {
        'p' if rest.is_empty() => Some(RowKey::Provider),
        'o' => {
            let (owner, process) = rest.split_once('.')?;
            let owner = u32::from_str_radix(owner, 16).ok()?;
            let process = u64::from_str_radix(process, 16).ok()?;
            Some(RowKey::Owner(OwnerId(owner), process))
        }
        'c' => number(rest).map(|number| RowKey::Cell(CellId(number))),
        's' => number(rest).map(|number| RowKey::Scope(ScopeId(number))),
        _ => None,
    }
}

/// A version at full width.
pub(crate) fn version_bytes(version: RowVersion) -> [u8; VERSION_BYTES] {
    let mut bytes = [0; VERSION_BYTES];
    let (owner, rest) = bytes.split_at_mut(4);
    let (nonce, batch) = rest.split_at_mut(8);
    owner.copy_from_slice(&version.owner.0.to_be_bytes());
    nonce.copy_from_slice(&version.nonce.to_be_bytes());
    batch.copy_from_slice(&version.batch.to_be_bytes());
    bytes
}

/// The version with these bytes, and what follows it.
pub(crate) fn read_version(bytes: &[u8]) -> Option<(RowVersion, &[u8])> {
    let (owner, rest) = bytes.split_first_chunk()?;
    let (nonce, rest) = rest.split_first_chunk()?;
    let (batch, rest) = rest.split_first_chunk()?;
    let version = RowVersion {
        owner: OwnerId(u32::from_be_bytes(*owner)),
        nonce: u64::from_be_bytes(*nonce),
        batch: u64::from_be_bytes(*batch),
    };
    Some((version, rest))
}

/// A row as one value: its version, then its bytes.
pub(crate) fn row_bytes(row: &StoredRow) -> Vec<u8> {
    let mut bytes = version_bytes(row.version).to_vec();
    bytes.extend(&row.bytes);
    bytes
}

/// The row of such a value. What is too short to have a version is a row whose version nobody has
/// written and that nobody can read: what it counted is used up.
pub(crate) fn read_row(bytes: &[u8]) -> StoredRow {
    let (version, bytes) = read_version(bytes).unwrap_or((RowVersion::default(), bytes));
    StoredRow {
        version,
        bytes: bytes.to_vec(),
        keep_for: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_versions_are_read_back_as_they_were_written() {
        for key in [
            RowKey::Provider,
            RowKey::Owner(OwnerId(u32::MAX), u64::MAX),
            RowKey::Owner(OwnerId(1), 0),
            RowKey::Cell(CellId(u128::MAX)),
            RowKey::Scope(ScopeId(0)),
        ] {
            assert_eq!(read_key(&key_text(key)), Some(key));
        }
        for text in ["", "p1", "o1", "cx", "x1", "é"] {
            assert_eq!(read_key(text), None, "{text}");
        }
        let row = StoredRow {
            version: RowVersion {
                owner: OwnerId(u32::MAX),
                nonce: u64::MAX,
                batch: u64::MAX - 1,
            },
            bytes: b"a row".to_vec(),
            keep_for: None,
        };
        assert_eq!(read_row(&row_bytes(&row)), row);
    }

    /// A Lua number cannot tell these apart.
    #[test]
    fn versions_that_differ_in_the_last_of_64_bits_differ() {
        let version = |nonce| RowVersion {
            owner: OwnerId(1),
            nonce,
            batch: 1,
        };
        let (one, two) = (version(u64::MAX), version(u64::MAX - 1));
        assert_ne!(version_bytes(one), version_bytes(two));
    }
}
