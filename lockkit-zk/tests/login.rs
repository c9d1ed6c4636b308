//! A ZooKeeper that knows users by SASL: what is theirs is theirs alone, and a wrong password is an
//! error for good.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::{Error, LockManager, Settings};
use lockkit_lab::{Server, ZooKeeperDemands};
use lockkit_zk::zookeeper_client::{Client, Error as ZkError};
use lockkit_zk::{ZkDriver, ZkOptions};

const LONG: Duration = Duration::from_secs(40);
/// `shop`, in a URL.
const PASSWORD: &str = "p@ss/w:%";
const LOGIN: &str = "shop:p%40ss%2Fw%3A%25";

async fn server() -> Server {
    let user = |name: &str, password: &str| (name.to_owned(), password.to_owned());
    let users = vec![user("shop", PASSWORD), user("till", "another")];
    let demands = ZooKeeperDemands { users, ..ZooKeeperDemands::default() };
    Server::start_demanding_zookeeper(&demands).await.unwrap()
}

fn url(server: &Server, login: &str) -> String {
    format!("zk://{login}@{}/theirs?login=sasl&session_timeout=60s", server.addr())
}

async fn manager(server: &Server, login: &str) -> Result<LockManager, Error> {
    let driver = ZkDriver::connect(&url(server, login)).await?;
    LockManager::with(Arc::new(driver), Settings::default().ttl(LONG))
}

#[tokio::test]
async fn who_logs_in_by_sasl_shares_locks_with_the_same_user_alone() {
    let server = server().await;
    let (ours, theirs) =
        (manager(&server, LOGIN).await.unwrap(), manager(&server, LOGIN).await.unwrap());
    let guard = ours.mutex("a").lock().await.unwrap();
    assert!(theirs.mutex("a").try_lock().await.unwrap().is_none());
    let waiting = {
        let lock = theirs.mutex("a");
        tokio::spawn(async move { lock.lock().await })
    };
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();

    // The nodes belong to the user, not to a login of another scheme.
    let options = ZkOptions::parse(&url(&server, LOGIN)).unwrap();
    assert!(!format!("{options:?} {:?}", ours.driver()).contains("p@ss"), "{options:?}");
    let other = manager(&server, "till:another").await.unwrap();
    let digest = format!("zk://{LOGIN}@{}/theirs", server.addr());
    let digest = LockManager::new(ZkDriver::connect(&digest).await.unwrap());
    for stranger in [other, digest] {
        let error = stranger.mutex("a").try_lock().await.unwrap_err();
        assert!(!error.is_retryable(), "{error}");
    }
    let nobody = Client::connect(&server.addr().to_string()).await.unwrap();
    assert_eq!(nobody.list_children("/theirs/lockkit").await.unwrap_err(), ZkError::NoAuth);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_an_error_for_good_that_says_so() {
    let server = server().await;
    for login in ["shop:guessed", "nobody:guessed"] {
        let error = manager(&server, login).await.unwrap_err();
        let said = error.to_string();
        assert!(!error.is_retryable() && said.contains("refuses the login"), "{login}: {said}");
        assert!(!said.contains("guessed"), "{said}");
    }
}
