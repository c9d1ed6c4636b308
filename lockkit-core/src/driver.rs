//! What a backend does for lockkit: the two traits that a driver implements. A driver does I/O and
//! nothing else; deadlines, renewal, reentrancy, cancellation, drop, metrics and tracing live in
//! this crate, once.
//!
//! # Writing a driver
//! A driver keeps, for every [`Key`], an ordered list of [`Claim`]s. It puts claims in, takes them
//! out, and says which of them hold; [`queue`](crate::queue) has the rule. That is all of it:
//!
//! 1. **Order is the token.** A claim gets its place, a number that grows, in the same atomic step
//!    that puts it into the list. The number never repeats and never goes back for one key: not
//!    after a release, an expiry, a clean-up of the key, a restart.
//! 2. **The backend's clock decides** when a lease ends. A claim is live for `wait_ttl` after it
//!    was queued or last renewed while it waits, and for `hold_ttl` from the moment it begins
//!    to hold. The backend picks by the claim's state.
//! 3. **Renewing never shortens**: `expiry = max(old, now + ttl)`.
//! 4. **An operation that finds a claim expired removes it in the same atomic step**, so that
//!    no renewal revives a claim that another client saw ended.
//! 5. **Every verb is idempotent by the claim's id.** Asking twice is like asking once, because an
//!    answer may get lost and core then asks again. (Where claims share a lease or a session, it
//!    asks the driver that put a [renewed](crate::Lifetime::Renewed) claim in, or a clone of it; a
//!    detached claim may be asked about at any.)
//! 6. **Every verb may be dropped at any await point**, and may fail after it acted. Core releases
//!    the claim again and again until its ttl is over; the driver only has to be sure that nothing
//!    it does later brings the claim back.
//! 7. **Only who knows the id renews and releases.** Nothing that a driver shows contains it.
//!
//! Then hand the driver to the conformance suite.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::capabilities::Capabilities;
use crate::clock::{Clock, SteadyClock};
use crate::promises::Promises;
use crate::state::{Finding, Health, ListPage, ListRequest, LockState, Page};
use crate::{BreakRecord, Claim, Error, Key, Namespace, Token};

pub use crate::answers::{
    Acquisition, Anchored, Attempted, ClaimEnd, Grant, LeaseStart, Patience, Released, Renewal,
    SetLimit,
};
pub use crate::background::Background;
pub use crate::bases::KnownBases;
pub use crate::batch::{Acquire, Batch, BatchError, BatchOutcome, submit_each};
pub use crate::batcher::Batcher;
pub use crate::break_record::BreakMode;
pub use crate::capabilities::BatchLimits;
pub use crate::claim::ClaimId;
pub use crate::claim_data::ClaimData;
pub use crate::clock::unix_ms;
pub use crate::concurrency::locked;
pub use crate::deadline::{backoff, trusted_until};
pub use crate::defects::{KnownDefect, KnownDefects, ServerVersion};
pub use crate::error::{in_time, no_answer};
pub use crate::evidence::{Evidence, Renewed, ServerChanges, ServerHistory, ServerRun};
pub use crate::gate::{
    Gate, GateAttempt, GateRenewal, answered_once, check_neighbours, keep_in_groups, names_in_use,
    refuse_twins,
};
pub use crate::observe::wake_ups_refused;
pub use crate::recent::Recent;
pub use crate::registers::{
    FoundRegister, MAX_REGISTER_BYTES, Precondition, RegisterEntry, RegisterKey, Registers, Write,
    WriteId, WriteResult,
};
pub use crate::server_url::{Pem, PemFiles, ServerUrl};
pub use crate::state::Version;
pub use crate::successors::{Following, Successors};
pub use crate::swap::retry_conflicts;
pub use crate::url::{UrlOption, join_query, split_query};
pub use crate::writes::Writes;

