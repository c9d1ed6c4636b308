//! The real `lockkit`, as a process, against SQLite in a folder of the test's own.

mod counter;
mod death;
mod exits;
mod looking;
mod nested;
mod signals;
mod stage;
mod terminal;
mod tickets;
mod waiting;
