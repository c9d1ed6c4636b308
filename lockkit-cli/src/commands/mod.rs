//! The commands beside `run`.

pub(crate) mod admin;
pub(crate) mod check;
#[cfg(feature = "compare")]
pub(crate) mod compare;
#[cfg(feature = "lab")]
pub(crate) mod compare_lab;
pub(crate) mod doctor;
pub(crate) mod latch;
pub(crate) mod ls;
pub(crate) mod manual;
pub(crate) mod register;
pub(crate) mod schema;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod show;
#[cfg(feature = "lab")]
pub(crate) mod storm;
pub(crate) mod ticket;
