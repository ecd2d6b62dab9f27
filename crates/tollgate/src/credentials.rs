//! Credentials: keys, accounts and their tokens, and how each is written into a request.
//!
//! Promises: outside of a request a credential is known by its fingerprint only. Tokens and keys
//! live in memory and are wiped when dropped.
//!
//! Never: sends anything, or chooses; the stage `credential` of the path does.

mod account; // the credentials that tokens are fetched for
mod attach; // writes keys into requests
mod secret_scan; // finds secrets where they must not appear
mod unsendable; // settings whose values cannot be sent
mod tokens; // the current token, and the calls that wait for the next
pub(crate) use account::{Account, LoginMethod, TokenRequest};
pub(crate) use attach::{AttachError, attach_all, auth_headers, secret_value};
pub(crate) use secret_scan::SecretScan;
pub(crate) use tokens::{
    HeldToken, LoginError, LoginMemory, NewToken, TokenSlot, TokenStatus, Tokens,
};
pub(crate) use unsendable::{
    Unsendable, UnsendableIn, attach_setting, key_setting, login_error, unsendable_settings,
};

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use tollgate_config::provider::AuthStyle;
use tollgate_core::time::Micros;
use tollgate_ledger::lock_order::{RankedMutex, rank};

use crate::event::KeyRejection;
use crate::query;

/// The credential of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Credential {
    /// Where the key comes from.
    pub(crate) source: CredentialSource,
    /// Identifies the key in limit cells; `None` if there is no key.
    pub(crate) fingerprint: Option<Arc<str>>,
}

impl Credential {
    /// Identifies the key in limit cells.
    pub(crate) fn fingerprint(&self) -> Option<&str> {
        self.fingerprint.as_deref()
    }
}

/// Where the key of a call comes from.
#[derive(Clone, Debug)]
pub(crate) enum CredentialSource {
    /// The client's own credential, or none.
    Client,
    /// The key with this index in the pool.
    Key(usize),
    /// A token of a login.
    Token(HeldToken),
}

/// Rejected keys by fingerprint, and until when each is suspended and why.
#[derive(Debug, Default)]
pub(crate) struct SuspendedKeys {
    until: RankedMutex<{ rank::SUSPENDED_KEYS }, HashMap<String, (Micros, KeyRejection)>>,
}

impl SuspendedKeys {
    /// Suspends a key. Bounded by the pool: keys that no file names any more are removed.
    pub(crate) fn suspend(
        &self,
        fingerprint: &str,
        (until, why): (Micros, KeyRejection),
        is_known: impl Fn(&str) -> bool,
    ) {
        let mut suspended = self.until.lock();
        suspended.retain(|known, _| is_known(known));
        suspended.insert(fingerprint.to_owned(), (until, why));
    }

    /// Until when a key is suspended, and why; this may be over.
    pub(crate) fn until(&self, fingerprint: &str) -> Option<(Micros, KeyRejection)> {
        self.until.lock().get(fingerprint).copied()
    }
}

/// A credential's name in cells: a fingerprint, so that neither a store nor a log holds a key.
pub(crate) fn fingerprint(credential: &str) -> String {
    let hash = blake3::derive_key("tollgate 2026 credential mark", credential.as_bytes());
    hash.iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The credential that the client sent itself, where this provider expects one.
pub(crate) fn find_client_credential(
    style: &AuthStyle,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Option<String> {
    let header = |name: &str| {
        let value = headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    match style {
        AuthStyle::Query { name } => query::find(query?, name),
        AuthStyle::Header { name, .. } => header(name),
        AuthStyle::Bearer
        | AuthStyle::Basic
        | AuthStyle::None
        | AuthStyle::OAuth2(_)
        | AuthStyle::Login(_) => header(AUTHORIZATION.as_str()),
    }
}
