//! What operators do to locks that others hold. Listings are in `inspection.rs`.

use std::sync::Arc;
use std::time::Duration;

use crate::driver::{BreakMode, ClaimId, SetLimit};
use crate::name::check_note;
use crate::observe;
use crate::shared::Core;
use crate::sync::Mutex;
use crate::{BreakRecord, Error, Space, Token};

/// How long a resize is repeated while the backend does not answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Breaks, lists and resizes locks, and raises tokens: for operators and their tools.
///
/// Made by [`LockManager::admin`](crate::LockManager::admin), of whose backend and namespace it is. Owned,
/// and cheap to clone; it keeps no lock alive.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// use futures_util::TryStreamExt;
/// use lockkit_core::driver::BreakMode;
/// use lockkit_core::Space;
///
/// let admin = locks.admin();
/// let stuck = locks.mutex("invoice/42").lock().await?;
/// let all: Vec<_> = admin.list("invoice/").try_collect().await?;
/// let token = all[0].queue[0].token;
/// let why = Some("the host is gone");
/// assert!(admin.break_lock(Space::Lock, "invoice/42", token, BreakMode::Forced, why).await?);
/// # drop(stuck);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LockAdmin {
    core: Arc<Core>,
}

impl LockAdmin {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self { core: core.clone() }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Breaks the claim that has this token, holding or waiting; says whether there was one.
    ///
    /// - [`BreakMode::Graceful`]: the claim's renewal is refused, which its client learns at the next
    ///   one. The lock moves on when the client releases it or its lease ends: exclusion holds.
    /// - [`BreakMode::Forced`]: the claim is removed at once. A holder that has not noticed yet works
    ///   on at the same time as the next, and only tokens protect what they share.
    ///
    /// Either way a [`BreakRecord`] says who did it, when and why. Two round trips the first time, and one
    /// more where no such claim is found.
    ///
    /// # Cancel safety
    /// Dropping it leaves open whether the lock was broken; it can be asked for again.
    pub async fn break_lock(
        &self,
        space: Space,
        name: impl AsRef<str>,
        token: Token,
        mode: BreakMode,
        reason: Option<&str>,
    ) -> Result<bool, Error> {
        let core = &self.core;
        core.check_open()?;
        let key = core.key(space, name.as_ref())?;
        reason.map(check_note).transpose()?;
        let base = core.namespace_counter().await?;
        let Some(token) = token.get().checked_sub(base).and_then(Token::new) else {
            return Ok(false);
        };
        let by = (*core.identity).clone();
        let record = BreakRecord::new(by, mode, reason.map(str::to_owned));
        let driver = core.driver();
        // A driver that sent it twice, after a lost answer, did not find the claim the second time.
        let broken = driver.break_claim(&key, token, mode, &record).await?
            || driver.inspect(&key).await?.last_break.as_ref() == Some(&record);
        if broken {
            observe::broke(core.backend(), key.name.as_str(), token, record.forced);
        }
        Ok(broken)
    }

    /// Makes every token of this namespace here greater than any that `old` gave under its own, as
    /// when a fleet moves from there to here; returns what is added to the backend's tokens from
    /// now on. `MirrorDriver` of `lockkit-compose` has the steps of a move.
    ///
    /// Managers read that number once, so who uses this backend connects afterwards; the mirror
    /// reads it with every lock. It leaves room for 2^50 more tokens there: 35 years, where tokens
    /// follow a clock in microseconds. Asking again, or for a backend that has moved here before,
    /// is harmless. Locks a name of its own at `old` and releases it: four round trips.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the backend keeps no such number.
    ///
    /// # Cancel safety
    /// Dropping it leaves open whether the tokens were raised; it can be asked for again.
    pub async fn take_over_tokens(&self, old: &LockAdmin) -> Result<u64, Error> {
        let reached = old.reached_token().await?;
        self.raise_tokens_above(reached).await
    }

    /// A token that is greater than any that this namespace has given so far: the first half of
    /// [`take_over_tokens`](Self::take_over_tokens), for programs that tell the two backends'
    /// failures apart. Locks a name of its own and releases it.
    ///
    /// # Cancel safety
    /// Dropping it does no harm.
    pub async fn reached_token(&self) -> Result<Token, Error> {
        self.core.check_open()?;
        let probe = format!("lockkit.move.{}", ClaimId::random().to_hex());
        let guard = Mutex::new(&self.core, &probe, None).lock().await?;
        let reached = guard.token()?;
        guard.release().await?;
        Ok(reached)
    }

    /// Makes every token of this namespace here greater than this one, and leaves room: the second half
    /// of [`take_over_tokens`](Self::take_over_tokens).
    ///
    /// # Errors
    /// As [`take_over_tokens`](Self::take_over_tokens).
    ///
    /// # Cancel safety
    /// As [`take_over_tokens`](Self::take_over_tokens).
    pub async fn raise_tokens_above(&self, reached: Token) -> Result<u64, Error> {
        const ROOM: u64 = 1 << 50;
        self.core.check_open()?;
        let reached = reached.get();
        let namespace = &self.core.namespace;
        let base = self.core.driver().namespace_counter(namespace).await?;
        if base > reached {
            return Ok(base);
        }
        self.core.driver().raise_namespace_counter(namespace, reached + ROOM).await?;
        self.core.driver().namespace_counter(namespace).await
    }

    /// Changes the limit of a [resizable](crate::sync::Semaphore::resizable) semaphore, for all its users
    /// and for good; 0 drains it. Returns once it is in force: no request for permits that begins after
    /// that is granted above it. One round trip.
    ///
    /// - **Raised**, waiters for whom there is room hold at once, in the order of the queue.
    /// - **Lowered**, it evicts no claim: holders go on, and none is granted until there is room.
    /// - **Drained**, at 0, nothing is granted. A waiter keeps its position for when it is raised.
    /// - **One value wins** where several resize at once, and all count with it.
    ///
    /// A lost answer is asked for again, for half a minute at most. Where another program resized
    /// meanwhile, this may be applied again after theirs. A handle that is not resizable does not follow:
    /// it still asks for the limit that it was made with.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where [`Capabilities::resize`](crate::Capabilities::resize) is false.
    ///
    /// # Cancel safety
    /// Dropping it leaves open whether the limit was changed.
    pub async fn resize(&self, name: impl AsRef<str>, limit: u32) -> Result<(), Error> {
        let key = self.core.key(Space::Semaphore, name.as_ref())?;
        self.core.set_limit(&key, SetLimit::To(limit), PATIENCE).await.map(drop)
    }
}
