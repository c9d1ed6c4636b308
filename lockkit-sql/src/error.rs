//! The error of work under a lock that talks to a database.

use lockkit_core::{Error, LossReason};

/// What work under a lock ends with when it uses sqlx: the lock's error or the database's.
///
/// The forms that run work (`run`, `try_run`, `try_run_for`) need an error type that can say that the
/// lock was lost, and `sqlx::Error` has no place for that. With this one, `?` takes both:
///
/// ```
/// use lockkit_core::LockManager;
/// use lockkit_sql::{WorkError, sqlx};
///
/// async fn pay(locks: &LockManager, db: &sqlx::SqlitePool) -> Result<(), WorkError> {
///     locks.mutex("invoice/42").run(async |lock| {
///         let pay = "UPDATE invoice SET state = 'paid', fence = ?1 WHERE id = 42 AND fence <= ?1";
///         let pay = sqlx::query(pay).bind(lock.token()?.as_i64());
///         match pay.execute(db).await?.rows_affected() {
///             0 => Err(sqlx::Error::RowNotFound.into()), // a later holder was here
///             _ => Ok(()),
///         }
///     }).await
/// }
/// ```
///
/// With `sqlx::Error` itself, the compiler says what is missing, and names the alternatives:
///
/// ```compile_fail,E0277
/// # use lockkit_core::LockManager;
/// # use lockkit_sql::sqlx;
/// async fn pay(locks: &LockManager, db: &sqlx::SqlitePool) -> Result<(), sqlx::Error> {
///     let pay = async |_lock| sqlx::query("UPDATE invoice SET paid = 1").execute(db).await.map(drop);
///     locks.mutex("invoice/42").run(pay).await
/// }
/// ```
///
/// A program with an error type of its own, `anyhow::Error` or `Box<dyn Error>` does not need it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// The lock was lost, or could not be had.
    #[error(transparent)]
    Lock(#[from] Error),
    /// The database refused, or failed.
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
}

impl WorkError {
    /// Why the lock was lost, if that is what this is.
    pub fn loss(&self) -> Option<&LossReason> {
        match self {
            Self::Lock(error) => error.loss(),
            Self::Sql(_) => None,
        }
    }
}
