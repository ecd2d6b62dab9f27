//! The rules of this repository that a machine can check, as tests.
//!
//! Promises: each rule is a pure function from sources to offences, run once on the tree and once
//! on planted text, so that we know that it can fail. An offence names the file, the line, the
//! thing and what to do about it.
//!
//! Never: touches the tree, reads anything outside of it, needs the network.
//!
//! Words that a rule forbids are written in pieces (`concat!`) in here, or the rule would find
//! itself.

mod tree;
mod tokens;
mod size;
mod names;
mod manifests;
mod unfinished;
mod text;
mod links;
mod requirements;
