//! MariaDB.

use std::time::Duration;

use lockkit::{Error, Fence, LockManager};
use lockkit_core::driver::{Anchored, LockDriver};
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::{Proxy, Server, ServerKind, SharedServer};
use lockkit_sql::mysql::TOKENS_TABLE;
use lockkit_sql::{Fenced, FencedWrite, MySqlDriver, ServerOptions};
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection, Executor, MySql, MySqlConnection, MySqlPool, Transaction};
use tokio::time::timeout;

use crate::{LONG, is_busy, short, two_managers};

const KIND: ServerKind = ServerKind::MariaDb;
const TABLES: &str = "tables=elsewhere_";

struct Scene {
    mine: LockManager,
    theirs: LockManager,
    data: MySqlPool,
    name: &'static str,
}

impl Scene {
    async fn set(name: &'static str) -> Self {
        let server = SharedServer::server(KIND).await.unwrap();
        let data = MySqlPool::connect(server.url()).await.unwrap();
        let account = "CREATE TABLE IF NOT EXISTS account \
                       (name VARCHAR(64) PRIMARY KEY, cents BIGINT NOT NULL)";
        data.execute(account).await.unwrap();
        data.execute(TOKENS_TABLE).await.unwrap();
        sqlx::query("INSERT INTO account VALUES (?, 100) ON DUPLICATE KEY UPDATE cents = 100")
            .bind(name)
            .execute(&data)
            .await
            .unwrap();
        let (mine, theirs) = two_managers(server.url()).await;
        Self { mine, theirs, data, name }
    }

    async fn cents(&self) -> i64 {
        let cents = sqlx::query_scalar("SELECT cents FROM account WHERE name = ?");
        cents.bind(self.name).fetch_one(&self.data).await.unwrap()
    }

    async fn add(&self, tx: &mut Transaction<'_, MySql>, cents: i64) {
        let add = sqlx::query("UPDATE account SET cents = cents + ? WHERE name = ?");
        add.bind(cents).bind(self.name).execute(&mut **tx).await.unwrap();
    }

    async fn is_kept(&self) {
        for _ in 0..20 {
            assert!(is_busy(&self.theirs, self.name).await);
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }
}

/// The level is of the next transaction, so it is set before that begins.
async fn begin_at<'c>(
    connection: &'c mut PoolConnection<MySql>,
    level: &str,
) -> Transaction<'c, MySql> {
    let set = format!("SET TRANSACTION ISOLATION LEVEL {level}");
    connection.execute(sqlx::raw_sql(AssertSqlSafe(set))).await.unwrap();
    connection.begin().await.unwrap()
}

cases!();
cases_of_servers!();

/// A server of its own, where no other test waits for a row or makes a fence.
struct Alone {
    server: Server,
    driver: MySqlDriver,
    locks: LockManager,
    admin: MySqlConnection,
}

impl Alone {
    async fn set() -> Self {
        let server = Server::start(KIND).await.unwrap();
        let options = ServerOptions::default().timeout(LONG);
        let driver = MySqlDriver::connect_with(&server.url(), options).await.unwrap();
        let locks = LockManager::new(driver.clone());
        let admin = MySqlConnection::connect(&server.url()).await.unwrap();
        Self { server, driver, locks, admin }
    }

    async fn number(&mut self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(&mut self.admin).await.unwrap()
    }

    async fn until(&mut self, query: &'static str) {
        let there = async {
            while self.number(query).await == 0 {
                // MariaDB's answer is as old as the last one that was asked for within 100 ms.
                tokio::time::sleep(Duration::from_millis(120)).await;
            }
        };
        timeout(LONG, there).await.expect(query);
    }

    async fn run(&mut self, statement: &'static str) {
        self.admin.execute(sqlx::raw_sql(statement)).await.unwrap();
    }

    async fn lock_the_row_of_a(&mut self) {
        self.run("BEGIN").await;
        let lock = "SELECT COUNT(*) FROM lockkit_names \
                    WHERE namespace = '' AND space = 0 AND name = 'a' FOR UPDATE";
        assert_eq!(self.number(lock).await, 1);
    }
}

impl Alone {
    /// An account of 100 cents, where the fenced transactions write.
    async fn with_data() -> (Self, MySqlPool) {
        let mut scene = Self::set().await;
        let data = MySqlPool::connect(&scene.server.url()).await.unwrap();
        data.execute(TOKENS_TABLE).await.unwrap();
        scene.run("CREATE TABLE account (cents BIGINT NOT NULL)").await;
        scene.run("INSERT INTO account VALUES (100)").await;
        (scene, data)
    }
}

/// Adds to the account, unless the transaction takes no writes.
async fn add(tx: &mut Transaction<'_, MySql>, cents: i64) -> Result<(), sqlx::Error> {
    let add = sqlx::query("UPDATE account SET cents = cents + ?").bind(cents);
    add.execute(&mut **tx).await.map(drop)
}

const CENTS: &str = "SELECT cents FROM account";

