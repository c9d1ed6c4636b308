//! Programs in Python that the recipes of `examples/recipes` use: packages of PyPI, each with its hashes,
//! in a folder beside what cargo builds, where their tests find them. Nothing needs them: without them
//! some tests are skipped.

use std::fs;
use std::process::Command;

use crate::places;
use crate::places::PYTHON;

/// A part of the names of the tests that need them.
pub(crate) const TESTS: &str = "with_pypi";

/// Installs them, as far as they are missing or others; an error says why they cannot be had.
pub(crate) fn ensure() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let requirements = places::root().join("examples/recipes/requirements.txt");
    let wanted = fs::read_to_string(&requirements).map_err(told)?;
    let folder = places::target().join("recipes");
    let installed = folder.join("installed.txt");
    if fs::read_to_string(&installed).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    eprintln!("fetching what the recipes need from PyPI");
    // pip adds to a folder, and removes nothing.
    let _ = fs::remove_dir_all(&folder);
    let mut pip = Command::new(PYTHON);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]);
    pip.args(["--only-binary=:all:", "--require-hashes", "--target"]).arg(&folder);
    pip.arg("--requirement").arg(requirements).env("PIP_ROOT_USER_ACTION", "ignore");
    let output = pip.output().map_err(|error| format!("{pip:?}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().find(|line| line.starts_with("ERROR"));
        return Err(why.map_or_else(|| format!("pip: {}", output.status), str::to_owned));
    }
    // Last: with it the folder is complete.
    fs::write(installed, wanted).map_err(told)
}
