//! Deno and Bun, for the tests of the client in TypeScript: out of packages of npm that have the programs
//! in them, and of which no script is run. Nothing needs them: without one some tests are skipped.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::places;
use crate::wheels::Missing;

/// The program in its package, and a part of the names of the tests of Rust that need it.
const ALL: [(&str, &str); 2] =
    [("@deno/linux-x64-glibc/deno", "on_deno"), ("@oven/bun-linux-x64/bin/bun", "on_bun")];

/// Fetches those that are missing or others; those that cannot be had.
pub(crate) fn ensure() -> Vec<Missing> {
    let fetched = fetch();
    let missing = |(program, tests): (&str, &'static str)| {
        if packages().join(program).is_file() {
            return None;
        }
        let why = fetched.clone().err().unwrap_or_else(|| "none is for this system".to_owned());
        Some(Missing { tests, why: format!("there is no {program}: {why}") })
    };
    ALL.into_iter().filter_map(missing).collect()
}

/// Where the packages are: beside what cargo builds, as what comes out of wheels.
pub(crate) fn packages() -> PathBuf {
    places::target().join("runtimes/node_modules")
}

fn fetch() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let from = places::root().join("clients/typescript/runtimes");
    let to = places::target().join("runtimes");
    let wanted = fs::read_to_string(from.join("package-lock.json")).map_err(told)?;
    let installed = to.join("installed.json");
    if fs::read_to_string(&installed).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    eprintln!("fetching Deno and Bun");
    fs::create_dir_all(&to).map_err(told)?;
    for file in ["package.json", "package-lock.json"] {
        fs::copy(from.join(file), to.join(file)).map_err(told)?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]);
    npm.args(["--fetch-retries=1", "--fetch-timeout=60000"]);
    let status = npm.current_dir(&to).stdout(Stdio::null()).status();
    match status.map_err(|error| format!("npm: {error}"))? {
        // Last: with it the folder is complete.
        status if status.success() => fs::write(installed, wanted).map_err(told),
        status => Err(format!("npm cannot fetch it: {status}")),
    }
}
