//! Chores that are one command of cargo with the right words.

use std::process::{Command, ExitCode};

use crate::places;

/// `cargo xtask storm [ARGUMENTS]`: `lockkit storm`, built with optimizations.
pub(crate) fn storm(arguments: &[String]) -> Result<ExitCode, String> {
    let program =
        ["run", "--quiet", "--release", "--package", "lockkit-cli", "--features", "lab,etcd"];
    cargo(program.iter().chain(&["--", "storm"]).copied(), arguments)
}

/// `cargo xtask bench-check [ARGUMENTS]`: every part of the measurements builds and runs. Their lock
/// file keeps the oldest SQLite that the client crates allow, so the driver is shown to run on it. What
/// the tests have built is used again.
pub(crate) fn bench_check(arguments: &[String]) -> Result<ExitCode, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let folder = places::root().join("bench");
    command.current_dir(folder).env("BENCH_BRIEF", "1").env("CYCLES", "1000");
    command.env("CARGO_TARGET_DIR", places::target());
    command.args(["bench", "--locked", "--profile", "dev"]);
    // Criterion runs each of its measurements once.
    finish(command.args(arguments).args(["--", "--test"]))
}

fn cargo<'a>(
    words: impl IntoIterator<Item = &'a str>,
    arguments: &[String],
) -> Result<ExitCode, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    finish(command.args(words).args(arguments))
}

fn finish(command: &mut Command) -> Result<ExitCode, String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(101)))
}
