//! `cargo xtask python [ARGUMENTS]`: the client in `clients/python`: its types are checked, its tests
//! run against the command that is built here, and its wheel is built. May not know the tests.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::{install, places};

/// Debian's, which has Debian's packages.
const PYTHON: &str = "/usr/bin/python3";

/// The chore. Arguments go to pytest; with any, nothing else is run.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    install::ensure()?;
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "--package", "lockkit-cli"]);
    in_turn([build], &places::root())?;
    check(arguments)
}

/// The same with the command that is there, as the tests of everything have built it.
pub(crate) fn check(arguments: &[String]) -> Result<ExitCode, String> {
    let mut tests = Command::new(PYTHON);
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).args(arguments);
    tests.env("LOCKKIT_BIN", places::target().join("debug/lockkit"));
    tests.env("PYTHONDONTWRITEBYTECODE", "1");
    let mut types = Command::new(PYTHON);
    types.args(["-m", "mypy", "--python-version", "3.9", "--cache-dir", "/dev/null"]);
    let mut steps = vec![tests];
    if arguments.is_empty() {
        steps.extend([types, Command::new("./build.sh")]);
    }
    in_turn(steps, &places::root().join("clients/python"))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs commands until one fails.
fn in_turn(steps: impl IntoIterator<Item = Command>, folder: &Path) -> Result<(), String> {
    for mut step in steps {
        let status = step.current_dir(folder).status();
        let status = status.map_err(|error| format!("{step:?}: {error}"))?;
        if !status.success() {
            return Err(format!("{step:?}: {status}"));
        }
    }
    Ok(())
}
