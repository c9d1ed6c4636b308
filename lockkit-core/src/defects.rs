//! Defects of server versions that a driver warns of. Data and comparisons, no I/O.

use std::fmt;

use crate::state::{Finding, Health, Severity};

/// The three numbers of a server's version.
///
/// ```
/// use lockkit_core::driver::ServerVersion;
///
/// assert_eq!(ServerVersion::parse("3.5.21-rc.1"), Some(ServerVersion(3, 5, 21)));
/// assert_eq!(ServerVersion::parse("3.5"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion(pub u32, pub u32, pub u32);

impl ServerVersion {
    /// Reads a text that begins with three numbers, separated by points.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Self(next()?, next()?, next()?))
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// A defect of some versions of a server.
#[derive(Clone, Copy, Debug)]
pub struct KnownDefect {
    /// The first version that has it.
    pub since: ServerVersion,
    /// The first later version that does not.
    pub fixed: ServerVersion,
    /// What is wrong, as the rest of a sentence: "it is known that …".
    pub what: &'static str,
    /// A link to its description.
    pub link: &'static str,
}

/// The defects of a server that a driver knows.
///
/// ```
/// use lockkit_core::driver::{KnownDefect, KnownDefects, ServerVersion as V};
/// use lockkit_core::state::{Health, Severity};
///
/// const KNOWN: KnownDefects = KnownDefects {
///     server: "MyStore",
///     severity: Severity::Warning,
///     upgrade: "Use 1.2.3 or later",
///     defects: &[KnownDefect {
///         since: V(1, 0, 0),
///         fixed: V(1, 2, 3),
///         what: "it forgets writes",
///         link: "https://example.org/1",
///     }],
/// };
/// let health = KNOWN.check(Health::well("MyStore"), [V(1, 2, 2), V(1, 2, 2), V(1, 2, 3)]);
/// assert_eq!(health.findings.len(), 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct KnownDefects {
    /// The server's name.
    pub server: &'static str,
    /// How much the defects matter.
    pub severity: Severity,
    /// The advice, to which the link is added.
    pub upgrade: &'static str,
    /// The defects.
    pub defects: &'static [KnownDefect],
}

impl KnownDefects {
    /// The same health, with a finding for each defect of these versions, none twice.
    #[must_use]
    pub fn check(
        &self,
        mut health: Health,
        versions: impl IntoIterator<Item = ServerVersion>,
    ) -> Health {
        for version in versions {
            for finding in self.of(version) {
                if !health.findings.contains(&finding) {
                    health = health.with(finding);
                }
            }
        }
        health
    }

    fn of(&self, version: ServerVersion) -> impl Iterator<Item = Finding> {
        let has = move |defect: &&KnownDefect| (defect.since..defect.fixed).contains(&version);
        self.defects.iter().filter(has).map(move |KnownDefect { what, link, .. }| {
            Finding::new(
                self.severity,
                format!("Of {} {version} it is known that {what}.", self.server),
                format!("{}: {link}", self.upgrade),
            )
        })
    }
}
