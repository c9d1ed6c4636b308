//! How the command ends: the exit codes, each in one place, and the failure that carries one along
//! with its sentence.

use std::ffi::OsStr;
use std::io;

use lockkit::Error;
use rustix::process::Signal;

/// The exit codes of the manual, after `sysexits.h` where that has one.
pub(crate) mod code {
    /// `break`: no claim has that token. `doctor`: something is wrong with the backend. `get`, `put`,
    /// `latch`: what is there is not what it would have to be.
    pub(crate) const NO: u8 = 1;
    /// Wrong usage, or a name, duration, count or URL that cannot be one.
    pub(crate) const USAGE: u8 = 64;
    /// The backend cannot be reached, or fails.
    pub(crate) const UNAVAILABLE: u8 = 69;
    /// lockkit itself failed.
    pub(crate) const SOFTWARE: u8 = 70;
    /// The operating system refused something that lockkit needs: a process, a pipe.
    pub(crate) const OS: u8 = 71;
    /// The lock was lost.
    pub(crate) const LOST: u8 = 74;
    /// The lock is taken, and stayed so for as long as one was to wait.
    pub(crate) const BUSY: u8 = 75;
    /// The command was found but cannot be run.
    pub(crate) const CANNOT_RUN: u8 = 126;
    /// The command was not found.
    pub(crate) const NOT_FOUND: u8 = 127;
    /// Added to the number of a signal.
    pub(crate) const SIGNAL: u8 = 128;
}

/// How this process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With this exit code.
    Code(u8),
    /// By this signal, as a process that it ended: so that the loop or the script around this
    /// process ends as well.
    Signal(Signal),
}

impl Ending {
    /// The exit code, as a shell shows it.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => code::SIGNAL + signal.as_raw() as u8,
        }
    }
}

/// An end that is not success: how, and the one sentence that goes to stderr.
#[derive(Debug)]
pub(crate) struct ExitError {
    pub(crate) ending: Ending,
    /// `None` when everything has been said already.
    pub(crate) sentence: Option<String>,
    /// Whether the same may work in a moment.
    pub(crate) passing: bool,
    /// Whether the backend takes no writes, which may pass too.
    pub(crate) read_only: bool,
    /// Whether the sentence says which backend it is about.
    pub(crate) is_located: bool,
}

impl ExitError {
    pub(crate) fn new(code: u8, sentence: impl Into<String>) -> Self {
        let ending = Ending::Code(code);
        let sentence = Some(sentence.into());
        Self { ending, sentence, passing: false, read_only: false, is_located: false }
    }

    pub(crate) fn usage(sentence: impl Into<String>) -> Self {
        Self::new(code::USAGE, sentence)
    }

    /// Ends with this code without another word.
    pub(crate) fn silent(code: u8) -> Self {
        Self { sentence: None, ..Self::new(code, "") }
    }

    /// Ends by the signal that asked for it.
    pub(crate) fn signal(signal: Signal, sentence: impl Into<String>) -> Self {
        Self { ending: Ending::Signal(signal), ..Self::new(0, sentence) }
    }

    /// What the operating system refused.
    pub(crate) fn os(what: &str, error: impl std::fmt::Display) -> Self {
        Self::new(code::OS, format!("{what}: {error}"))
    }

    /// Whether the backend is the cause.
    pub(crate) fn is_of_the_backend(&self) -> bool {
        self.ending == Ending::Code(code::UNAVAILABLE)
    }
}

impl From<Error> for ExitError {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::InvalidName { .. }
            | Error::Config(_)
            | Error::LimitMismatch { .. }
            | Error::CountMismatch { .. }
            | Error::Unsupported { .. }
            | Error::WouldDeadlock { .. } => code::USAGE,
            Error::Backend { .. } => code::UNAVAILABLE,
            Error::Lost { .. } | Error::Stale { .. } => code::LOST,
            Error::Conflict { .. } | Error::BelowZero { .. } => code::NO,
            _ => code::SOFTWARE,
        };
        let (passing, read_only) = (error.is_retryable(), error.is_read_only());
        Self { passing, read_only, ..Self::new(code, error.to_string()) }
    }
}

/// The failure of a command that cannot be run.
pub(crate) fn cannot_run(command: &OsStr, error: &io::Error) -> ExitError {
    let name = command.to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound if command.as_encoded_bytes().contains(&b'/') => {
            let sentence = format!("there is no command {name:?}: check its path");
            ExitError::new(code::NOT_FOUND, sentence)
        }
        io::ErrorKind::NotFound => {
            let sentence = format!("there is no command {name:?}: check its name and $PATH");
            ExitError::new(code::NOT_FOUND, sentence)
        }
        io::ErrorKind::PermissionDenied => {
            let sentence = format!("{name:?} may not be run: make it an executable file");
            ExitError::new(code::CANNOT_RUN, sentence)
        }
        _ => ExitError::new(code::CANNOT_RUN, format!("cannot run {name:?}: {error}")),
    }
}
