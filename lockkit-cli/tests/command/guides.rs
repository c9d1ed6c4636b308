//! The commands of docs/start.md, run against a server of the lab in the place of the one that the page
//! starts.

use std::fs;
use std::path::Path;

use lockkit_lab::{ServerKind, SharedServer};

use crate::stage::{Stage, code, stderr, stdout};

/// The commands of the page for a backend, in their order, but for those that start a server, name it,
/// or build.
fn commands(backend: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/start.md");
    let text = fs::read_to_string(path).unwrap();
    let (backends, common) = text.split_once("\n## 2. ").unwrap();
    let (_, own) = backends.split_once(&format!("\n### {backend}\n")).unwrap();
    let own = own.split("\n### ").next().unwrap();
    let lines = own.lines().chain(common.lines()).filter_map(|line| line.strip_prefix("$ "));
    let kept = |line: &&str| {
        let elsewhere = ["docker ", "export ", "cargo ", "lockkit serve "];
        !elsewhere.iter().any(|begin| line.starts_with(begin))
    };
    lines.filter(kept).map(str::to_owned).collect()
}

/// Runs the page as a script with this backend, in a namespace of its own.
fn run(backend: &str, url: &str) {
    let commands = commands(backend);
    assert!(commands.len() >= 7, "{backend}: {commands:?}");
    let stage = Stage::new();
    stage.copy_of_the_program();
    // Less waiting than for people who look at two shells.
    let script = format!("set -e\n{}\n", commands.join("\n")).replace("sleep 5", "sleep 1");
    let path = format!("{}:{}", stage.path("").display(), std::env::var("PATH").unwrap());
    let mut shell = stage.program("bash");
    shell.args(["-c", &script]).env("PATH", path);
    shell.env("LOCKKIT_URL", url).env("LOCKKIT_NAMESPACE", format!("page {backend}"));
    let ran = shell.output().unwrap();
    let said = stdout(&ran);
    assert_eq!(code(&ran), 0, "{backend}: {said}{}", stderr(&ran));
    let tokens: Vec<u64> = said
        .lines()
        .filter_map(|line| line.strip_prefix("alone, with token ")?.parse().ok())
        .collect();
    assert_eq!(tokens.len(), 2, "{said}");
    assert!(tokens[0] < tokens[1], "{said}");
    let done = said.matches("on one of the hosts that start it").count();
    assert_eq!(done, 1, "the job is done once: {said}");
}

async fn on(kind: ServerKind, backend: &str) {
    let url = SharedServer::server(kind).await.unwrap().url().to_owned();
    let backend = backend.to_owned();
    tokio::task::spawn_blocking(move || run(&backend, &url)).await.unwrap();
}

#[test]
fn the_commands_of_the_start_page_with_sqlite() {
    let stage = Stage::new();
    run("SQLite", &format!("sqlite:{}", stage.path("locks.db").display()));
}

#[test]
fn the_commands_of_the_start_page_with_the_lock_service() {
    let stage = Stage::new();
    let _server = stage.start(&["serve", "--local", "--listen", "127.0.0.1:0"]);
    let said = stage.wait_for_file("stderr");
    run("The lock service", said.trim().rsplit(' ').next().unwrap());
}

#[tokio::test]
async fn the_commands_of_the_start_page_with_redis() {
    on(ServerKind::Redis, "Redis or Valkey").await;
}

#[tokio::test]
async fn the_commands_of_the_start_page_with_postgres() {
    on(ServerKind::Postgres, "PostgreSQL").await;
}

#[tokio::test]
async fn the_commands_of_the_start_page_with_mysql() {
    on(ServerKind::MariaDb, "MySQL or MariaDB").await;
}

#[tokio::test]
async fn the_commands_of_the_start_page_with_zookeeper() {
    on(ServerKind::ZooKeeper, "ZooKeeper").await;
}

#[tokio::test]
async fn the_commands_of_the_start_page_with_etcd() {
    on(ServerKind::Etcd, "etcd").await;
}
