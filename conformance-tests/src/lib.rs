//! conformance-tests
