//! Chores of the workspace, started as `cargo xtask CHORE`. Small, and with no dependency but a parser
//! of Rust: it must build in a moment, and also where nothing else does.

mod azurite;
mod book;
mod check;
mod circles;
mod dist;
mod dynamodb;
mod failures;
mod install;
mod lines;
mod mutants;
mod package;
mod places;
mod portable;
mod python;
mod recipes;
mod requirements;
mod run;
mod runtimes;
mod sources;
mod test;
mod typescript;
mod wheels;
mod words;

use std::process::ExitCode;

/// A task in this workspace.
struct Chore {
    name: &'static str,
    does: &'static str,
    run: fn(&[String]) -> Result<ExitCode, String>,
}

const CHORES: &[Chore] = &[
    Chore {
        name: "install",
        does: "installs the servers that the tests need, as far as they are missing",
        run: install::run,
    },
    Chore {
        name: "test",
        does: "runs all tests, with servers; what follows goes to the test runner",
        run: test::run,
    },
    Chore {
        name: "check",
        does: "checks format, lints, docs, words and sizes; words choose among these",
        run: check::run,
    },
    Chore {
        name: "lines",
        does: "counts lines of code, names the trusted base, small files and import circles",
        run: lines::run,
    },
    Chore {
        name: "words",
        does: "holds names, comments and docs to docs/design/glossary.md",
        run: words::run,
    },
    Chore {
        name: "tables",
        does: "writes the tables of the docs that come from what the drivers state",
        run: test::tables,
    },
    Chore {
        name: "python",
        does: "checks, tests and packs the Python client; what follows goes to pytest",
        run: python::run,
    },
    Chore {
        name: "typescript",
        does: "checks, tests and packs the TypeScript client; --build only builds what drives it",
        run: typescript::run,
    },
    Chore {
        name: "mutants",
        does: "makes changes that a test must notice, and lists those that survive; --check only finds them",
        run: mutants::run,
    },
    Chore {
        name: "storm",
        does: "runs clients under injected faults on a backend for minutes, and checks the history",
        run: run::storm,
    },
    Chore {
        name: "book",
        does: "builds the book of docs/ into target/book; what follows goes to mdBook",
        run: book::run,
    },
    Chore {
        name: "bench-check",
        does: "builds the measurements, and runs each part of them for a moment",
        run: run::bench_check,
    },
    Chore {
        name: "dist",
        does: "packs the command for a target, with manual pages and completions",
        run: dist::dist,
    },
    Chore {
        name: "dist-check",
        does: "runs a packed command in an empty root; needs root",
        run: dist::check,
    },
    Chore {
        name: "portable",
        does: "checks what builds for macOS and FreeBSD without their C compilers",
        run: portable::run,
    },
    Chore {
        name: "package",
        does: "packs every crate as for publishing, and checks what was packed",
        run: package::run,
    },
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let chosen = words.split_first().and_then(|(name, arguments)| {
        let chore = CHORES.iter().find(|chore| chore.name == name)?;
        Some((chore, arguments))
    });
    let Some((chore, arguments)) = chosen else {
        eprintln!("usage: cargo xtask CHORE\n");
        for chore in CHORES {
            eprintln!("  {:<12} {}", chore.name, chore.does);
        }
        return ExitCode::from(2);
    };
    (chore.run)(arguments).unwrap_or_else(|error| {
        eprintln!("cargo xtask {}: {error}", chore.name);
        ExitCode::from(2)
    })
}
