//! `cargo xtask test [ARGUMENTS]`: installs and starts the servers that tests share,
//! and runs the tests: those of Rust, and without arguments those of the clients in Python and in
//! TypeScript too.
//! May not know tests or servers: `lockkit-lab` starts them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread;

use crate::wheels::Missing;
use crate::{failures, install, places, python, recipes, runtimes, typescript};

/// What a run of everything builds: the lab inside the command and TLS with ZooKeeper are no default
/// features.
pub(crate) const EVERYTHING: [&str; 3] =
    ["--workspace", "--features", "lockkit-cli/lab,lockkit-zk/tls"];

/// The lab, which starts servers for a command and names them in its environment. Built by itself, it
/// has features of its own, and so have the libraries that it needs.
const LAB: [&str; 7] = ["run", "--quiet", "--package", "lockkit-lab", "--bin", "lockkit-lab", "--"];

const TYPES: &str = "the types of the client in TypeScript";
const EXAMPLES: &str = "the examples in the documentation";

/// The chore. Arguments go to the runner: `cargo nextest run` if there is one,
/// `cargo test` otherwise. Examples in the documentation are tested only when there
/// are no arguments, since the two runners understand different ones.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let mut missing = install::all()?;
    if !arguments.is_empty() {
        return of_rust(arguments);
    }
    let no_node = typescript::ensure().err();
    let has_node = no_node.is_none();
    match no_node {
        None => missing.extend(runtimes::ensure()),
        Some(why) => missing.push(Missing { tests: typescript::TESTS, why }),
    }
    missing.extend(recipes::ensure().err().map(|why| Missing { tests: recipes::TESTS, why }));
    let in_typescript = |part: &dyn Fn() -> Result<ExitCode, String>| match has_node {
        true => part(),
        false => Ok(ExitCode::SUCCESS),
    };
    let types = in_typescript(&|| typescript::build().map(|()| ExitCode::SUCCESS));
    let examples = examples();
    let arguments = without(missing.iter().map(|it| it.tests));
    if let Err(why) = build(runner()) {
        return told([(TYPES, types), (EXAMPLES, examples), ("the tests", Err(why))]);
    }
    // The clients mostly wait, and use the command that was built with the tests of Rust.
    let (rust, (python, typescript)) = thread::scope(|scope| {
        let clients =
            scope.spawn(|| (python::check(&[]), in_typescript(&|| typescript::test(&[]))));
        let rust = of_rust(&arguments);
        let panicked = || Err("it panicked".to_owned());
        (rust, clients.join().unwrap_or_else(|_| (panicked(), panicked())))
    });
    let parts = [
        (TYPES, types),
        (EXAMPLES, examples),
        ("the tests of Rust", rust),
        ("the client in Python", python),
        ("the client in TypeScript", typescript),
    ];
    for Missing { tests, why } in missing {
        eprintln!("skipped: the tests with `{tests}` in their names: {why}");
    }
    if !has_node {
        eprintln!("skipped: the client in TypeScript");
    }
    told(parts)
}

/// `cargo xtask tables`: the test that compares the tables of the docs with the drivers writes them.
pub(crate) fn tables(_: &[String]) -> Result<ExitCode, String> {
    install::ensure()?;
    let test = ["-p", "lockkit-lab", "--test", "docs", "tables_of_the_docs"].map(str::to_owned);
    Ok(code(status(with_servers(&["test"], &test)?.env("LOCKKIT_WRITE_TABLES", "1"))?))
}

/// Leaves out tests by a part of their names: the runner's summary counts them as skipped.
fn without(parts: impl Iterator<Item = &'static str>) -> Vec<String> {
    let parts: Vec<_> = parts.collect();
    if parts.is_empty() {
        return Vec::new();
    }
    if has_nextest() {
        let names: Vec<_> = parts.iter().map(|part| format!("not test({part})")).collect();
        return vec!["-E".to_owned(), names.join(" and ")];
    }
    let skips = parts.iter().flat_map(|part| ["--skip", part]);
    ["--"].into_iter().chain(skips).map(str::to_owned).collect()
}

/// Each part that failed, behind everything that the parts printed: what failed first stands
/// thousands of lines up by then.
fn told<const N: usize>(parts: [(&str, Result<ExitCode, String>); N]) -> Result<ExitCode, String> {
    let failed: Vec<_> = parts
        .into_iter()
        .filter_map(|(what, end)| match end {
            Ok(code) if code == ExitCode::SUCCESS => None,
            Ok(_) => Some(format!("{what} failed")),
            Err(why) => Some(format!("{what}: {why}")),
        })
        .collect();
    if failed.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(failed.join("\n")) }
}

