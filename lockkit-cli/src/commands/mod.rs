//! The verbs beside `run`, one file each.

pub(crate) mod break_lock;
pub(crate) mod check;
#[cfg(feature = "compare")]
pub(crate) mod compare;
#[cfg(feature = "lab")]
mod compare_lab;
pub(crate) mod doctor;
pub(crate) mod latch;
pub(crate) mod ls;
pub(crate) mod manual;
pub(crate) mod register;
pub(crate) mod resize;
pub(crate) mod schema;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod show;
#[cfg(feature = "lab")]
pub(crate) mod storm;
pub(crate) mod take_over;
pub(crate) mod ticket;
pub(crate) mod watch;
