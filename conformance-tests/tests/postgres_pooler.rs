//! PostgreSQL behind PgBouncer in transaction mode, which hands the server's connections from client
//! to client: nothing was configured for it, and locks work.

use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use lockkit_conformance::lab::{Kind, Shared};
use lockkit_core::LockManager;
use lockkit_sql::PostgresDriver;
use sqlx::{Connection, PgConnection};
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

impl Pooler {
    async fn start() -> Self {
        let server = Shared::server(Kind::Postgres).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        // PgBouncer does not run as root, and has to read its settings as somebody else.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let address = server.addr();
        timeout(LONG, async {
            loop {
                let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
                let settings = format!(
                    "[databases]\npostgres = host={} port={} user=postgres dbname=postgres\n\
                     [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\n\
                     auth_type = any\npool_mode = transaction\ndefault_pool_size = 4\n\
                     ignore_startup_parameters = extra_float_digits\n",
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
