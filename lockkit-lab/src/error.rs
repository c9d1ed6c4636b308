//! What can go wrong in the lab itself, as opposed to what a lock did wrong.

use std::fmt::Display;
use std::io;
use std::time::Duration;

/// Result of the lab's own operations.
pub type Result<T, E = LabError> = std::result::Result<T, E>;

/// Why the lab could not do what a test asked of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A program that the lab needs is not on this machine.
    #[error("`{program}` is not installed; `cargo xtask install` installs it")]
    Missing {
        /// Name of the program or file.
        program: String,
    },
    /// A server ended although it should have started to serve.
    #[error("{server} ended before it was ready ({status}); the end of its log:\n{log}")]
    Ended {
        /// Name of the server.
        server: String,
        /// How its process ended.
        status: String,
        /// The last lines of its log.
        log: String,
    },
    /// A server runs, but did not answer in time.
    #[error("{server} is not ready after {waited:?}: {last}; the end of its log:\n{log}")]
    NotReady {
        /// Name of the server.
        server: String,
        /// How long the lab waited.
        waited: Duration,
        /// What its last answer was, or why there was none.
        last: String,
        /// The last lines of its log.
        log: String,
    },
    /// This kind of server cannot do that, or was not started for it.
    #[error("{server} {cannot}")]
    Unsupported {
        /// Name of the server.
        server: String,
        /// What it cannot do, and what can be done about it.
        cannot: String,
    },
    /// A server answered something that the lab does not understand.
    #[error("{0}")]
    Answer(String),
    /// The operating system refused something.
    #[error("{doing}: {source}")]
    System {
        /// What the lab was doing.
        doing: String,
        /// The operating system's error.
        source: io::Error,
    },
}

/// Says what was being done when the operating system refused.
pub(crate) trait Doing<T> {
    /// Turns an I/O error into one of the lab's.
    fn doing(self, what: impl Display) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: impl Display) -> Result<T> {
        self.map_err(|source| LabError::System { doing: what.to_string(), source })
    }
}