/// The server has rolled back: it says so, and what the program writes next is not committed by itself.
async fn is_over(error: Error, mut tx: Transaction<'_, MySql>) {
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains("has ended this transaction"), "{error}");
    let refused = add(&mut tx, 1_000).await.unwrap_err();
    assert!(refused.to_string().contains("READ ONLY"), "{refused}");
    drop(tx);
}

#[tokio::test]
async fn a_fence_behind_a_snapshot_that_the_server_keeps_strictly_ends_the_transaction() {
    let (mut scene, data) = Alone::with_data().await;
    scene.run("SET GLOBAL innodb_snapshot_isolation = ON").await;
    let strict = MySqlPool::connect(&scene.server.url()).await.unwrap();
    let guard = scene.locks.mutex("a").lock().await.unwrap();
    let mut tx = strict.begin().await.unwrap();
    let seen: i64 = sqlx::query_scalar(CENTS).fetch_one(&mut *tx).await.unwrap();
    assert_eq!(seen, 100);
    let refused = guard.fence(&mut tx).await.unwrap_err();
    is_over(refused, tx).await;
    assert_eq!(scene.number(CENTS).await, 100);
    // Begun again, and fenced first.
    for pool in [&strict, &data] {
        let mut tx = pool.begin().await.unwrap();
        guard.fence(&mut tx).await.unwrap();
        add(&mut tx, 1).await.unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(scene.number(CENTS).await, 102);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_fenced_write_that_the_server_chose_to_end_a_deadlock_ends_the_transaction() {
    let (mut scene, data) = Alone::with_data().await;
    let guard = scene.locks.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    let mut tx = data.begin().await.unwrap();
    assert_eq!(tx.fenced_write("r", token).await.unwrap(), Fenced::Admitted);
    tx.commit().await.unwrap();
    // The other one has written more, so it is not the one that is ended.
    scene.run("CREATE TABLE many (n BIGINT NOT NULL)").await;
    scene.run("BEGIN").await;
    scene.run("INSERT INTO many SELECT seq FROM seq_1_to_1000").await;
    scene.run("UPDATE lockkit_tokens SET highest = highest").await;
    scene.run("INSERT INTO lockkit_tokens VALUES ('other', 1)").await;
    scene.run("SELECT * FROM lockkit_tokens FOR UPDATE").await;
    let mut tx = data.begin().await.unwrap();
    add(&mut tx, 500).await.unwrap();
    let mut other = scene.admin;
    let crossing = tokio::spawn(async move {
        other.execute("UPDATE account SET cents = cents + 1").await.unwrap();
        other.execute("COMMIT").await.unwrap();
        other
    });
    scene.admin = MySqlConnection::connect(&scene.server.url()).await.unwrap();
    scene.until(WAITING).await;
    let refused = timeout(LONG, tx.fenced_write("r", token)).await.unwrap().unwrap_err();
    timeout(LONG, crossing).await.unwrap().unwrap();
    is_over(refused, tx).await;
    assert_eq!(scene.number(CENTS).await, 101);
    guard.release().await.unwrap();
}

/// Unless the server is told otherwise, a wait that is over ends a statement, not its transaction.
#[tokio::test]
async fn a_fenced_write_that_waited_in_vain_leaves_the_transaction_as_it_was() {
    let (mut scene, data) = Alone::with_data().await;
    let guard = scene.locks.mutex("a").lock().await.unwrap();
    let token = guard.token().unwrap();
    scene.run("BEGIN").await;
    scene.run("INSERT INTO lockkit_tokens VALUES ('r', 1)").await;
    let mut tx = data.begin().await.unwrap();
    tx.execute("SET SESSION innodb_lock_wait_timeout = 1").await.unwrap();
    add(&mut tx, 5).await.unwrap();
    let refused = tx.fenced_write("r", token).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused}");
    assert!(!refused.to_string().contains("has ended"), "{refused}");
    // As the driver asks.
    let all = sqlx::query_scalar("SELECT @@innodb_rollback_on_timeout = 1");
    let all: i64 = all.fetch_one(&mut *tx).await.unwrap();
    assert_eq!(all, 0, "the server is told nothing else");
    scene.run("ROLLBACK").await;
    assert_eq!(scene.number(CENTS).await, 100, "nothing is committed yet");
    assert_eq!(tx.fenced_write("r", token).await.unwrap(), Fenced::Admitted);
    tx.commit().await.unwrap();
    assert_eq!(scene.number(CENTS).await, 105);
    guard.release().await.unwrap();
}

const FENCED: &str = "SELECT COUNT(*) FROM lockkit_claims WHERE fenced";
const FENCES: &str = "SELECT COUNT(*) FROM lockkit_fences";
const WAITING: &str =
    "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";

/// Two transactions are fenced by one lease. The statement of the first one comes late, behind the end of
/// the lease and the next holder's work; so does the request of the second, which is being answered.
#[tokio::test]
async fn a_fence_that_comes_late_is_refused_while_a_second_one_is_being_refused() {
    let mut scene = Alone::set().await;
    let server = &scene.server;
    let way = Proxy::start(server.addr(), Protocol::MySql).await.unwrap();
    let late = MySqlPool::connect(&server.url_at(way.addr())).await.unwrap();
    let theirs = lockkit::connect(&server.url()).await.unwrap();
    let guard = short(&scene.locks, "a").await;
    let lease = guard.lease();
    let claim = lease.claim();
    // Its first transaction: the claim is fenced, the transaction's own statement is held up.
    let mut tx = late.begin().await.unwrap();
    way.fault(ProxyFault::BlackHole, When::Now);
    let first = tokio::spawn(async move { lease.fence(&mut tx).await });
    scene.until(FENCED).await;
    // The lease ends, and the next holder works.
    let next = timeout(LONG, theirs.mutex("a").lock()).await.unwrap().unwrap();
    // The second request: it finds the row of the name locked.
    scene.lock_the_row_of_a().await;
    let driver = scene.driver.clone();
    let second = tokio::spawn(async move { driver.anchor(&claim).await });
    scene.until(WAITING).await;
    way.heal().await.unwrap();
    let refused = timeout(LONG, first).await.unwrap().unwrap();
    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    scene.run("ROLLBACK").await;
    let second = timeout(LONG, second).await.unwrap().unwrap().unwrap();
    assert!(matches!(second, Anchored::Ended(_)), "{second:?}");
    assert_eq!(scene.number(FENCES).await, 0, "nothing relies on a claim that has ended");
    next.release().await.unwrap();
}

/// The second one shares the row of the first, and what it waits for it has nothing in hand that a renewal
/// needs.
#[tokio::test]
async fn a_second_fence_that_has_to_wait_stops_neither_the_first_nor_renewals() {
    let mut scene = Alone::set().await;
    let data = MySqlPool::connect(&scene.server.url()).await.unwrap();
    let guard = scene.locks.mutex("a").lock().await.unwrap();
    // Of another process: one that holds both renews them together.
    let theirs = lockkit::connect(&scene.server.url()).await.unwrap();
    let other = theirs.mutex("b").lock().await.unwrap();
    let mut first = data.begin().await.unwrap();
    guard.fence(&mut first).await.unwrap();
    scene.lock_the_row_of_a().await;
    let lease = guard.lease();
    let mut tx = data.begin().await.unwrap();
    let second = tokio::spawn(async move {
        lease.fence(&mut tx).await?;
        Ok::<_, Error>(tx)
    });
    scene.until(WAITING).await;
    timeout(LONG, other.renew()).await.expect("it waits for no fence").unwrap();
    assert!(!second.is_finished());
    scene.run("ROLLBACK").await;
    let second = timeout(LONG, second).await.unwrap().unwrap().unwrap();
    guard.release().await.unwrap();
    for fenced in [first, second] {
        assert!(is_busy(&theirs, "a").await, "a transaction relies on it");
        fenced.commit().await.unwrap();
    }
    let next = timeout(LONG, theirs.mutex("a").lock()).await.unwrap().unwrap();
    next.release().await.unwrap();
    other.release().await.unwrap();
    assert_eq!(scene.number(FENCES).await, 0);
}

/// As an administrator may remove it, or a restored backup lack it.
#[tokio::test]
async fn a_fenced_claim_whose_fence_is_gone_does_not_keep_its_lock_for_ever() {
    let mut scene = Alone::set().await;
    let theirs = lockkit::connect(&scene.server.url()).await.unwrap();
    let data = MySqlPool::connect(&scene.server.url()).await.unwrap();
    let guard = scene.locks.mutex("a").lock().await.unwrap();
    let mut tx = data.begin().await.unwrap();
    guard.fence(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    scene.run("DELETE FROM lockkit_fences").await;
    guard.release().await.unwrap();
    let next = theirs.mutex("a").try_lock().await.unwrap().expect("nothing relies on it");
    next.release().await.unwrap();
}

/// Claims that were deleted by hand leave their fences behind. One that a transaction relies on stays until
/// that has ended, and one whose claim is there stays.
#[tokio::test]
async fn the_sweep_removes_fences_that_have_no_claim() {
    let mut scene = Alone::set().await;
    let data = MySqlPool::connect(&scene.server.url()).await.unwrap();
    let kept = scene.locks.mutex("kept").lock().await.unwrap();
    let left = scene.locks.mutex("a").lock().await.unwrap();
    for guard in [&kept, &left] {
        let mut tx = data.begin().await.unwrap();
        guard.fence(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
    }
    let mut tx = data.begin().await.unwrap();
    left.fence(&mut tx).await.unwrap();
    scene.run("DELETE FROM lockkit_claims WHERE name = 'a'").await;
    scene.run("INSERT INTO lockkit_fences VALUES (REPEAT('x', 16)), (REPEAT('y', 16))").await;
    const SWEEP: &str = "CALL lockkit_sweep('', -1, '', 1000, 86400000000)";
    scene.run(SWEEP).await;
    assert_eq!(scene.number(FENCES).await, 2, "one has a claim, one a transaction");
    tx.commit().await.unwrap();
    scene.run(SWEEP).await;
    assert_eq!(scene.number(FENCES).await, 1, "it has a claim");
    kept.release().await.unwrap();
    assert_eq!(scene.number(FENCES).await, 0);
}
