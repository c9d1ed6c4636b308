//! Against real servers: what SQLite in a folder cannot show.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkit_lab::raw::resp;
use lockkit_lab::{Data, Server, ServerKind, SharedServer};
use rustix::process::Signal;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::stage::{Running, Stage, code, stderr, stdout, wait_for};

async fn admin(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap()
}

async fn execute(admin: &mut PgConnection, sql: &str) {
    admin.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_unavailable_at_once() {
    let stage = Stage::new();
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let url = server.url();
    let ready = stage.run(&["run", "--url", &url, "a", "true"]);
    assert_eq!(code(&ready), 0, "{}", stderr(&ready));
    let sql = "ALTER DATABASE postgres SET default_transaction_read_only = on";
    execute(&mut admin(&url).await, sql).await;
    for patience in [&["-n"][..], &[]] {
        let began = Instant::now();
        let ran = stage.run(&[&["run", "--url", &url], patience, &["a", "touch", "ran"]].concat());
        assert_eq!(code(&ran), 69, "{patience:?}: {}", stderr(&ran));
        assert!(stderr(&ran).contains("read-only"), "{}", stderr(&ran));
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }
    assert!(!stage.path("ran").exists());
}

#[tokio::test]
async fn a_mariadb_that_takes_no_writes_is_unavailable_at_once() {
    let stage = Stage::new();
    let server = Server::start(ServerKind::MariaDb).await.unwrap();
    let root = server.url();
    assert_eq!(code(&stage.run(&["run", "--url", &root, "a", "true"])), 0);
    let mut admin = sqlx::MySqlConnection::connect(&root).await.unwrap();
    for sql in [
        "CREATE USER locker@'%'",
        "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON *.* TO locker@'%'",
        "SET GLOBAL read_only = 1",
    ] {
        admin.execute(sqlx::raw_sql(sql)).await.unwrap();
    }
    let url = root.replacen("root@", "locker@", 1);
    assert_ne!(url, root, "the lab's URL names a user");
    let began = Instant::now();
    let ran = stage.run(&["run", "--url", &url, "a", "true"]);
    assert_eq!(code(&ran), 69, "{}", stderr(&ran));
    assert!(
        stderr(&ran).contains("read-only") || stderr(&ran).contains("read_only"),
        "{}",
        stderr(&ran)
    );
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

/// A limit is a wait for a promotion too; when it passes, the message is still the server's.
#[tokio::test]
async fn a_wait_with_a_limit_lives_through_a_server_that_takes_no_writes() {
    let stage = Stage::new();
    let (postgres, redis) = (
        Server::start(ServerKind::Postgres).await.unwrap(),
        Server::start(ServerKind::Redis).await.unwrap(),
    );
    let mut owner = admin(&postgres.url()).await;
    let ready = stage.run(&["run", "--url", &postgres.url(), "a", "true"]);
    assert_eq!(code(&ready), 0, "{}", stderr(&ready));
    let begin = "ALTER DATABASE postgres SET default_transaction_read_only = on";
    execute(&mut owner, begin).await;
    resp::ask(redis.addr(), &["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
    for (url, role) in [(postgres.url(), "read-only role"), (redis.url(), "standby")] {
        let ran = stage.run(&["run", "--url", &url, "-w", "10s", "a", "touch", "ran"]);
        assert_eq!(code(&ran), 69, "{}", stderr(&ran));
        assert!(stderr(&ran).contains(role), "{}", stderr(&ran));
        assert!(!stage.path("ran").exists());
        let mut waiting = stage.start(&["run", "--url", &url, "-w", "10m", "a", "touch", "ran"]);
        wait_for("word of the wait", || {
            let said = fs::read_to_string(stage.path("stderr")).unwrap();
            said.contains(role).then_some(())
        });
        match role {
            "standby" => drop(resp::ask(redis.addr(), &["REPLICAOF", "NO", "ONE"]).await.unwrap()),
            _ => execute(&mut owner, "ALTER DATABASE postgres RESET ALL").await,
        }
        assert_eq!(waiting.code(), 0);
        fs::remove_file(stage.path("ran")).unwrap();
    }
}

#[tokio::test]
async fn wait_covers_connecting() {
    let stage = Stage::new();
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let url = server.url();
    server.kill().await;
    assert_eq!(code(&stage.run(&["run", "--url", &url, "a", "true"])), 69);
    let mut waiting = stage.start(&["run", "--url", &url, "--wait", "10m", "a", "touch", "ran"]);
    wait_for("word of the wait", || {
        let said = fs::read_to_string(stage.path("stderr")).unwrap();
        said.contains("waiting for the backend").then_some(())
    });
    server.restart(Data::Keep).await.unwrap();
    assert_eq!(waiting.code(), 0);
    assert!(stage.path("ran").exists());
}

#[tokio::test]
async fn a_command_on_etcd_leaves_no_lease_behind() {
    let stage = Stage::new();
    // A server of its own, whose leases are counted.
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let leases = || {
        let mut etcdctl = stage.program("etcdctl");
        let endpoint = format!("--endpoints={}", server.addr());
        let listed = etcdctl.env("ETCDCTL_API", "3").args([&endpoint, "lease", "list"]).output();
        let listed = stdout(&listed.unwrap());
        let count = listed.split_whitespace().nth(1).and_then(|count| count.parse::<usize>().ok());
        count.unwrap_or_else(|| panic!("no count in {listed}"))
    };
    for options in [&["--ttl", "1h"][..], &["--try"], &["--shared"], &["--limit", "2"]] {
        let ran = stage.run(&[&["run", "--url", &server.url()], options, &["a", "true"]].concat());
        assert_eq!(code(&ran), 0, "{}", stderr(&ran));
        assert_eq!(leases(), 0, "{options:?}");
    }
    for _ in 0..3 {
        let put = ["put", "--url", &server.url(), "--keep", "1h", "r", "x"];
        assert_eq!(code(&stage.run(&put)), 0);
    }
    assert_eq!(leases(), 1, "that of the value that is there");
}

#[tokio::test]
async fn watch_goes_on_after_the_server_was_restarted() {
    let stage = Stage::new();
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let url = server.url();
    let mut command = stage.lockkit(&["watch", "--url", &url, "--json", "a"]);
    let command = command.stdout(Stdio::piped());
    let mut watch = Running(command.spawn().unwrap());
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let mut holders = || -> usize {
        let line = lines.next().expect("watch goes on").unwrap();
        let state: Value = serde_json::from_str(&line).unwrap();
        state["holders"].as_array().unwrap().len()
    };
    assert_eq!(holders(), 0);
    for _ in 0..2 {
        server.kill().await;
        server.restart(Data::Keep).await.unwrap();
    }
    let acquired = stage.run(&["acquire", "--url", &url, "--wait", "10m", "a"]);
    assert_eq!(code(&acquired), 0, "{}", stderr(&acquired));
    while holders() == 0 {}
}

#[tokio::test]
async fn the_output_of_schema_has_the_rights_that_a_user_of_locks_needs() {
    let stage = Stage::new();
    // A server of its own, whose default rights are changed.
    let server = Server::start(ServerKind::Postgres).await.unwrap();
    let url = server.url();
    let mut admin = admin(&url).await;
    execute(&mut admin, "CREATE ROLE plain_locker LOGIN").await;
    execute(&mut admin, "CREATE ROLE stranger LOGIN").await;
    let of = |user: &str| {
        let login = url.replacen("postgres@", &format!("{user}@"), 1);
        let mark = if login.contains('?') { '&' } else { '?' };
        format!("{login}{mark}tables=rights")
    };
    let (locker, stranger) = (of("plain_locker"), of("stranger"));
    let schema = stage.run(&["schema", "--url", &locker]);
    // Where functions are given to nobody by themselves.
    let nobody = "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC";
    execute(&mut admin, nobody).await;
    execute(&mut admin, &stdout(&schema)).await;
    let ran = stage.run(&["run", "--url", &locker, "--limit", "2", "a", "true"]);
    assert_eq!(code(&ran), 0, "{}", stderr(&ran));
    let refused = stage.run(&["run", "--url", &stranger, "a", "true"]);
    assert_eq!(code(&refused), 69);
    let said = stderr(&refused);
    assert_eq!(said.matches("`lockkit schema` prints the GRANTs").count(), 1, "{said}");
    let missing = "GRANT USAGE ON SCHEMA \"rights\" TO \"stranger\"";
    assert!(said.contains(missing), "{said}");
    execute(&mut admin, missing).await;
    let refused = stage.run(&["run", "--url", &stranger, "a", "true"]);
    let said = stderr(&refused);
    let missing = "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA \"rights\" TO \"stranger\"";
    assert!(said.contains(missing), "{said}");
    execute(&mut admin, missing).await;
    let refused = stage.run(&["run", "--url", &stranger, "a", "true"]);
    let said = stderr(&refused);
    let missing =
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \"rights\" TO \"stranger\"";
    assert!(said.contains(missing), "{said}");
    execute(&mut admin, missing).await;
    let ran = stage.run(&["run", "--url", &stranger, "a", "true"]);
    assert_eq!(code(&ran), 0, "{}", stderr(&ran));
}

#[tokio::test]
async fn on_zookeeper_the_ttl_is_that_of_the_session() {
    let stage = Stage::new();
    let url = SharedServer::server(ServerKind::ZooKeeper).await.unwrap().url().to_owned();
    let name = "ttl-of-the-command";
    let run = ["run", "--url", &url, "--ttl", "5s", name, "sh", "-c", "echo >up; sleep 1000"];
    let mut running = stage.start(&run);
    stage.wait_for_file("up");
    running.signal(Signal::KILL);
    running.end();
    let began = Instant::now();
    let next = stage.run(&["run", "--url", &url, "--wait", "5m", name, "true"]);
    assert_eq!(code(&next), 0, "{}", stderr(&next));
    // Its ttl and 10.75 s, says docs/semantics.md; the session of the URL's 30 s takes 34 s.
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_error_names_the_backend_and_what_was_being_done() {
    let stage = Stage::new();
    let url = "redis://me:hunter2@127.0.0.1:1/0?timeout=1s";
    let ran = stage.run(&["run", "--url", url, "a", "true"]);
    let said = stderr(&ran);
    assert_eq!(code(&ran), 69, "{said}");
    assert!(said.contains("while connecting to redis://me:***@127.0.0.1:1/0"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}
