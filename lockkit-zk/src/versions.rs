//! Which version each server is, and what is known to be wrong with it. A version that cannot be read
//! is no finding.

use std::time::Duration;

use lockkit_core::state::{Finding, Severity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::ZkOptions;

type Version = (u32, u32, u32);

/// Versions from one up to another, which has it mended; what is wrong with them, and where that is
/// written. Read from the commits of each tag: ZOOKEEPER-4785 is in 3.8.5 and 3.9.2, and its authors
/// saw ZOOKEEPER-4925 in 3.9.3 alone.
const KNOWN: [(Version, Version, &str, &str); 3] = [
    (
        (0, 0, 0),
        (3, 8, 5),
        "a follower that joins may lose committed writes when it crashes (ZOOKEEPER-4785)",
        "https://issues.apache.org/jira/browse/ZOOKEEPER-4785",
    ),
    (
        (3, 9, 0),
        (3, 9, 2),
        "a follower that joins may lose committed writes when it crashes (ZOOKEEPER-4785)",
        "https://issues.apache.org/jira/browse/ZOOKEEPER-4785",
    ),
    (
        (3, 9, 3),
        (3, 9, 4),
        "a follower that becomes the leader may have a hole in its log (ZOOKEEPER-4925)",
        "https://issues.apache.org/jira/browse/ZOOKEEPER-4925",
    ),
];

/// What is wrong with the servers' versions. For an ensemble: a single server has no follower.
pub(crate) async fn known_defects(options: &ZkOptions) -> Vec<Finding> {
    let servers = options.hosts.split(',').filter_map(|host| options.plain(host));
    let versions = futures_util::future::join_all(servers.map(version)).await;
    let mut found = Vec::new();
    for version in versions.into_iter().flatten() {
        for (_, _, what, link) in
            KNOWN.iter().filter(|(from, to, ..)| (*from..*to).contains(&version))
        {
            let (a, b, c) = version;
            let finding = Finding {
                severity: Severity::Warning,
                what: format!("of ZooKeeper {a}.{b}.{c} it is known that {what}"),
                advice: format!("use 3.8.5, 3.9.4 or later: {link}"),
            };
            if !found.contains(&finding) {
                found.push(finding);
            }
        }
    }
    found
}

/// The server's answer to `srvr`, the one word that servers answer unless they are told not to.
async fn version(server: &str) -> Option<Version> {
    let asking = async {
        let mut stream = TcpStream::connect(server).await.ok()?;
        stream.write_all(b"srvr").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        parsed(&answer)
    };
    timeout(Duration::from_secs(2), asking).await.ok()?
}

/// `Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on …`
fn parsed(answer: &str) -> Option<Version> {
    let text = answer.lines().find_map(|line| line.strip_prefix("Zookeeper version: "))?;
    let mut numbers = text.split(['.', '-', ',', ' ']).map(|part| part.parse().ok());
    let mut next = || numbers.next().flatten();
    Some((next()?, next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_and_nonsense_is_none() {
        assert_eq!(
            parsed("Zookeeper version: 3.8.0-5a02a05, built on 2022\nMode: x"),
            Some((3, 8, 0))
        );
        assert_eq!(parsed("Zookeeper version: 3.9.3, built on x"), Some((3, 9, 3)));
        assert_eq!(parsed("srvr is not executed because it is not in the whitelist."), None);
        assert_eq!(parsed("Zookeeper version: new"), None);
    }

    #[test]
    fn mended_versions_have_no_known_defect() {
        let bad = |v: Version| KNOWN.iter().any(|(from, to, ..)| (*from..*to).contains(&v));
        for good in [(3, 8, 5), (3, 8, 6), (3, 9, 2), (3, 9, 4), (3, 10, 0), (4, 0, 0)] {
            assert!(!bad(good), "{good:?}");
        }
        for old in [(3, 4, 14), (3, 8, 0), (3, 8, 4), (3, 9, 0), (3, 9, 1), (3, 9, 3)] {
            assert!(bad(old), "{old:?}");
        }
    }
}
