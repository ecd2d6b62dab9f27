//! What guards look at in a request.
//!
//! Promises: plain data, for every endpoint alike.
//!
//! Never: decides.

use std::net::IpAddr;

use http::HeaderMap;

/// A request that guards look at.
#[derive(Clone, Copy, Debug)]
pub struct GuardedRequest<'a> {
    /// The guards of its service, in order; `None` = every configured one.
    pub guards: Option<&'a [String]>,
    /// The path that the service sees, without its query.
    pub path: &'a str,
    /// The path is surely the one that the service gets. Otherwise no path is exempt, and guards of
    /// any path apply.
    pub is_exact: bool,
    /// The address of the caller.
    pub ip: IpAddr,
    /// Its headers.
    pub headers: &'a HeaderMap,
}

impl GuardedRequest<'_> {
    /// The service can read no other path in it: nothing is escaped, merged or relative.
    pub(super) fn has_plain_path(&self) -> bool {
        let path = self.path;
        let is_odd = path.contains(['%', '\\']) || path.contains("/.") || path.contains("//");
        self.is_exact && !is_odd
    }
}