/// Lists of claims, kept by a backend.
///
/// Object-safe; core holds it as `Arc<dyn LockDriver>`. A method that fails with
/// [`Error::Backend`] may have acted or not. None of the methods retries for long by itself: a
/// lost connection is rebuilt, but an attempt ends in bounded time (some seconds) with a
/// retryable error, since core knows how much of a lease is left and the driver does not.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # use std::{sync::Arc, time::Duration};
/// # use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
/// # fn claim(name: &str, mode: Mode) -> Result<Arc<Claim>, lockkit_core::Error> {
/// #     let key = Key::new(Namespace::default(), mode.space(), Name::new(name)?);
/// #     let (hold, wait) = (Duration::from_secs(30), Duration::from_secs(10));
/// #     let me = Arc::new(ClientIdentity::of_this_process());
/// #     Ok(Arc::new(Claim::new(key, mode, hold, wait, me)))
/// # }
/// use lockkit_core::MemoryDriver;
/// use lockkit_core::driver::{Acquisition, LockDriver, Patience, Released};
///
/// // What core asks of a driver, without core.
/// let driver = MemoryDriver::new();
/// let claim = claim("invoice/42", Mode::Exclusive)?;
/// let Acquisition::Granted(grant) = driver.acquire(&claim, Patience::Wait).await?.result else {
///     unreachable!("the lock was free");
/// };
/// let state = driver.inspect(&claim.key).await?;
/// assert_eq!(state.queue[0].token, grant.token);
/// assert_eq!(driver.release(&claim).await?, Released::Removed);
/// # Ok(()) }
/// ```
#[async_trait]
pub trait LockDriver: fmt::Debug + Send + Sync + 'static {
    /// What this backend does and does not do.
    fn capabilities(&self) -> &Capabilities;

    /// The clock of this driver's [`Moment`](crate::clock::Moment)s, on which core reads all deadlines of its claims.
    fn clock(&self) -> Arc<dyn Clock> {
        SteadyClock::shared()
    }

    /// The registers of this backend, if it has any.
    fn registers(&self) -> Option<&dyn Registers> {
        None
    }

    /// The gate that exclusive claims take beside their place in the queue, so that they exclude locks of other
    /// libraries, and are excluded by them. `None` unless the driver was told to: then it costs nothing.
    fn gate(&self) -> Option<&dyn Gate> {
        None
    }

    /// Releases and acquires different claims, in one request where the backend can, and says for each
    /// what became of it.
    ///
    /// A batch has at most one operation of a claim, and no more than [`Capabilities::batches`] says.
    /// Operations are independent: an error of one concerns that claim only, and one that has to
    /// wait at the server (for a row that another client has locked) delays no other: its error is
    /// [`BatchError::would_block`]. Acquires of one key are carried out in their order.
    ///
    /// An error of the whole means that nothing is known of any operation. Core submits the operations of
    /// a batch that failed permanently in smaller batches, so that one which the server does not take
    /// fails alone; it may then repeat what was carried out before.
    ///
    /// # Acquire
    /// Puts a claim at the end of its queue, after having removed what has ended from it.
    /// - [`Patience::Wait`]: the claim is in the queue afterwards; the result says whether it holds.
    /// - [`Patience::Try`]: if it cannot hold at once the result is [`Acquisition::Busy`], and the
    ///   claim was never in the queue, not even for a moment that another claim could have seen.
    ///   A try never overtakes a waiting claim.
    /// - A claim that is in the queue already stays where it is, and the result is its state now.
    ///   (Its lease counts from now on, as by a renewal.) With [`Patience::Try`] and a claim that
    ///   waits: it is removed, and the result is `Busy`.
    /// - [`Error::LimitMismatch`] when the queue has claims with another limit, or was
    ///   [given](Self::resize) another one; nothing was done.
    /// - A claim for more permits than the queue's limit, which only a queue that was given a limit
    ///   sees, waits, or is `Busy`.
    ///
    /// # Release
    /// Removes a claim from its queue, holding or waiting, and promotes those that hold now, waking
    /// them and at most one other. Core takes "not found" at a first release for a lock that was
    /// lost; [`Attempted::ambiguous`] says that an earlier attempt may have removed it.
    ///
    /// # Round trips
    /// One on a warm connection, for the whole batch.
    ///
    /// # Cancel safety
    /// A batch that is dropped may have been carried out, may be carried out later, or not at all.
    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError>;

    /// Submits one acquire. An error does not say how many requests may have been carried out; that
    /// of [`submit`](Self::submit) does.
    async fn acquire(
        &self,
        claim: &Arc<Claim>,
        patience: Patience,
    ) -> Result<Attempted<Acquisition>, Error> {
        let acquire = Acquire { claim: claim.clone(), patience };
        let batch = Batch { releases: &[], acquires: &[acquire] };
        let outcome = self.submit(batch).await.map_err(|failed| failed.error)?;
        let result = outcome.acquired.into_iter().next().ok_or_else(|| self.no_reply())?;
        result.map_err(|failed| failed.error)
    }

    /// Returns once the queued claim holds. Core calls it after [`Acquisition::Queued`], once at a
    /// time for a claim, and renews the claim meanwhile.
    ///
    /// Ends with [`Error::Lost`] when the driver notices that the claim is no longer in the queue. It
    /// need not notice by itself: core sees it at the next renewal.
    ///
    /// # Cancel safety
    /// Dropping it leaves the claim in the queue; [`release`](Self::release) removes it, and a later
    /// call waits for it again.
    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error>;

    /// Returns once the backend itself has told this client, by a message, that the queued claim
    /// holds. For a trial of whether messages come: [`granted`](Self::granted) also succeeds where
    /// the driver has to ask. By default `granted`.
    ///
    /// # Cancel safety
    /// As [`granted`](Self::granted).
    async fn notified(&self, claim: &Arc<Claim>) -> Result<(), Error> {
        self.granted(claim).await.map(drop)
    }

    /// Renews many claims, holding or queued, in one go, and says for each, in the order given,
    /// what became of it.
    ///
    /// # Behavior
    /// For each claim, atomically: ended claims of its list are removed and those who now hold
    /// begin to; a claim that is still there gets `max(old expiry, now + ttl)`, the ttl being that
    /// of its state; one that is not is [`Renewal::Ended`]. So a lock moves on with any renewal of
    /// a queued claim, even when its holder, its first waiter and a message were all lost.
    /// A claim that was broken gracefully is not renewed: it stays until its lease is over, and the
    /// answer is `Ended(Broken)`.
    ///
    /// The answer has one item for each claim, also where one claim is named twice. An item that is an error concerns that claim only:
    /// the server that keeps it did not answer, say. An error of the whole means that nothing is
    /// known of any.
    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error>;

    /// The same, and with each answer what it tells of its server. Core renews with this.
    ///
    /// Evidence costs no request of its own: what an answer can carry along, and what was asked for
    /// once, when the connection was opened. By default [`renew`](Self::renew), and none.
    async fn renew_with_evidence(
        &self,
        claims: &[Arc<Claim>],
    ) -> Result<Vec<Result<Renewed, Error>>, Error> {
        let answers = self.renew(claims).await?;
        Ok(answers.into_iter().map(|answer| answer.map(Renewed::from)).collect())
    }

    /// Submits one release. "Not found", where an earlier attempt got no answer, is
    /// [`Released::Removed`].
    async fn release(&self, claim: &Arc<Claim>) -> Result<Released, Error> {
        let batch = Batch { releases: std::slice::from_ref(claim), acquires: &[] };
        let outcome = self.submit(batch).await.map_err(|failed| failed.error)?;
        match outcome.released.into_iter().next() {
            Some(Ok(released)) => Ok(released.released()),
            Some(Err(error)) => Err(error.error),
            None => Err(self.no_reply()),
        }
    }

    /// Makes the lease of a holding claim end `ttl` from now, earlier or later than it would have.
    ///
    /// By default [`Error::Unsupported`]: core then lowers its own deadline and releases the claim
    /// in time, so that only the death of the process in between lets the longer lease show.
    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        let _ = (claim, ttl);
        Err(self.unsupported("shortening a lease at the server"))
    }

    /// Makes a holding exclusive claim a shared one *in its place*, and lets the shared claims
    /// right behind it begin to hold. A waiting writer cannot slip in between.
    ///
    /// Idempotent: a claim that is shared already stays so. [`Renewal::Ended`] when the claim is
    /// not there. There is no upgrade: two readers that both upgrade wait for each other for ever.
    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error>;

    /// Breaks the claim of this list that has this token; says whether there was one.
    ///
    /// # Behavior
    /// - [`BreakMode::Graceful`]: the claim is marked and renewed no longer; the lock moves on when its
    ///   holder lets go or its lease ends. Exclusion holds.
    /// - [`BreakMode::Forced`]: the claim is removed at once, and those behind it begin to hold.
    ///   From there on only tokens protect.
    ///
    /// Either way the next renewal of the claim says `Ended(Broken(record))`, for at least the ttl
    /// of the claim (afterwards its holder knows on its own), and `record` shows as
    /// [`LockState::last_break`] for as long as the list is in use, or for a minute at least.
    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error>;

    /// Shows a list as it is. Changes nothing that others can see.
    async fn inspect(&self, key: &Key) -> Result<LockState, Error>;

    /// Shows the lists in use, a page at a time, in any stable order.
    ///
    /// The prefix is taken literally: `%`, `*` and `_` are characters. A list that was in use for
    /// the whole time of the listing is shown exactly once.
    async fn list(&self, request: &ListRequest) -> Result<Page, Error>;

    /// Shows the namespaces that are in use behind `after`, a page at a time, in any stable order;
    /// see [`Capabilities::namespaces`].
    ///
    /// A namespace in which a lock is in use, or a register has a value, for the whole time of the
    /// listing is shown exactly once. One in which the backend only remembers something may be
    /// shown too, but none that was never used.
    ///
    /// By default [`Error::Unsupported`].
    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>, Error> {
        let _ = (after, limit);
        Err(self.unsupported("listing namespaces"))
    }

    /// Returns a state of the queue that differs from `before` in its claims or in which of them hold.
    ///
    /// By default it polls every 200 ms; a backend that can push does better.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    async fn changed(&self, key: &Key, before: &LockState) -> Result<LockState, Error> {
        loop {
            let now = self.inspect(key).await?;
            if !now.same_queue(before) {
                return Ok(now);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Makes sure that no later claim of this claim's list gets less than `token`, and that this
    /// claim's own token is at least `token`; answers like a renewal. Only while the claim is
    /// live. It is what lets a quorum have tokens; see [`Capabilities::raise`].
    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        let _ = (claim, token);
        Err(self.unsupported("raising tokens"))
    }

    /// Says where the backend keeps a holding claim, for a [`Fence`](crate::Fence) that checks it in a
    /// transaction of its owner; makes it one that such transactions can rely on, where the backend
    /// has to know before. [`Error::Lost`] where this driver does not know the claim.
    ///
    /// By default [`Error::Unsupported`].
    async fn anchor(&self, claim: &Arc<Claim>) -> Result<Anchored, Error> {
        let _ = claim;
        Err(self.unsupported("fencing a transaction"))
    }

    /// Renews a single claim, by [`renew`](Self::renew).
    async fn renew_single(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        let answers = self.renew(std::slice::from_ref(claim)).await?;
        answers.into_iter().next().unwrap_or(Ok(Renewal::Ended(ClaimEnd::NotFound)))
    }

    /// Gives a semaphore a limit that stays, whether or not anybody is in its list, and says which
    /// one it has now; see [`Capabilities::resize`].
    ///
    /// # Behavior
    /// In one atomic step:
    /// - [`SetLimit::IfUnset`]: a limit that was given before stays. Otherwise the list's own
    ///   becomes the one that it was given, or, when it is empty, this one.
    /// - [`SetLimit::To`]: this one, whatever was before. All claims of the list count with it from
    ///   there on, and are shown with it; those who now hold begin to, and are woken. Who holds
    ///   goes on holding, also when the sum is above the limit now: no claim is evicted, and none
    ///   is granted until there is room. With 0 none is granted.
    ///
    /// From there on a new claim with another limit is refused by [`acquire`](Self::acquire), also
    /// when the list is empty. A claim that is in the list already is known by its id, whatever
    /// limit it was made with.
    ///
    /// The limit is as durable as a register. One round trip.
    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        let _ = (key, limit);
        Err(self.unsupported("resizing a semaphore"))
    }

    /// What core adds to every token of this namespace; 0 unless it was raised. Read once a
    /// manager. A backend on which namespaces may have [neighbours](check_neighbours) refuses here a process
    /// that has others.
    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        let _ = namespace;
        Ok(0)
    }

    /// Raises the base of this namespace to at least `base`, for good. It is what lets tokens grow
    /// when a fleet moves here from another backend.
    async fn raise_namespace_counter(&self, namespace: &Namespace, base: u64) -> Result<(), Error> {
        let _ = (namespace, base);
        Err(self.unsupported("raising the token base"))
    }

    /// What is kept under each fault as the servers' settings are now: of every server known, the
    /// worst. What may not be read is not known. By default what [`capabilities`](Self::capabilities)
    /// states; a driver overrides it where settings of the server decide.
    ///
    /// For operators and tools: core never asks. A request or a few for each server.
    async fn promises(&self) -> Result<Promises, Error> {
        Ok(Promises::of(self.capabilities()))
    }

    /// Which run of which server answers for this lock now, where the backend tells it cheaply. A
    /// quorum asks its members beside a grant, to know one that came back with old data.
    ///
    /// The run must be one that answered *after* this was called: none that was remembered, unless it
    /// belongs to the connection over which the next request goes. One request. By default `None`.
    async fn run_of(&self, key: &Key) -> Result<Option<ServerRun>, Error> {
        let _ = key;
        Ok(None)
    }

    /// Whether the server's settings, as they are now, keep every acknowledged write when it is
    /// killed and started again; `false` where they cannot be read, and where another server may take
    /// its place without a change of the run's identity. By default `false`.
    async fn keeps_writes(&self) -> Result<bool, Error> {
        Ok(false)
    }

    /// Asks the backend for a sign of life, and says what an operator should know.
    async fn health(&self) -> Result<Health, Error>;

    /// Tries on the backend what its settings do not show, for an operator's check: up to a minute and some
    /// hundred requests. Called by [`LockManager::probe`](crate::LockManager::probe) only. By default nothing.
    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }

    /// Lets go of connections. Called once, after the manager released everything. Claims are not
    /// the driver's to release here. The program may end its runtime right after: so this waits, for
    /// about a second at most, for what the driver does in the [background](Background).
    async fn close(&self) {}

    /// The error for an answer that does not answer what was asked.
    fn no_reply(&self) -> Error {
        let backend = self.capabilities().backend;
        Error::permanent(backend, "the driver did not answer every operation of a batch")
    }

    /// The error for what this backend cannot do.
    fn unsupported(&self, operation: &'static str) -> Error {
        Error::Unsupported { operation, backend: self.capabilities().backend }
    }
}
