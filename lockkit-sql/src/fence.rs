//! Transactions of the program that a lock stands behind: what the databases share. What a fence
//! means is said at [`Fence`](lockkit_core::Fence).

use async_trait::async_trait;
use lockkit_core::{Error, HeldLock, LossReason, Token};

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
    async fn fenced_write(&mut self, resource: &str, token: Token) -> Result<Fenced, Error>;
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
    Error::Lost { reason: lease.loss().unwrap_or(LossReason::Expired) }
}
