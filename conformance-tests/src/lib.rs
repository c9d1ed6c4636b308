//! conformance-tests

pub mod lab;
