//! The machine-checkable rules of this repository, as tests.
//!
//! Promises: each rule is a pure function from sources to violations, run once on the tree and once
//! on a fixture, which proves that the rule can fail. A violation names the file, the line, the
//! problem and the remedy.
//!
//! Never: changes the tree, reads anything outside of it, needs the network.
//!
//! Words that a rule forbids are written in pieces (`concat!`) here, or the rule would match
//! itself.

mod tree;
mod tokens;
mod size;
mod small_library;
mod names;
mod modules;
mod repeated_types;
mod manifests;
mod unfinished;
mod text;
mod links;
mod requirements;
mod snippets;
