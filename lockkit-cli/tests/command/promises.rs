//! `doctor --promises` on real servers whose settings are changed: its cells follow the servers, and
//! name the setting.

use lockkit_lab::raw::resp;
use lockkit_lab::{Server, ServerKind, SharedServer};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};

use crate::stage::{Stage, code, stderr, stdout};

const CRASH: &str = "crash that loses unsynced writes";
const RESTART: &str = "server crash and restart";

/// What is kept under a fault, and why, as a backend is now.
fn cell(stage: &Stage, url: &str, fault: &str) -> (String, String) {
    let output = stage.run(&["doctor", "--promises", "--url", url]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let said = stdout(&output);
    let mut lines = said.lines().skip_while(|line| !line.ends_with(&format!("  {fault}")));
    let row = lines.next().unwrap_or_else(|| panic!("{fault} is missing:\n{said}"));
    let why = lines.next().unwrap().trim().to_owned();
    (row.trim_end_matches(fault).trim().to_owned(), why)
}

#[track_caller]
fn has(stage: &Stage, url: &str, fault: &str, word: &str, names: &str) {
    let (is, why) = cell(stage, url, fault);
    assert_eq!(is, word, "{fault}: {why}");
    assert!(why.contains(names), "{fault}: {why}");
}

#[tokio::test]
async fn on_redis_the_append_only_file_and_the_eviction_policy_decide() {
    let stage = Stage::new();
    let server = Server::start(ServerKind::Redis).await.unwrap();
    let url = server.url();
    let set = async |name: &str, value: &str| {
        let done = resp::ask(server.addr(), &["CONFIG", "SET", name, value]).await.unwrap();
        assert_eq!(done.text(), "OK", "{name} {value}");
    };
    // The lab's setting.
    has(&stage, &url, CRASH, "fencing only", "appendfsync no");
    has(&stage, &url, RESTART, "exclusion + fencing", "appendonly yes");
    set("appendfsync", "everysec").await;
    has(&stage, &url, CRASH, "fencing only", "appendfsync everysec");
    set("appendfsync", "always").await;
    has(&stage, &url, CRASH, "exclusion + fencing", "appendfsync always");
    set("no-appendfsync-on-rewrite", "yes").await;
    has(&stage, &url, CRASH, "fencing only", "no-appendfsync-on-rewrite yes");
    set("no-appendfsync-on-rewrite", "no").await;

    // A login that may take locks, and read no settings.
    let user = ["ACL", "SETUSER", "clerk", "on", ">secret", "~*", "&*", "+@all", "-config"];
    resp::ask(server.addr(), &user).await.unwrap();
    let clerk = url.replacen("redis://", "redis://clerk:secret@", 1);
    has(&stage, &clerk, CRASH, "unknown", "appendfsync");
    has(&stage, &clerk, RESTART, "exclusion + fencing", "appendonly yes");

    // Nothing is evicted before there is a limit.
    set("maxmemory-policy", "volatile-lru").await;
    has(&stage, &url, "client crash", "exclusion + fencing", "stated");
    set("maxmemory", "1gb").await;
    has(&stage, &url, "client crash", "fencing only", "maxmemory-policy volatile-lru");
    set("maxmemory-policy", "noeviction").await;
    has(&stage, &url, "client crash", "exclusion + fencing", "stated");

    set("appendonly", "no").await;
    has(&stage, &url, CRASH, "fencing only", "appendonly no");
    has(&stage, &url, RESTART, "fencing only", "appendonly no");
}

#[tokio::test]
async fn on_redis_a_replica_counts_with_its_own_settings() {
    let stage = Stage::new();
    let (master, replica) = (
        Server::start(ServerKind::Redis).await.unwrap(),
        Server::start(ServerKind::Redis).await.unwrap(),
    );
    let set = async |server: &Server, name: &str, value: &str| {
        resp::ask(server.addr(), &["CONFIG", "SET", name, value]).await.unwrap()
    };
    set(&master, "appendfsync", "always").await;
    has(&stage, &master.url(), CRASH, "exclusion + fencing", "appendfsync always");
    let (host, port) = (master.addr().ip().to_string(), master.addr().port().to_string());
    resp::ask(replica.addr(), &["REPLICAOF", &host, &port]).await.unwrap();
    crate::stage::wait_for("the replica", || {
        let (_, why) = cell(&stage, &master.url(), CRASH);
        why.contains("the replica").then_some(())
    });
    has(&stage, &master.url(), CRASH, "fencing only", "appendfsync no");
    set(&replica, "appendfsync", "always").await;
    has(&stage, &master.url(), CRASH, "exclusion + fencing", "appendfsync always");
}

#[tokio::test]
async fn on_postgresql_fsync_torn_pages_and_the_commit_of_every_role_decide() {
    let stage = Stage::new();
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let url = server.url();
    let mut admin = PgConnection::connect(&url).await.unwrap();
    let mut sql = async |text: &str| {
        admin.execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await.unwrap();
    };
    let reloaded = |name: &str, value: &str| {
        crate::stage::wait_for("the settings", || {
            let (_, why) = cell(&stage, &url, CRASH);
            why.contains(&format!("{name} = {value}")).then_some(())
        });
    };
    // The lab's setting.
    has(&stage, &url, CRASH, "no guarantee", "fsync = off");
    has(&stage, &url, RESTART, "exclusion + fencing", "stated");
    sql("ALTER SYSTEM SET fsync = on").await;
    sql("SELECT pg_reload_conf()").await;
    reloaded("fsync", "on");
    has(&stage, &url, CRASH, "exclusion + fencing", "synchronous_commit = on");
    has(&stage, &format!("{url}?durability=needed"), CRASH, "fencing only", "driver");
    sql("ALTER SYSTEM SET full_page_writes = off").await;
    sql("SELECT pg_reload_conf()").await;
    reloaded("full_page_writes", "off");
    has(&stage, &url, CRASH, "no guarantee", "full_page_writes = off");
    sql("ALTER SYSTEM RESET full_page_writes").await;
    sql("SELECT pg_reload_conf()").await;
    reloaded("full_page_writes", "on");

    // A role that may not use the tables does not count; one that may does, in this database.
    sql("CREATE ROLE hasty LOGIN; ALTER ROLE hasty SET synchronous_commit = off").await;
    has(&stage, &url, CRASH, "exclusion + fencing", "fsync = on");
    sql("GRANT USAGE ON SCHEMA lockkit TO hasty; GRANT ALL ON ALL TABLES IN SCHEMA lockkit TO hasty").await;
    has(&stage, &url, CRASH, "fencing only", "synchronous_commit of role hasty = off");
    sql("ALTER ROLE hasty RESET synchronous_commit").await;
    sql("CREATE DATABASE other").await;
    sql("ALTER ROLE hasty IN DATABASE other SET synchronous_commit = off").await;
    has(&stage, &url, CRASH, "exclusion + fencing", "fsync = on");
    // This connection's own, too.
    sql("ALTER DATABASE postgres SET synchronous_commit = off").await;
    has(&stage, &url, CRASH, "fencing only", "synchronous_commit = off");
}

#[tokio::test]
async fn on_mariadb_the_log_and_the_binary_log_decide_and_doctor_says_so() {
    let stage = Stage::new();
    let options = ["--innodb-flush-log-at-trx-commit=1", "--log-bin", "--server-id=1"];
    let server = Server::start_mariadb_with(&options).await.unwrap();
    let url = server.url();
    let mut admin = MySqlConnection::connect(&url).await.unwrap();
    let mut sql = async |text: &str| {
        admin.execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await.unwrap();
    };
    let warns = || stdout(&stage.run(&["doctor", "--url", &url])).contains("before it is on disk");
    // MariaDB's default.
    sql("SET GLOBAL sync_binlog = 0").await;
    has(&stage, &url, CRASH, "fencing only", "sync_binlog = 0");
    assert!(warns());
    sql("SET GLOBAL sync_binlog = 1").await;
    has(&stage, &url, CRASH, "exclusion + fencing", "sync_binlog = 1");
    assert!(!warns());
    sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2").await;
    has(&stage, &url, CRASH, "fencing only", "innodb_flush_log_at_trx_commit = 2");
    has(&stage, &url, RESTART, "exclusion + fencing", "stated");
    sql("SET GLOBAL innodb_flush_log_at_trx_commit = 0").await;
    has(&stage, &url, RESTART, "fencing only", "innodb_flush_log_at_trx_commit = 0");
}

#[tokio::test]
async fn what_no_client_can_read_is_unknown() {
    let stage = Stage::new();
    let zk = SharedServer::server(ServerKind::ZooKeeper).await.unwrap();
    has(&stage, zk.url(), CRASH, "unknown", "forceSync");
    has(&stage, zk.url(), RESTART, "exclusion + fencing", "stated");
    #[cfg(feature = "etcd")]
    {
        let etcd = SharedServer::server(ServerKind::Etcd).await.unwrap();
        has(&stage, etcd.url(), CRASH, "unknown", "--unsafe-no-fsync");
        has(&stage, etcd.url(), "leader failover in a majority system", "fencing only", "etcd 3.4");
    }
}

#[tokio::test]
async fn a_quorum_and_a_service_say_what_their_backends_say() {
    let stage = Stage::new();
    let mut servers = Vec::new();
    for _ in 0..3 {
        let server = Server::start(ServerKind::Redis).await.unwrap();
        resp::ask(server.addr(), &["CONFIG", "SET", "appendfsync", "always"]).await.unwrap();
        servers.push(server);
    }
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let quorum = format!("quorum:{}", urls.join(","));
    has(&stage, &quorum, CRASH, "exclusion + fencing", "appendfsync always");
    has(&stage, &quorum, RESTART, "exclusion + fencing", "stated");
    let weak = servers[1].addr();
    resp::ask(weak, &["CONFIG", "SET", "maxmemory", "1gb"]).await.unwrap();
    resp::ask(weak, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await.unwrap();
    has(&stage, &quorum, "client crash", "no guarantee", &format!("redis://{weak}: "));

    let mut service = stage.start(&["serve", "--url", &urls[1], "--listen", "127.0.0.1:0"]);
    let said = stage.wait_for_file("stderr");
    let url = said.trim().rsplit(' ').next().unwrap().to_owned();
    has(&stage, &url, "client crash", "fencing only", "maxmemory-policy allkeys-lru");
    has(&stage, &url, CRASH, "fencing only", "maxmemory-policy allkeys-lru");
    service.signal(rustix::process::Signal::TERM);
    service.end();
}
