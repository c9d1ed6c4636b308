//! What a lock that is held offers to the work under it; and fences, which bind a program's own
//! transactions to it (driver crates implement them for the transactions of their clients).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join;

use crate::driver::{Anchored, ClaimEnd, Renewal};
use crate::error::no_answer;
use crate::record::ClaimRecord;
use crate::registry::Registry;
use crate::settings::check_ttl;
use crate::{Claim, Error, LossReason, Mode, Name, Token};

/// What a lock gives to the work that it protects: the token, whether it is still held, word of
/// its loss.
///
/// A [`Guard`](crate::Guard) is one and gives the lock back; clones of the lease can be handed to
/// tasks, and keep nothing alive.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let guard = locks.mutex("invoice/42").lock().await?;
/// let lease = guard.lease();
/// let worker = tokio::spawn(async move { lease.token() }); // asked where the work lands
/// assert_eq!(worker.await.unwrap()?, guard.token()?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct HeldLock {
    pub(crate) record: Arc<ClaimRecord>,
    pub(crate) registry: Arc<Registry>,
    name: Name,
}

impl HeldLock {
    pub(crate) fn new(record: Arc<ClaimRecord>, registry: Arc<Registry>) -> Self {
        let name = record.claim().key.name.clone();
        Self { record, registry, name }
    }

    /// The fencing token, to be given along with every write to what the lock protects.
    ///
    /// [`Error::Lost`] as soon as the lock can no longer be trusted, whether anybody has noticed
    /// before or not; [`Error::Released`] once it was given back. No I/O.
    pub fn token(&self) -> Result<Token, Error> {
        if self.registry.is_forked() {
            return Err(Error::Lost { reason: LossReason::Forked });
        }
        self.record.token()
    }

    /// Whether the lock is held as far as this process can know: not released, not lost, and its
    /// own deadline not reached. No I/O.
    ///
    /// While it says `true`, no conflicting claim holds, within the promises of the backend. It
    /// may turn `false` at the next instant: only a resource that checks [tokens](Self::token) is
    /// safe from that.
    pub fn is_valid(&self) -> bool {
        self.token().is_ok()
    }

    /// The claim as the driver knows it, for driver crates that offer more than the trait. It contains
    /// the id, which releases the lock: never show it.
    pub fn claim(&self) -> Arc<Claim> {
        self.record.claim()
    }

    /// What stands for this lock in a backend of this kind, for driver crates that implement
    /// [`Fence`](crate::Fence), and for transactions of clients that lockkit does not know. A round
    /// trip on SQL servers, no I/O elsewhere.
    ///
    /// # Errors
    /// [`Error::Lost`] and [`Error::Released`] as [`token`](Self::token), or as the backend says.
    /// [`Error::Unsupported`] when the lock is on another backend.
    ///
    /// # Cancel safety
    /// Dropping it leaves the lock as it is.
    pub async fn anchor(&self, backend: &str) -> Result<Anchor, Error> {
        let token = self.token()?;
        let driver = &self.registry.driver;
        if self.registry.backend() != backend {
            return Err(driver.unsupported("fencing a transaction of another backend"));
        }
        let vanished = || Error::Lost { reason: LossReason::Vanished };
        let (claim, sent) = (self.record.claim(), self.record.now());
        match self.within(driver.anchor(&claim)).await? {
            Anchored::At(at) => {
                let token = self.record.without_base(token).ok_or_else(vanished)?;
                Ok(Anchor { at, token })
            }
            Anchored::Ended(why) => {
                self.answered(&Renewal::Ended(why), sent)?;
                Err(vanished())
            }
        }
    }

    /// How long until it must not be trusted any more, unless it is renewed before. Zero when it
    /// is not valid.
    pub fn remaining(&self) -> Duration {
        if self.registry.is_forked() {
            return Duration::ZERO;
        }
        self.record.remaining()
    }

    /// How long it is to stay held yet although it is released, by a
    /// [least hold](crate::sync::Mutex::at_least); zero when it has none, or that is over.
    pub fn least_remaining(&self) -> Duration {
        let end = self.record.least_end();
        end.map_or(Duration::ZERO, |end| end.since(self.record.now()))
    }

    /// The ttl that the backend gave, which may be longer than what was asked for. Zero when it is
    /// not held any more.
    pub fn granted_ttl(&self) -> Duration {
        self.record.granted().map_or(Duration::ZERO, |(_, ttl)| ttl)
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.record.claim().mode
    }

    /// Why it was lost, if it was. No I/O.
    pub fn loss(&self) -> Option<LossReason> {
        if self.registry.is_forked() {
            return Some(LossReason::Forked);
        }
        self.record.loss()
    }

    /// Returns when the lock was lost, with the reason; at once when that has happened before.
    /// Never returns after an orderly release.
    ///
    /// When the backend is out of reach, this returns at the deadline, before the backend can hand
    /// the lock on.
    ///
    /// # Cancel safety
    /// Dropping it does nothing; a later call tells the same.
    pub async fn lost(&self) -> LossReason {
        if self.registry.is_forked() {
            return LossReason::Forked;
        }
        self.record.lost().await
    }

