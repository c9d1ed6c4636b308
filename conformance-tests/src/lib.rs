//! The conformance suite of lockkit: what every lock driver must show, as plain functions that
//! anybody can call.
//!
//! A driver's author writes a [`Harness`] of some twenty lines and hands it to [`suite!`], which
//! makes one test of every case. The binary of this name runs the same cases against a server.
//! The suite knows lockkit-core alone, and is handed a driver.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod broken;
pub mod cases;
pub mod compare;
pub mod context;
pub mod faulty;
mod harness;
pub mod listing;
pub mod model;
mod need;
pub mod promises;
pub mod run;
pub mod semantics;
mod table;
pub mod worker;
pub mod wrap;

pub use harness::{Harness, Time, Worker};
pub use need::Need;
pub use run::{Outcome, Report};
pub use table::{CASES, Case, CaseKind};
