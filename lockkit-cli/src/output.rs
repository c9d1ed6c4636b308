//! What goes to stdout and stderr. A reader that went away (`lockkit ls | head -1`) is no reason to
//! panic: stdout ends the command quietly, stderr is simply not heard.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::exit::Failure;

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

/// Whether that much is to be said.
pub(crate) fn says(verbosity: Verbosity) -> bool {
    VERBOSITY.load(Ordering::Relaxed) >= verbosity as u8
}

/// A failure, on stderr, always.
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
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Failure::silent(0)),
        Err(e) => Err(Failure::os("cannot write to stdout", e)),
    }
}

/// A line on stdout.
pub(crate) fn print_line(line: impl std::fmt::Display) -> Result<(), Failure> {
    print(&format!("{line}\n"))
}

/// The text without control characters: notes and programs' names come from other people, and a
/// terminal obeys escape sequences.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}
