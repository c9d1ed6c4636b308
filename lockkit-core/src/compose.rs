//! Drivers made of drivers. They do no I/O of their own and know no backend.

mod late;
pub mod quorum;

pub use quorum::{QuorumDriver, QuorumMember, QuorumOptions};
