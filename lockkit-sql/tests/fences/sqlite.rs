//! SQLite, where a fence is the file's write lock.

use std::time::Duration;

use lockkit::{Error, Fence, LockManager};
use lockkit_sql::sqlite::TOKENS_TABLE;
use lockkit_sql::{Fenced, FencedWrite};
use sqlx::{Executor, Sqlite, SqlitePool, Transaction};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::{LONG, short, two_managers};

struct Scene {
    _folder: TempDir,
    mine: LockManager,
    theirs: LockManager,
    data: SqlitePool,
    name: &'static str,
}

impl Scene {
    async fn set(name: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("shop.db").display());
        let (mine, theirs) = two_managers(&url).await;
        let data = SqlitePool::connect(&url).await.unwrap();
        data.execute("CREATE TABLE account (name TEXT PRIMARY KEY, cents INTEGER NOT NULL)")
            .await
            .unwrap();
        data.execute(TOKENS_TABLE).await.unwrap();
        let account = sqlx::query("INSERT INTO account VALUES (?1, 100)");
        account.bind(name).execute(&data).await.unwrap();
        Self { _folder: folder, mine, theirs, data, name }
    }

    async fn cents(&self) -> i64 {
        let cents = sqlx::query_scalar("SELECT cents FROM account WHERE name = ?1");
        cents.bind(self.name).fetch_one(&self.data).await.unwrap()
    }

    async fn add(&self, tx: &mut Transaction<'_, Sqlite>, cents: i64) {
        let add = sqlx::query("UPDATE account SET cents = cents + ?2 WHERE name = ?1");
        add.bind(self.name).bind(cents).execute(&mut **tx).await.unwrap();
    }

    /// A try is not answered while the file has another writer.
    async fn is_kept(&self) {
        let mutex = self.theirs.mutex(self.name);
        let tried = timeout(Duration::from_millis(500), mutex.try_lock()).await;
        tried.expect_err("the lock is not given to anybody, nor anything else written");
    }
}

cases!();

#[tokio::test]
async fn a_release_is_carried_out_after_the_commit() {
    let scene = Scene::set("early").await;
    let guard = scene.mine.mutex("early").lock().await.unwrap();
    let mut tx = scene.data.begin().await.unwrap();
    guard.fence(&mut tx).await.unwrap();
    let released = tokio::spawn(guard.release());
    scene.is_kept().await;
    scene.add(&mut tx, 1).await;
    assert!(!released.is_finished());
    tx.commit().await.unwrap();
    timeout(LONG, released).await.unwrap().unwrap().unwrap();
    let next = timeout(LONG, scene.theirs.mutex("early").lock()).await.unwrap().unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_transaction_that_read_before_another_wrote_is_to_be_begun_again() {
    let scene = Scene::set("read").await;
    let guard = scene.mine.mutex("read").lock().await.unwrap();
    let mut tx = scene.data.begin().await.unwrap();
    let read = "SELECT cents FROM account WHERE name = 'read'";
    let _: i64 = sqlx::query_scalar(read).fetch_one(&mut *tx).await.unwrap();
    guard.renew().await.unwrap();
    let refused = guard.fence(&mut tx).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused}");
    tx.rollback().await.unwrap();
    let mut tx = scene.data.begin().await.unwrap();
    guard.fence(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_row_that_a_released_claim_leaves_behind_does_not_fence() {
    let scene = Scene::set("left").await;
    let guard = scene.mine.mutex("left").auto_renew(false).lock().await.unwrap();
    let (lease, token) = (guard.lease(), guard.token().unwrap());
    // Ended in the file, without the holder's knowledge.
    let force = lockkit::driver::BreakMode::Forced;
    let space = lockkit::Space::Lock;
    assert!(scene.theirs.admin().break_lock(space, "left", token, force, None).await.unwrap());
    let rows = sqlx::query_scalar("SELECT count(*) FROM lockkit_claims WHERE expires = 0");
    let rows: i64 = rows.fetch_one(&scene.data).await.unwrap();
    assert_eq!(rows, 1, "it remembers the place");
    let mut tx = scene.data.begin().await.unwrap();
    let refused = lease.fence(&mut tx).await.unwrap_err();
    assert!(matches!(refused, Error::Lost { .. }), "{refused}");
    tx.rollback().await.unwrap();
}
