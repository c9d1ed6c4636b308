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
mod page;
mod places;
mod progress;
mod promises;
mod pty;
mod random;
mod script;
mod serve;
mod servers;
mod signals;
mod silence;
mod slots;
mod stage;
mod state;
mod stays;
mod stays_on_servers;
mod stroke;
mod terminal;
mod terraform;
mod tickets;
mod top;
mod traps;
mod waiting;
