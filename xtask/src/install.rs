//! `cargo xtask install`: installs what the tests need from Debian's packages, and what wheels have of it
//! where they can be had. May not start or configure any server.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, ExitCode};

use crate::requirements::Requirement;
use crate::wheels::Missing;
use crate::{azurite, dynamodb, recipes, runtimes, wheels};

/// The chore.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    if let Some(unknown) = arguments.first() {
        return Err(format!("`{unknown}`: it takes no arguments"));
    }
    for missing in all()?.into_iter().chain(runtimes::ensure()) {
        eprintln!("tests are skipped: {}", missing.why);
    }
    if let Err(why) = recipes::ensure() {
        eprintln!("tests are skipped: there are no packages for the recipes: {why}");
    }
    eprintln!("everything that the tests need is installed");
    Ok(ExitCode::SUCCESS)
}

/// Installs what the tests of Rust need; says what of it cannot be had, so that its tests are skipped.
pub(crate) fn all() -> Result<Vec<Missing>, String> {
    ensure()?;
    let mut missing = wheels::ensure();
    missing.extend(dynamodb::ensure());
    missing.extend(azurite::ensure().err().map(|why| Missing { tests: azurite::TESTS, why }));
    missing.extend(old_nats().err().map(|why| Missing { tests: "on_debians_nats", why }));
    Ok(missing)
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
    let installed = install(&packages);
    let missing = Requirement::missing();
    match missing.is_empty() {
        true => Ok(()),
        false => installed.and(Err(format!("{} is still missing", names(&missing)))),
    }
}

/// The NATS of Debian 12, whose replicas let several clients win one swap: a store that must be refused.
/// An error says why there is none.
fn old_nats() -> Result<(), String> {
    const PACKAGE: &str = "nats-server";
    let version = || {
        let mut ask = Command::new("dpkg-query");
        let said = ask.args(["--show", "--showformat=${Version}", PACKAGE]).output().ok()?;
        said.status.success().then(|| String::from_utf8_lossy(&said.stdout).into_owned())
    };
    if version().is_none() {
        install(&[PACKAGE])?;
    }
    match version() {
        Some(version) if version.starts_with("2.9.") => Ok(()),
        version => Err(format!("there is no {PACKAGE} 2.9, but {}", version.unwrap_or_default())),
    }
}

fn install(packages: &[&str]) -> Result<(), String> {
    eprintln!("installing {}", packages.join(" "));
    let mut install = as_root(packages)?;
    install.args(["sh", "-c", include_str!("install.sh"), "install"]).args(packages);
    let status = install.status().map_err(|error| format!("{install:?}: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("the packages cannot be installed ({status})")),
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