/// The examples in the documentation, which `cargo nextest` does not run; `cargo test` does, with
/// the rest.
fn examples() -> Result<ExitCode, String> {
    if !has_nextest() {
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = cargo();
    command.args(["test", "--doc", "--quiet", "--no-fail-fast"]).args(EVERYTHING);
    Ok(code(status(&mut command)?))
}

fn of_rust(arguments: &[String]) -> Result<ExitCode, String> {
    if !has_nextest() {
        return summed(arguments);
    }
    let profile = failures::profile();
    failures::forget(&profile);
    let end = status(&mut with_servers(runner(), arguments)?)?;
    for failure in failures::all(&profile) {
        eprintln!("failed, run it alone: {}", failure.command);
        failure.message.lines().for_each(|line| eprintln!("    {line}"));
    }
    Ok(code(end))
}

/// A runner of tests, with servers: one of each kind, and for a run of everything a group of each
/// layout, which its tests share. A test that is run by itself starts its own.
fn with_servers(runner: &[&str], arguments: &[String]) -> Result<Command, String> {
    if names_packages(arguments) {
        let mut command = cargo();
        command.args(LAB).args(["all", "--", "cargo"]).args(runner).args(arguments);
        return Ok(command);
    }
    build(runner)?;
    let mut command = Command::new(places::target().join("debug/lockkit-lab"));
    command.args(["all", "groups", "--", "cargo"]).args(runner).args(EVERYTHING).args(arguments);
    Ok(command)
}

/// Builds all tests, and the programs that they start.
fn build(runner: &[&str]) -> Result<(), String> {
    match status(cargo().args(runner).arg("--no-run").args(EVERYTHING))?.success() {
        true => Ok(()),
        false => Err("the tests cannot be built".to_owned()),
    }
}

/// Runs `cargo test`, which tells the result of each program by itself, and adds
/// them up.
fn summed(arguments: &[String]) -> Result<ExitCode, String> {
    let mut command = with_servers(&["test", "--no-fail-fast"], arguments)?;
    command.stdout(Stdio::piped());
    let broken = |error: std::io::Error| format!("cargo test: {error}");
    let mut child = command.spawn().map_err(broken)?;
    let mut sum = [0, 0];
    let mut out = std::io::stdout().lock();
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line.map_err(broken)?;
        writeln!(out, "{line}").map_err(broken)?;
        let counts = counts_of(&line);
        sum = [sum[0] + counts[0], sum[1] + counts[1]];
    }
    let status = child.wait().map_err(broken)?;
    writeln!(out, "{} passed, {} failed", sum[0], sum[1]).map_err(broken)?;
    Ok(code(status))
}

/// What `test result: ok. 3 passed; 1 failed; …` says; zeros for other lines.
fn counts_of(line: &str) -> [u64; 2] {
    let Some(result) = line.strip_prefix("test result: ") else {
        return [0, 0];
    };
    let words: Vec<_> = result.split([' ', ';']).collect();
    let before = |word: &str| {
        let at = words.iter().position(|other| *other == word)?;
        words.get(at.checked_sub(1)?)?.parse().ok()
    };
    [before("passed").unwrap_or(0), before("failed").unwrap_or(0)]
}

/// Whether the arguments themselves say which packages are meant.
fn names_packages(arguments: &[String]) -> bool {
    arguments.iter().take_while(|word| *word != "--").any(|word| {
        word.starts_with("-p") || word.starts_with("--package") || word == "--workspace"
    })
}

fn runner() -> &'static [&'static str] {
    if has_nextest() { &["nextest", "run"] } else { &["test"] }
}

fn has_nextest() -> bool {
    let asked = cargo().args(["nextest", "--version"]).output();
    asked.is_ok_and(|answer| answer.status.success())
}

/// The cargo that runs this, with its toolchain.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn status(command: &mut Command) -> Result<ExitStatus, String> {
    command.status().map_err(|error| format!("{command:?}: {error}"))
}

fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    ExitCode::from(code.unwrap_or(101))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_said_at_the_end_and_passes_nowhere() {
        let good = || Ok(ExitCode::SUCCESS);
        assert!(told([("a", good()), ("b", good())]).is_ok());
        let parts = [("a", Ok(ExitCode::from(7))), ("b", good()), ("c", Err("gone".to_owned()))];
        assert_eq!(told(parts), Err("a failed\nc: gone".to_owned()));
    }

    #[test]
    fn results_of_all_programs_are_added_up() {
        let line =
            "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 1 filtered out";
        assert_eq!(counts_of(line), [12, 3]);
        assert_eq!(counts_of("test a_result ... ok"), [0, 0]);
    }
}
