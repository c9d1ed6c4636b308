//! MariaDB's variables that change what a statement means: an administrator may set any of them for the
//! whole server, and locks must not notice.

mod submitting;

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Acquisition, BreakMode, LockDriver, Renewal};
use lockkit_core::state::ListRequest;
use lockkit_core::{
    Claim, ClientIdentity, Error, Key, LockManager, Mode, Name, Namespace, Settings, Space,
};
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::{MySqlDriver, ServerOptions};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, MySqlConnection, Row};
use submitting::*;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(60);

/// A server of its own: these variables are those of a whole server.
struct Scene {
    server: Server,
    admin: MySqlConnection,
}

impl Scene {
    async fn set() -> Self {
        let server = Server::start(ServerKind::MariaDb).await.unwrap();
        let admin = MySqlConnection::connect(&server.url()).await.unwrap();
        Self { server, admin }
    }

    async fn run(&mut self, statement: String) {
        self.admin.execute(sqlx::raw_sql(AssertSqlSafe(statement))).await.unwrap();
    }

    async fn number(&mut self, query: &str) -> i64 {
        self.admin.fetch_one(AssertSqlSafe(query.to_owned())).await.unwrap().get(0)
    }

    async fn until_zero(&mut self, query: &str) {
        let gone = async {
            while self.number(query).await > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(LONG, gone).await.expect(query);
    }

    async fn own(&self, tables: &str) -> Result<MySqlDriver, Error> {
        let options = ServerOptions::default().timeout(LONG).tables(tables);
        MySqlDriver::connect_with(&self.server.url(), options).await
    }

    /// Connections that a program opened, as the server makes them.
    async fn pooled(&self, tables: &str) -> Result<MySqlDriver, Error> {
        let to: MySqlConnectOptions = self.server.url().parse().unwrap();
        // sqlx's own words to a new connection change the very variables.
        let to =
            to.pipes_as_concat(false).no_engine_substitution(false).disable_statement_logging();
        let pool = MySqlPoolOptions::new().max_connections(6).connect_lazy_with(to);
        MySqlDriver::with_pool(pool, ServerOptions::default().timeout(LONG).tables(tables)).await
    }
}

fn manager(driver: MySqlDriver) -> LockManager {
    LockManager::with(Arc::new(driver), Settings::default().ttl(LONG * 5)).unwrap()
}

/// All that a driver is asked for.
async fn everything(mine: &LockManager, theirs: &LockManager) -> Result<(), Error> {
    for _ in 0..3 {
        mine.mutex("again").lock().await?.release().await?;
    }
    // A lock that is handed over.
    let guard = mine.mutex("a").lock().await?;
    let other = theirs.clone();
    let next = tokio::spawn(async move { other.mutex("a").lock().await });
    while mine.inspect(Space::Lock, "a").await?.queue.len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    guard.renew().await?;
    let token = guard.token()?;
    guard.release().await?;
    let guard = timeout(LONG, next).await.expect("it is handed over").expect("no panic")?;
    assert!(guard.token()? > token);
    guard.renew().await?;
    guard.release().await?;
    // One that is broken.
    let guard = mine.mutex("a").lock().await?;
    let token = guard.token()?;
    assert!(
        theirs.admin().break_lock(Space::Lock, "a", token, BreakMode::Forced, Some("why")).await?
    );
    assert!(guard.renew().await.is_err(), "it was broken");
    drop(guard);
    // Readers, permits, a limit.
    let writer = mine.rwlock("w").write().await?;
    let reader = writer.downgrade().await?;
    theirs.rwlock("w").read().await?.release().await?;
    reader.release().await?;
    let pool = mine.semaphore("s", 2).resizable();
    let two = [pool.acquire().await?, theirs.semaphore("s", 2).resizable().acquire().await?];
    assert!(pool.try_acquire().await?.is_none());
    mine.admin().resize("s", 3).await?;
    pool.acquire().await?.release().await?;
    for one in two {
        one.release().await?;
    }
    // Registers.
    let register = mine.register("r");
    let version = register.store(b"").await?;
    let second = register.compare_and_store(version, b"value").await?;
    assert_eq!(
        register.load().await?.map(|it| (it.value, it.version)),
        Some((b"value".into(), second))
    );
    register.delete().await?;
    // Many in one request, and all of them in one list.
    let names: Vec<_> = (0..20).map(|name| format!("many/{name:02}")).collect();
    let guard = theirs.multi(&names).lock().await?;
    let request = ListRequest {
        namespace: Namespace::default(),
        space: None,
        prefix: "many/".into(),
        after: None,
        limit: 100,
    };
    assert_eq!(mine.driver().list(&request).await?.states.len(), names.len());
    guard.release().await?;
    drop(mine.driver().health().await?);
    Ok(())
}

/// Variables, and what each is set to.
const VARIABLES: &[&str] = &[
    "sql_safe_updates = 1",
    "completion_type = 'CHAIN'",
    "completion_type = 'RELEASE'",
    "tx_read_only = 1",
    "tx_isolation = 'SERIALIZABLE'",
    "tx_isolation = 'READ-UNCOMMITTED'",
    "sql_mode = 'ORACLE'",
    "sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE,HIGH_NOT_PRECEDENCE'",
    "sql_mode = ''",
    "sql_mode = 'TRADITIONAL,NO_UNSIGNED_SUBTRACTION,PAD_CHAR_TO_FULL_LENGTH,TIME_ROUND_FRACTIONAL'",
    "sql_select_limit = 1",
    "max_join_size = 1",
    "sql_auto_is_null = 1",
    "innodb_snapshot_isolation = 1",
    "lock_wait_timeout = 1",
    "innodb_lock_wait_timeout = 1",
    "max_error_count = 0",
    "default_storage_engine = 'MyISAM'",
    "time_zone = '+13:00'",
    "div_precision_increment = 0",
    "group_concat_max_len = 4",
    "low_priority_updates = 1",
    "sql_if_exists = 1",
    "old_mode = ''",
    "unique_checks = 0",
    "collation_server = 'latin1_german1_ci'",
    "character_set_server = 'utf16'",
];

/// Also while the tables and procedures are made.
#[tokio::test]
async fn no_variable_of_the_server_changes_what_the_drivers_connections_do() {
    let mut scene = Scene::set().await;
    let mut failed = Vec::new();
    for (number, set) in VARIABLES.iter().enumerate() {
        scene.run(format!("SET GLOBAL {set}")).await;
        let tables = format!("own{number}_");
        if let Err(error) = scene.used_by_two(&tables, false).await {
            failed.push(format!("{set}: {error}"));
        }
        scene.back(set).await;
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// A pool's connections are the program's: they stay as they are.
#[tokio::test]
async fn no_variable_of_the_server_changes_what_a_pool_does() {
    let mut scene = Scene::set().await;
    let mut failed = Vec::new();
    // Where a server has so small a limit, its answers are errors that name it.
    let set = VARIABLES.iter().filter(|set| !set.starts_with("max_join_size"));
    for (number, set) in set.enumerate() {
        scene.run(format!("SET GLOBAL {set}")).await;
        let tables = format!("pool{number}_");
        if let Err(error) = scene.used_by_two(&tables, true).await {
            failed.push(format!("{set}: {error}"));
        }
        scene.back(set).await;
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

impl Scene {
    async fn back(&mut self, set: &str) {
        let (variable, _) = set.split_once(' ').unwrap();
        self.run(format!("SET GLOBAL {variable} = DEFAULT")).await;
    }

    async fn used_by_two(&mut self, tables: &str, pooled: bool) -> Result<(), Error> {
        let first = match pooled {
            true => self.pooled(tables).await?,
            false => self.own(tables).await?,
        };
        let orphan = format!("INSERT INTO {tables}fences VALUES (REPEAT('x', 16))");
        self.run(orphan).await;
        let second = match pooled {
            true => self.pooled(tables).await?,
            false => self.own(tables).await?,
        };
        // Each client that starts sweeps.
        self.until_zero(&format!("SELECT COUNT(*) FROM {tables}fences")).await;
        let (mine, theirs) = (manager(first), manager(second));
        let done = timeout(LONG, everything(&mine, &theirs)).await;
        mine.shutdown().await;
        theirs.shutdown().await;
        done.unwrap_or_else(|_| Err(Error::permanent("test", "it never ends")))
    }
}

#[tokio::test]
async fn a_pool_in_whose_statements_an_empty_text_is_null_is_refused_with_the_variable() {
    let mut scene = Scene::set().await;
    scene.run("SET GLOBAL sql_mode = 'EMPTY_STRING_IS_NULL'".into()).await;
    let refused = scene.pooled("empty_").await.unwrap_err();
    assert!(refused.to_string().contains("sql_mode"), "{refused}");
    assert!(!refused.is_retryable(), "{refused}");
    let (mine, theirs) = (scene.own("empty_").await.unwrap(), scene.own("empty_").await.unwrap());
    everything(&manager(mine), &manager(theirs)).await.unwrap();
}

/// An administrator stops all writes for a while, as for a backup.
#[tokio::test]
async fn what_was_given_up_does_not_wait_on_behind_a_global_lock() {
    let mut scene = Scene::set().await;
    drop(scene.own("lockkit_").await.unwrap());
    let options = ServerOptions::default().timeout(Duration::from_secs(3));
    let driver = MySqlDriver::connect_with(&scene.server.url(), options).await.unwrap();
    let locks = manager(driver);
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    scene.run("FLUSH TABLES WITH READ LOCK".into()).await;
    for name in ["a", "new"] {
        let refused = locks.mutex(name).try_lock().await.unwrap_err();
        assert!(refused.is_retryable(), "{refused}");
    }
    let waiting = "SELECT COUNT(*) FROM information_schema.processlist \
                   WHERE state LIKE 'Waiting for%lock'";
    scene.until_zero(waiting).await;
    scene.run("UNLOCK TABLES".into()).await;
    for name in ["a", "new"] {
        assert!(locks.inspect(Space::Lock, name).await.unwrap().queue.is_empty());
    }
}

fn claim(name: &str, note: usize) -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    let mut claim = Claim::new(key, Mode::Exclusive, LONG, LONG, identity);
    claim.note = Some("n".repeat(note).into());
    Arc::new(claim)
}

/// Lowered under a client that is connected, or from the start: what is more than one claim goes in parts,
/// and only a claim or a value that is too large by itself is refused.
#[tokio::test]
async fn what_is_larger_than_a_packet_goes_in_parts() {
    const CLAIMS: usize = 300;
    const PACKET: usize = 32_768;
    let mut scene = Scene::set().await;
    let before = scene.own("packet_").await.unwrap();
    scene.run(format!("SET GLOBAL max_allowed_packet = {PACKET}")).await;
    scene.end_connections().await;
    let after = scene.own("packet_").await.unwrap();
    for (which, driver) in [("before", &before), ("after", &after)] {
        let claims: Vec<_> = (0..CLAIMS)
            .map(|n| claim(&format!("{which}/{n:03}/{}", "x".repeat(100)), 200))
            .collect();
        for round in 0..2 {
            for part in claims.chunks(128) {
                let huge = claim("huge", 2 * PACKET);
                let tries = part.iter().chain([&huge]).map(try_it);
                let replies = submit_all(driver, &tries.collect::<Vec<_>>()).await;
                for reply in &replies[..part.len()] {
                    let reply = &reply.as_ref().unwrap().result;
                    assert!(
                        matches!(reply, Outcome::Acquired(Acquisition::Granted(_))),
                        "{reply:?}"
                    );
                }
                refused(replies[part.len()].as_ref().map(drop));
            }
            for renewal in driver.renew(&claims).await.unwrap() {
                let renewal = renewal.unwrap();
                assert!(matches!(renewal, Renewal::Holds(_)), "{which}, {round}: {renewal:?}");
            }
            for part in claims.chunks(128) {
                let releases = part.iter().map(release);
                for reply in submit_all(driver, &releases.collect::<Vec<_>>()).await {
                    reply.unwrap();
                }
            }
        }
        let locks = manager(driver.clone());
        refused(locks.register("r").store(vec![0; 2 * PACKET]).await.map(drop));
        locks.register("r").store(b"small").await.unwrap();
        let left = "SELECT COUNT(*) FROM packet_queue";
        assert_eq!(scene.number(left).await, 0, "{which}: all are free again");
    }
}

/// It stays so, and says what is to be set.
fn refused<E: std::borrow::Borrow<Error> + std::fmt::Debug>(answer: Result<(), E>) {
    let error = answer.expect_err("it does not fit into a packet");
    let error: &Error = error.borrow();
    assert!(!error.is_retryable(), "{error}");
    assert!(error.to_string().contains("max_allowed_packet"), "{error}");
}

impl Scene {
    /// Ends all connections but the administrator's.
    async fn end_connections(&mut self) {
        let others = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist \
                      WHERE id <> CONNECTION_ID() AND command <> 'Daemon'";
        let ids: Vec<i64> = sqlx::query_scalar(others).fetch_all(&mut self.admin).await.unwrap();
        for id in ids {
            // It may have ended by itself.
            let _ = self.admin.execute(sqlx::raw_sql(AssertSqlSafe(format!("KILL {id}")))).await;
        }
    }
}
