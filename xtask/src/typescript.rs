//! `cargo xtask typescript [--build] [FILE…]`: the client in `clients/typescript`: its dev dependencies are
//! installed, its types are checked, and its tests run against the command that is built here, in Node
//! and in a browser if there is one, on Deno and Bun if they can be had; they pack it, too. Nothing
//! needs Node: without it, or without the packages, this is skipped. May not know the tests.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::{install, places, runtimes};

/// The oldest Node that the client supports.
const OLDEST: u32 = 20;
/// Which tests of Rust need it: the conformance suite drives the client.
pub(crate) const TESTS: &str = "in_typescript";
/// How long a registry of packages may take.
const FETCHING: Duration = Duration::from_secs(120);
const BUILDING: Duration = Duration::from_secs(300);
const COMPILING: Duration = Duration::from_secs(3_600);
const TESTING: Duration = Duration::from_secs(1_200);

/// The chore. With `--build` it is only built, for the cases of Rust that are run by themselves; other
/// words name files of tests.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    if let Err(why) = ensure() {
        eprintln!("skipped: {why}");
        return Ok(ExitCode::SUCCESS);
    }
    build()?;
    if arguments.iter().any(|word| word == "--build") {
        return Ok(ExitCode::SUCCESS);
    }
    install::ensure()?;
    for missing in runtimes::ensure() {
        eprintln!("tests are skipped: {}", missing.why);
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let cargo = cargo.args(["build", "--quiet", "--package", "lockkit-cli"]);
    finish(cargo.current_dir(places::root()), COMPILING)?;
    test(arguments)
}

/// Installs the dev dependencies, as far as they are missing or others; an error says why it cannot
/// be done here.
pub(crate) fn ensure() -> Result<(), String> {
    let version = said(Command::new("node").arg("--version"))?;
    let major = version.trim_start_matches('v').split('.').next().and_then(|it| it.parse().ok());
    if major.is_none_or(|major: u32| major < OLDEST) {
        return Err(format!("node {version} is too old: {OLDEST} is needed"));
    }
    let told = |error: std::io::Error| error.to_string();
    let wanted = fs::read_to_string(client().join("package-lock.json")).map_err(told)?;
    let installed = client().join("node_modules/.lockkit-installed");
    if fs::read_to_string(&installed).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    eprintln!("installing the dev dependencies of the client in TypeScript");
    let mut npm = Command::new("npm");
    npm.args(["ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]);
    npm.args(["--fetch-retries=1", "--fetch-timeout=30000"]);
    finish(npm.stdout(Stdio::null()), FETCHING)
        .map_err(|why| format!("its dev dependencies cannot be had: {why}"))?;
    // Last: with it the folder is complete.
    fs::write(installed, wanted).map_err(told)
}

/// Checks the types, and builds what the tests run.
pub(crate) fn build() -> Result<(), String> {
    finish(&mut checks(), BUILDING)
}

/// The same as a command in the client's folder.
pub(crate) fn checks() -> Command {
    let mut checks = Command::new("npm");
    checks.args(["run", "--silent", "check"]);
    checks
}

/// Runs the tests of these files, or all, with the command that is there.
pub(crate) fn test(files: &[String]) -> Result<ExitCode, String> {
    finish(&mut tests(files), TESTING)?;
    Ok(ExitCode::SUCCESS)
}

/// The same as a command in the client's folder.
pub(crate) fn tests(files: &[String]) -> Command {
    let mut tests = Command::new("node");
    tests.args(["--expose-gc", "--test", "--test-reporter=spec"]);
    match files {
        [] => tests.arg("build/tests/"),
        files => tests.args(files.iter().map(|file| format!("build/tests/{file}.test.js"))),
    };
    tests.env("LOCKKIT_BIN", places::target().join("debug/lockkit"));
    tests.env("LOCKKIT_RUNTIMES", runtimes::packages());
    tests
}

/// What a command prints.
fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs a command in the client's folder, unless it says another; ends it after so long.
pub(crate) fn finish(command: &mut Command, limit: Duration) -> Result<(), String> {
    if command.get_current_dir().is_none() {
        command.current_dir(client());
    }
    let broken = |command: &Command, error: std::io::Error| format!("{command:?}: {error}");
    let mut child = command.spawn().map_err(|error| broken(command, error))?;
    let end = Instant::now() + limit;
    loop {
        match child.try_wait().map_err(|error| broken(command, error))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("{command:?}: {status}")),
            None if Instant::now() >= end => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{command:?}: not done after {} s", limit.as_secs()));
            }
            None => thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn client() -> PathBuf {
    places::root().join("clients/typescript")
}
