//! Work under a lock that talks to a database: fenced writes, which the databases share, and its error.
//! What a fence means is said at [`Fence`](lockkit_core::Fence).

use async_trait::async_trait;
use lockkit_core::{Error, HeldLock, LossReason, Result, Token};

/// For data in *another* database than the lock's: a table there remembers the highest token that
/// wrote to each resource.
///
/// ```
/// use lockkit_core::{Error, HeldLock};
/// use lockkit_sql::{Fenced, FencedWrite};
///
/// /// Whether this holder may write to the invoice; the transaction rolls back otherwise.
/// async fn may_write(tx: &mut impl FencedWrite, lease: &HeldLock) -> Result<bool, Error> {
///     let found = tx.fenced_write("invoice/42", lease.token()?).await?;
///     Ok(found == Fenced::Admitted)
/// }
/// ```
#[async_trait]
pub trait FencedWrite: Send {
    /// Admits `token` to `resource` for the rest of this transaction, or says that a later holder has
    /// written there: [`Fenced::Stale`], then roll back. Other writers of the same resource wait
    /// until this transaction ends. One round trip.
    ///
    /// The greatest token is kept by the same server as the data: a failover that loses the later
    /// holder's commit loses its token too, and then admits the earlier holder.
    ///
    /// The table `lockkit_tokens` is made by the statement `TOKENS_TABLE` of the database's module;
    /// its rows stay.
    ///
    /// # Cancel safety
    /// Dropping it leaves the token admitted or not; a rollback takes it back.
    async fn fenced_write(&mut self, resource: &str, token: Token) -> Result<Fenced>;
}

/// What [`FencedWrite::fenced_write`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a stale writer must roll back"]
pub enum Fenced {
    /// No later holder has written: go on.
    Admitted,
    /// A holder with a greater token has written.
    Stale,
}

impl Fenced {
    pub(crate) fn admitted(admitted: bool) -> Self {
        if admitted { Self::Admitted } else { Self::Stale }
    }
}

/// The database has no claim of this lease.
pub(crate) fn lost(lease: &HeldLock) -> Error {
    Error::lost(lease.loss().unwrap_or(LossReason::Expired))
}

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
