//! Programs that use lockkit, in `src/bin`, each with tests that lose its lock; and the pages of the
//! documentation whose code is compiled and run.

#[cfg(doctest)]
#[doc = include_str!("../../docs/testing.md")]
pub struct Testing;
