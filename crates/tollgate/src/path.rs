//! The path of a call, stage by stage. Of its stages only `permit` is built.
//!
//! ```text
//! caller ─► route ─► cache ─► flight ─► retry( credential ─► connect ─► permit ─► send ─► learn )
//! ```
//!
//! Promises: a call is not an attempt. Every attempt, retries and redirects included, passes
//! `permit` again.
//!
//! Never: a hidden attempt below this path.

pub mod permit;
