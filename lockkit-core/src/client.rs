//! The process that a claim belongs to, for people. Plain data.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The process that a claim belongs to, as shown to people.
///
/// ```
/// use lockkit_core::{ClientIdentity, Settings};
///
/// let identity = ClientIdentity::of_this_process().with_program("billing");
/// let settings = Settings::default().identity(identity);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct ClientIdentity {
    pub host: String,
    pub pid: u32,
    pub program: String,
}

impl ClientIdentity {
    /// The process of this number and program on this host.
    pub fn new(host: impl Into<String>, pid: u32, program: impl Into<String>) -> Self {
        Self { host: host.into(), pid, program: program.into() }
    }

    /// This process: the host's name, the process id, the program's file name.
    pub fn of_this_process() -> Self {
        let program = std::env::args_os()
            .next()
            .and_then(|path| {
                Some(std::path::Path::new(&path).file_name()?.to_string_lossy().into_owned())
            })
            .unwrap_or_else(|| "unknown".to_owned());
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { host, pid: std::process::id(), program }
    }

    /// A client of which nothing is known: of a claim whose data cannot be read.
    pub fn unknown() -> Self {
        Self::new("unknown", 0, "unknown")
    }

    /// The same process under another program's name.
    #[must_use]
    pub fn with_program(self, program: impl Into<String>) -> Self {
        Self { program: program.into(), ..self }
    }

    /// Its JSON, for drivers that store it by itself.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data becomes JSON")
    }

    /// Reads what [`to_json`](Self::to_json) wrote; anything else is [`unknown`](Self::unknown).
    pub fn from_json(json: impl AsRef<[u8]>) -> Self {
        serde_json::from_slice(json.as_ref()).unwrap_or_else(|_| Self::unknown())
    }
}

impl fmt::Display for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]@{}", self.program, self.pid, self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_of_this_process_names_it() {
        let identity = ClientIdentity::of_this_process();
        assert_eq!(identity.pid, std::process::id());
        assert!(!identity.host.is_empty() && !identity.program.is_empty());
        assert_eq!(ClientIdentity::from_json(identity.to_json()), identity);
        assert_eq!(ClientIdentity::from_json("nonsense"), ClientIdentity::unknown());
    }
}
