//! What servers of different versions keep, and what is known to be wrong with some. No I/O.

use lockkit_core::state::{Finding, Severity};

/// Whether a leader of this version that lost its place without noticing is kept from ending the
/// leases that others hold at its successor (etcd's issue 15247; mended in 3.4.31 and 3.5.13). A
/// version that cannot be read is taken for an old one.
pub(crate) fn old_leaders_are_harmless(version: &str) -> bool {
    let Some((major, minor, patch)) = parsed(version) else { return false };
    match (major, minor) {
        (3, ..=3) | (..=2, _) => false,
        (3, 4) => patch >= 31,
        (3, 5) => patch >= 13,
        _ => true,
    }
}

type Version = (u32, u32, u32);

/// Versions from one up to another, which has it mended; what is wrong with them, and where that is
/// written.
const KNOWN: [(Version, Version, &str, &str); 4] = [
    (
        (3, 4, 0),
        (3, 4, 8),
        "members may come to disagree about the data",
        "https://github.com/etcd-io/etcd/issues/11651",
    ),
    (
        (3, 5, 0),
        (3, 5, 3),
        "a member that is killed under load may lack committed writes",
        "https://github.com/etcd-io/etcd/blob/main/Documentation/postmortems/v3.5-data-inconsistency.md",
    ),
    (
        (3, 4, 21),
        (3, 4, 22),
        "members may come to disagree about the data",
        "https://groups.google.com/g/etcd-dev/c/8S7u6NqW6C4",
    ),
    (
        (3, 5, 5),
        (3, 5, 6),
        "members may come to disagree about the data",
        "https://groups.google.com/g/etcd-dev/c/8S7u6NqW6C4",
    ),
];

/// What is known to be wrong with this version, and what to do. None of one that cannot be read.
pub(crate) fn known_defects(version: &str) -> Vec<Finding> {
    let Some(parsed) = parsed(version) else { return Vec::new() };
    let known = KNOWN.iter().filter(|(from, to, ..)| (*from..*to).contains(&parsed));
    let finding = |(.., what, link): &(_, _, &str, &str)| Finding {
        severity: Severity::Problem,
        what: format!("Of etcd {version} it is known that {what}."),
        advice: format!("Use etcd 3.4.31, 3.5.13 or later: {link}"),
    };
    known.map(finding).collect()
}

fn parsed(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    let mut next = || parts.next().flatten();
    Some((next()?, next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mended_versions_are_known() {
        for new in ["3.4.31", "3.4.40", "3.5.13", "3.6.0", "4.0.0", "3.5.21-rc.1"] {
            assert!(old_leaders_are_harmless(new), "{new}");
        }
        for old in ["3.4.23", "3.4.30", "3.5.12", "3.3.99", "2.3.8", "", "new", "3.5"] {
            assert!(!old_leaders_are_harmless(old), "{old}");
        }
    }

    #[test]
    fn known_defects_are_of_their_versions_alone() {
        let found = |version| known_defects(version).len();
        for bad in ["3.4.7", "3.4.21", "3.5.0", "3.5.1", "3.5.2", "3.5.5"] {
            assert_eq!(found(bad), 1, "{bad}");
        }
        for good in ["3.4.8", "3.4.23", "3.5.3", "3.5.6", "3.6.0", "", "new", "3.5"] {
            assert_eq!(found(good), 0, "{good}");
        }
    }
}
