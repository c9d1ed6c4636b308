//! The program's own writes in ZooKeeper, under the condition that its lock is held.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::ClaimId;
use lockkit_core::driver::{BreakMode, LockDriver};
use lockkit_core::{
    BreakRecord, ClientIdentity, Error, Fence, HeldLock, Key, LockManager, Name, Namespace,
    Settings, Space,
};
use lockkit_lab::{ServerKind, SharedServer};
use lockkit_zk::zookeeper_client::{
    Acls, Client, CreateMode, Error as ZkError, MultiWriteError, MultiWriter,
};
use lockkit_zk::{ZkDriver, ZkOptions};

/// A driver, a manager on it, and the program's own client in a session of its own.
struct Program {
    _server: SharedServer,
    driver: Arc<ZkDriver>,
    locks: LockManager,
    client: Client,
    key: Key,
    /// What the lock protects.
    balance: String,
}

impl Program {
    async fn new() -> Self {
        let server = SharedServer::server(ServerKind::ZooKeeper).await.unwrap();
        let hosts = server.addr().to_string();
        let options = ZkOptions::new(&hosts).tick(Duration::from_millis(500));
        let driver = Arc::new(ZkDriver::connect_with(options).await.unwrap());
        let namespace = format!("fence-{}", &ClaimId::random().to_hex()[..8]);
        let settings = Settings::default().namespace(&*namespace);
        let locks = LockManager::with(driver.clone(), settings).unwrap();
        let client = Client::connect(&hosts).await.unwrap();
        let balance = format!("/balance-{namespace}");
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create(&balance, b"0", &options).await.unwrap();
        let namespace = Namespace::new(namespace).unwrap();
        let key = Key::new(namespace, Space::Lock, Name::new("a").unwrap());
        Self { _server: server, driver, locks, client, key, balance }
    }

    /// A transaction that writes only while the lock is held.
    async fn fenced(&self, lease: &HeldLock, value: &str) -> Result<MultiWriter<'_>, Error> {
        let mut write = self.client.new_multi_writer();
        lease.fence(&mut write).await?;
        write.add_set_data(&self.balance, value.as_bytes(), None).unwrap();
        Ok(write)
    }

    async fn write(&self, lease: &HeldLock, value: &str) -> Result<(), MultiWriteError> {
        self.fenced(lease, value).await.unwrap().commit().await.map(drop)
    }

    async fn read(&self) -> String {
        String::from_utf8(self.client.get_data(&self.balance).await.unwrap().0).unwrap()
    }
}

async fn refused(mut write: MultiWriter<'_>) -> bool {
    let failed = MultiWriteError::OperationFailed { index: 0, source: ZkError::NoNode };
    write.commit().await.err() == Some(failed)
}

#[tokio::test]
async fn a_stale_holder_does_not_get_its_write_through() {
    let program = Program::new().await;
    let guard = program.locks.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    program.write(&guard, "mine").await.unwrap();
    let stale = program.fenced(&guard, "stale").await.unwrap();

    // A client breaks the lock, another gets it and writes; the first one knows nothing of that.
    let record = BreakRecord::from_parts(ClientIdentity::of_this_process(), 0, None, true);
    let broken = program.driver.break_claim(&program.key, token, BreakMode::Forced, &record);
    assert!(broken.await.unwrap());
    let next = program.locks.mutex("a").lock().await.unwrap();
    program.write(&next, "theirs").await.unwrap();
    assert!(refused(stale).await);
    assert_eq!(program.read().await, "theirs");
}

#[tokio::test]
async fn a_fence_ends_with_its_lock_and_survives_a_downgrade() {
    let program = Program::new().await;
    let writer = program.locks.rwlock("a").write().await.unwrap();
    let mut before = program.fenced(&writer, "as a reader").await.unwrap();
    let reader = writer.downgrade().await.unwrap();
    before.commit().await.unwrap();
    let (lease, stale) = (reader.lease(), program.fenced(&reader, "stale").await.unwrap());
    reader.release().await.unwrap();
    assert!(refused(stale).await);
    let error = program.fenced(&lease, "stale").await.err();
    assert!(matches!(error, Some(Error::Released)), "{error:?}");
    assert_eq!(program.read().await, "as a reader");
}

#[tokio::test]
async fn a_fence_can_be_a_condition_among_others_of_one_transaction() {
    let program = Program::new().await;
    let guard = program.locks.mutex("a").lock().await.unwrap();
    let write = async || {
        let mut multi = program.client.new_multi_writer();
        multi.add_set_data(&program.balance, b"one of two", None).unwrap();
        guard.fence(&mut multi).await.unwrap();
        multi
    };
    write().await.commit().await.unwrap();
    // The lock goes while the program looks elsewhere.
    let mut late = write().await;
    guard.release().await.unwrap();
    let failed = late.commit().await.unwrap_err();
    assert_eq!(failed, MultiWriteError::OperationFailed { index: 1, source: ZkError::NoNode });
}

#[tokio::test]
async fn a_client_in_another_language_checks_the_path_of_the_anchor() {
    let program = Program::new().await;
    program
        .driver
        .raise_namespace_counter(&program.key.namespace, 1_000_000_000_000)
        .await
        .unwrap();
    let guard = program.locks.mutex("a").lock().await.unwrap();
    assert!(guard.token().unwrap().get() > 1_000_000_000_000);
    let anchor = guard.anchor("zookeeper").await.unwrap();
    let path = String::from_utf8(anchor.at).unwrap();
    let node = program.client.check_stat(&path).await.unwrap().expect("the node is there");
    assert_eq!(node.czxid, anchor.token.as_i64());
    guard.release().await.unwrap();
    assert_eq!(program.client.check_stat(&path).await.unwrap(), None);
}
