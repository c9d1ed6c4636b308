//! The barrier: so many enter, and leave together. Claims say who has entered; how far the
//! barrier has let through, by one number in a register.
//!
//! Each participant takes a shared claim, so the claims of all are in one queue, in the order of
//! their tokens. The register has the greatest token that was let through. When `n` live claims
//! stand beyond that token, the token of the `n`-th becomes the new one. A participant has passed
//! once the number has reached its own token *and* its claim is still live: a claim that lives had
//! been in the queue at every reading, so it was one of the `n`.

use std::sync::Arc;
use std::time::Duration;

use super::Register;
use super::handle::Handle;
use crate::driver::RegisterEntry;
use crate::shared::Core;
use crate::{Error, Guard, LossReason, Mode, Space, Token};

/// A point that `n` participants leave together, again and again: round after round.
///
/// - **None early**: [`wait`](Self::wait) returns when `n` participants, this one among them,
///   waited at the same time. Those who come after that belong to the next round; so do those whose
///   `wait` was dropped or who timed out, when they come back.
/// - **First come, first through**: of more than `n`, the first `n` form the round.
/// - **The dead do not count**: each stands there by a claim that its process renews. When it dies,
///   its place is free again after its lease (the manager's ttl unless set), and the others wait on
///   for another in its place; [`waiting`](Self::waiting) tells how many there are. One who dies
///   after the round was complete has taken part.
/// - **A participant that lost its claim** before it knew of the opening learns it
///   [`Error::Lost`], and is not let through, even where the others were.
/// - The count must be the same everywhere, and is not checked: the claim's note says it to people.
/// - It is the lock of that name, for reading: `lockkit show` shows who waits. A mutex of the same
///   name, while held, lets no participant enter.
/// - Five round trips a round for each participant, and word of the opening. It needs a register,
///   which a quorum does not have. At most 10,000 participants.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let start = locks.barrier("start", 2);
/// let (first, second) = tokio::join!(start.wait(), start.wait());
/// first.and(second)
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Barrier {
    handle: Handle,
    register: Register,
    count: u32,
}

/// A barrier that was not used for so long is forgotten: its number is of no account when no
/// claim is left of those that it let through.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30 * 86_400);

const MAX_COUNT: u32 = 10_000;

impl Barrier {
    pub(crate) fn new(core: &Arc<Core>, name: &str, count: u32) -> Self {
        let register = Register::of(core, "barrier", name).ttl(FORGOTTEN_AFTER);
        let mut handle = Handle::new(core, name, None);
        handle.options.note = Some(format!("barrier of {count}").into());
        Self { handle, register, count }
    }

    /// How long a participant that died still counts; the manager's ttl unless set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.handle.options.ttl = ttl;
        self
    }

    /// Enters, and returns when the round is complete. While the backend is out of reach, this goes
    /// on trying for as long as its lease lasts.
    ///
    /// # Cancel safety
    /// Dropping it takes the participant out, in the background.
    pub async fn wait(&self) -> Result<(), Error> {
        if self.count == 0 || self.count > MAX_COUNT {
            let count = self.count;
            let message = format!("a barrier is for 1 to {MAX_COUNT} participants, not {count}");
            return Err(Error::Config(message));
        }
        let driver = self.handle.core.driver();
        if !driver.capabilities().registers {
            return Err(driver.unsupported("barriers"));
        }
        let guard = self.handle.wait(Mode::Shared, "barrier").await?;
        let passed = tokio::select! {
            biased;
            reason = guard.lost() => Err(Error::Lost { reason }),
            passed = self.wait_in_round(&guard) => passed,
        };
        // It has passed or has not: what becomes of the claim now makes no difference.
        let _ = guard.release().await;
        passed
    }

    /// Enters and waits, but not longer than this; says whether it was let through.
    ///
    /// # Cancel safety
    /// As [`wait`](Self::wait).
    pub async fn wait_timeout(&self, limit: Duration) -> Result<bool, Error> {
        match tokio::time::timeout(limit, self.wait()).await {
            Ok(passed) => passed.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// How many participants of the next round are there. Two round trips.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn waiting(&self) -> Result<u32, Error> {
        let through = self.through(&self.register.load().await?)?;
        Ok(self.arrived(through).await?.len() as u32)
    }

    /// Stands there until it was let through.
    async fn wait_in_round(&self, guard: &Guard) -> Result<(), Error> {
        let own = guard.token()?;
        let mut entry = self.now().await?;
        loop {
            let through = self.through(&entry)?;
            if through.is_some_and(|through| own <= through) {
                return self.confirm(guard).await;
            }
            let arrived =
                self.handle.core.repeat("inspect", None, || self.arrived(through)).await?;
            entry = match arrived.get(self.count as usize - 1) {
                Some(last) => self.open(&entry, *last).await?,
                // The participant that completes the round reads the queue after having entered it, and so
                // sees all: there is nothing to do but to wait for word of the opening.
                None => self.register.changed(entry.map(|entry| entry.version)).await?,
            };
        }
    }

    /// The participants that stand beyond the last round, in order.
    async fn arrived(&self, through: Option<Token>) -> Result<Vec<Token>, Error> {
        let state = self.handle.core.state(&self.handle.key(Space::Lock)?).await?;
        let there = state.holders().filter(|s| s.mode == Mode::Shared && !s.broken);
        Ok(there.map(|s| s.token).filter(|token| Some(*token) > through).collect())
    }

    /// Lets everybody through up to this token, and returns what the register has then.
    async fn open(
        &self,
        entry: &Option<RegisterEntry>,
        up_to: Token,
    ) -> Result<Option<RegisterEntry>, Error> {
        match self.register.compare_and_store(entry, up_to.get().to_be_bytes()).await {
            // Another participant of this round was faster, or this is another round already.
            Ok(_) | Err(Error::Conflict { .. } | Error::Backend { retryable: true, .. }) => {
                self.now().await
            }
            Err(error) => Err(error),
        }
    }

    /// What the register has now, however long that takes to learn.
    async fn now(&self) -> Result<Option<RegisterEntry>, Error> {
        self.handle.core.repeat("load", None, || self.register.load()).await
    }

    /// Asks whether the claim has lived until now, so that it was one of the round.
    async fn confirm(&self, guard: &Guard) -> Result<(), Error> {
        match self.handle.core.repeat("verify", None, || guard.verify()).await {
            Err(Error::Released) => Err(Error::Lost { reason: LossReason::Vanished }),
            verified => verified.map(drop),
        }
    }

    /// The greatest token that was let through.
    fn through(&self, entry: &Option<RegisterEntry>) -> Result<Option<Token>, Error> {
        let Some(entry) = entry else { return Ok(None) };
        let number = entry.value.as_slice().try_into().ok().map(u64::from_be_bytes);
        let token = number.and_then(Token::new).ok_or_else(|| {
            let backend = self.handle.core.backend();
            Error::permanent(backend, "this barrier was not used by this version of lockkit")
        });
        token.map(Some)
    }
}
