//! What the command needs of the system and POSIX does not have: by Linux's own means, and on other
//! Unixes by portable ones, which are weaker as `portable.rs` says. Nothing else here knows the system.

#[cfg(target_os = "linux")]
pub(crate) mod contain;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod portable;

#[cfg(target_os = "linux")]
pub(crate) use linux::{
    Alarm, Process, die_with_the_parent, ignored_signals, is_usable, parent_of, processes_of,
    show_as, this_program,
};
#[cfg(not(target_os = "linux"))]
pub(crate) use portable::{
    Alarm, Process, contain, die_with_the_parent, ignored_signals, is_usable, parent_of,
    processes_of, show_as, this_program,
};
