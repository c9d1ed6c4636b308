//! `cargo xtask book`: builds the book of `docs/` into `target/book`, with mdBook, which is installed
//! into `target/tools` when it is missing. Its test checks the pages and needs no mdBook.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The chore. Arguments go to `mdbook build`, such as `--open`.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("");
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| root.join("target"));
    let tools = target.join("tools");
    let mdbook = tools.join("bin/mdbook");
    if !mdbook.exists() {
        let mut install = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        install.args(["install", "--quiet", "--locked", "--no-default-features"]);
        install.args(["--features", "search", "mdbook@0.5", "--root"]).arg(&tools);
        finish(&mut install)?;
    }
    let mut build = Command::new(mdbook);
    build.arg("build").arg(root.join("docs")).arg("--dest-dir").arg(target.join("book"));
    finish(build.args(arguments))?;
    Ok(ExitCode::SUCCESS)
}

fn finish(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

#[cfg(test)]
mod tests;
