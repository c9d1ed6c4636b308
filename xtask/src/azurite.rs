//! Azurite, the emulator of Azure Blob Storage: a package of npm with its dependencies, each with its hash in
//! the lock file of `xtask/azurite`, beside what cargo builds, where the lab finds it. Nothing needs it: without
//! it some tests are skipped.

use std::fs;
use std::process::{Command, Stdio};

use crate::places;

/// A part of the names of the tests that need it.
pub(crate) const TESTS: &str = "on_azurite";

/// Installs it, as far as it is missing or another; an error says why it cannot be had.
pub(crate) fn ensure() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let (from, folder) = (places::root().join("xtask/azurite"), places::target().join("azurite"));
    let wanted = fs::read_to_string(from.join("package-lock.json")).map_err(told)?;
    let installed = folder.join("installed.json");
    if fs::read_to_string(&installed).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    eprintln!("fetching Azurite");
    fs::create_dir_all(&folder).map_err(told)?;
    for file in ["package.json", "package-lock.json"] {
        fs::copy(from.join(file), folder.join(file)).map_err(told)?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]);
    npm.args(["--fetch-retries=1", "--fetch-timeout=30000"]).stdout(Stdio::null());
    let status = npm.current_dir(&folder).status().map_err(|error| format!("npm: {error}"))?;
    if !status.success() {
        return Err(format!("npm ci: {status}"));
    }
    // Last: with it the folder is complete.
    fs::write(installed, wanted).map_err(told)
}
