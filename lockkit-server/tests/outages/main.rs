//! Servers in processes of their own that are killed, frozen and cut off.

mod faults;
mod storm;
