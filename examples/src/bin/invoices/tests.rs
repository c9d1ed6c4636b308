//! The service loses its lock: it answers 503, or the database refuses what it writes.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use lockkit::testing::{self, TestControl};
use lockkit::{LossReason, Token};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use super::{TABLE, app};

const PAY: &str = "/invoices/42/pay";

struct Shop {
    app: axum::Router,
    control: TestControl,
    db: SqlitePool,
    _folder: TempDir,
}

impl Shop {
    async fn open() -> Self {
        let (locks, control) = testing::locks();
        let folder = tempfile::tempdir().unwrap();
        let file = SqliteConnectOptions::new().filename(folder.path().join("shop.db"));
        let patient = file.create_if_missing(true).busy_timeout(Duration::from_secs(600));
        let db = SqlitePool::connect_with(patient).await.unwrap();
        sqlx::query(TABLE).execute(&db).await.unwrap();
        sqlx::query("INSERT INTO invoice VALUES (42, 'open', 0)").execute(&db).await.unwrap();
        Self { app: app(locks, db.clone()), control, db, _folder: folder }
    }

    fn pay(&self) -> JoinHandle<StatusCode> {
        let request = Request::post(PAY).body(Body::empty()).unwrap();
        let app = self.app.clone();
        tokio::spawn(async move { app.oneshot(request).await.unwrap().status() })
    }

    async fn invoice(&self) -> (String, i64) {
        let row = sqlx::query_as("SELECT state, fence FROM invoice WHERE id = 42");
        row.fetch_one(&self.db).await.unwrap()
    }
}

async fn cancel(db: &mut sqlx::SqliteConnection, token: Token) {
    let cancel = "UPDATE invoice SET state = 'cancelled', fence = ?1 WHERE id = 42";
    sqlx::query(cancel).bind(token.as_i64()).execute(db).await.unwrap();
}

#[tokio::test]
async fn an_invoice_is_paid_under_its_lock() {
    let shop = Shop::open().await;
    assert_eq!(shop.pay().await.unwrap(), StatusCode::OK);
    let (state, fence) = shop.invoice().await;
    assert!(state == "paid" && fence > 0, "{state}, {fence}");
    let _held = shop.control.others().mutex(PAY).lock().await.unwrap();
    assert_eq!(shop.pay().await.unwrap(), StatusCode::CONFLICT);
}

#[tokio::test]
async fn a_payment_whose_lock_is_lost_is_stopped() {
    let shop = Shop::open().await;
    // The database is busy, so that the payment waits in the middle of its work.
    let busy = shop.db.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let paying = shop.pay();
    shop.control.held(PAY).await;
    assert!(shop.control.lose(PAY, LossReason::Expired).await);
    assert_eq!(paying.await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
    drop(busy);
}

#[tokio::test]
async fn a_payment_that_has_not_noticed_its_loss_is_refused_by_the_fence() {
    let shop = Shop::open().await;
    let mut busy = shop.db.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let paying = shop.pay();
    shop.control.held(PAY).await;
    let other = shop.control.overtake(PAY).await.unwrap();
    cancel(&mut busy, other.token().unwrap()).await;
    busy.commit().await.unwrap();
    // The release says that the lock had been lost.
    assert_eq!(paying.await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(shop.invoice().await, ("cancelled".to_owned(), other.token().unwrap().as_i64()));
}
