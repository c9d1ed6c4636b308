//! Which version each server is, and what is known to be wrong with it. A version that cannot be read
//! is no finding.

use std::time::Duration;

use futures_util::future::join_all;
use lockkit_core::driver::{KnownDefect, KnownDefects, ServerVersion, ServerVersion as V};
use lockkit_core::state::Severity;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::ZkOptions;

/// Read from the commits of each tag: ZOOKEEPER-4785 is in 3.8.5 and 3.9.2, and its authors
/// saw ZOOKEEPER-4925 in 3.9.3 alone. For an ensemble: a single server has no follower.
pub(crate) const KNOWN_DEFECTS: KnownDefects = KnownDefects {
    server: "ZooKeeper",
    severity: Severity::Warning,
    upgrade: "Use 3.8.5, 3.9.4 or later",
    defects: &[
        KnownDefect {
            since: V(0, 0, 0),
            fixed: V(3, 8, 5),
            what: "a follower that joins may lose committed writes when it crashes (ZOOKEEPER-4785)",
            link: "https://issues.apache.org/jira/browse/ZOOKEEPER-4785",
        },
        KnownDefect {
            since: V(3, 9, 0),
            fixed: V(3, 9, 2),
            what: "a follower that joins may lose committed writes when it crashes (ZOOKEEPER-4785)",
            link: "https://issues.apache.org/jira/browse/ZOOKEEPER-4785",
        },
        KnownDefect {
            since: V(3, 9, 3),
            fixed: V(3, 9, 4),
            what: "a follower that becomes the leader may have a hole in its log (ZOOKEEPER-4925)",
            link: "https://issues.apache.org/jira/browse/ZOOKEEPER-4925",
        },
    ],
};

/// The versions of the servers, as far as they can be read.
pub(crate) async fn server_versions(options: &ZkOptions) -> Vec<ServerVersion> {
    let servers = options.hosts.split(',').filter_map(|host| options.plain(host));
    join_all(servers.map(version)).await.into_iter().flatten().collect()
}

/// The server's answer to `srvr`, the one word that servers answer unless configured not to.
async fn version(server: &str) -> Option<ServerVersion> {
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
fn parsed(answer: &str) -> Option<ServerVersion> {
    let text = answer.lines().find_map(|line| line.strip_prefix("Zookeeper version: "))?;
    ServerVersion::parse(text)
}

#[cfg(test)]
mod tests {
    use lockkit_core::state::Health;

    use super::*;

    #[test]
    fn a_version_is_read_and_nonsense_is_none() {
        assert_eq!(
            parsed("Zookeeper version: 3.8.0-5a02a05, built on 2022\nMode: x"),
            Some(V(3, 8, 0))
        );
        assert_eq!(parsed("Zookeeper version: 3.9.3, built on x"), Some(V(3, 9, 3)));
        assert_eq!(parsed("srvr is not executed because it is not in the whitelist."), None);
        assert_eq!(parsed("Zookeeper version: new"), None);
    }

    #[test]
    fn mended_versions_have_no_known_defect() {
        let found = |v| KNOWN_DEFECTS.check(Health::well(""), [v]).findings.len();
        for good in [V(3, 8, 5), V(3, 8, 6), V(3, 9, 2), V(3, 9, 4), V(3, 10, 0), V(4, 0, 0)] {
            assert_eq!(found(good), 0, "{good}");
        }
        for old in [V(3, 4, 14), V(3, 8, 0), V(3, 8, 4), V(3, 9, 0), V(3, 9, 1), V(3, 9, 3)] {
            assert_eq!(found(old), 1, "{old}");
        }
    }
}
