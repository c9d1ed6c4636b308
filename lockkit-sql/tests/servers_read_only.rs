//! A database server that takes no writes: a standby, before its promotion or for good, or a read-only
//! role. A manager that meets it first is told at once what it is; one that has written there, or whose
//! caller set a limit, asks again; what is held or in line outlasts it.

use std::fs::Metadata;
use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::{Error, Guard, LockManager, Settings, Space};
use lockkit_lab::{Data, Server, ServerKind};
use lockkit_sql::{MySqlDriver, PostgresDriver};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The time to live of every claim: longer than any of these tests.
const TTL: Duration = Duration::from_secs(600);
/// Far below it, and far above what an answer takes.
const SOON: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    Settings::default().ttl(TTL).wait_ttl(TTL)
}

async fn postgres(server: &Server) -> LockManager {
    let driver = PostgresDriver::connect(&server.url()).await.unwrap();
    LockManager::with(Arc::new(driver), settings()).unwrap()
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(SOON, what).await.expect("it ends long before a lease does")
}

/// `job` is held, and one waits for it.
async fn held_and_wanted(
    ours: &LockManager,
    theirs: &LockManager,
) -> (Guard, JoinHandle<Result<Guard, Error>>) {
    let guard = ours.mutex("job").lock().await.unwrap();
    let waiting = tokio::spawn({
        let theirs = theirs.clone();
        async move { theirs.mutex("job").lock().await }
    });
    soon(async {
        while ours.inspect(Space::Lock, "job").await.unwrap().queue.len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    (guard, waiting)
}

/// Whatever way a lock is asked for without a limit, it is neither taken nor worth waiting for.
async fn refused_at_once(locks: &LockManager, role: &str) {
    let fresh = locks.mutex("fresh");
    for refused in [
        soon(fresh.try_lock()).await.map(drop),
        soon(fresh.lock()).await.map(drop),
        soon(locks.register("r").store(b"value")).await.map(drop),
    ] {
        let error = refused.expect_err("nothing can be written there");
        assert!(!error.is_retryable(), "{error}");
        assert!(error.to_string().contains("the server is read-only"), "{error}");
        assert!(error.is_read_only() && error.to_string().contains(role), "{error}");
    }
}

/// Asked for while the server takes no writes: by a manager that has written there, and at first contact
/// within a limit.
async fn asked_again(written: &LockManager, passing: &LockManager) -> Vec<JoinHandle<Guard>> {
    let error = soon(written.mutex("fresh").try_lock()).await.unwrap_err();
    assert!(error.is_retryable() && error.is_read_only(), "{error}");
    let (fresh, other) = (written.mutex("asked again"), passing.mutex("within a limit"));
    let waiting = tokio::spawn(async move { fresh.lock().await.unwrap() });
    let limited = tokio::spawn(async move { other.try_lock_for(TTL).await.unwrap().unwrap() });
    soon(async {
        while written.outage().is_none() || passing.outage().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(!waiting.is_finished() && !limited.is_finished());
    vec![waiting, limited]
}

async fn all_granted(asked: Vec<JoinHandle<Guard>>) {
    for asked in asked {
        soon(soon(asked).await.unwrap().release()).await.unwrap();
    }
}

/// Afterwards everything goes on where it was.
async fn goes_on(guard: Guard, waiting: JoinHandle<Result<Guard, Error>>) {
    assert!(guard.is_valid() && !waiting.is_finished());
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    soon(next.release()).await.unwrap();
}

#[tokio::test]
async fn postgres_that_is_set_to_read_only_refuses_at_once_and_keeps_what_is_held() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let (ours, theirs) = (postgres(&server).await, postgres(&server).await);
    let (guard, waiting) = held_and_wanted(&ours, &theirs).await;
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    admin.execute("ALTER SYSTEM SET default_transaction_read_only = on").await.unwrap();
    admin.execute("SELECT pg_reload_conf()").await.unwrap();
    // Connections hear of it one after the other.
    soon(async {
        while ours.mutex("other").try_lock().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let passing = postgres(&server).await;
    refused_at_once(&passing, "read-only role").await;
    let asked = asked_again(&ours, &passing).await;
    admin.execute("SET default_transaction_read_only = off").await.unwrap();
    admin.execute("ALTER SYSTEM RESET default_transaction_read_only").await.unwrap();
    admin.execute("SELECT pg_reload_conf()").await.unwrap();
    all_granted(asked).await;
    goes_on(guard, waiting).await;
}

#[tokio::test]
async fn a_standby_refuses_at_once_and_serves_those_in_line_once_it_takes_writes() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let (ours, theirs) = (postgres(&server).await, postgres(&server).await);
    let (guard, waiting) = held_and_wanted(&ours, &theirs).await;
    // A standby that waits for a primary.
    server.kill().await;
    std::fs::write(server.folder().join("postgres/data/standby.signal"), "").unwrap();
    server.restart(Data::Keep).await.unwrap();
    let passing = postgres(&server).await;
    refused_at_once(&passing, "it is a standby").await;
    let asked = asked_again(&ours, &passing).await;
    let health = passing.health().await.unwrap();
    assert!(
        health.findings.iter().any(|finding| finding.what.contains("in recovery")),
        "{health:?}"
    );
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    admin.execute("SELECT pg_promote()").await.unwrap();
    all_granted(asked).await;
    goes_on(guard, waiting).await;
}

#[tokio::test]
async fn mariadb_that_is_set_to_read_only_refuses_at_once_and_keeps_what_is_held() {
    let server = Server::start(ServerKind::MariaDb).await.unwrap();
    MySqlDriver::connect(&server.url()).await.unwrap();
    let mut admin = MySqlConnection::connect(&server.url()).await.unwrap();
    // Administrators may write all the same.
    for statement in [
        "CREATE USER locker@'127.0.0.1'",
        "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON lockkit.* TO locker@'127.0.0.1'",
    ] {
        admin.execute(sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))).await.unwrap();
    }
    let login = server.url().replacen("root@", "locker@", 1);
    let locks = || async {
        let driver = MySqlDriver::connect(&login).await.unwrap();
        LockManager::with(Arc::new(driver), settings()).unwrap()
    };
    let (ours, theirs) = (locks().await, locks().await);
    let (guard, waiting) = held_and_wanted(&ours, &theirs).await;
    admin.execute("SET GLOBAL read_only = 1").await.unwrap();
    let passing = locks().await;
    refused_at_once(&passing, "as on a standby").await;
    let asked = asked_again(&ours, &passing).await;
    admin.execute("SET GLOBAL read_only = 0").await.unwrap();
    all_granted(asked).await;
    goes_on(guard, waiting).await;
}

/// An address that leads to one server after the other, as a name or a virtual address does. Connections
/// that are there stay where they are.
struct Address {
    at: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
}

impl Address {
    async fn of(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let target = Arc::new(Mutex::new(server.addr()));
        let moved = target.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let to = *moved.lock().unwrap();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(to).await?;
                    tokio::io::copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        Self { at, target }
    }

    fn move_to(&self, server: &Server) {
        *self.target.lock().unwrap() = server.addr();
    }
}

/// A standby that follows this server, from a copy of its data.
async fn standby_of(primary: &Server) -> Server {
    let standby = Server::start(ServerKind::Postgres).await.unwrap();
    standby.kill().await;
    let data = standby.folder().join("postgres/data");
    let owner = std::fs::metadata(&data).unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    let version = std::fs::read_dir("/usr/lib/postgresql").unwrap().next().unwrap().unwrap();
    let copied = std::process::Command::new(version.path().join("bin/pg_basebackup"))
        .args(["-U", "postgres", "-h", "127.0.0.1", "-p", &primary.addr().port().to_string()])
        .args(["--checkpoint=fast", "--write-recovery-conf", "-D"])
        .arg(&data)
        .output()
        .unwrap();
    assert!(copied.status.success(), "{copied:?}");
    give(&data, &owner);
    standby.restart(Data::Keep).await.unwrap();
    standby
}

/// The server's account owns what the test has copied.
fn give(path: &Path, owner: &Metadata) {
    std::os::unix::fs::lchown(path, Some(owner.uid()), Some(owner.gid())).unwrap();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path(), owner);
        }
    }
}

