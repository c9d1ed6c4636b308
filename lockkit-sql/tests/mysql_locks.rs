//! MariaDB's row locks: what waits for rows that other transactions have locked, and what must not.

mod submitting;

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{BreakMode, LockDriver, Patience};
use lockkit_core::{
    BreakRecord, Claim, ClientIdentity, Key, LockManager, Mode, Name, Namespace, Space,
};
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::{MySqlDriver, ServerOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row};
use submitting::*;

const LONG: Duration = Duration::from_secs(60);

struct Scene {
    server: Server,
    driver: MySqlDriver,
    locks: LockManager,
    /// Somebody else, who has locked rows.
    other: MySqlConnection,
    /// A connection on which it is an error to wait for a row that stays locked.
    hasty: MySqlConnection,
}

impl Scene {
    async fn set() -> Self {
        let server = Server::start(ServerKind::MariaDb).await.unwrap();
        let options = ServerOptions::default().timeout(LONG);
        let driver = MySqlDriver::connect_with(&server.url(), options).await.unwrap();
        let locks = LockManager::new(driver.clone());
        let other = MySqlConnection::connect(&server.url()).await.unwrap();
        let mut hasty = MySqlConnection::connect(&server.url()).await.unwrap();
        hasty.execute("SET SESSION innodb_lock_wait_timeout = 1").await.unwrap();
        Self { server, driver, locks, other, hasty }
    }

    async fn lock_the_row_of(&mut self, name: &str) {
        self.other.execute("BEGIN").await.unwrap();
        let lock = format!(
            "SELECT COUNT(*) FROM lockkit_names \
             WHERE namespace = '' AND space = 0 AND name = '{name}' FOR UPDATE"
        );
        let rows: i64 = self.other.fetch_one(AssertSqlSafe(lock)).await.unwrap().get(0);
        assert_eq!(rows, 1);
    }
}

fn claim(name: &str) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG, identity))
}

/// A try of a name, as the text that the procedure reads.
fn packed(number: usize, name: &str, id: char) -> String {
    let (names, id) = (name.len(), id.to_string().repeat(16));
    let limit = i32::MAX;
    format!(
        "2{number:05}0000{names:03}{name}{id}{limit:010}{limit:010}{:019}{:019}0000000002----------{{}}",
        LONG.as_micros(),
        LONG.as_micros()
    )
}

/// How the tries of these names end, in one call.
async fn carry(connection: &mut MySqlConnection, names: &[&str]) -> Vec<String> {
    let ids = 'a'..='z';
    let steps = names.iter().zip(ids).enumerate();
    let rest: String = steps.map(|(number, (name, id))| packed(number, name, id)).collect();
    let call = sqlx::query("CALL lockkit_submit('', 0, '', 0, '', ?, '')").bind(rest.into_bytes());
    let row = call.fetch_one(connection).await.unwrap();
    let told: String = row.get("answers");
    let steps = told.split_terminator(';').map(|told| told.split(',').nth(1).unwrap().to_owned());
    steps.collect()
}

#[tokio::test]
async fn a_batch_waits_for_no_row_that_is_locked_and_leaves_out_its_step() {
    let mut scene = Scene::set().await;
    for name in ["a", "b", "c"] {
        scene.locks.mutex(name).lock().await.unwrap().release().await.unwrap();
    }
    scene.lock_the_row_of("b").await;
    // Old names and new ones, on either side of the locked one and twice that itself.
    let told = carry(&mut scene.hasty, &["a", "b", "b", "bb", "c"]).await;
    assert_eq!(told, ["1", "9", "9", "1", "1"]);
    scene.other.execute("ROLLBACK").await.unwrap();
    let told = carry(&mut scene.hasty, &["a", "b", "b", "bb", "c", "new"]).await;
    assert_eq!(told, ["1", "1", "0", "1", "1", "1"], "claims that hold are found again");
}

