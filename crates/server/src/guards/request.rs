//! What guards look at in a request.
//!
//! Promises: plain data, for every door alike.
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
    /// The address of the caller.
    pub ip: IpAddr,
    /// Its headers.
    pub headers: &'a HeaderMap,
}
