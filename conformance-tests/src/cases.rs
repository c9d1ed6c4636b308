//! The cases, one file a group. Each is a plain function that panics when what it proves does not
//! hold; [`CASES`](crate::CASES) lists them. They use the manager where the promise is one to
//! users, and the driver where it is one of drivers.

#![allow(missing_docs, reason = "a case's name is the sentence that it proves")]

pub mod barrier;
pub mod batch;
pub mod cancel;
mod contention;
pub mod election;
pub mod exclusion;
pub mod inspect;
pub mod latch;
pub mod lease;
pub mod loss;
pub mod model;
pub mod modes;
pub mod multi;
pub mod names;
pub mod once;
pub mod order;
pub mod queue;
pub mod reentrancy;
pub mod register;
pub mod release;
pub mod resize;
pub mod robust;
pub mod slots;
pub mod stay;
mod stored;
pub mod time;
pub mod token;
