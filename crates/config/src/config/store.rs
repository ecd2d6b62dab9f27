//! Stores: where permits and guards are counted and responses are cached.
//!
//! Promises: an address with a password is a secret; print [`Store::redacted`] instead.
//!
//! Never: opens anything.

use std::fmt;

use crate::secret::Secret;

/// A store.
#[derive(Clone, PartialEq)]
pub enum Store {
    /// A folder that holds `ledger.db`, `cache.db`, `ledger.lock` and `ledger.reserve`.
    Sqlite(String),
    /// In memory: lost when the process ends.
    Memory,
    /// A Postgres server.
    Postgres(Secret),
    /// A Redis server.
    Redis(Secret),
}

/// Why a text is not a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The kind of store exists, and is not supported yet.
    #[error(
        "is not supported yet; use `redis://HOST` (one server), `postgres://HOST/DATABASE`, `sqlite:DIR` or `memory:`"
    )]
    NotSupported,
    /// No store at all.
    #[error(
        "is not a store; write `sqlite:DIR`, `redis://HOST`, `postgres://HOST/DATABASE` or `memory:`"
    )]
    Unknown,
    /// `sqlite:` without a folder.
    #[error("names no folder; write `sqlite:/var/lib/tollgate`")]
    NoFolder,
    /// An address without a host.
    #[error("names no host; write `redis://host:6379` or `postgres://host/database`")]
    NoHost,
}

impl Store {
    /// Reads `sqlite:DIR`, `memory:` or the address of a server.
    pub fn parse(text: &str) -> Result<Store, StoreError> {
        let (scheme, rest) = text.split_once(':').ok_or(StoreError::Unknown)?;
        let host = rest.strip_prefix("//").filter(|host| !host.is_empty());
        let secret = || Secret::new(text.to_owned());
        match (scheme, host) {
            ("sqlite", _) if rest.is_empty() => Err(StoreError::NoFolder),
            ("sqlite", _) => Ok(Store::Sqlite(rest.to_owned())),
            ("memory", _) if rest.is_empty() => Ok(Store::Memory),
            ("postgres" | "postgresql", Some(_)) => Ok(Store::Postgres(secret())),
            ("redis" | "rediss", Some(_)) => Ok(Store::Redis(secret())),
            ("postgres" | "postgresql" | "redis" | "rediss", None) => Err(StoreError::NoHost),
            ("redis-cluster" | "redis-sentinel", _) => Err(StoreError::NotSupported),
            _ => Err(StoreError::Unknown),
        }
    }

    /// The address without user, password and parameters, safe to print.
    #[must_use]
    pub fn redacted(&self) -> String {
        match self {
            Store::Sqlite(folder) => format!("sqlite:{folder}"),
            Store::Memory => "memory:".to_owned(),
            Store::Postgres(url) | Store::Redis(url) => {
                let (scheme, rest) = url.expose().split_once("://").unwrap_or(("", ""));
                let host = rest.rsplit('@').next().unwrap_or_default();
                let host = host.split(['?', '#']).next().unwrap_or_default();
                format!("{scheme}://{host}")
            }
        }
    }

    /// Several hosts can share it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self, Store::Postgres(_) | Store::Redis(_))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_selects_the_store() {
        assert_eq!(
            Store::parse("sqlite:/var/lib/x"),
            Ok(Store::Sqlite("/var/lib/x".to_owned()))
        );
        assert_eq!(Store::parse("memory:"), Ok(Store::Memory));
        for text in [
            "postgres://h/db",
            "postgresql://h",
            "redis://h",
            "rediss://h",
        ] {
            assert!(Store::parse(text).unwrap().is_shared(), "{text}");
        }
        for (text, why) in [
            ("redis-cluster://h", StoreError::NotSupported),
            ("redis-sentinel://h", StoreError::NotSupported),
            ("sqlite:", StoreError::NoFolder),
            ("redis:", StoreError::NoHost),
            ("mysql://h", StoreError::Unknown),
            ("here", StoreError::Unknown),
        ] {
            assert_eq!(Store::parse(text), Err(why), "{text}");
        }
    }

    /// H3: a password in an address is not shown.
    #[test]
    fn h3_a_password_in_an_address_is_not_shown() {
        let store = Store::parse("redis://me:CANARY@h:6379/0?p=CANARY").unwrap();
        assert_eq!(store.redacted(), "redis://h:6379/0");
        let odd = Store::parse("postgres://me:CAN@ARY@h/db#CANARY").unwrap();
        assert!(!format!("{store:?} {odd:?}").contains("CAN"));
    }
}
