//! `cargo xtask install`: installs what the tests need from Debian's packages, and what wheels have of it
//! where they can be had. May not start or configure any server.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, ExitCode};

use crate::requirements::Requirement;
use crate::{azurite, recipes, runtimes, wheels};

/// The chore.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    if let Some(unknown) = arguments.first() {
        return Err(format!("`{unknown}`: it takes no arguments"));
    }
    ensure()?;
    for missing in wheels::ensure().into_iter().chain(runtimes::ensure()) {
        eprintln!("tests are skipped: {}", missing.why);
    }
    if let Err(why) = recipes::ensure() {
        eprintln!("tests are skipped: there are no packages for the recipes: {why}");
    }
    if let Err(why) = azurite::ensure() {
        eprintln!("tests are skipped: there is no Azurite: {why}");
    }
    eprintln!("everything that the tests need is installed");
    Ok(ExitCode::SUCCESS)
}

/// Installs what is missing; does nothing, at once, where nothing is.
pub(crate) fn ensure() -> Result<(), String> {
    let missing = Requirement::missing();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: BTreeSet<_> = missing.iter().map(|requirement| requirement.package).collect();
    let packages: Vec<_> = packages.into_iter().collect();
    eprintln!("missing: {}", names(&missing));
    eprintln!("installing {}", packages.join(" "));
    let mut install = as_root(&packages)?;
    install.args(["sh", "-c", include_str!("install.sh"), "install"]).args(&packages);
    let status = install.status().map_err(|error| format!("{install:?}: {error}"))?;
    let missing = Requirement::missing();
    match (status.success(), missing.is_empty()) {
        (_, true) => Ok(()),
        (true, false) => Err(format!("{} is still missing", names(&missing))),
        (false, false) => Err(format!("the packages cannot be installed ({status})")),
    }
}

fn names(missing: &[&Requirement]) -> String {
    missing.iter().map(|requirement| requirement.name()).collect::<Vec<_>>().join(", ")
}

/// A command that runs the words that follow as root.
fn as_root(packages: &[&str]) -> Result<Command, String> {
    if !has("apt-get") {
        return Err(format!(
            "this is no Debian: please install what Debian calls {}",
            packages.join(" ")
        ));
    }
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    match (is_root, has("sudo")) {
        (true, _) => Ok(Command::new("env")),
        (false, true) => Ok(Command::new("sudo")),
        (false, false) => Err(format!(
            "there is no sudo: please run as root: apt-get install {}",
            packages.join(" ")
        )),
    }
}

fn has(program: &str) -> bool {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|folder| folder.join(program).is_file())
}
