//! A key that is set aside: which one, why and for how long.
//!
//! Promises: a key is known by its number in the pool.
//!
//! Never: holds a key, or anything that a provider has written.

use std::fmt;
use std::sync::Arc;

use tollgate_core::time::Span;

/// Why a key is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRejection {
    /// The provider does not accept the key; the status of its response.
    Unauthorized(u16),
    /// Its quota or its credit is used up; the status of the response that said so.
    Spent(u16),
    /// Its login was rejected.
    Login,
}

impl fmt::Display for KeyRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyRejection::Unauthorized(status) => write!(f, "rejected by the provider ({status})"),
            KeyRejection::Spent(status) => write!(f, "out of quota or credit ({status})"),
            KeyRejection::Login => f.write_str("its login was rejected"),
        }
    }
}

/// A key that is set aside while others serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySuspension {
    /// Whose.
    pub provider: Arc<str>,
    /// The number of the key in the pool, from 1.
    pub key: usize,
    /// Why.
    pub why: KeyRejection,
    /// For how long.
    pub lasts: Span,
}
