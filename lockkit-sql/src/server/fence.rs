//! Transactions of the user's that a lock stands behind. The statements are the dialects'; what the
//! words mean is said here, once.

use async_trait::async_trait;
use lockkit_core::{Error, Token};

/// Binds a transaction to a lock that is held: `guard.fence(&mut tx)`, on the database that keeps the
/// lock.
///
/// From then on, and until the transaction ends, the lock is given to nobody else, whatever becomes of
/// its lease, of this process, of the clock. So a commit never comes from somebody who lost the lock:
/// either the fence was refused, or nobody else could hold it before the commit.
///
/// # The order
/// Lock, begin, **fence first**, then read and write, commit, release. A fence behind the first read
/// protects the writes all the same, but what was read before may have been somebody else's turn.
///
/// # What goes on meanwhile
/// The lock is renewed as always. A `try` by others is busy, and does not wait. A release before the
/// commit is answered at once, and the lock moves on when the transaction ends. Breaking by force does
/// not get past a fence either. **A client that hangs in a transaction keeps the lock**: let the server
/// end it (`idle_in_transaction_session_timeout` on PostgreSQL).
///
/// Works on every isolation level. Where the level asks for it, the database may refuse the fence or
/// the commit because of somebody else's transaction: an error that says
/// [retryable](Error::is_retryable), after which the transaction is begun anew.
#[async_trait]
pub trait Fence<Tx: Send> {
    /// Binds `tx` to this lock, whose tables are where they are by default.
    ///
    /// [`Error::Lost`] when the lock does not hold, or is not on this database: roll back. A round
    /// trip of the transaction's, and one on lockkit's own connection before it.
    ///
    /// # Cancel safety
    /// Dropping it leaves the transaction fenced or not.
    async fn fence(&self, tx: &mut Tx) -> Result<(), Error>;

    /// As [`fence`](Self::fence); `tables` is what [`ServerOptions::tables`] was given.
    ///
    /// # Cancel safety
    /// As [`fence`](Self::fence).
    ///
    /// [`ServerOptions::tables`]: super::ServerOptions::tables
    async fn fence_in(&self, tx: &mut Tx, tables: &str) -> Result<(), Error>;
}

/// For data in *another* database than the lock's: a table there remembers the highest token that
/// wrote to each resource.
#[async_trait]
pub trait FencedWrite: Send {
    /// Admits `token` to `resource` for the rest of this transaction, or says that a later holder has
    /// written there: [`Fenced::Stale`], then roll back. Others who write to the same resource wait
    /// until this transaction ends. One round trip.
    ///
    /// The table `lockkit_tokens` is made by the dialect's statement `TOKENS_TABLE`; its rows stay.
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
