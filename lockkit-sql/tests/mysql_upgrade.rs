//! MariaDB with tables that version 1 of lockkit made: who held a lock goes on holding it, clients of
//! both versions keep out of each other's way, and those of version 1 are bound to limits that they
//! know nothing of. And clients that run while procedures are replaced, also as MySQL does it.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Acquisition, LockDriver, Patience, Released, Reply, Step};
use lockkit_core::{Claim, ClientIdentity, Key, LockManager, Mode, Name, Namespace, Space};
use lockkit_lab::{Kind, Server};
use lockkit_sql::{MySqlDriver, ServerOptions};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row};
use tokio::task::JoinSet;

/// What `lockkit schema` of version 1 prints.
const VERSION_1: &str = include_str!("mysql_versions/1.sql");

/// Runs what is meant for the command-line client.
async fn run_schema(connection: &mut MySqlConnection, text: &str) {
    let body = text.strip_prefix("DELIMITER --;\n").expect("it sets the delimiter");
    let (body, _) = body.split_once("DELIMITER ;\n").expect("and sets it back");
    for statement in body.split("--;").map(str::trim).filter(|one| !one.is_empty()) {
        let statement = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
        connection.execute(statement).await.unwrap();
    }
}

fn id(claim: u8) -> String {
    format!("UNHEX('{}')", format!("{claim:02x}").repeat(16))
}

/// Outcome, and token or limit, of what a client of version 1 asks for: 1 of `limit` permits, or the
/// lock where there is no limit.
async fn acquire(
    old: &mut MySqlConnection,
    name: &str,
    claim: u8,
    limit: Option<u32>,
    patience: &str,
) -> (i64, Option<i64>) {
    let (space, weight, capacity) = match limit {
        Some(limit) => (1, 1, limit),
        None => (0, 2_147_483_647, 2_147_483_647),
    };
    let text = format!(
        "CALL lockkit_acquire('', {space}, '{name}', {}, {weight}, {capacity}, 3600000000, \
         3600000000, '{{}}', NULL, {patience})",
        id(claim)
    );
    let row = ask(old, text).await;
    (row.get(0), row.get(1))
}

/// Asks, and asks again where the server chose this transaction to end a deadlock, as every client does.
async fn ask(old: &mut MySqlConnection, text: String) -> MySqlRow {
    loop {
        match old.fetch_one(AssertSqlSafe(text.clone())).await {
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("40001") => {}
            answer => return answer.unwrap(),
        }
    }
}

/// The way of a client of version 1 to a name that it believes to be free: how many rows it changed.
async fn swift_acquire(old: &mut MySqlConnection, name: &str, claim: u8, limit: u32) -> u64 {
    let text = format!(
        "UPDATE lockkit_names SET id = {}, weight = 1, capacity = {limit}, hold_ttl = 1, \
         wait_ttl = 1, identity = '{{}}', note = NULL, since = 1, \
         expires = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + 3600000000, \
         last = LAST_INSERT_ID(last + 1) \
         WHERE namespace = '' AND space = 1 AND name = '{name}' AND crowd = 0 \
         AND expires <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
        id(claim)
    );
    old.execute(AssertSqlSafe(text)).await.unwrap().rows_affected()
}

async fn release(old: &mut MySqlConnection, space: u8, name: &str, claim: u8) -> i64 {
    let text = format!("CALL lockkit_release('', {space}, '{name}', {})", id(claim));
    ask(old, text).await.get(0)
}

struct Scene {
    server: Server,
    old: MySqlConnection,
}

impl Scene {
    /// Tables of version 1.
    async fn of_version_1() -> Self {
        let server = Server::start(Kind::MariaDb).await.unwrap();
        let mut old = MySqlConnection::connect(&server.url()).await.unwrap();
        run_schema(&mut old, VERSION_1).await;
        Self { server, old }
    }

    async fn newcomer(&self) -> LockManager {
        let options = ServerOptions::default().timeout(Duration::from_secs(60));
        let driver = MySqlDriver::connect_with(&self.server.url(), options).await.unwrap();
        LockManager::new(driver)
    }
}

