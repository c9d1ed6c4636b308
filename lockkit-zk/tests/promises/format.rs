//! The version of the format that a driver finds in ZooKeeper.

use std::time::Duration;

use lockkit_core::Mode;
use lockkit_core::driver::{LockDriver, Patience};
use lockkit_lab::{Server, ServerKind};
use lockkit_zk::{ZkDriver, ZkOptions};

use crate::stage::{claim, client, driver};

const TTL: Duration = Duration::from_secs(6);
const NODE: &str = "/lockkit/format";

#[tokio::test]
async fn a_format_is_installed_where_there_is_none_and_another_one_is_refused() {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let admin = client(&server).await;
    driver(server.addr(), TTL).await;
    assert_eq!(admin.get_data(NODE).await.unwrap().0, b"1");
    let others = [("0", "delete the node"), ("2", "a newer lockkit"), ("x", "another chroot")];
    let options = || ZkOptions::new(server.addr().to_string());
    for (other, what_to_do) in others {
        admin.set_data(NODE, other.as_bytes(), None).await.unwrap();
        let connected = ZkDriver::connect_with(options()).await;
        // A driver over a client of the program asks before its first request.
        let given = ZkDriver::from_client(client(&server).await, options());
        let acquired = given.acquire(&claim("a", Mode::Exclusive, TTL), Patience::Try).await;
        for error in [connected.map(drop).unwrap_err(), acquired.map(drop).unwrap_err()] {
            let said = error.to_string();
            assert!(said.contains(&format!("has format {other:?}")), "{said}");
            assert!(said.contains("has format 1:") && said.contains(what_to_do), "{said}");
            assert!(!error.is_retryable(), "{said}");
        }
    }
    ZkDriver::connect_with(options().chroot("/elsewhere").unwrap()).await.unwrap();
}

/// The login that made the node is the only one that may change it; any other is told of its rights
/// where it needs them.
#[tokio::test]
async fn the_format_can_be_read_by_every_login() {
    let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
    let options = || ZkOptions::new(server.addr().to_string());
    ZkDriver::connect_with(options().login("shop", "secret")).await.unwrap();
    let stranger = ZkDriver::connect_with(options().login("till", "other")).await.unwrap();
    let acquired = stranger.acquire(&claim("a", Mode::Exclusive, TTL), Patience::Try).await;
    assert!(!acquired.unwrap_err().is_retryable());
    let admin = client(&server).await;
    assert!(admin.set_data(NODE, b"2", None).await.is_err());
}
