//! `cargo xtask book`: builds the book of `docs/` into `target/book`, with mdBook, which is installed
//! into `target/tools` when it is missing, and checks the links of what was built. Its tests check the
//! pages themselves, and need no mdBook.

mod links;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::places::{self, root};
use links::{files, flat, replaced};

/// The chore. Arguments go to `mdbook build`, such as `--open`.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let target = places::target();
    let mdbook = installed(&target.join("tools"))?;
    let (source, book) = (target.join("book-source"), target.join("book"));
    copy(&root().join("docs"), &source).map_err(|error| format!("docs: {error}"))?;
    let mut build = Command::new(mdbook);
    finish(build.arg("build").arg(&source).arg("--dest-dir").arg(&book).args(arguments))?;
    let wrong = links::broken_in_html(&book).map_err(|error| format!("the book: {error}"))?;
    for link in &wrong {
        eprintln!("{link}");
    }
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn installed(tools: &Path) -> Result<PathBuf, String> {
    let mdbook = tools.join("bin/mdbook");
    if !mdbook.exists() {
        let mut install = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        install.args(["install", "--quiet", "--locked", "--no-default-features"]);
        finish(install.args(["--features", "search", "mdbook@0.5.4", "--root"]).arg(tools))?;
    }
    Ok(mdbook)
}

/// Copies the pages. Links out of the book lead to the repository then.
fn copy(docs: &Path, to: &Path) -> io::Result<()> {
    let _ = fs::remove_dir_all(to);
    for from in files(docs)? {
        let to = to.join(from.strip_prefix(docs).unwrap_or(&from));
        fs::create_dir_all(to.parent().unwrap_or(&to))?;
        match from.extension().is_some_and(|end| end == "md") {
            true => {
                fs::write(to, replaced(&fs::read_to_string(&from)?, |link| outward(&from, link)))?
            }
            false => drop(fs::copy(&from, to)?),
        }
    }
    Ok(())
}

/// Where a link leads that leaves the book.
fn outward(page: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with('#') {
        return None;
    }
    let target = flat(&page.parent()?.join(link));
    let path = target.strip_prefix(root()).ok()?;
    let kind = if target.is_dir() { "tree" } else { "blob" };
    let leaves = !path.starts_with("docs");
    leaves.then(|| format!("{}/{kind}/main/{}", env!("CARGO_PKG_REPOSITORY"), path.display()))
}

/// The Markdown pages below a folder.
pub(crate) fn pages(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let found = files(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(found.into_iter().filter(|path| path.extension().is_some_and(|end| end == "md")).collect())
}

fn finish(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
