//! Named places on the path of a call at which a test stops the process, to end it exactly there.
//!
//! Promises: nothing at all unless the feature `failpoints` is on and a hook is set; the hook is the
//! ledger's, whose own places it hears of as well.
//!
//! Never: part of a release; the feature is on for the gateway's own tests only.

/// A call has come to this place.
#[cfg(feature = "failpoints")]
pub(crate) fn reached(place: &'static str) {
    tollgate_ledger::failpoint::reached(place);
}

/// A call has come to this place.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub(crate) fn reached(_: &'static str) {}
