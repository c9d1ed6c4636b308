//! The code of README.md and docs/library.md, compiled and run; `pages.rs` compares the two. And the
//! work of `run` with the error types that programs have.

use std::error::Error as StdError;

use lockkit::sql::WorkError;
use lockkit::testing::{self, TestControl};
use lockkit::{Error, FromLock, LockManager, LossReason};
use sqlx::SqlitePool;
use sqlx::sqlite::SqlitePoolOptions;

async fn shop() -> SqlitePool {
    // One connection: a database in memory is that of its connection.
    let db = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
    let table = "CREATE TABLE invoice (id INTEGER PRIMARY KEY, state TEXT, fence INTEGER)";
    sqlx::query(table).execute(&db).await.unwrap();
    sqlx::query("INSERT INTO invoice VALUES (42, 'open', 0)").execute(&db).await.unwrap();
    db
}

async fn state(db: &SqlitePool) -> String {
    sqlx::query_scalar("SELECT state FROM invoice").fetch_one(db).await.unwrap()
}

mod readme {
    use std::time::Duration;

    use ::lockkit::sync::SlotLease;
    use ::lockkit::{Guard, HeldLock, LockManager};

    /// The page has the path of a server's file.
    mod lockkit {
        pub(super) async fn connect(_: &str) -> Result<super::LockManager, ::lockkit::Error> {
            ::lockkit::connect("memory:").await
        }
    }

    #[rustfmt::skip]
    pub(super) async fn pay(db: sqlx::SqlitePool) -> anyhow::Result<()> {
        let locks = lockkit::connect("sqlite:/var/lib/shop/locks.db").await?;
        locks.mutex("invoice/42").run(async |lock| {
            let pay = "UPDATE invoice SET state = 'paid', fence = ?1 WHERE id = 42 AND fence <= ?1";
            sqlx::query(pay).bind(lock.token()?.as_i64()).execute(&db).await?;    // a stale token changes nothing
            anyhow::Ok(())
        }).await?;                                                                // stopped when the lock is lost, released at the end
        locks.shutdown().await;
        Ok(())
    }

    async fn lead(lease: HeldLock) -> anyhow::Result<()> {
        lease.token()?;
        Ok(())
    }

    async fn report(_: HeldLock) -> anyhow::Result<&'static str> {
        Ok("mailed")
    }

    /// What waits for others is not run here: its own examples are.
    #[rustfmt::skip]
    #[expect(dead_code, reason = "compiled")]
    async fn primitives(locks: LockManager, guard: Guard) -> anyhow::Result<()> {
        locks.register("cursor").store_with(&guard, "event 42").await?;   // a value that a stale holder cannot overwrite
        locks.election("shard-7").value("10.0.0.7:4000").run(lead).await?; // one leader, known to all, elected again after a loss
        locks.multi(["account/3", "account/7"]).lock().await?.release().await?; // all or none, never a deadlock
        locks.once("2026-11-21/report").run(report).await?;               // all hosts start it, one does it
        locks.latch("boot", 3).wait().await?;                             // opens when three have counted down
        locks.barrier("round", 4).wait().await?;                          // four leave together
        locks.slots("gpu", 4).run(train).await?;                          // a number from 0 to 3, each held by one
        Ok(())
    }

    async fn train(slot: SlotLease) -> anyhow::Result<()> {
        assert!(slot.number() < 4);
        Ok(())
    }

    async fn lift(lease: HeldLock) -> anyhow::Result<()> {
        lease.token()?;
        Ok(())
    }

    #[rustfmt::skip]
    pub(super) async fn outlast(locks: LockManager) -> anyhow::Result<()> {
        locks.mutex("hourly").at_least(Duration::from_secs(60)).try_run(report).await?; // held for a minute at least
        locks.mutex("crane").lock_delay(Duration::from_secs(30)).run(lift).await?;      // closed for 30 s after a loss
        Ok(())
    }
}

#[tokio::test]
async fn the_code_in_the_readme_pays_an_invoice() {
    let db = shop().await;
    readme::pay(db.clone()).await.unwrap();
    assert_eq!(state(&db).await, "paid");
}

#[rustfmt::skip]
async fn pay(locks: &LockManager, db: &SqlitePool) -> Result<(), WorkError> {
    use lockkit::sql::WorkError;

    let paid: Result<(), WorkError> = locks.mutex("invoice/42").run(async |lock| {
        let pay = sqlx::query("UPDATE invoice SET state = 'paid', fence = ?1 WHERE id = 42 AND fence <= ?1");
        match pay.bind(lock.token()?.as_i64()).execute(db).await?.rows_affected() {
            0 => Err(sqlx::Error::RowNotFound.into()), // a later holder was here
            _ => Ok(()),
        }
    }).await;
    match paid {
        Err(WorkError::Lock(error)) if error.loss().is_some() => println!("stopped: {error}"),
        other => other?,
    }
    Ok(())
}

#[tokio::test]
async fn work_with_sqlx_takes_its_errors_and_the_locks_own() {
    let (db, locks) = (shop().await, lockkit::connect("memory:").await.unwrap());
    pay(&locks, &db).await.unwrap();
    assert_eq!(state(&db).await, "paid");
    let later = "UPDATE invoice SET state = 'cancelled', fence = 9223372036854775807";
    sqlx::query(later).execute(&db).await.unwrap();
    let refused = pay(&locks, &db).await.unwrap_err();
    assert!(matches!(refused, WorkError::Sql(sqlx::Error::RowNotFound)), "{refused}");
    assert_eq!(state(&db).await, "cancelled");
    locks.shutdown().await;
    assert!(matches!(pay(&locks, &db).await.unwrap_err(), WorkError::Lock(Error::Closed)));
}

