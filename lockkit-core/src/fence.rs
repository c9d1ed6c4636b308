//! Transactions of the program itself that a lock stands behind. What a fence means is said here,
//! once; driver crates implement it for the transactions of their clients. May do no I/O.

use async_trait::async_trait;

use crate::{Error, Token};

/// Binds a transaction of the program to a lock that it holds: `guard.fence(&mut tx)`. What the
/// transaction writes is written by the holder of the lock, or not at all.
///
/// The transaction goes to the backend that keeps the lock, and the backend itself checks that the
/// lock is held, so a program that was suspended and does not know that its lock is lost is refused
/// as well. A [`Guard`](crate::Guard) derefs to the [`HeldLock`](crate::HeldLock) that implements this.
///
/// | backend | `Tx` | a lock that was lost | round trips |
/// | --- | --- | --- | --- |
/// | PostgreSQL, MySQL, MariaDB | `sqlx::Transaction` | [`Error::Lost`] from `fence` | one in the transaction, one on lockkit's connection |
/// | SQLite | `sqlx::Transaction` | [`Error::Lost`] from `fence` | none: a statement in the transaction |
/// | etcd | `Vec<Compare>`, the conditions of a `Txn` | the transaction does not succeed | none |
/// | ZooKeeper | `MultiWriter` | the transaction fails with `NoNode` at the place of the fence | none |
///
/// Where data lies on another backend than the lock, send the [token](crate::HeldLock::token) along
/// with every write, and let the data's side refuse a lower one than it has seen.
///
/// # Order
/// Lock, begin, **fence first**, then read and write, commit, release. A fence behind the first read
/// protects the writes too, but what was read before may be of an earlier holder's turn.
///
/// # When the lease ends behind the fence
/// On SQL databases the fence keeps the lock: no other client gets it before the transaction has
/// ended, whatever becomes of the lease, of this process, of a clock, and a forced break does not get
/// past it either. So the commit stands, and the next holder begins after it. **A client that hangs
/// in its transaction keeps the lock** for as long as the database lets it.
///
/// etcd and ZooKeeper check the condition when they carry the transaction out.
///
/// # `Driver`
/// The driver whose transactions these are. It follows from `Tx`, and is never written out.
///
/// ```
/// use lockkit_core::{Error, Fence, HeldLock};
///
/// /// Begins a turn: what `tx` writes from here on is the holder's, or is not written.
/// async fn begin<Tx: Send, Driver>(lease: &HeldLock, tx: &mut Tx) -> Result<(), Error>
/// where
///     HeldLock: Fence<Tx, Driver>,
/// {
///     lease.fence(tx).await
/// }
/// ```
#[async_trait]
pub trait Fence<Tx: Send, Driver> {
    /// Binds `tx` to this lock.
    ///
    /// # Errors
    /// - [`Error::Lost`] when this process knows that the lock is lost, or a SQL database says so:
    ///   roll back. Also for a lock on another database of the same kind.
    /// - [`Error::Released`] when it was given back.
    /// - [`Error::Unsupported`] for a lock on a backend of another kind.
    /// - A [retryable](Error::is_retryable) error of a SQL database, whose isolation level may refuse
    ///   the fence because of another client's transaction: begin the transaction again.
    ///
    /// # Cancel safety
    /// Dropping it leaves the transaction bound or not.
    async fn fence(&self, tx: &mut Tx) -> Result<(), Error>;
}

/// What stands for a claim in its backend: what a [`Fence`] checks. See
/// [`HeldLock::anchor`](crate::HeldLock::anchor).
///
/// ```
/// use lockkit_core::{Anchor, Error, HeldLock};
///
/// /// The key to compare in a transaction of an etcd client that lockkit does not know.
/// async fn key_of(lease: &HeldLock) -> Result<Vec<u8>, Error> {
///     let Anchor { at, .. } = lease.anchor("etcd").await?;
///     Ok(at)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Where the backend keeps the claim: a key of etcd, the path of a node of ZooKeeper, the schema
    /// or the prefix of lockkit's tables.
    pub at: Vec<u8>,
    /// The token as the backend knows it, without the base of the namespace.
    pub token: Token,
}
