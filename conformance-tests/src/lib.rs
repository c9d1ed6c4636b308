//! conformance-tests
pub mod history;