#[test]
fn locks_for_threads() -> Result<(), Error> {
    let locks = lockkit::blocking::connect("memory:")?;
    let guard = locks.mutex("nightly").lock()?;
    // … an hour of work; `guard.token()?` between the steps, and along with every write …
    guard.release()?;
    Ok(())
}

#[tokio::test]
async fn a_shutdown_releases_everything() {
    let (locks, control) = testing::locks();
    let guard = locks.mutex("a").lock().await.unwrap();
    locks.shutdown().await;
    assert_eq!(guard.loss(), Some(LossReason::ShutDown));
    assert!(control.others().mutex("a").try_lock().await.unwrap().is_some());
}

/// An error of a program's own.
#[derive(Debug)]
enum Own {
    Lock(Error),
    Io(std::io::Error),
}

impl From<Error> for Own {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl From<std::io::Error> for Own {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// Work whose lock is lost in the middle, and work that fails by itself, as errors of this type.
async fn outcomes<E: FromLock + From<std::io::Error>>() -> [E; 2] {
    async fn one<E: FromLock + From<std::io::Error>>(
        locks: &LockManager,
        lose: Option<&TestControl>,
    ) -> Result<(), E> {
        locks
            .mutex("a")
            .run(async |lock| {
                lock.token()?;
                if let Some(control) = lose {
                    control.lose("a", LossReason::Expired).await;
                }
                tokio::task::yield_now().await;
                Err(std::io::Error::from(std::io::ErrorKind::NotFound))?
            })
            .await
    }
    let (locks, control) = testing::locks();
    [one(&locks, Some(&control)).await, one(&locks, None).await].map(|result| result.unwrap_err())
}

fn is_loss(error: &(dyn StdError + 'static)) -> bool {
    error.downcast_ref::<Error>().is_some_and(|error| error.loss().is_some())
}

fn is_missing(error: &(dyn StdError + 'static)) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

#[tokio::test]
async fn a_loss_and_an_error_of_the_work_arrive_as_they_are_in_every_type() {
    let [lost, missing] = outcomes::<anyhow::Error>().await;
    assert!(is_loss(lost.as_ref()) && is_missing(missing.as_ref()), "{lost} {missing}");
    let [lost, missing] = outcomes::<Box<dyn StdError>>().await;
    assert!(is_loss(lost.as_ref()) && is_missing(missing.as_ref()), "{lost} {missing}");
    let [lost, missing] = outcomes::<Box<dyn StdError + Send + Sync>>().await;
    assert!(is_loss(lost.as_ref()) && is_missing(missing.as_ref()), "{lost} {missing}");
    let [lost, missing] = outcomes::<std::io::Error>().await;
    assert!(is_loss(lost.get_ref().unwrap()) && is_missing(&missing), "{lost} {missing}");
    assert_eq!(lost.to_string(), "the lock was lost: its lease ended");
    let [lost, missing] = outcomes::<Own>().await;
    assert!(matches!(lost, Own::Lock(error) if is_loss(&error)));
    assert!(matches!(missing, Own::Io(error) if is_missing(&error)));
}

#[tokio::test]
async fn a_bound_on_the_wait_is_none_for_the_work() {
    tokio::time::pause();
    let (locks, control) = testing::locks();
    let minute = std::time::Duration::from_secs(60);
    let slow = async |_lock| {
        tokio::time::sleep(10 * minute).await;
        Ok::<_, Error>("done")
    };
    assert_eq!(locks.mutex("a").try_run_for(minute, slow).await.unwrap(), Some("done"));
    assert_eq!(locks.semaphore("b", 1).try_run(slow).await.unwrap(), Some("done"));
    let _taken = control.others().mutex("a").lock().await.unwrap();
    let _permit = control.others().semaphore("b", 1).acquire().await.unwrap();
    let begun = tokio::time::Instant::now();
    assert_eq!(locks.mutex("a").try_run(slow).await.unwrap(), None);
    assert_eq!(locks.semaphore("b", 1).try_run(slow).await.unwrap(), None);
    assert_eq!(begun.elapsed().as_secs(), 0);
    assert_eq!(locks.mutex("a").try_run_for(minute, slow).await.unwrap(), None);
    assert_eq!(locks.semaphore("b", 1).try_run_for(minute, slow).await.unwrap(), None);
    assert_eq!(begun.elapsed().as_secs(), 120);
    let both = locks.multi(["c", "d"]).try_lock_for(minute).await.unwrap().unwrap();
    let lost = both.run(async |_both| {
        control.lose("d", LossReason::Expired).await;
        std::future::pending::<Result<(), Error>>().await
    });
    assert!(matches!(lost.await, Err(Error::Lost { .. })));
}

#[tokio::test]
async fn the_locks_in_the_docs_that_outlast_their_use_are_used() {
    let (locks, _hand) = testing::locks();
    readme::outlast(locks.clone()).await.unwrap();
    assert!(locks.mutex("hourly").try_lock().await.unwrap().is_none(), "for a minute");
    assert!(locks.mutex("crane").try_lock().await.unwrap().is_some(), "released");
}
