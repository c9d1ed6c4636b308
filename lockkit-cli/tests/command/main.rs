//! The real `lockkit`, as a process, against SQLite in a folder of the test's own.

mod counter;
mod death;
mod elect;
mod exits;
mod looking;
mod moving;
mod nested;
mod once;
mod signals;
mod stage;
mod state;
mod terminal;
mod tickets;
mod waiting;
