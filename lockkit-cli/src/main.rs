//! The `lockkit` command.

fn main() {}
