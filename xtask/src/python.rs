//! `cargo xtask python [ARGUMENTS]`: the client in `clients/python`: its types are checked, its tests
//! run against the command that is built here, and its wheel is built. May not know the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::install;

/// Debian's, which has Debian's packages.
const PYTHON: &str = "/usr/bin/python3";

/// The chore. Arguments go to pytest; with any, nothing else is run.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    install::ensure()?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("");
    let folder = root.join("clients/python");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // With the features of the whole workspace, as its tests have built it.
    build.args(["build", "--quiet", "--workspace", "--bin", "lockkit"]);
    let mut tests = Command::new(PYTHON);
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).args(arguments);
    tests.env("LOCKKIT_BIN", built(&root)).env("PYTHONDONTWRITEBYTECODE", "1");
    let mut types = Command::new(PYTHON);
    types.args(["-m", "mypy", "--python-version", "3.9", "--cache-dir", "/dev/null"]);
    let wheel = Command::new("./build.sh");
    let mut steps = vec![build, tests];
    if arguments.is_empty() {
        steps.extend([types, wheel]);
    }
    for mut step in steps {
        let status = step.current_dir(&folder).status();
        let status = status.map_err(|error| format!("{step:?}: {error}"))?;
        if !status.success() {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            return Ok(ExitCode::from(code.unwrap_or(101)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Where cargo puts the command.
fn built(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| root.join("target")).join("debug/lockkit")
}
