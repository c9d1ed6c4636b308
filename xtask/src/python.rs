//! `cargo xtask python [ARGUMENTS]`: the client in `clients/python`: its types are checked, its tests
//! run against the command that is built here, and its wheel is built. May not know the tests.
//!
//! `cargo xtask python --pythons [VERSION…]` runs the tests on each version of Python that there is,
//! with gevent, and names those that there are not.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::places::PYTHON;
use crate::{install, places};

/// From PyPI: pyright, which brings its own Node, and what finds or fetches interpreters.
const TOOLS: [&str; 2] = ["basedpyright==1.40.2", "uv==0.13.9"];

/// What the client supports. With a `t`: the build without a global lock.
const VERSIONS: [&str; 7] = ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.14t"];

/// The chore. Arguments go to pytest; with any, nothing else is run.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    install::ensure()?;
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "--package", "lockkit-cli"]);
    in_turn([build], &places::root())?;
    match arguments.split_first() {
        Some((first, versions)) if first == "--pythons" => on_each(versions),
        _ => check(arguments),
    }
}

/// The same with the command that is there, as the tests of everything have built it.
pub(crate) fn check(arguments: &[String]) -> Result<ExitCode, String> {
    let mut tests = tests();
    tests.args(arguments);
    let mut steps = vec![];
    if arguments.is_empty() {
        let mut types = Command::new(PYTHON);
        types.args(["-m", "mypy", "--python-version", "3.9", "--cache-dir", "/dev/null"]);
        steps.push(types);
        match tools() {
            Ok(tools) => {
                tests.env("PYTHONPATH", &tools);
                let mut types = Command::new(PYTHON);
                types.args(["-m", "basedpyright"]).env("PYTHONPATH", tools);
                steps.push(types);
            }
            Err(error) => eprintln!("warning: types are checked by mypy only: {error}"),
        }
        steps.push(Command::new("./build.sh"));
    }
    steps.insert(0, tests);
    in_turn(steps, &client())?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the tests on these versions; on all without any.
fn on_each(versions: &[String]) -> Result<ExitCode, String> {
    let uv = tools()?.join("bin/uv");
    let versions: Vec<&str> = match versions {
        [] => VERSIONS.to_vec(),
        versions => versions.iter().map(String::as_str).collect(),
    };
    let path = path();
    let mut missing = Vec::new();
    for version in versions {
        let mut look = Command::new(&uv);
        look.args(["run", "--quiet", "--no-project", "--python", version, "true"]);
        look.env("PATH", &path).stderr(Stdio::null());
        if !look.status().is_ok_and(|status| status.success()) {
            missing.push(version);
            continue;
        }
        eprintln!("Python {version}");
        let mut uv = Command::new(&uv);
        uv.args(["run", "--quiet", "--isolated", "--no-project", "--python", version]);
        for package in ["pytest", "mypy", "gevent", TOOLS[0]] {
            uv.args(["--with", package]);
        }
        let mut tests = tested(&mut uv);
        tests.env("PATH", &path);
        in_turn([tests], &client())?;
    }
    if !missing.is_empty() {
        eprintln!("not to be had here, so not tested: Python {}", missing.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

/// The tests, with Debian's Python; in the client's folder.
pub(crate) fn tests() -> Command {
    tested(Command::new(PYTHON).arg("-m"))
}

/// The tests, by what runs a module of Python.
fn tested(python: &mut Command) -> Command {
    let mut tests = Command::new(python.get_program());
    tests.args(python.get_args()).args(["pytest", "-q", "-p", "no:cacheprovider"]);
    tests.env("LOCKKIT_BIN", places::target().join("debug/lockkit"));
    tests.env("PYTHONDONTWRITEBYTECODE", "1");
    tests
}

/// The folder with the tools, which are fetched when they are missing or others.
fn tools() -> Result<PathBuf, String> {
    let folder = places::target().join("tools/python");
    let there =
        TOOLS.iter().all(|tool| folder.join(tool.replace("==", "-") + ".dist-info").exists());
    if !there {
        let mut fetch = Command::new("python3");
        fetch.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        fetch.args(["--retries", "1", "--upgrade", "--target"]).arg(&folder).args(TOOLS);
        fetch.env("PIP_ROOT_USER_ACTION", "ignore");
        in_turn([fetch], &places::root())?;
    }
    Ok(folder)
}

/// Where programs are, and the interpreters of pyenv, whose own stand-ins want to be told which.
fn path() -> OsString {
    let home = std::env::home_dir().unwrap_or_default();
    let versions = std::fs::read_dir(home.join(".pyenv/versions"));
    let versions = versions.into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(versions.chain(std::env::split_paths(&path))).unwrap_or(path)
}

fn client() -> PathBuf {
    places::root().join("clients/python")
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
