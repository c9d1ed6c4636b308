//! Chores of the workspace, started as `cargo xtask CHORE`.

fn main() {}