/// All new names and registers begin above one number, which the sweep writes.
#[tokio::test]
async fn new_names_and_registers_do_not_wait_for_a_sweep() {
    let mut scene = Scene::set().await;
    scene.other.execute("BEGIN").await.unwrap();
    let floor = "SELECT COUNT(*) FROM lockkit_meta FOR UPDATE";
    assert_eq!(scene.other.fetch_one(floor).await.unwrap().get::<i64, _>(0), 1);
    assert_eq!(carry(&mut scene.hasty, &["a"]).await, ["1"]);
    let write = "CALL lockkit_write('', 'r', 'value', 0, 0, NULL, REPEAT('x', 16), NULL, 1, 0)";
    let outcome: i64 = scene.hasty.fetch_one(write).await.unwrap().get(0);
    assert_eq!(outcome, 1, "it is stored");
}

#[tokio::test]
async fn a_sweep_waits_for_no_name_that_is_locked_and_removes_what_can_go() {
    let mut scene = Scene::set().await;
    let identity = ClientIdentity::of_this_process();
    let record = BreakRecord::from_parts(identity, 1, None, true);
    for name in ["a", "b"] {
        let claim = claim(name);
        let token = match scene.driver.acquire(&claim, Patience::Try).await.unwrap().result {
            lockkit_core::driver::Acquisition::Granted(grant) => grant.token,
            other => panic!("it is free, and yet: {other:?}"),
        };
        let broke = scene.driver.break_claim(&claim.key, token, BreakMode::Forced, &record);
        assert!(broke.await.unwrap());
    }
    let hasty = &mut scene.hasty;
    hasty.execute("UPDATE lockkit_breaks SET expires = 1").await.unwrap();
    hasty.execute("INSERT INTO lockkit_fences VALUES (REPEAT('x', 16))").await.unwrap();
    scene.lock_the_row_of("b").await;
    let sweep = "CALL lockkit_sweep('', -1, '', 1000, 86400000000)";
    scene.hasty.execute(sqlx::raw_sql(sweep)).await.unwrap();
    for table in ["breaks", "fences"] {
        let left = format!("SELECT COUNT(*) FROM lockkit_{table}");
        let left: i64 = scene.hasty.fetch_one(AssertSqlSafe(left)).await.unwrap().get(0);
        assert_eq!(left, 0, "{table}");
    }
}

/// Of a small table, an optimizer may prefer to read all rows.
#[tokio::test]
async fn a_renewal_waits_for_no_row_of_another_name() {
    let mut scene = Scene::set().await;
    assert_eq!(carry(&mut scene.hasty, &["a", "b"]).await, ["1", "1"]);
    scene.lock_the_row_of("a").await;
    let id = "62".repeat(16);
    let renew = format!("CALL lockkit_renew('[[\"{id}\",60000000,60000000,\"\",0,\"62\"]]')");
    let row = scene.hasty.fetch_one(AssertSqlSafe(renew)).await.unwrap();
    assert_eq!(row.get::<i64, _>("state"), 1, "it holds");
}

/// Six clients on ten names, whose flights take and give them back in any order.
#[tokio::test]
async fn clients_that_carry_batches_of_the_same_names_never_deadlock() {
    const CLIENTS: usize = 6;
    let mut scene = Scene::set().await;
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let url = scene.server.url();
        clients.spawn(async move {
            let options = ServerOptions::default().timeout(LONG);
            let driver = MySqlDriver::connect_with(&url, options).await.unwrap();
            for round in 0..150 {
                let claims: Vec<_> = (0..10)
                    .map(|name| claim(&((name + client + round) % 10).to_string()))
                    .collect();
                let tries: Vec<_> = claims.iter().map(try_it).collect();
                let releases: Vec<_> = claims.iter().map(release).collect();
                for batch in [tries, releases] {
                    for outcome in submit_all(&driver, &batch).await {
                        outcome.unwrap();
                    }
                }
            }
        });
    }
    clients.join_all().await;
    let deadlocks = "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'";
    let deadlocks: String = scene.other.fetch_one(deadlocks).await.unwrap().get(1);
    assert_eq!(deadlocks, "0");
}
