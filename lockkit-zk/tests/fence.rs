//! The program's own writes in ZooKeeper, under the condition that its lock is held.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::ClaimId;
use lockkit_core::driver::{Force, LockDriver, Released};
use lockkit_core::{
    BreakRecord, Error, Identity, Key, LockManager, Name, Namespace, Settings, Space, Token,
};
use lockkit_lab::{Kind, Shared};
use lockkit_zk::zookeeper_client::{
    Acls, CheckWriteError, Client, CreateMode, Error as ZkError, MultiWriteError,
};
use lockkit_zk::{Fence, ZkDriver, ZkOptions};

/// A driver, a manager on it, and the program's own client in a session of its own.
struct Program {
    _server: Shared,
    driver: Arc<ZkDriver>,
    locks: LockManager,
    client: Client,
    key: Key,
    /// What the lock protects.
    balance: String,
}

impl Program {
    async fn new() -> Self {
        let server = Shared::server(Kind::ZooKeeper).await.unwrap();
        let hosts = server.addr().to_string();
        let options = ZkOptions::new(&hosts).tick(Duration::from_millis(500));
        let driver = Arc::new(ZkDriver::connect_with(options).await.unwrap());
        let prefix = format!("fence-{}", &ClaimId::random().to_hex()[..8]);
        let settings = Settings::default().prefix(&*prefix);
        let locks = LockManager::with(driver.clone(), settings).unwrap();
        let client = Client::connect(&hosts).await.unwrap();
        let balance = format!("/balance-{prefix}");
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create(&balance, b"0", &options).await.unwrap();
        let namespace = Namespace::new(prefix).unwrap();
        let key = Key::new(namespace, Space::Lock, Name::new("a").unwrap());
        Self { _server: server, driver, locks, client, key, balance }
    }

    fn fence(&self, token: Token) -> Result<Fence, Error> {
        self.driver.fence(&self.key, token)
    }

    async fn write(&self, held: &Fence, value: &str) -> Result<(), CheckWriteError> {
        let mut write = held.writer(&self.client).unwrap();
        write.add_set_data(&self.balance, value.as_bytes(), None).unwrap();
        write.commit().await.map(drop)
    }

    async fn read(&self) -> String {
        String::from_utf8(self.client.get_data(&self.balance).await.unwrap().0).unwrap()
    }
}

fn refused(written: Result<(), CheckWriteError>) -> bool {
    matches!(written, Err(CheckWriteError::CheckFailed { source: ZkError::NoNode }))
}

#[tokio::test]
async fn a_stale_holder_does_not_get_its_write_through() {
    let program = Program::new().await;
    let guard = program.locks.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    let held = program.fence(token).unwrap();
    program.write(&held, "mine").await.unwrap();

    // Somebody breaks the lock, another gets it and writes; the first one knows nothing of that.
    let record =
        BreakRecord { by: Identity::of_this_process(), at_unix_ms: 0, reason: None, forced: true };
    let broken = program.driver.break_claim(&program.key, token, Force::Immediate, &record);
    assert!(broken.await.unwrap());
    let next = program.locks.mutex("a").lock().await.unwrap();
    let theirs = program.fence(next.token().unwrap()).unwrap();
    program.write(&theirs, "theirs").await.unwrap();
    assert!(refused(program.write(&held, "stale").await));
    assert_eq!(program.read().await, "theirs");
}

#[tokio::test]
async fn a_fence_ends_with_its_lock_and_survives_a_downgrade() {
    let program = Program::new().await;
    let writer = program.locks.rwlock("a").write().await.unwrap();
    let token = writer.token().unwrap();
    let held = program.fence(token).unwrap();
    let reader = writer.downgrade().await.unwrap();
    assert_eq!(program.fence(token).unwrap(), held);
    program.write(&held, "as a reader").await.unwrap();
    reader.release().await.unwrap();
    assert!(refused(program.write(&held, "stale").await));
    assert!(matches!(program.fence(token), Err(Error::Lost { .. })));
    assert_eq!(program.read().await, "as a reader");
}

#[tokio::test]
async fn a_fence_can_be_a_condition_among_others_of_one_transaction() {
    let program = Program::new().await;
    let guard = program.locks.mutex("a").lock().await.unwrap();
    let held = program.fence(guard.token().unwrap()).unwrap();
    let write = || {
        let mut multi = program.client.new_multi_writer();
        multi.add_set_data(&program.balance, b"one of two", None).unwrap();
        held.add_to(&mut multi).unwrap();
        multi.commit()
    };
    write().await.unwrap();
    // The lock goes while the program looks elsewhere.
    guard.release().await.unwrap();
    let failed = write().await.unwrap_err();
    assert_eq!(failed, MultiWriteError::OperationFailed { index: 1, source: ZkError::NoNode });
}

#[tokio::test]
async fn a_fence_knows_tokens_as_users_see_them_and_only_those_of_its_lock() {
    let program = Program::new().await;
    let namespace = &program.key.namespace;
    program.driver.raise_token_base(namespace, 1_000_000_000_000).await.unwrap();
    let settings = program.locks.settings().clone();
    let locks = LockManager::with(program.driver.clone(), settings).unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    assert!(token.get() > 1_000_000_000_000);
    let held = program.fence(token).unwrap();
    program.write(&held, "mine").await.unwrap();
    let other = Key { name: Name::new("b").unwrap(), ..program.key.clone() };
    assert!(matches!(program.driver.fence(&other, token), Err(Error::Lost { .. })));
    let lower = Token::new(token.get() - 1).unwrap();
    assert!(matches!(program.fence(lower), Err(Error::Lost { .. })));
    guard.release().await.unwrap();
    let claim = lockkit_core::Claim::new(
        program.key.clone(),
        lockkit_core::Mode::Exclusive,
        Duration::from_secs(10),
        Duration::from_secs(10),
        Arc::new(Identity::of_this_process()),
    );
    let released = program.driver.release(&Arc::new(claim)).await.unwrap();
    assert_eq!(released, Released::NoSuchLock, "nothing is left");
}
