//! Drivers made of drivers. They do no I/O of their own and know no backend.

mod late;
pub mod mirror;
pub mod quorum;

pub use mirror::MirrorDriver;
pub use quorum::{QuorumDriver, QuorumMember, QuorumOptions};
