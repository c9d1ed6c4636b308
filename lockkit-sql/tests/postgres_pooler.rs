//! PostgreSQL behind PgBouncer in transaction mode, which hands the server's connections from client
//! to client: nothing was configured for it, locks work, and nobody runs another one's statement.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::LockDriver as _;
use lockkit_core::{Error, LockManager, Settings, Space};
use lockkit_lab::raw::postgres as raw;
use lockkit_lab::{ServerKind, SharedServer};
use lockkit_sql::{PostgresDriver, ServerOptions, SqlNeighbours};
use sqlx::{Connection, Executor, PgConnection, PgPool};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(120);

/// A pooler, which ends with this.
struct Pooler {
    url: String,
    _process: Child,
    _folder: tempfile::TempDir,
}

/// What a pooler does with a setting at the start of a connection that it does not know.
#[derive(Clone, Copy, Debug)]
enum Unknown {
    Refused,
    Ignored,
}

impl Pooler {
    async fn start() -> Self {
        Self::with(4, Unknown::Refused, &[]).await
    }

    /// One with so many connections to the server, each of which begins with these settings.
    async fn with(connections: usize, unknown: Unknown, settings: &[&str]) -> Self {
        let ignored = match unknown {
            Unknown::Refused => "extra_float_digits",
            Unknown::Ignored => "extra_float_digits, options",
        };
        let first = match settings {
            [] => String::new(),
            _ => format!("connect_query='SET {}'", settings.join("; SET ")),
        };
        let server = SharedServer::server(ServerKind::Postgres).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        // PgBouncer does not run as root, and has to read its settings as somebody else.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let address = server.addr();
        timeout(LONG, async {
            loop {
                let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
                let settings = format!(
                    "[databases]\npostgres = host={} port={} user=postgres dbname=postgres {first}\n\
                     [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\n\
                     auth_type = any\npool_mode = transaction\ndefault_pool_size = {connections}\n\
                     ignore_startup_parameters = {ignored}\n",
                    address.ip(),
                    address.port(),
                    free.port()
                );
                let file = folder.path().join("pgbouncer.ini");
                std::fs::write(&file, settings).unwrap();
                let mut process = program(&file).spawn().expect("pgbouncer is installed");
                let url = server.url_at(free);
                loop {
                    // Somebody else may have taken the port: then it ends by itself.
                    if process.try_wait().unwrap().is_some() {
                        break;
                    }
                    if let Ok(connection) = PgConnection::connect(&url).await {
                        let _ = connection.close().await;
                        return Self { url, _process: process, _folder: folder };
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        })
        .await
        .expect("the pooler starts")
    }

    async fn locks(&self) -> LockManager {
        LockManager::new(PostgresDriver::connect(&self.url).await.unwrap())
    }

    /// A program with tables of its own and one connection.
    async fn program(&self, tables: &str) -> LockManager {
        let options = ServerOptions::default().tables(tables).connections(1);
        LockManager::new(PostgresDriver::connect_with(&self.url, options).await.unwrap())
    }

    /// A client that has taken one of the server's connections for itself.
    async fn occupant(&self) -> raw::PostgresConnection {
        let mut connection = raw::PostgresConnection::open(self.address()).await.unwrap();
        connection.query("BEGIN").await.unwrap();
        connection
    }

    fn address(&self) -> SocketAddr {
        let (_, place) = self.url.split_once('@').unwrap();
        place.split('/').next().unwrap().parse().unwrap()
    }
}

fn program(settings: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]);
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
    }
    command.arg("/usr/sbin/pgbouncer").arg("-q").arg(settings);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_behind_a_pooler_get_their_turn_and_nobody_meets_an_error() {
    let pooler = Pooler::start().await;
    let mut working = JoinSet::new();
    for _ in 0..6 {
        let locks = pooler.locks().await;
        working.spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..10 {
                let guard = locks.mutex("pooled").lock().await.unwrap();
                tokens.push(guard.token().unwrap());
                guard.renew().await.unwrap();
                guard.release().await.unwrap();
                let _ = locks.mutex("pooled").try_lock().await.unwrap();
            }
            locks.shutdown().await;
            tokens
        });
    }
    let tokens = timeout(LONG, working.join_all()).await.expect("everybody gets through");
    let mut tokens: Vec<_> = tokens.into_iter().flatten().collect();
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 60, "each turn has its token");
}

/// Statements have names that count up for each client, so two programs give the same names to
/// different statements. Each prepares on a server's connection of its own, and then gets the other's.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_never_runs_the_statement_of_another() {
    for unknown in [Unknown::Refused, Unknown::Ignored] {
        let pooler = Pooler::with(2, unknown, &[]).await;
        make_tables(&["one", "another"]).await;
        // The first works while one of the two connections is taken, the second while the other is.
        let second_place = pooler.occupant().await;
        let first = pooler.program("one").await;
        let held = first.mutex("job").lock().await.unwrap();
        let first_place = pooler.occupant().await;
        free(second_place).await;
        let second = pooler.program("another").await;
        second.mutex("else").lock().await.unwrap().release().await.unwrap();
        // From here on the second has the connection that the first one had.
        let second_place = pooler.occupant().await;
        free(first_place).await;

        let own = second.mutex("job").try_lock().await.unwrap();
        let own = own.unwrap_or_else(|| panic!("{unknown:?}: it is free in these tables"));
        own.release().await.unwrap();
        free(second_place).await;
        held.verify().await.unwrap();
        held.release().await.unwrap();
    }
}

