//! Named places at which a test stops a ledger, or what is above it, to end its process exactly there.
//!
//! Promises: nothing at all unless the feature `failpoints` is on and a hook is set.
//!
//! Never: part of a release; the feature is on for tests only.

#[cfg(feature = "failpoints")]
use std::sync::OnceLock;

/// Called with a place's name each time it is reached.
#[cfg(feature = "failpoints")]
pub type Hook = Box<dyn Fn(&'static str) + Send + Sync>;

#[cfg(feature = "failpoints")]
static HOOK: OnceLock<Hook> = OnceLock::new();

/// Sets what happens at every place, once per process; a second hook is ignored.
#[cfg(feature = "failpoints")]
pub fn set(hook: Hook) {
    drop(HOOK.set(hook));
}

/// Somebody has come to this place.
#[cfg(feature = "failpoints")]
pub fn reached(place: &'static str) {
    if let Some(hook) = HOOK.get() {
        hook(place);
    }
}

/// The ledger has come to this place.
#[cfg(not(feature = "failpoints"))]
pub(crate) fn reached(_: &'static str) {}
