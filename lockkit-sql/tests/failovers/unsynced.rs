//! A crash of the server's machine that loses what was not on disk: the server comes back with its folder
//! as it was a moment before.

use lockkit_lab::{Data, Server, ServerKind};

use crate::{LEASE, connect, is_confirmed, lock};

/// What was granted last is forgotten, and so is who waited; tokens grow.
async fn the_last_grant_is_forgotten(kind: ServerKind) {
    let server = Server::start(kind).await.unwrap();
    let url = format!("{}?durability=needed&timeout=2s", server.url());
    let (first, second) = (connect(&url, LEASE).await, connect(&url, LEASE).await);
    let kept = lock(&first, "kept").await;
    let before = lock(&first, "a").await;
    let token = before.token().unwrap();
    before.release().await.unwrap();
    // A register is on disk when it is answered, and so is all that was written before.
    first.register("on disk").store("all").await.unwrap();
    server.sync().await.unwrap();
    let guard = lock(&first, "a").await;
    let unsynced = guard.token().unwrap();
    assert!(unsynced > token);
    server.restart(Data::LoseUnsynced).await.unwrap();
    let later = lock(&second, "a").await;
    assert!(guard.is_valid(), "two hold: it has not asked since");
    assert!(later.token().unwrap() > unsynced, "{:?} after {unsynced}", later.token());
    assert!(!is_confirmed(&guard).await, "the server does not know it");
    assert!(is_confirmed(&kept).await, "what was on disk is there");
}

#[tokio::test]
async fn postgresql_forgets_the_last_grant() {
    the_last_grant_is_forgotten(ServerKind::Postgres).await;
}

#[tokio::test]
async fn mariadb_forgets_the_last_grant() {
    the_last_grant_is_forgotten(ServerKind::MariaDb).await;
}