#[tokio::test]
async fn a_lock_that_is_held_during_the_upgrade_stays_held_and_later_tokens_are_greater() {
    let mut scene = Scene::of_version_1().await;
    let (outcome, token) = acquire(&mut scene.old, "a", 1, None, "0").await;
    assert_eq!(outcome, 1);
    assert_eq!(acquire(&mut scene.old, "a", 2, None, "0").await.0, 2, "it waits");
    let new = scene.newcomer().await;
    assert!(new.mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(release(&mut scene.old, 0, "a", 1).await, 1);
    assert!(new.mutex("a").try_lock().await.unwrap().is_none(), "the one that waited holds");
    assert_eq!(release(&mut scene.old, 0, "a", 2).await, 1);
    for _ in 0..3 {
        let guard = new.mutex("a").try_lock().await.unwrap().expect("it is free");
        assert!(guard.token().unwrap().as_i64() > token.unwrap());
        guard.release().await.unwrap();
    }
    assert_eq!(acquire(&mut scene.old, "a", 3, None, "1").await.0, 1);
    assert!(new.mutex("a").try_lock().await.unwrap().is_none());
}

#[tokio::test]
async fn a_client_of_version_1_is_bound_to_a_limit_that_a_later_one_gave() {
    let mut scene = Scene::of_version_1().await;
    assert_eq!(acquire(&mut scene.old, "pool", 1, Some(3), "1").await.0, 1);
    let new = scene.newcomer().await;
    let pool = new.semaphore("pool", 7).resizable();
    assert_eq!(pool.limit().await.unwrap(), 3, "it is in use with this one");
    pool.resize(2).await.unwrap();
    let other = acquire(&mut scene.old, "pool", 2, Some(3), "1").await;
    assert_eq!(other, (3, Some(2)), "another limit");
    let one = pool.try_acquire().await.unwrap().expect("one is free");
    assert_eq!(acquire(&mut scene.old, "pool", 2, Some(2), "1").await.0, 0, "none is free");
    // Also where nobody is in the list, and it remembers it as free.
    one.release().await.unwrap();
    assert_eq!(release(&mut scene.old, 1, "pool", 1).await, 1);
    assert_eq!(swift_acquire(&mut scene.old, "pool", 2, 3).await, 0, "it is not for the swift");
    assert_eq!(acquire(&mut scene.old, "pool", 2, Some(3), "1").await, (3, Some(2)));
    assert_eq!(acquire(&mut scene.old, "pool", 2, Some(2), "1").await.0, 1);
    let last = pool.try_acquire().await.unwrap().expect("one is free");
    assert!(pool.try_acquire().await.unwrap().is_none(), "two are out");
    last.release().await.unwrap();
}

/// A procedure of version 1 that was running while they were replaced puts a claim under another limit
/// into a list that is empty; it waits there, since the list has a row in `lockkit_claims` only.
#[tokio::test]
async fn what_a_procedure_of_version_1_left_counts_under_the_limit_in_force() {
    let mut scene = Scene::of_version_1().await;
    let new = scene.newcomer().await;
    let pool = new.semaphore("pool", 1).resizable();
    pool.resize(1).await.unwrap();
    let one = pool.try_acquire().await.unwrap().expect("it is free");
    let straggler = format!(
        "INSERT INTO lockkit_claims (namespace, space, name, place, token, id, weight, capacity, \
         hold_ttl, wait_ttl, queued, expires, held, identity) \
         SELECT namespace, space, name, place + 1, place + 1, {}, 1, 9, hold_ttl, 3600000000, queued, \
         expires + 3600000000, NULL, '{{}}' FROM lockkit_claims",
        id(9)
    );
    assert_eq!(scene.old.execute(AssertSqlSafe(straggler)).await.unwrap().rows_affected(), 1);
    let holders = "SELECT COUNT(*) FROM lockkit_claims WHERE held IS NOT NULL";
    assert!(pool.try_acquire().await.unwrap().is_none());
    let held: i64 = scene.old.fetch_one(holders).await.unwrap().get(0);
    assert_eq!(held, 1, "one is out");
    one.release().await.unwrap();
    let held: i64 = scene.old.fetch_one(holders).await.unwrap().get(0);
    assert_eq!(held, 1, "it had its turn");
    assert!(pool.try_acquire().await.unwrap().is_none(), "one is out");
}

/// Clients of version 1 lock and unlock all the while, by its procedures.
#[tokio::test]
async fn nobody_who_uses_version_1_during_the_upgrade_meets_an_error() {
    let scene = Scene::of_version_1().await;
    let (done, going) = tokio::sync::watch::channel(false);
    let mut users = JoinSet::new();
    for user in 1..=4_u8 {
        let mut old = MySqlConnection::connect(&scene.server.url()).await.unwrap();
        let going = going.clone();
        users.spawn(async move {
            let name = format!("user {user}");
            let mut rounds = 0;
            while !*going.borrow() || rounds < 20 {
                assert_eq!(acquire(&mut old, &name, user, None, "1").await.0, 1);
                assert_eq!(release(&mut old, 0, &name, user).await, 1);
                rounds += 1;
            }
        });
    }
    let mut newcomers = JoinSet::new();
    for _ in 0..4 {
        let url = scene.server.url();
        newcomers.spawn(async move {
            let options = ServerOptions::default().timeout(Duration::from_secs(60));
            MySqlDriver::connect_with(&url, options).await.unwrap()
        });
    }
    newcomers.join_all().await;
    done.send(true).unwrap();
    users.join_all().await;
}

#[tokio::test]
async fn the_statements_for_people_upgrade_as_well() {
    let mut scene = Scene::of_version_1().await;
    let (_, token) = acquire(&mut scene.old, "a", 1, None, "0").await;
    let statements = MySqlDriver::schema(&scene.server.url(), ServerOptions::default()).unwrap();
    for _ in 0..2 {
        run_schema(&mut scene.old, &statements).await;
    }
    let version = "SELECT version FROM lockkit_meta";
    let version: i32 = scene.old.fetch_one(version).await.unwrap().get(0);
    assert_eq!(version, 6);
    let new = scene.newcomer().await;
    assert!(new.mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(release(&mut scene.old, 0, "a", 1).await, 1);
    let guard = new.mutex("a").try_lock().await.unwrap().expect("it is free");
    assert!(guard.token().unwrap().as_i64() > token.unwrap());
    new.semaphore("pool", 1).resizable().resize(2).await.unwrap();
    guard.release().await.unwrap();
}

/// A statement as MySQL reads it, which cannot replace a procedure but removes it and makes it anew.
fn as_mysql_reads_it(statement: &str) -> String {
    let text = statement.replacen("/*M! OR REPLACE */ ", "", 1);
    let (Some((begin, _)), Some((_, end))) = (text.split_once("/*M!"), text.split_once("/*!80000"))
    else {
        return text;
    };
    format!("{begin}{}", end.trim_end_matches("*/"))
}

/// Locks and unlocks names that it never used before, which takes a procedure each time.
async fn use_new_names(url: String, user: usize, done: tokio::sync::watch::Receiver<bool>) {
    let options = ServerOptions::default().timeout(Duration::from_secs(120));
    let locks = LockManager::new(MySqlDriver::connect_with(&url, options).await.unwrap());
    let mut round = 0;
    while !*done.borrow() {
        let guard = locks.mutex(format!("{user}/{round}")).try_lock().await.unwrap();
        guard.expect("it is free").release().await.unwrap();
        round += 1;
    }
}

/// Two of the clients may make procedures, two may not; each meets the moment when there is none.
#[tokio::test]
async fn who_meets_a_procedure_that_is_being_replaced_as_on_mysql_waits_for_it() {
    const CLIENTS: usize = 4;
    let server = Server::start(Kind::MariaDb).await.unwrap();
    drop(MySqlDriver::connect(&server.url()).await.unwrap());
    let mut admin = MySqlConnection::connect(&server.url()).await.unwrap();
    let user = "modest@'127.0.0.1'";
    for statement in [
        format!("CREATE USER {user}"),
        format!("GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON lockkit.* TO {user}"),
    ] {
        admin.execute(sqlx::raw_sql(AssertSqlSafe(statement))).await.unwrap();
    }
    let modest = server.url().replacen("root@", "modest@", 1);
    let (done, is_done) = tokio::sync::watch::channel(false);
    let mut users = JoinSet::new();
    for user in 0..CLIENTS {
        let url = if user % 2 == 0 { modest.clone() } else { server.url() };
        users.spawn(use_new_names(url, user, is_done.clone()));
    }
    let text = MySqlDriver::schema(&server.url(), ServerOptions::default()).unwrap();
    let body = text.strip_prefix("DELIMITER --;\n").expect("it sets the delimiter");
    let (body, _) = body.split_once("DELIMITER ;\n").expect("and sets it back");
    let mut gaps = 0;
    for statement in body.split("--;").map(str::trim).filter(|one| !one.is_empty()) {
        let statement = as_mysql_reads_it(statement);
        admin.execute(sqlx::raw_sql(AssertSqlSafe(statement.clone()))).await.unwrap();
        if statement.starts_with("DROP") && statement.trim_end().ends_with("lockkit_acquire") {
            gaps += 1;
            let waiting = "SELECT COUNT(*) FROM information_schema.processlist \
                           WHERE state = 'User lock'";
            while admin.fetch_one(waiting).await.unwrap().get::<i64, _>(0) < CLIENTS as i64 {
                let failed = users.try_join_next();
                assert!(failed.is_none(), "a client gave up: {failed:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    assert_eq!(gaps, 1, "every client met it");
    done.send(true).unwrap();
    users.join_all().await;
}

/// A client of version 2 that was connected before goes on writing registers, by the procedure that it
/// knows.
#[tokio::test]
async fn a_client_of_version_2_goes_on_writing_registers_after_the_upgrade() {
    let server = Server::start(Kind::MariaDb).await.unwrap();
    drop(MySqlDriver::connect(&server.url()).await.unwrap());
    let mut old = MySqlConnection::connect(&server.url()).await.unwrap();
    for back in ["DROP PROCEDURE lockkit_write", VERSION_2, "UPDATE lockkit_meta SET version = 2"] {
        old.execute(sqlx::raw_sql(back)).await.unwrap();
    }
    assert_eq!(store(&mut old, 1, 1).await, 1, "it was absent");
    let scene = Scene { server, old };
    let new = scene.newcomer().await.register("r");
    let mut old = scene.old;
    let first = new.load().await.unwrap().unwrap();
    assert_eq!(first.value, [1]);
    assert_eq!(store(&mut old, 1, 1).await, 1, "the same write, asked for again");
    assert_eq!(store(&mut old, 2, 1).await, 0, "it is not absent");
    assert_eq!(store(&mut old, 3, 0).await, 1);
    let second = new.load().await.unwrap().unwrap();
    assert!(second.value == [3] && second.version > first.version);
    assert!(new.compare_and_store(first.version, b"late").await.is_err());
    new.compare_and_store(second.version, b"mine").await.unwrap();
}

const VERSION_2: &str = include_str!("mysql_versions/2_store.sql");

/// The outcome of a write of a client of version 2.
async fn store(old: &mut MySqlConnection, write: u8, expect: u8) -> i64 {
    let text = format!(
        "CALL lockkit_store('', 'r', CHAR({write} USING binary), {expect}, 0, NULL, {}, NULL, 600000000)",
        id(write)
    );
    ask(old, text).await.get(0)
}

/// Clients of version 3 know no flights, and call what they know, before and after the upgrade.
#[tokio::test]
async fn clients_of_version_3_and_flights_keep_out_of_each_others_way() {
    let server = Server::start(Kind::MariaDb).await.unwrap();
    drop(MySqlDriver::connect(&server.url()).await.unwrap());
    let mut old = MySqlConnection::connect(&server.url()).await.unwrap();
    for back in [
        "DROP PROCEDURE lockkit_carry",
        "DROP PROCEDURE lockkit_put",
        "DROP PROCEDURE lockkit_remove",
        "DROP PROCEDURE lockkit_acquire",
        "DROP PROCEDURE lockkit_release",
        include_str!("mysql_versions/3_acquire.sql"),
        include_str!("mysql_versions/3_release.sql"),
        "UPDATE lockkit_meta SET version = 3",
    ] {
        old.execute(sqlx::raw_sql(back)).await.unwrap();
    }
    let names: Vec<_> = (0..6).map(|name| format!("{name}")).collect();
    let mut tokens = Vec::new();
    for name in &names {
        let (outcome, token) = acquire(&mut old, name, 1, None, "1").await;
        assert_eq!(outcome, 1);
        tokens.push(token.unwrap());
    }
    let new = MySqlDriver::connect(&server.url()).await.unwrap();
    for round in 0..3 {
        let claims: Vec<_> = names.iter().map(|name| claim(name)).collect();
        let tries: Vec<_> = claims
            .iter()
            .map(|claim| Step::Acquire { claim: claim.clone(), patience: Patience::Try })
            .collect();
        for reply in new.carry(&tries).await.unwrap() {
            assert_eq!(reply.unwrap().result, Reply::Acquired(Acquisition::Busy), "round {round}");
        }
        for name in &names {
            assert_eq!(release(&mut old, 0, name, 1).await, 1, "round {round}");
        }
        for (reply, before) in new.carry(&tries).await.unwrap().into_iter().zip(&tokens) {
            match reply.unwrap().result {
                Reply::Acquired(Acquisition::Granted(it)) => assert!(it.token.as_i64() > *before),
                other => panic!("round {round}: it is free, and yet: {other:?}"),
            }
        }
        for name in &names {
            assert_eq!(acquire(&mut old, name, 1, None, "1").await.0, 0, "round {round}");
        }
        let releases: Vec<_> =
            claims.iter().map(|claim| Step::Release { claim: claim.clone() }).collect();
        for reply in new.carry(&releases).await.unwrap() {
            assert_eq!(reply.unwrap().result, Reply::Released(Released::Removed));
        }
        tokens.clear();
        for name in &names {
            let (outcome, token) = acquire(&mut old, name, 1, None, "1").await;
            assert_eq!(outcome, 1, "round {round}");
            tokens.push(token.unwrap());
        }
    }
}

fn claim(name: &str) -> Arc<Claim> {
    const LONG: Duration = Duration::from_secs(300);
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG, identity))
}
