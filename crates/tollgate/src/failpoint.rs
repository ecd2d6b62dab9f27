//! Named points on the path of a call at which a test stops the process, to kill it exactly there.
//!
//! Promises: does nothing unless the feature `failpoints` is on and a hook is set. The hook is the
//! ledger's, which also has failpoints of its own.
//!
//! Never: part of a release; the feature is on for the gateway's own tests only.

/// A call has reached this point.
#[cfg(feature = "failpoints")]
pub(crate) fn reached(place: &'static str) {
    tollgate_ledger::failpoint::reached(place);
}

/// A call has reached this point.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub(crate) fn reached(_: &'static str) {}
