//! The real `lockkit`, as a process, against SQLite in a folder of the test's own.

#[cfg(feature = "lab")]
mod compare;
mod counter;
mod death;
mod doctor;
mod elect;
mod exits;
mod guides;
mod habits;
mod inspection;
mod moving;
mod nested;
mod once;
mod packages;
mod page;
mod places;
mod promises;
mod pty;
mod random;
mod recipes;
mod script;
mod serve;
mod servers;
mod signals;
mod silence;
mod stage;
mod state;
mod stroke;
mod terminal;
mod terraform;
mod tickets;
mod top;
mod traps;
mod waiting;
