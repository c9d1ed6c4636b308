//! `cargo xtask check`: what needs no test to run: format, lints, docs, words, sizes and circles.
//! Says at its end what failed.

use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::{lines, words};

/// What a part of the check is called, and what fails in it.
type Part = (&'static str, fn() -> Result<Vec<String>, String>);

const PARTS: [Part; 5] = [
    ("words", words::wrong),
    ("sizes", lines::wrong),
    ("fmt", || cargo(&["fmt", "--all", "--check"])),
    ("clippy", || {
        cargo(&[
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-Dwarnings",
        ])
    }),
    ("docs", || cargo(&["doc", "--quiet", "--workspace", "--no-deps", "--all-features"])),
];

/// The chore. Words choose parts.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let chosen = |name: &str| arguments.is_empty() || arguments.iter().any(|word| word == name);
    if let Some(word) = arguments.iter().find(|word| PARTS.iter().all(|(name, _)| name != word)) {
        return Err(format!("no part is called {word}"));
    }
    let mut failed = Vec::new();
    for (name, part) in PARTS.iter().filter(|(name, _)| chosen(name)) {
        let begin = Instant::now();
        let wrong = part()?;
        for line in &wrong {
            eprintln!("{line}");
        }
        let end = if wrong.is_empty() { "ok" } else { "FAILED" };
        println!("{name:<8}{end:<8}{:.1} s", begin.elapsed().as_secs_f64());
        failed.extend((!wrong.is_empty()).then_some(*name));
    }
    if failed.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(failed.join(", ") + " failed") }
}

/// A command of cargo, which prints by itself what is wrong.
fn cargo(arguments: &[&str]) -> Result<Vec<String>, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate::places::root()).args(arguments);
    if arguments.first() == Some(&"doc") {
        command.env("RUSTDOCFLAGS", "-D warnings");
    }
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    Ok(if status.success() { Vec::new() } else { vec![format!("cargo {}", arguments.join(" "))] })
}
