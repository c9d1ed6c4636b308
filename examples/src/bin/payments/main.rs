//! A service that takes payments which may be sent again: one payment for each idempotency key, and the
//! same answer to every repetition, in any process.
//!
//! `cargo run -p lockkit-examples --bin payments`, then, any number of times,
//! `curl -H 'idempotency-key: 7f3c' -d '100 ada' http://127.0.0.1:3000/payments`

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use lockkit::{HeldLock, LockManager};
use sqlx::SqlitePool;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS payment
    (key TEXT PRIMARY KEY, what TEXT NOT NULL, token INTEGER NOT NULL)";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let locks = lockkit::connect("sqlite:locks.db").await?;
    let db = SqlitePool::connect("sqlite:shop.db?mode=rwc").await?;
    sqlx::query(TABLE).execute(&db).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app(locks.clone(), db)).with_graceful_shutdown(stop).await?;
    locks.shutdown().await;
    Ok(())
}

struct Shop {
    locks: LockManager,
    db: SqlitePool,
}

fn app(locks: LockManager, db: SqlitePool) -> Router {
    Router::new().route("/payments", post(pay)).with_state(Arc::new(Shop { locks, db }))
}

async fn pay(
    State(shop): State<Arc<Shop>>,
    headers: HeaderMap,
    payment: String,
) -> Result<String, StatusCode> {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let key = key.ok_or(StatusCode::BAD_REQUEST)?.to_owned();
    let once = shop.locks.once(format!("payment/{key}"));
    let decided = once.run(async |lock| make(&shop.db, &key, &payment, lock).await).await;
    let kept = decided.map_err(|error| match error.downcast_ref::<lockkit::Error>() {
        Some(lock) if lock.loss().is_some() => StatusCode::SERVICE_UNAVAILABLE, // send it again
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    })?;
    let kept = String::from_utf8_lossy(&kept.value).into_owned();
    let (what, answer) = kept.split_once('\n').ok_or(StatusCode::INTERNAL_SERVER_ERROR)?;
    match what == payment {
        true => Ok(answer.to_owned()),
        false => Err(StatusCode::UNPROCESSABLE_ENTITY), // the key of another payment
    }
}

/// Makes the payment; what is kept for its key. It may have been made by a process that died before it
/// could answer: the row is there then.
async fn make(db: &SqlitePool, key: &str, payment: &str, lock: HeldLock) -> anyhow::Result<String> {
    let token = lock.token()?;
    let insert = "INSERT INTO payment VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
    sqlx::query(insert).bind(key).bind(payment).bind(token.as_i64()).execute(db).await?;
    Ok(format!("{payment}\npaid under {token}\n"))
}
