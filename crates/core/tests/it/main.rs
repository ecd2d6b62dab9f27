//! The integration tests of the core, in one binary.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot read its data should fail loudly"
)]

mod vector;
mod feedback_vectors;
mod fresh_oracle;
mod fresh_properties;
mod feedback_page;
mod feedback_properties;
mod documents;
