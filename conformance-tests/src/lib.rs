//! conformance-tests
pub mod history;
pub mod storm;
