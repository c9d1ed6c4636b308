//! Transactions on MariaDB that a lock stands behind: a commit never comes from somebody who lost
//! it, and nobody waits for a fence but who wants the lock.

use std::time::Duration;

use lockkit::{Error, Guard, LockManager};
use lockkit_lab::{Kind, Shared};
use lockkit_sql::mysql::TOKENS_TABLE;
use lockkit_sql::{Fence, Fenced, FencedWrite};
use sqlx::{Connection, Executor, MySqlPool};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(60);

/// Two who want the same lock, and the account that it protects.
struct Scene {
    mine: LockManager,
    theirs: LockManager,
    data: MySqlPool,
    name: &'static str,
}

impl Scene {
    async fn set(name: &'static str) -> Self {
        let server = Shared::server(Kind::MariaDb).await.unwrap();
        let data = MySqlPool::connect(server.url()).await.unwrap();
        let account = "CREATE TABLE IF NOT EXISTS account (name VARCHAR(64) PRIMARY KEY, cents BIGINT NOT NULL)";
        data.execute(account).await.unwrap();
        data.execute(TOKENS_TABLE).await.unwrap();
        sqlx::query("INSERT INTO account VALUES (?, 100) ON DUPLICATE KEY UPDATE cents = 100")
            .bind(name)
            .execute(&data)
            .await
            .unwrap();
        let (mine, theirs) = (lockkit::connect(server.url()), lockkit::connect(server.url()));
        let (mine, theirs) = (mine.await.unwrap(), theirs.await.unwrap());
        Self { mine, theirs, data, name }
    }

    /// The lock, for so short a time that it ends under whoever holds it.
    async fn short(&self) -> Guard {
        let mutex = self.mine.mutex(self.name).auto_renew(false).ttl(Duration::from_secs(2));
        mutex.lock().await.unwrap()
    }

    async fn cents(&self) -> i64 {
        let cents = sqlx::query_scalar("SELECT cents FROM account WHERE name = ?");
        cents.bind(self.name).fetch_one(&self.data).await.unwrap()
    }

    async fn add(&self, tx: &mut sqlx::Transaction<'_, sqlx::MySql>, cents: i64) {
        let add = sqlx::query("UPDATE account SET cents = cents + ? WHERE name = ?");
        add.bind(cents).bind(self.name).execute(&mut **tx).await.unwrap();
    }

    async fn is_busy(&self) -> bool {
        let tried = timeout(LONG, self.theirs.mutex(self.name).try_lock()).await;
        tried.expect("a try does not wait for a fence").unwrap().is_none()
    }
}

#[tokio::test]
async fn a_writer_that_was_paused_past_its_lease_is_refused_and_nothing_is_lost() {
    let scene = Scene::set("paused").await;
    let guard = scene.short().await;
    let lease = guard.lease();
    // The writer sleeps; its lease ends, and somebody else does the work.
    let theirs = timeout(LONG, scene.theirs.mutex("paused").lock()).await.unwrap().unwrap();
    let mut tx = scene.data.begin().await.unwrap();
    theirs.fence(&mut tx).await.unwrap();
    scene.add(&mut tx, 7).await;
    tx.commit().await.unwrap();
    theirs.release().await.unwrap();
    // It wakes.
    let mut tx = scene.data.begin().await.unwrap();
    scene.add(&mut tx, 1_000).await;
    let refused = lease.fence(&mut tx).await.unwrap_err();
    assert!(matches!(refused, Error::Lost { .. }), "{refused}");
    tx.rollback().await.unwrap();
    assert_eq!(scene.cents().await, 107);
}

#[tokio::test]
async fn a_lease_that_ends_under_a_fenced_transaction_is_given_to_nobody_before_its_commit() {
    let scene = Scene::set("ends").await;
    let guard = scene.short().await;
    let mut tx = scene.data.begin().await.unwrap();
    guard.fence(&mut tx).await.unwrap();
    timeout(LONG, guard.lost()).await.expect("the lease ends");
    let (theirs, data) = (scene.theirs.clone(), scene.data.clone());
    let next = tokio::spawn(async move {
        let guard = theirs.mutex("ends").lock().await.unwrap();
        let seen: i64 = sqlx::query_scalar("SELECT cents FROM account WHERE name = 'ends'")
            .fetch_one(&data)
            .await
            .unwrap();
        guard.release().await.unwrap();
        seen
    });
    // Long after the margin, it is still nobody else's.
    for _ in 0..20 {
        assert!(scene.is_busy().await);
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert!(!next.is_finished());
    scene.add(&mut tx, 5).await;
    tx.commit().await.unwrap();
    let seen = timeout(LONG, next).await.expect("it moves on after the commit").unwrap();
    assert_eq!(seen, 105, "who comes next sees what was written before");
}

#[tokio::test]
async fn a_release_before_the_commit_does_not_wait_and_the_lock_moves_on_with_the_commit() {
    let scene = Scene::set("early").await;
    let guard = scene.mine.mutex("early").lock().await.unwrap();
    let mut tx = scene.data.begin().await.unwrap();
    guard.fence(&mut tx).await.unwrap();
    timeout(LONG, guard.release()).await.expect("it does not wait for the fence").unwrap();
    assert!(scene.is_busy().await, "the transaction is not over");
    scene.add(&mut tx, 1).await;
    tx.commit().await.unwrap();
    let next = timeout(LONG, scene.theirs.mutex("early").lock()).await.unwrap().unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_fence_stops_no_renewal_and_works_at_every_isolation_level() {
    let scene = Scene::set("levels").await;
    let guard = scene.mine.mutex("levels").lock().await.unwrap();
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let mut connection = scene.data.acquire().await.unwrap();
        // For the next transaction, so before it begins.
        let set = format!("SET TRANSACTION ISOLATION LEVEL {level}");
        connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(set))).await.unwrap();
        let mut tx = connection.begin().await.unwrap();
        guard.fence(&mut tx).await.unwrap();
        timeout(LONG, guard.renew()).await.expect("it does not wait for the fence").unwrap();
        assert!(scene.is_busy().await, "{level}");
        scene.add(&mut tx, 1).await;
        // A second fence, after the claim was renewed behind the snapshot's back, holds or says
        // that the transaction is to be begun anew; it never says that the lock was lost.
        match guard.fence(&mut tx).await {
            Ok(()) => tx.commit().await.unwrap(),
            Err(error) => {
                assert!(error.is_retryable(), "{level}: {error}");
                tx.rollback().await.unwrap();
            }
        }
    }
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn data_in_another_database_remembers_the_highest_token() {
    let scene = Scene::set("elsewhere").await;
    let old = scene.mine.mutex("elsewhere").lock().await.unwrap();
    let older = old.token().unwrap();
    old.release().await.unwrap();
    let new = scene.theirs.mutex("elsewhere").lock().await.unwrap();
    let newer = new.token().unwrap();
    for (token, expected) in
        [(older, Fenced::Admitted), (newer, Fenced::Admitted), (older, Fenced::Stale)]
    {
        let mut tx = scene.data.begin().await.unwrap();
        assert_eq!(tx.fenced_write("elsewhere", token).await.unwrap(), expected);
        tx.commit().await.unwrap();
    }
    new.release().await.unwrap();
}