/// Without the pooler, so that none of its connections has been used.
async fn make_tables(places: &[&str]) {
    let server = SharedServer::server(ServerKind::Postgres).await.unwrap();
    for place in places {
        let options = ServerOptions::default().tables(*place);
        PostgresDriver::connect_with(server.url(), options).await.unwrap().close().await;
    }
}

async fn free(mut occupant: raw::PostgresConnection) {
    occupant.query("ROLLBACK").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_prepared_on_the_servers_connections() {
    for unknown in [Unknown::Refused, Unknown::Ignored] {
        // One connection to the server, which everybody has in turn.
        let pooler = Pooler::with(1, unknown, &[]).await;
        let own = pooler.program("prepared").await;
        let pool = PgPool::connect_lazy(&pooler.url).unwrap();
        let options = ServerOptions::default().tables("prepared");
        let pooled = PostgresDriver::with_pool(pool.clone(), options).await.unwrap();
        let pooled = LockManager::new(pooled);
        for locks in [own, pooled] {
            let guard = locks.mutex("a").lock().await.unwrap();
            guard.renew().await.unwrap();
            assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
            guard.release().await.unwrap();
            let register = locks.register("r");
            register.store(b"value").await.unwrap();
            assert_eq!(register.load().await.unwrap().unwrap().value, b"value");
            locks.shutdown().await;
        }
        let mut looking = raw::PostgresConnection::open(pooler.address()).await.unwrap();
        let prepared = looking.query("SELECT name FROM pg_prepared_statements").await.unwrap();
        assert!(prepared.is_empty(), "{unknown:?}: {prepared:?}");
    }
}

/// Statements go as text there, whose arguments and answers depend on the server's settings.
#[tokio::test(flavor = "multi_thread")]
async fn settings_that_change_how_bytes_are_written_change_nothing() {
    let settings = ["bytea_output = escape", "standard_conforming_strings = off"];
    let pooler = Pooler::with(2, Unknown::Refused, &settings).await;
    let locks = pooler.locks().await;
    let every: Vec<u8> = (0..=255).chain(*br"\x41\101\\").collect();
    for value in [&every[..], br"\x41", b"", b"\\"] {
        let register = locks.register("bytes");
        register.store(value).await.unwrap();
        assert_eq!(register.load().await.unwrap().unwrap().value, value);
    }
    let name = r"it's a \ name \x41 'é";
    let driver = PostgresDriver::connect(&pooler.url).await.unwrap();
    let others = LockManager::with(Arc::new(driver), Settings::default()).unwrap();
    let guard = locks.mutex(name).note(r"a note \x41").lock().await.unwrap();
    guard.renew().await.unwrap();
    let state = others.inspect(Space::Lock, name).await.unwrap();
    assert_eq!(state.queue[0].note.as_deref(), Some(r"a note \x41"));
    assert_eq!(state.key.name.as_str(), name);
    let waiting = tokio::spawn({
        let others = others.clone();
        async move { others.mutex(name).lock().await }
    });
    while others.inspect(Space::Lock, name).await.unwrap().queue.len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    guard.release().await.unwrap();
    let next = timeout(LONG, waiting).await.unwrap().unwrap().unwrap();
    next.release().await.unwrap();
}

/// Where the server's connections, which are handed on to other programs, have another level.
#[tokio::test(flavor = "multi_thread")]
async fn statements_run_at_read_committed_and_leave_the_level_of_the_connection_alone() {
    make_tables(&["levels"]).await;
    let server = SharedServer::server(ServerKind::Postgres).await.unwrap();
    let mut admin = PgConnection::connect(server.url()).await.unwrap();
    let note = "CREATE TABLE levels.seen (level text);
        CREATE FUNCTION levels.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          INSERT INTO levels.seen VALUES (current_setting('transaction_isolation')); RETURN NEW;
        END $$;
        CREATE TRIGGER note BEFORE INSERT OR UPDATE ON levels.lockkit_names
          FOR EACH ROW EXECUTE FUNCTION levels.note()";
    admin.execute(sqlx::raw_sql(note)).await.unwrap();
    let settings = ["default_transaction_isolation = serializable"];
    let pooler = Pooler::with(1, Unknown::Refused, &settings).await;
    let locks = pooler.program("levels").await;
    let guard = locks.mutex("a").lock().await.unwrap();
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    let levels: Vec<String> = sqlx::query_scalar("SELECT DISTINCT level FROM levels.seen")
        .fetch_all(&mut admin)
        .await
        .unwrap();
    assert_eq!(levels, ["read committed"]);
    let mut next = raw::PostgresConnection::open(pooler.address()).await.unwrap();
    let level = next.query("SHOW default_transaction_isolation").await.unwrap();
    assert_eq!(format!("{level:?}").matches("serializable").count(), 1, "{level:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn neighbours_are_refused_behind_a_pooler() {
    for unknown in [Unknown::Refused, Unknown::Ignored] {
        let pooler = Pooler::with(4, unknown, &[]).await;
        let options = ServerOptions::default().neighbours(SqlNeighbours::Advisory);
        let refused = PostgresDriver::connect_with(&pooler.url, options).await.unwrap_err();
        assert!(matches!(refused, Error::Config(_)), "{refused}");
        assert!(refused.to_string().contains("a pooler before this server"), "{refused}");
    }
}
