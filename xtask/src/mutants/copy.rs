//! The copy of the workspace in which mutants are made, so that the files of the workspace stay as they
//! are; it is kept, with what is built in it. May not know the list.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::selection::Selection;
use crate::places::{self, root};
use crate::test::EVERYTHING;

/// How the runner ends when a test has failed; anything else, such as no test, is no conviction.
const TESTS_FAILED: i32 = 100;
/// Its profile: it ends with the first test that fails.
const PROFILE: &str = "mutants";

/// The copy.
pub(super) struct WorkingCopy {
    /// What is here is the copy's: the files, and what is built of them.
    folder: PathBuf,
    /// Lists of the programs with tests, as the runner has them: of everything when that was built last,
    /// and of a part of it.
    lists: [PathBuf; 2],
}

/// What was built.
#[derive(Clone, Copy)]
pub(super) enum Programs {
    Everything,
    Part,
}

impl WorkingCopy {
    pub(super) fn new() -> Self {
        let folder = places::target().join("mutants");
        let lists = ["everything.json", "part.json"].map(|name| folder.join(name));
        Self { folder, lists }
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.folder.join("tree").join(file)
    }

    pub(super) fn command_that_was_built(&self) -> PathBuf {
        self.folder.join("build/debug/lockkit")
    }

    /// Makes the copy: the files that git would add, with other contents for some.
    pub(super) fn write(&self, others: &BTreeMap<String, String>) -> Result<(), String> {
        let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let list = said(Command::new("git").args(list).current_dir(root()))?;
        let files: BTreeSet<_> =
            list.split('\0').filter(|file| root().join(file).is_file()).collect();
        let written = self.folder.join("files");
        for gone in fs::read_to_string(&written).unwrap_or_default().split('\0') {
            if !files.contains(gone) {
                let _ = fs::remove_file(self.path(gone));
            }
        }
        for file in &files {
            self.write_file(file, others.get(*file))
                .map_err(|error| format!("the copy of {file}: {error}"))?;
        }
        fs::write(written, list).map_err(|error| error.to_string())
    }

    /// What is as it should be is not touched: it would be built again.
    fn write_file(&self, file: &str, other: Option<&String>) -> std::io::Result<()> {
        let (from, to) = (root().join(file), self.path(file));
        let bytes = other.map_or_else(|| fs::read(&from), |text| Ok(text.clone().into_bytes()))?;
        if fs::read(&to).is_ok_and(|there| there == bytes) {
            return Ok(());
        }
        fs::create_dir_all(to.parent().unwrap_or(&to))?;
        // With its rights.
        fs::copy(from, &to)?;
        fs::write(to, bytes)
    }

    /// Builds all programs. An error is what the compiler said, with each error in a line.
    pub(super) fn build(&self) -> Result<(), String> {
        let kinds = ["--lib", "--bins", "--tests", "--examples"];
        let mut build = self.cargo(&["build", "--keep-going", "--message-format", "short"]);
        let built = output(build.args(EVERYTHING).args(kinds))?;
        if !built.status.success() {
            return Err(String::from_utf8_lossy(&built.stderr).into_owned());
        }
        let metadata = said(&mut self.cargo(&["metadata", "--format-version", "1"]))?;
        let told = |error: std::io::Error| error.to_string();
        fs::write(self.folder.join("metadata.json"), metadata).map_err(told)?;
        self.list(Programs::Everything, &[])
    }

    /// Builds what has these tests.
    pub(super) fn build_part(&self, selection: &Selection<'_>) -> Result<(), String> {
        self.list(Programs::Part, &selection.targets())
    }

    fn list(&self, programs: Programs, targets: &[&str]) -> Result<(), String> {
        let mut list = self.cargo(&["nextest", "list", "--message-format", "json"]);
        list.args(["--list-type", "binaries-only"]).args(EVERYTHING).args(targets);
        let list = said(&mut list)?;
        fs::write(&self.lists[programs as usize], list).map_err(|error| error.to_string())
    }

