//! A response on its way to a caller, and where it came from.
//!
//! Promises: says of every response whether the provider sent it for this call, for another one, or
//! earlier.
//!
//! Never: decides anything.

use http::response::Parts;

use crate::body::ReplyBody;

/// A response.
#[derive(Debug)]
pub struct Reply {
    /// Status and headers, as received.
    pub head: Parts,
    /// The body, as it arrives.
    pub body: ReplyBody,
    /// Where the response came from.
    pub source: Source,
    /// A limit is nearly used up, so Tollgate serves this entity from the cache only.
    pub degraded: bool,
}

/// Where a response came from. `as_str` gives the values of `X-Tollgate-Source`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// The provider, for this call.
    #[default]
    Upstream,
    /// A cached response.
    Cache,
    /// A cached response past its lifetime.
    Stale,
    /// The provider, for an identical call at the same time.
    Shared,
    /// The provider, as a part of a larger response.
    Merged,
}

impl Source {
    /// The value of `X-Tollgate-Source`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Upstream => "upstream",
            Source::Cache => "cache",
            Source::Stale => "stale",
            Source::Shared => "shared",
            Source::Merged => "merged",
        }
    }
}
