//! A service that pays invoices: one request at a time for each invoice, in the whole fleet, and a
//! payment that comes too late is refused by the database.
//!
//! `cargo run -p lockkit-examples --bin invoices`, then
//! `curl -X POST http://127.0.0.1:3000/invoices/42/pay`

#[cfg(test)]
mod tests;

use axum::extract::{Path, State};
use axum::http::{StatusCode, request::Parts};
use axum::routing::post;
use axum::{Extension, Router};
use lockkit::{HeldLock, LockManager};
use lockkit_tower::LockLayer;
use sqlx::SqlitePool;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS invoice
    (id INTEGER PRIMARY KEY, state TEXT NOT NULL, fence INTEGER NOT NULL DEFAULT 0)";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let locks = lockkit::connect("sqlite:locks.db").await?;
    let db = SqlitePool::connect("sqlite:shop.db?mode=rwc").await?;
    sqlx::query(TABLE).execute(&db).await?;
    sqlx::query("INSERT OR IGNORE INTO invoice VALUES (42, 'open', 0)").execute(&db).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app(locks.clone(), db)).with_graceful_shutdown(stop).await?;
    locks.shutdown().await;
    Ok(())
}

fn app(locks: LockManager, db: SqlitePool) -> Router {
    let lock_of = move |request: &Parts| Some(locks.mutex(request.uri.path()));
    let pay = post(pay).layer(LockLayer::new(lock_of));
    Router::new().route("/invoices/{id}/pay", pay).with_state(db)
}

/// Stopped when the lock is lost; and where it is not stopped in time, the fence refuses its write.
async fn pay(
    Path(id): Path<i64>,
    Extension(lock): Extension<HeldLock>,
    State(db): State<SqlitePool>,
) -> Result<&'static str, StatusCode> {
    let token = lock.token().map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let paid = "UPDATE invoice SET state = 'paid', fence = ?1 WHERE id = ?2 AND fence <= ?1";
    let paid = sqlx::query(paid).bind(token.as_i64()).bind(id).execute(&db).await;
    match paid.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?.rows_affected() {
        0 => Err(StatusCode::GONE), // there is none, or a later holder of the lock was here
        _ => Ok("paid\n"),
    }
}