/// The address leads to the standby before that is promoted, and the old primary goes on as a standby
/// would: it still answers on the connections that are open.
#[tokio::test]
async fn a_failover_that_takes_a_while_is_waited_for_and_no_old_connection_is_used_afterwards() {
    let old = Server::start(ServerKind::Postgres).await.unwrap();
    let address = Address::of(&old).await;
    let url = old.url_at(address.at);
    let connect = || async {
        let driver = PostgresDriver::connect(&url).await.unwrap();
        LockManager::with(Arc::new(driver), settings()).unwrap()
    };
    let (ours, theirs) = (connect().await, connect().await);
    let (guard, waiting) = held_and_wanted(&ours, &theirs).await;
    let new = standby_of(&old).await;
    let mut admin = PgConnection::connect(&new.url()).await.unwrap();
    soon(async {
        let there = "SELECT count(*) FROM lockkit.lockkit_claims";
        while sqlx::query_scalar::<_, i64>(there).fetch_one(&mut admin).await.unwrap() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    address.move_to(&new);
    let mut fenced = PgConnection::connect(&old.url()).await.unwrap();
    fenced.execute("ALTER SYSTEM SET default_transaction_read_only = on").await.unwrap();
    fenced.execute("SELECT pg_reload_conf()").await.unwrap();
    soon(async {
        while ours.mutex("other").try_lock().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let passing = connect().await;
    refused_at_once(&passing, "it is a standby").await;
    let asked = asked_again(&ours, &passing).await;
    // Its renewals are minutes away.
    soon(theirs.mutex("fresh").try_lock()).await.unwrap_err();
    admin.execute("SELECT pg_promote()").await.unwrap();
    all_granted(asked).await;
    // The old server takes writes again, and must not be asked.
    fenced.execute("SET default_transaction_read_only = off").await.unwrap();
    fenced.execute("ALTER SYSTEM RESET default_transaction_read_only").await.unwrap();
    fenced.execute("SELECT pg_reload_conf()").await.unwrap();
    goes_on(guard, waiting).await;
    for locks in [&ours, &theirs, &passing] {
        let names = (0..16).map(|i| locks.mutex(format!("afterwards {i}")));
        let names: Vec<_> = names.collect();
        for guard in futures_util::future::join_all(names.iter().map(|name| name.lock())).await {
            guard.unwrap().release().await.unwrap();
        }
    }
    let written = "SELECT count(*) FROM lockkit.lockkit_names WHERE name LIKE 'afterwards%'::bytea";
    let at = async |connection: &mut PgConnection| -> i64 {
        sqlx::query_scalar(written).fetch_one(connection).await.unwrap()
    };
    assert_eq!((at(&mut fenced).await, at(&mut admin).await), (0, 16));
}

#[tokio::test]
async fn a_new_server_that_is_read_only_says_so_instead_of_asking_for_rights() {
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    admin.execute("ALTER ROLE postgres SET default_transaction_read_only = on").await.unwrap();
    let refused = PostgresDriver::connect(&server.url()).await.unwrap_err();
    assert!(refused.to_string().contains("the server is read-only"), "{refused}");
    assert!(!refused.is_retryable(), "{refused}");
}
