//! Lock drivers made of lock drivers: a [`quorum`] of independent backends, and a [`mirror`] of two,
//! for a fleet that moves from one to the other.
//!
//! They do no I/O of their own and know no backend: each is built from any drivers, and uses of
//! `lockkit-core` only what is public. Programs usually reach them through the crate `lockkit`, by
//! the URLs `quorum:URL,URL,URL` and `mirror:OLD,NEW`.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod mirror;
mod named;
pub mod quorum;
mod together;

pub use mirror::MirrorDriver;
pub use quorum::{QuorumDriver, QuorumMember, QuorumOptions};
