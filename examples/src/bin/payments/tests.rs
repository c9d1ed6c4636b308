//! Repetitions, other payments under the same key, and a lock that is lost.

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use lockkit::testing::{self, TestControl};
use sqlx::SqlitePool;
use tempfile::TempDir;
use tower::ServiceExt;

use super::{TABLE, app};

struct Stage {
    app: axum::Router,
    control: TestControl,
    db: SqlitePool,
    _folder: TempDir,
}

impl Stage {
    async fn open() -> Self {
        let (locks, control) = testing::locks();
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("shop.db").display());
        let db = SqlitePool::connect(&url).await.unwrap();
        sqlx::query(TABLE).execute(&db).await.unwrap();
        Self { app: app(locks, db.clone()), control, db, _folder: folder }
    }

    async fn pay(&self, key: &str, payment: &str) -> (StatusCode, String) {
        let request = Request::post("/payments").header("idempotency-key", key);
        let request = request.body(Body::from(payment.to_owned())).unwrap();
        let answer = self.app.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let body = to_bytes(answer.into_body(), 10_000).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn payments(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM payment").fetch_one(&self.db).await.unwrap()
    }
}

#[tokio::test]
async fn requests_with_one_key_make_one_payment_and_get_one_answer() {
    let stage = Stage::open().await;
    let (a, b, c) = tokio::join!(
        stage.pay("k1", "100 ada"),
        stage.pay("k1", "100 ada"),
        stage.pay("k1", "100 ada")
    );
    assert_eq!(a.0, StatusCode::OK);
    assert!(a == b && b == c, "{a:?} {b:?} {c:?}");
    assert_eq!(stage.payments().await, 1);
    assert_eq!(stage.pay("k1", "200 ada").await.0, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(stage.pay("k2", "100 ada").await.0, StatusCode::OK);
    assert_eq!(stage.payments().await, 2);
}

#[tokio::test]
async fn a_payment_whose_answer_was_lost_is_not_made_again() {
    let stage = Stage::open().await;
    // As a process leaves it that died between the payment and its decision.
    sqlx::query("INSERT INTO payment VALUES ('k1', '100 ada', 1)")
        .execute(&stage.db)
        .await
        .unwrap();
    assert_eq!(stage.pay("k1", "100 ada").await.0, StatusCode::OK);
    assert_eq!(stage.payments().await, 1);
}

#[tokio::test]
async fn a_request_waits_while_another_client_has_the_key() {
    let stage = Stage::open().await;
    let other = stage.control.others().mutex("payment/k1").lock().await.unwrap();
    let mut asked = std::pin::pin!(stage.pay("k1", "100 ada"));
    let early = tokio::time::timeout(std::time::Duration::from_millis(50), &mut asked).await;
    assert!(early.is_err() && stage.payments().await == 0);
    other.release().await.unwrap();
    assert_eq!(asked.await.0, StatusCode::OK);
}
