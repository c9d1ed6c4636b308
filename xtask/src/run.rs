//! Chores that are one command of cargo with the right words.

use std::process::{Command, ExitCode};

/// `cargo xtask storm [ARGUMENTS]`: what `lockkit-storm` does, built with optimizations.
pub(crate) fn storm(arguments: &[String]) -> Result<ExitCode, String> {
    let program = ["run", "--quiet", "--release", "--package", "lockkit-conformance"];
    cargo(program.iter().chain(&["--bin", "lockkit-storm", "--"]).copied(), arguments)
}

/// `cargo xtask package`: what would be published can be packed, and builds from the package.
pub(crate) fn package(arguments: &[String]) -> Result<ExitCode, String> {
    cargo(["publish", "--workspace", "--dry-run", "--allow-dirty", "--quiet"], arguments)
}

fn cargo<'a>(
    words: impl IntoIterator<Item = &'a str>,
    arguments: &[String],
) -> Result<ExitCode, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(words).args(arguments);
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(101)))
}