    /// Asks the backend whether the lock is still held, and returns the token if it is.
    ///
    /// One round trip. Renews the lease, unless that was turned off.
    ///
    /// # Cancel safety
    /// Dropping it leaves the lock as it is.
    pub async fn verify(&self) -> Result<Token, Error> {
        self.token()?;
        match self.record.is_renewed() {
            true => self.renew().await?,
            false => self.check().await?,
        }
        self.token()
    }

    /// Renews the lease now, by hand: it then lasts at least its ttl from now on. Only needed with
    /// `auto_renew(false)`.
    ///
    /// One round trip. After an error that is not [`Error::Lost`] the lease lasts as long as it
    /// did before, or was renewed.
    ///
    /// # Cancel safety
    /// Dropping it leaves the lock held; whether it was renewed is unknown.
    pub async fn renew(&self) -> Result<(), Error> {
        self.token()?;
        let claim = self.record.claim();
        let sent = self.record.now();
        let renewal = self.within(self.registry.driver.renew_single(&claim));
        let answer = match self.registry.driver.gate() {
            None => renewal.await?,
            Some(_) => {
                let batch = [self.record.clone()];
                let gate = self.registry.keep_gates(&batch, self.remaining());
                let (answer, gate) = join(renewal, gate).await;
                // The claim's answer counts, whatever became of the gate.
                if let (Ok(answer), Err(error)) = (&answer, gate) {
                    self.answered(answer, sent)?;
                    return Err(error);
                }
                answer?
            }
        };
        self.answered(&answer, sent)
    }

    /// Makes the lease end `ttl` from now, and stops its renewal in the background: when the work
    /// is nearly done, and others should not wait long if this process dies now. A
    /// [lock delay](crate::sync::Mutex::lock_delay) follows after it.
    ///
    /// The own deadline is lowered before the backend is asked. Where the backend cannot end a
    /// lease early (see [`Capabilities::shorten`](crate::Capabilities::shorten)), the lock is
    /// given back by this process at that time. One round trip.
    ///
    /// # Cancel safety
    /// Dropping it leaves the lock held until the lowered deadline.
    pub async fn shorten(&self, ttl: Duration) -> Result<(), Error> {
        self.token()?;
        let capabilities = self.registry.driver.capabilities();
        let leased = self.record.with_lock_delay(ttl);
        check_ttl("ttl", ttl, self.record.margin(), capabilities)?;
        check_ttl("ttl with its lock delay", leased, self.record.margin(), capabilities)?;
        let sent = self.record.now();
        self.record.lower(sent, ttl);
        self.registry.sooner(self.record.next_event());
        let claim = self.record.claim();
        match self.within(self.registry.driver.shorten(&claim, leased)).await {
            Ok(Renewal::Holds(_)) | Err(Error::Unsupported { .. }) => self.token().map(drop),
            Ok(ended) => self.answered(&ended, sent),
            Err(error) => Err(error),
        }
    }

    /// Asks without renewing.
    async fn check(&self) -> Result<(), Error> {
        let claim = self.record.claim();
        let (token, _) = self.record.granted().ok_or(Error::Released)?;
        let state = self.within(self.registry.driver.inspect(&claim.key)).await?;
        let backend_token = self.record.without_base(token);
        let held = state.holders().any(|s| Some(s.token) == backend_token && !s.broken);
        if held {
            return Ok(());
        }
        let ended = match state.last_break.filter(|_| self.record.is_holding()) {
            Some(record) => ClaimEnd::Broken(record),
            None => ClaimEnd::NotFound,
        };
        self.answered(&Renewal::Ended(ended), self.record.now())
    }

    /// Takes the answer to a request about this lock that was sent at `sent`; an error when it is lost by now.
    pub(crate) fn answered(
        &self,
        answer: &Renewal,
        sent: crate::clock::Moment,
    ) -> Result<(), Error> {
        self.registry.renewed(&self.record, answer, sent);
        self.registry.sooner(self.record.next_event());
        self.token().map(drop)
    }

    /// No question about a lease takes longer than the lease.
    pub(crate) async fn within<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::time::timeout(self.remaining(), call).await.unwrap_or_else(|_| {
            self.token()?;
            Err(no_answer(self.registry.backend()))
        })
    }
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldLock")
            .field("name", &self.name)
            .field("mode", &self.mode())
            .field("token", &self.token().ok())
            .field("remaining", &self.remaining())
            .finish()
    }
}

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
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot fence a `{Tx}`",
    label = "no driver in this program fences a `{Tx}`",
    note = "a driver crate with that backend's feature does: `sqlx::Transaction` of PostgreSQL, MySQL or \
            SQLite with `lockkit-sql`, `Vec<Compare>` with `lockkit-etcd`, `MultiWriter` with `lockkit-zk`",
    note = "on another backend, send `guard.token()?` along with every write and compare it there"
)]
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
#[non_exhaustive]
pub struct Anchor {
    /// Where the backend keeps the claim: a key of etcd, the path of a node of ZooKeeper, the schema
    /// or the prefix of lockkit's tables.
    pub at: Vec<u8>,
    /// The token as the backend knows it, without the base of the namespace.
    pub token: Token,
}
