//! What the driver can do with servers of which version, what each fault may cost there, and the
//! known defects of some. Data only.

use std::time::Duration;

use lockkit_core::Capabilities;
use lockkit_core::capabilities::{Fault, Guarantee, LeaseClock, LeaseScope, TokenSource, WakeUp};
use lockkit_core::driver::{KnownDefect, KnownDefects, ServerVersion, ServerVersion as V};
use lockkit_core::state::Severity;

use crate::batch::LIMITS;
use crate::client::BACKEND;

/// What the driver can do with members of this version; of one that cannot be read, as with an old
/// one.
pub(crate) fn of_version(version: &str) -> &'static Capabilities {
    match old_leaders_are_harmless(version) {
        true => &MENDED,
        false => &CAPABILITIES,
    }
}

/// Of a server of which nothing more is known.
pub(crate) static CAPABILITIES: Capabilities = capabilities(&[
    (Fault::DataLost, Guarantee::Nothing),
    (Fault::OlderDataRestored, Guarantee::Nothing),
    (Fault::Failover, Guarantee::Impossible),
    (Fault::SplitBrain, Guarantee::Impossible),
    // A leader that was frozen may end leases on waking that live at its successor.
    (Fault::LeaderLost, Guarantee::Tokens),
    (Fault::ClientMachinePaused, Guarantee::Tokens),
    (Fault::ServerClockSlewedMore, Guarantee::Tokens),
    (Fault::BrokenByForce, Guarantee::Tokens),
]);

/// Of one in which this is mended: see [`of_version`].
static MENDED: Capabilities = capabilities(&[
    (Fault::DataLost, Guarantee::Nothing),
    (Fault::OlderDataRestored, Guarantee::Nothing),
    (Fault::Failover, Guarantee::Impossible),
    (Fault::SplitBrain, Guarantee::Impossible),
    (Fault::ClientMachinePaused, Guarantee::Tokens),
    (Fault::ServerClockSlewedMore, Guarantee::Tokens),
    (Fault::BrokenByForce, Guarantee::Tokens),
]);

const fn capabilities(faults: &'static [(Fault, Guarantee)]) -> Capabilities {
    let mut capabilities = Capabilities::of(BACKEND);
    capabilities.lease_scope = LeaseScope::Shared;
    capabilities.granularity = Duration::from_secs(1);
    // With its usual election timeout of a second, etcd gives no lease of less.
    capabilities.min_ttl = Duration::from_secs(2);
    // It looks for ended leases twice a second and deletes their keys through its log; a lease
    // that was broken gracefully lives two seconds longer. (A new leader gives all leases their
    // full time again: then it is that much later, once.)
    capabilities.expiry_slack = Duration::from_secs(3);
    capabilities.wake_up = WakeUp::Push;
    capabilities.token_source = TokenSource::Revision;
    capabilities.detached = true;
    capabilities.registers = true;
    capabilities.namespaces = true;
    capabilities.resize = true;
    capabilities.lease_clock = LeaseClock::Leader;
    capabilities.faults = faults;
    capabilities.batches = LIMITS;
    capabilities
}

/// Whether a leader of this version that lost its place without noticing is kept from ending the
/// leases that others hold at its successor (etcd's issue 15247; mended in 3.4.31 and 3.5.13). A
/// version that cannot be read is taken for an old one.
pub(crate) fn old_leaders_are_harmless(version: &str) -> bool {
    let Some(ServerVersion(major, minor, patch)) = ServerVersion::parse(version) else {
        return false;
    };
    match (major, minor) {
        (3, ..=3) | (..=2, _) => false,
        (3, 4) => patch >= 31,
        (3, 5) => patch >= 13,
        _ => true,
    }
}

pub(crate) const KNOWN_DEFECTS: KnownDefects = KnownDefects {
    server: "etcd",
    severity: Severity::Problem,
    upgrade: "Use etcd 3.4.31, 3.5.13 or later",
    defects: &[
        KnownDefect {
            since: V(3, 4, 0),
            fixed: V(3, 4, 8),
            what: "members may come to disagree about the data",
            link: "https://github.com/etcd-io/etcd/issues/11651",
        },
        KnownDefect {
            since: V(3, 5, 0),
            fixed: V(3, 5, 3),
            what: "a member that is killed under load may lack committed writes",
            link: "https://github.com/etcd-io/etcd/blob/main/Documentation/postmortems/v3.5-data-inconsistency.md",
        },
        KnownDefect {
            since: V(3, 4, 21),
            fixed: V(3, 4, 22),
            what: "members may come to disagree about the data",
            link: "https://groups.google.com/g/etcd-dev/c/8S7u6NqW6C4",
        },
        KnownDefect {
            since: V(3, 5, 5),
            fixed: V(3, 5, 6),
            what: "members may come to disagree about the data",
            link: "https://groups.google.com/g/etcd-dev/c/8S7u6NqW6C4",
        },
    ],
};

#[cfg(test)]
mod tests {
    use lockkit_core::state::Health;

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
        let found = |version| {
            let version = ServerVersion::parse(version);
            KNOWN_DEFECTS.check(Health::well(""), version).findings.len()
        };
        for bad in ["3.4.7", "3.4.21", "3.5.0", "3.5.1", "3.5.2", "3.5.5"] {
            assert_eq!(found(bad), 1, "{bad}");
        }
        for good in ["3.4.8", "3.4.23", "3.5.3", "3.5.6", "3.6.0", "", "new", "3.5"] {
            assert_eq!(found(good), 0, "{good}");
        }
    }
}
