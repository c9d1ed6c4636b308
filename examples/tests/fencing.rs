//! The code of docs/fencing.md, compiled and run; `pages.rs` compares the two.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::http::StatusCode;
use lockkit::{LockManager, Token};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use sqlx::SqlitePool;
use sqlx::sqlite::SqlitePoolOptions;

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

async fn memory() -> SqlitePool {
    // One connection: a database in memory is that of its connection.
    SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap()
}

#[rustfmt::skip]
mod column {
    use super::*;

    pub(super) async fn pay(db: &SqlitePool, locks: &LockManager) -> anyhow::Result<()> {
        let guard = locks.mutex("invoice/42").lock().await?;
        let pay = "UPDATE invoice SET state = 'paid', fence = ?1 WHERE id = 42 AND fence <= ?1";
        let done = sqlx::query(pay).bind(guard.token()?.as_i64()).execute(db).await?;
        anyhow::ensure!(done.rows_affected() == 1, "a later holder has been here");
        guard.release().await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_column_refuses_a_lower_token() {
    let (db, locks) = (memory().await, lockkit::connect("memory:").await.unwrap());
    let table = "CREATE TABLE invoice (id INTEGER PRIMARY KEY, state TEXT, fence INTEGER)";
    sqlx::query(table).execute(&db).await.unwrap();
    sqlx::query("INSERT INTO invoice VALUES (42, 'open', 0)").execute(&db).await.unwrap();
    column::pay(&db, &locks).await.unwrap();
    let later = "UPDATE invoice SET state = 'cancelled', fence = 9223372036854775807";
    sqlx::query(later).execute(&db).await.unwrap();
    let refused = column::pay(&db, &locks).await.unwrap_err();
    assert_eq!(refused.to_string(), "a later holder has been here");
    let state: String =
        sqlx::query_scalar("SELECT state FROM invoice").fetch_one(&db).await.unwrap();
    assert_eq!(state, "cancelled");
}

#[rustfmt::skip]
mod read_then_write {
    use super::*;

    pub(super) async fn withdraw(db: &SqlitePool, token: Token, amount: i64) -> anyhow::Result<()> {
        let mut tx = db.begin().await?;
        let raise = "UPDATE account SET fence = ?1 WHERE id = 7 AND fence <= ?1 RETURNING balance";
        let read = sqlx::query_scalar(raise).bind(token.as_i64()).fetch_optional(&mut *tx).await?;
        let balance: i64 = read.ok_or_else(|| anyhow::anyhow!("a later holder has been here"))?;
        let write = "UPDATE account SET balance = ?1 WHERE id = 7";
        sqlx::query(write).bind(balance - amount).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(())
    }
}

async fn account() -> SqlitePool {
    let db = memory().await;
    let table = "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, fence INTEGER)";
    sqlx::query(table).execute(&db).await.unwrap();
    sqlx::query("INSERT INTO account VALUES (7, 100, 0)").execute(&db).await.unwrap();
    db
}

async fn balance(db: &SqlitePool) -> i64 {
    sqlx::query_scalar("SELECT balance FROM account").fetch_one(db).await.unwrap()
}

async fn write(db: &SqlitePool, balance: i64, token: i64) -> bool {
    let write = "UPDATE account SET balance = ?1, fence = ?2 WHERE id = 7 AND fence <= ?2";
    let done = sqlx::query(write).bind(balance).bind(token).execute(db).await.unwrap();
    done.rows_affected() == 1
}

#[tokio::test]
async fn a_fence_that_is_raised_at_the_write_loses_an_update() {
    let db = account().await;
    let (first, second) = (balance(&db).await, balance(&db).await);
    assert!(write(&db, first - 30, 10).await, "the paused holder passes");
    assert!(write(&db, second - 50, 11).await);
    assert_eq!(
        balance(&db).await,
        50,
        "and its 30 are lost, though both were told that they wrote"
    );
}

#[tokio::test]
async fn a_fence_that_is_raised_before_the_read_loses_none() {
    let db = account().await;
    let raise = "UPDATE account SET fence = ?1 WHERE id = 7 AND fence <= ?1 RETURNING balance";
    let read = async |token: i64| -> i64 {
        sqlx::query_scalar(raise).bind(token).fetch_one(&db).await.unwrap()
    };
    let (first, second) = (read(10).await, read(11).await);
    assert!(!write(&db, first - 30, 10).await, "the paused holder is refused");
    assert!(write(&db, second - 50, 11).await);
    read_then_write::withdraw(&db, token(12), 20).await.unwrap();
    let late = read_then_write::withdraw(&db, token(10), 30).await.unwrap_err();
    assert_eq!(late.to_string(), "a later holder has been here");
    assert_eq!(balance(&db).await, 30, "what was told to have been written is there");
}

#[rustfmt::skip]
mod table {
    use super::*;
    use lockkit::sql::{Fenced, FencedWrite};

    pub(super) async fn ship(db: &SqlitePool, token: Token) -> anyhow::Result<()> {
        let mut tx = db.begin().await?;
        match tx.fenced_write("invoice/42", token).await? {
            Fenced::Admitted => {}
            Fenced::Stale => anyhow::bail!("a later holder has been here"), // `tx` rolls back
        }
        sqlx::query("INSERT INTO parcel (invoice) VALUES (42)").execute(&mut *tx).await?;
        sqlx::query("UPDATE stock SET n = n - 1").execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_table_of_tokens_fences_several_statements() {
    let db = memory().await;
    let tokens = lockkit::sql::sqlite::TOKENS_TABLE;
    for sql in [tokens, "CREATE TABLE parcel (invoice INTEGER)", "CREATE TABLE stock (n INTEGER)"] {
        sqlx::query(sql).execute(&db).await.unwrap();
    }
    sqlx::query("INSERT INTO stock VALUES (3)").execute(&db).await.unwrap();
    table::ship(&db, token(7)).await.unwrap();
    assert!(table::ship(&db, token(6)).await.is_err());
    table::ship(&db, token(7)).await.unwrap();
    let left: i64 = sqlx::query_scalar("SELECT n FROM stock").fetch_one(&db).await.unwrap();
    assert_eq!(left, 1);
}

#[rustfmt::skip]
mod same {
    use super::*;
    use lockkit::Fence;
    use lockkit::sql::sqlite::{SqliteDriver, SqliteOptions};

    pub(super) async fn locks(db: &SqlitePool) -> Result<LockManager, lockkit::Error> {
        let driver = SqliteDriver::with_pool(db.clone(), SqliteOptions::default()).await?;
        Ok(LockManager::new(driver))
    }

    pub(super) async fn pay(db: &SqlitePool, locks: &LockManager) -> anyhow::Result<()> {
        let guard = locks.mutex("invoice/42").lock().await?;
        let mut tx = db.begin().await?;
        guard.fence(&mut tx).await?; // an error when the lock is lost; kept until the commit otherwise
        sqlx::query("UPDATE invoice SET state = 'paid' WHERE id = 42").execute(&mut *tx).await?;
        tx.commit().await?;
        guard.release().await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_transaction_in_the_locks_own_database_needs_no_column() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db");
    let url = format!("sqlite:{}", file.display());
    let db = SqlitePool::connect(&format!("{url}?mode=rwc")).await.unwrap();
    let table = "CREATE TABLE invoice (id INTEGER PRIMARY KEY, state TEXT)";
    sqlx::query(table).execute(&db).await.unwrap();
    sqlx::query("INSERT INTO invoice VALUES (42, 'open')").execute(&db).await.unwrap();
    let locks = same::locks(&db).await.unwrap();
    same::pay(&db, &locks).await.unwrap();
    let state: String =
        sqlx::query_scalar("SELECT state FROM invoice").fetch_one(&db).await.unwrap();
    assert_eq!(state, "paid");
    locks.shutdown().await;
}

#[rustfmt::skip]
mod bucket {
    use super::*;
    use object_store::{Attribute, Attributes, Error, PutMode, PutOptions, UpdateVersion};

    /// Replaces an object, unless a later holder of the lock has written it.
    async fn put(
        store: &dyn ObjectStore, path: &Path, body: PutPayload, token: Token,
    ) -> anyhow::Result<()> {
        let fence = Attribute::Metadata("fence".into());
        loop {
            let mode = match store.get(path).await {
                Ok(found) => {
                    let last = found.attributes.get(&fence).and_then(|fence| fence.parse().ok());
                    anyhow::ensure!(last.unwrap_or(0) <= token.get(), "a later holder has been here");
                    let (e_tag, version) = (found.meta.e_tag, found.meta.version);
                    PutMode::Update(UpdateVersion { e_tag, version }) // If-Match: ETAG
                }
                Err(Error::NotFound { .. }) => PutMode::Create,       // If-None-Match: *
                Err(error) => return Err(error.into()),
            };
            let attributes = Attributes::from_iter([(fence.clone(), token.to_string())]);
            let options = PutOptions { mode, attributes, ..PutOptions::default() };
            match store.put_opts(path, body.clone(), options).await {
                Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => {} // changed meanwhile: read again
                other => return Ok(other.map(drop)?),
            }
        }
    }

    #[tokio::test]
    async fn an_object_store_refuses_a_lower_token() {
        let (store, path) = (InMemory::new(), Path::from("report.csv"));
        put(&store, &path, "first".into(), token(7)).await.unwrap();
        put(&store, &path, "again".into(), token(7)).await.unwrap();
        put(&store, &path, "next".into(), token(9)).await.unwrap();
        assert!(put(&store, &path, "late".into(), token(7)).await.is_err());
        let body = store.get(&path).await.unwrap().bytes().await.unwrap();
        assert_eq!(body, "next");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn of_many_writers_of_an_object_the_last_has_the_greatest_token() {
        let (store, path) = (Arc::new(InMemory::new()), Path::from("report.csv"));
        let writers: Vec<_> = (1..=20)
            .map(|number| {
                let (store, path) = (store.clone(), path.clone());
                tokio::spawn(async move {
                    put(&*store, &path, number.to_string().into(), token(number)).await.is_ok()
                })
            })
            .collect();
        let mut written = Vec::new();
        for (number, writer) in (1..).zip(writers) {
            written.extend(writer.await.unwrap().then_some(number));
        }
        let body = store.get(&path).await.unwrap().bytes().await.unwrap();
        assert_eq!(written.last(), Some(&20_u64));
        assert_eq!(body, "20");
    }
}

#[rustfmt::skip]
mod service {
    use super::*;
    use axum::extract::{Path, State};
    use axum::http::HeaderMap;

    #[derive(Clone, Default)]
    struct Ledger(Arc<Mutex<HashMap<u64, (u64, String)>>>); // token and entry by invoice

    /// `PUT /ledger/42` with the header `fence: TOKEN`.
    async fn put(
        State(ledger): State<Ledger>, Path(invoice): Path<u64>, headers: HeaderMap, entry: String,
    ) -> Result<(), StatusCode> {
        let token = headers.get("fence").and_then(|token| token.to_str().ok()?.parse().ok());
        let token: u64 = token.ok_or(StatusCode::PRECONDITION_REQUIRED)?;
        let mut ledger = ledger.0.lock().unwrap();
        let (highest, kept) = ledger.entry(invoice).or_default();
        if token < *highest {
            return Err(StatusCode::CONFLICT); // a later holder has been here
        }
        (*highest, *kept) = (token, entry); // in one step: in a database, in one transaction
        Ok(())
    }

    #[tokio::test]
    async fn a_service_refuses_a_lower_token() {
        use axum::{Router, body::Body, http::Request, routing};
        use tower::ServiceExt;

        let app = Router::new().route("/ledger/{invoice}", routing::put(put));
        let app = app.with_state(Ledger::default());
        let answer = async |invoice: u64, token: Option<&str>| {
            let mut request = Request::put(format!("/ledger/{invoice}"));
            if let Some(token) = token {
                request = request.header("fence", token);
            }
            app.clone().oneshot(request.body(Body::from("paid")).unwrap()).await.unwrap().status()
        };
        assert_eq!(answer(42, None).await, StatusCode::PRECONDITION_REQUIRED);
        assert_eq!(answer(42, Some("7")).await, StatusCode::OK);
        assert_eq!(answer(42, Some("9")).await, StatusCode::OK);
        assert_eq!(answer(42, Some("7")).await, StatusCode::CONFLICT);
        assert_eq!(answer(43, Some("7")).await, StatusCode::OK, "tokens are compared by resource");
    }
}