    /// The list of all programs with tests, and the ids and paths in it.
    pub(super) fn programs(&self) -> Result<(String, Vec<(String, PathBuf)>), String> {
        let path = &self.lists[Programs::Everything as usize];
        let list = fs::read_to_string(path).map_err(|error| error.to_string())?;
        let field = |text: &str, name: &str| {
            let value = text.split_once(&format!("\"{name}\":\""))?.1.split('"').next()?;
            Some(value.to_owned())
        };
        let programs = list.split("\"binary-id\":").skip(1).filter_map(|part| {
            let id = part.trim_start_matches('"').split('"').next()?;
            Some((id.to_owned(), field(part, "binary-path")?.into()))
        });
        let programs = programs.collect();
        Ok((list, programs))
    }

    /// The path of the list of programs.
    pub(super) fn list_of(&self, programs: Programs) -> &Path {
        &self.lists[programs as usize]
    }

    /// Runs tests of what was built; the names of those that failed, as soon as one has.
    pub(super) fn run(
        &self,
        list: &Path,
        filter: &str,
        environment: &[(&str, &str)],
    ) -> Result<Vec<String>, String> {
        let mut run = self.nextest(list, filter);
        run.envs(environment.iter().copied());
        failed(&output(&mut run)?)
    }

    /// All tests of these that fail, each time that they are tried.
    pub(super) fn failing(&self, filter: &str) -> Result<Vec<String>, String> {
        let list = self.list_of(Programs::Everything);
        failed(&output(self.nextest(list, filter).args(["--no-fail-fast", "--retries", "2"]))?)
    }

    fn nextest(&self, list: &Path, filter: &str) -> Command {
        let mut run = self.cargo(&["nextest", "run", "--failure-output", "never"]);
        run.args(["--status-level", "fail", "--final-status-level", "none"]);
        run.arg("--cargo-metadata").arg(self.folder.join("metadata.json"));
        run.arg("--binaries-metadata").arg(list).args(["-E", filter]);
        run.env("NEXTEST_PROFILE", PROFILE);
        run
    }

    /// Without what only debuggers need: many programs are linked.
    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(arguments).current_dir(self.folder.join("tree"));
        cargo.env("CARGO_TARGET_DIR", self.folder.join("build"));
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
        cargo
    }
}

/// A file of the copy that is as it was when this is dropped.
pub(super) struct Edited {
    path: PathBuf,
    before: Vec<u8>,
}

impl Edited {
    pub(super) fn new(path: PathBuf, text: &str) -> Result<Self, String> {
        let told = |error: std::io::Error| format!("{}: {error}", path.display());
        let before = fs::read(&path).map_err(told)?;
        fs::write(&path, text).map_err(told)?;
        Ok(Self { path, before })
    }
}

impl Drop for Edited {
    fn drop(&mut self) {
        // A run that is ended before this begins with the whole copy again.
        let _ = fs::write(&self.path, &self.before);
    }
}

/// Which tests failed, as the runner says it.
fn failed(ended: &Output) -> Result<Vec<String>, String> {
    let said = String::from_utf8_lossy(&ended.stderr);
    match ended.status.code() {
        Some(0) => Ok(Vec::new()),
        Some(TESTS_FAILED) => Ok(names_of_failed(&said)),
        _ => Err(format!("no test was run: {}\n{said}", ended.status)),
    }
}

/// The program and the name of each; what took too long says so.
fn names_of_failed(said: &str) -> Vec<String> {
    let name = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        // A last try is said to be one.
        let result = words.strip_prefix(&["TRY"]).map_or(words.as_slice(), |rest| &rest[1..]);
        match (*result.first()?, result) {
            ("TIMEOUT", [.., program, name]) => Some(format!("{program} {name} (timed out)")),
            (end, [.., program, name])
                if matches!(end, "FAIL" | "ABORT") || end.starts_with("SIG") =>
            {
                Some(format!("{program} {name}"))
            }
            _ => None,
        }
    };
    // They are said again at the end.
    let names: BTreeSet<_> = said.lines().filter_map(name).collect();
    names.into_iter().collect()
}

fn said(command: &mut Command) -> Result<String, String> {
    let output = output(command)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn output(command: &mut Command) -> Result<Output, String> {
    command.output().map_err(|error| format!("{command:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runner_says_which_tests_failed() {
        let said = "     Running 3 tests\n        FAIL [   0.1s] (1/3) a::b c::d\n   \
                    TIMEOUT [ 180.0s] (2/3) a e\n TRY 3 SIGABRT [   0.0s] (3/3) a f\n     Summary [ 1s]\n";
        assert_eq!(names_of_failed(said), ["a e (timed out)", "a f", "a::b c::d"]);
    }
}
