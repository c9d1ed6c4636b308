//! Three nodes of MariaDB with Galera, each of which takes writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkit::Fence;
use lockkit_lab::proxy::Protocol;
use lockkit_lab::{Galera, Proxy, Server};
use lockkit_sql::mysql::TOKENS_TABLE;
use lockkit_sql::{Fenced, FencedWrite};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use tokio::time::timeout;

use crate::{LEASE, LONG, connect, lock};

/// One cluster for all: it takes ten seconds to start.
#[tokio::test(flavor = "multi_thread")]
async fn grants_are_certified_and_the_fence_is_refused() {
    if std::env::var_os("LOCKKIT_LAB_MYSQLD").is_some() {
        return; // MySQL has no Galera
    }
    let galera = Galera::start().await.unwrap();
    grants_of_three_nodes_are_one_order(&galera).await;
    a_shared_row_lock_is_of_one_node(&galera).await;
    a_write_of_a_stale_holder_is_not_certified(&galera).await;
    the_fence_is_refused(&galera).await;
    a_balancer_leads_to_all_nodes(&galera).await;
}

/// Clients at different nodes: one holder at a time, and tokens that grow.
async fn grants_of_three_nodes_are_one_order(galera: &Galera) {
    let held = Arc::new(AtomicBool::new(false));
    let greatest = Arc::new(std::sync::Mutex::new(None));
    let mut clients = tokio::task::JoinSet::new();
    for node in galera.nodes() {
        let locks = connect(&node.url(), LEASE).await;
        let (held, greatest) = (held.clone(), greatest.clone());
        clients.spawn(async move {
            for _ in 0..7 {
                let guard = lock(&locks, "a").await;
                assert!(!held.swap(true, Ordering::SeqCst), "two hold");
                let before = greatest.lock().unwrap().replace(guard.token().unwrap());
                assert!(before < guard.token().ok(), "{before:?} before {:?}", guard.token());
                tokio::time::sleep(Duration::from_millis(2)).await;
                held.store(false, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(done) = timeout(LONG, clients.join_next()).await.expect("all have a turn") {
        done.unwrap();
    }
}

async fn data_at(node: &Server) -> MySqlConnection {
    MySqlConnection::connect(&node.url()).await.unwrap()
}

/// Until so many connections of this node wait for their place in the order of all commits.
async fn commits_wait(node: &Server, count: i64) {
    let mut admin = data_at(node).await;
    let waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE '%certif%'";
    let wait = async {
        while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut admin).await.unwrap() < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, wait).await.expect("a frozen member holds up commits");
}

/// A commit at one node, and one at another that comes after it in the order of all commits, although it
/// was asked for before the second node knew of the first.
async fn commit_in_this_order(
    galera: &Galera,
    first: impl Future<Output = Result<(), sqlx::Error>> + Send + 'static,
    second: impl Future<Output = Result<(), sqlx::Error>> + Send + 'static,
) -> [Result<(), sqlx::Error>; 2] {
    let [one, two, frozen] = galera.nodes() else { unreachable!("three nodes") };
    frozen.freeze().await;
    let first = tokio::spawn(first);
    commits_wait(one, 1).await;
    let second = tokio::spawn(second);
    commits_wait(two, 1).await;
    frozen.thaw();
    let both = async { [first.await.unwrap(), second.await.unwrap()] };
    timeout(LONG, both).await.expect("both are answered")
}

async fn execute(data: &mut MySqlConnection, statement: &str) -> Result<(), sqlx::Error> {
    data.execute(sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))).await.map(drop)
}

/// Why the fence is refused: the row that it locks is removed at another node, by the grant to the next
/// holder, and the transaction commits after that.
async fn a_shared_row_lock_is_of_one_node(galera: &Galera) {
    let (mut next, mut stale) =
        (data_at(&galera.nodes()[0]).await, data_at(&galera.nodes()[1]).await);
    for statement in [
        "CREATE TABLE fence (id INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB",
        "CREATE TABLE work (id INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB",
        "INSERT INTO fence VALUES (1, 0), (2, 0)",
        "INSERT INTO work VALUES (1, 0), (2, 0)",
    ] {
        execute(&mut next, statement).await.unwrap();
    }
    execute(&mut stale, "SET SESSION wsrep_sync_wait = 15").await.unwrap();
    execute(&mut stale, "BEGIN").await.unwrap();
    execute(&mut stale, "SELECT id FROM fence WHERE id = 1 LOCK IN SHARE MODE").await.unwrap();
    execute(&mut stale, "UPDATE work SET n = 1 WHERE id = 1").await.unwrap();
    let next = async move { execute(&mut next, "DELETE FROM fence WHERE id = 1").await };
    let stale = async move { execute(&mut stale, "COMMIT").await };
    let [next, stale] = commit_in_this_order(galera, next, stale).await;
    assert!(next.is_ok() && stale.is_ok(), "both commit: {next:?}, {stale:?}");
}

/// What `fenced_write` writes is part of what is certified.
async fn a_write_of_a_stale_holder_is_not_certified(galera: &Galera) {
    let [one, two, _] = galera.nodes() else { unreachable!("three nodes") };
    let (mine, theirs) = (connect(&two.url(), LEASE).await, connect(&one.url(), LEASE).await);
    let (mut next, mut stale) = (data_at(one).await, data_at(two).await);
    execute(&mut next, TOKENS_TABLE).await.unwrap();
    let (older, newer) = (lock(&mine, "b").await, lock(&theirs, "c").await);
    let (older, newer) = (older.token().unwrap(), newer.token().unwrap());
    assert!(older < newer, "of two locks, but of one clock");
    let next = async move {
        let mut tx = next.begin().await?;
        assert_eq!(tx.fenced_write("r", newer).await.unwrap(), Fenced::Admitted);
        tx.commit().await
    };
    execute(&mut stale, "SET SESSION wsrep_sync_wait = 15").await.unwrap();
    let (send, ready) = tokio::sync::oneshot::channel();
    let (go, start) = tokio::sync::oneshot::channel();
    let fenced = tokio::spawn(async move {
        let mut tx = stale.begin().await?;
        assert_eq!(tx.fenced_write("r", older).await.unwrap(), Fenced::Admitted);
        tx.execute("UPDATE work SET n = 1 WHERE id = 2").await?;
        send.send(()).unwrap();
        start.await.unwrap();
        tx.commit().await
    });
    ready.await.unwrap();
    let stale = async move {
        go.send(()).unwrap();
        fenced.await.unwrap()
    };
    let [next, stale] = commit_in_this_order(galera, next, stale).await;
    assert!(next.is_ok(), "{next:?}");
    assert!(stale.is_err(), "the later holder has written");
}

async fn the_fence_is_refused(galera: &Galera) {
    let node = &galera.nodes()[0];
    let locks = connect(&node.url(), LEASE).await;
    let guard = lock(&locks, "d").await;
    let mut data = data_at(node).await;
    let mut tx = data.begin().await.unwrap();
    let refused = guard.fence(&mut tx).await.unwrap_err();
    assert!(!refused.is_retryable(), "{refused}");
    let said = refused.to_string();
    assert!(said.contains("Galera") && said.contains("fenced_write"), "{said}");
}

/// Where the connections of one client lead to different nodes, it may not find what it has just written:
/// a lock may be given up too early, never be held twice.
async fn a_balancer_leads_to_all_nodes(galera: &Galera) {
    let proxy = Proxy::start(galera.nodes()[0].addr(), Protocol::MySql).await.unwrap();
    let nodes: Vec<_> = galera.nodes().iter().map(Server::addr).collect();
    proxy.lead_to(&nodes);
    let url = galera.nodes()[0].url_at(proxy.addr());
    let held = Arc::new(AtomicBool::new(false));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let locks = connect(&url, Duration::from_secs(2)).await;
        let held = held.clone();
        clients.spawn(async move {
            let mut lost = 0;
            for _ in 0..5 {
                let guard = lock(&locks, "e").await;
                assert!(!held.swap(true, Ordering::SeqCst), "two hold");
                lost += usize::from(guard.verify().await.is_err());
                held.store(false, Ordering::SeqCst);
                let _ = guard.release().await;
            }
            lost
        });
    }
    let mut lost = 0;
    while let Some(done) = timeout(LONG, clients.join_next()).await.expect("all have a turn") {
        lost += done.unwrap();
    }
    println!("of 15 locks, {lost} were lost");
}
