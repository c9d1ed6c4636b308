//! The version of the format that a driver finds in etcd.

use lockkit_core::driver::{LockDriver, Patience};
use lockkit_etcd::EtcdDriver;
use lockkit_lab::{Server, ServerKind};

use crate::stage::{claim, client};

const KEY: &str = "lockkit/format";

#[tokio::test]
async fn a_format_is_installed_where_there_is_none_and_another_one_is_refused() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let mut admin = client(&server).await;
    EtcdDriver::connect(&server.url()).await.unwrap();
    let installed = admin.get(KEY, None).await.unwrap();
    assert_eq!(installed.kvs()[0].value(), b"1");
    let others = [("0", "delete the keys"), ("2", "a newer lockkit"), ("x", "another root")];
    for (other, what_to_do) in others {
        admin.put(KEY, other, None).await.unwrap();
        let connected = EtcdDriver::connect(&server.url()).await;
        // A driver over a client of the program asks before its first request.
        let driver = EtcdDriver::with_client(client(&server).await, "");
        let acquired = driver.acquire(&claim("a", 3, 3), Patience::Try).await;
        for error in [connected.map(drop).unwrap_err(), acquired.map(drop).unwrap_err()] {
            let said = error.to_string();
            assert!(said.contains(&format!("has format {other:?}")), "{said}");
            assert!(said.contains("has format 1:") && said.contains(what_to_do), "{said}");
            assert!(!error.is_retryable(), "{said}");
        }
    }
    EtcdDriver::connect(&format!("{}/elsewhere", server.url())).await.unwrap();
}
