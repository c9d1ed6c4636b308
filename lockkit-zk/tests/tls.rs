//! A ZooKeeper that speaks TLS to whom shows a certificate of an authority that it trusts.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::{Error, LockManager};
use lockkit_lab::{Server, TestCertificates, ZooKeeperDemands};
use lockkit_zk::ZkDriver;

const PATIENCE: Duration = Duration::from_secs(60);

async fn server() -> (Server, Arc<TestCertificates>) {
    let tls = Arc::new(TestCertificates::issue().await.unwrap());
    let users = vec![("shop".to_owned(), "secret".to_owned())];
    let demands = ZooKeeperDemands { users, tls: Some(tls.clone()), durable: false };
    (Server::start_demanding_zookeeper(&demands).await.unwrap(), tls)
}

/// The port for TLS opens a moment after the other one, at which the lab asks whether the server is
/// there.
async fn works_soon(url: &str) {
    let working = async {
        while let Err(error) = works(url).await {
            assert!(error.is_retryable(), "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, working).await.expect("it works at last");
}

async fn works(url: &str) -> Result<(), Error> {
    let locks = LockManager::new(ZkDriver::connect(url).await?);
    let guard = locks.mutex("a").lock().await?;
    guard.verify().await?;
    guard.release().await.map(drop)
}

#[tokio::test]
async fn a_server_is_reached_over_tls_by_who_shows_a_certificate() {
    let (server, tls) = server().await;
    let (cert, key) = tls.client();
    let files = format!("cert={}&key={}", cert.display(), key.display());
    let (port, ca) = (tls.addr().port(), tls.authority());
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("zks://{host}:{port}/there?ca={}&{files}", ca.display());
        ZkDriver::check_url(&url).unwrap();
        works_soon(&url).await;
    }
    // With a user on top.
    let login = format!("zks://shop:secret@127.0.0.1:{port}/mine?login=sasl&{files}&ca=");
    works_soon(&format!("{login}{}", ca.display())).await;
    let plain = format!("zk://{}/mine", server.addr());
    assert!(!works(&plain).await.unwrap_err().is_retryable(), "it belongs to the user");
}

#[tokio::test]
async fn whom_nobody_trusted_vouches_for_is_refused_on_either_side() {
    let (_server, tls) = server().await;
    let (cert, key) = tls.client();
    let at = format!("zks://{}", tls.addr());
    let files = format!("cert={}&key={}", cert.display(), key.display());
    let (ca, stranger) = (tls.authority(), tls.stranger());
    let (ca, stranger) = (ca.display(), stranger.display());
    works_soon(&format!("{at}?ca={ca}&{files}")).await;
    // The server's certificate, and a client that shows none.
    for url in [format!("{at}?ca={stranger}&{files}"), format!("{at}?ca={ca}")] {
        let error = works(&url).await.unwrap_err().to_string();
        assert!(error.contains("TLS") || error.contains("in time"), "{url}: {error}");
    }
    // Halves of what belongs together never get as far as that.
    for url in [format!("{at}?ca={ca}&cert={}", cert.display()), format!("{at}?{files}")] {
        assert!(matches!(ZkDriver::check_url(&url), Err(Error::Config(_))), "{url}");
    }
    // And the port does not speak without it.
    works(&format!("zk://{}", tls.addr())).await.unwrap_err();
}
