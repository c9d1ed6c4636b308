//! What goes to stdout and stderr. A reader that went away (`lockkit ls | head -1`) is no reason to
//! panic: stdout ends the command quietly, stderr is simply not heard.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use clap::ValueEnum;
use rustix::fs::{FileType, Stat, fstat, stat};

use crate::exit::ExitError;

/// How much is said on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verbosity {
    /// Failures only.
    Quiet,
    /// What a person should know.
    Normal,
    /// Each step.
    Verbose,
}

static VERBOSITY: AtomicU8 = AtomicU8::new(Verbosity::Normal as u8);

/// Sets how much is said from now on.
pub(crate) fn set_verbosity(verbosity: Verbosity) {
    VERBOSITY.store(verbosity as u8, Ordering::Relaxed);
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

static COLORED: AtomicBool = AtomicBool::new(false);

/// Sets whether stdout gets colours from now on.
pub(crate) fn set_color(when: Color) {
    let colored = match when {
        Color::Always => true,
        Color::Never => false,
        // https://no-color.org
        Color::Auto => {
            io::stdout().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
        }
    };
    COLORED.store(colored, Ordering::Relaxed);
}

/// Whether stdout gets colours.
pub(crate) fn colored() -> bool {
    COLORED.load(Ordering::Relaxed)
}

/// How a piece of text on stdout looks on a terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    Bold,
    Faint,
    Good,
    Warning,
    Bad,
}

/// The text in that style, where colours are wanted. Control characters of others are taken out
/// before.
pub(crate) fn styled(style: Style, text: &str) -> String {
    let code = match style {
        Style::Bold => 1,
        Style::Faint => 2,
        Style::Good => 32,
        Style::Warning => 33,
        Style::Bad => 31,
    };
    match colored() {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}

/// Whether that much is to be said.
pub(crate) fn says(verbosity: Verbosity) -> bool {
    VERBOSITY.load(Ordering::Relaxed) >= verbosity as u8
}

/// A failure or a warning, on stderr, always.
pub(crate) fn fail(sentence: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "lockkit: {}", printable(&sentence.to_string()));
}

/// Something a person should know, on stderr, unless `--quiet`.
pub(crate) fn note(sentence: impl std::fmt::Display) {
    if says(Verbosity::Normal) {
        fail(sentence);
    }
}

/// A step, on stderr, with `--verbose`.
pub(crate) fn detail(sentence: impl std::fmt::Display) {
    if says(Verbosity::Verbose) {
        fail(sentence);
    }
}

/// Text on stdout, at once. A reader that went away ends the command with success and no words.
pub(crate) fn print(text: &str) -> Result<(), ExitError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(ExitError::silent(0)),
        Err(e) => Err(ExitError::os("cannot write to stdout", e)),
    }
}

/// Whether what is printed is lost from the start: stdout was closed (and is /dev/null by now), or
/// is /dev/null.
pub(crate) fn nobody_reads() -> bool {
    let same = |one: &Stat, other: &Stat| one.st_rdev == other.st_rdev && is_device(one);
    match (fstat(io::stdout()), stat("/dev/null")) {
        (Ok(stdout), Ok(null)) => same(&stdout, &null),
        (Err(_), _) => true,
        (_, Err(_)) => false,
    }
}

fn is_device(file: &Stat) -> bool {
    FileType::from_raw_mode(file.st_mode) == FileType::CharacterDevice
}

/// A line on stdout.
pub(crate) fn print_line(line: impl std::fmt::Display) -> Result<(), ExitError> {
    print(&format!("{line}\n"))
}

/// The text without control characters: notes and programs' names come from other people, and a
/// terminal obeys escape sequences.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}
