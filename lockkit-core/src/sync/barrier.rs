//! The barrier: `n` participants enter, and leave together.
//!
//! 1. Each participant takes a shared claim. So all claims are in one queue, in the order of their tokens.
//! 2. A register has the greatest token that was let through.
//! 3. A participant that finds `n` live claims with greater tokens stores the token of the `n`-th.
//! 4. A participant has passed once the register has reached its own token *and* its claim is still live. It was
//!    one of the `n` then: tokens grow, so its claim was in the queue whenever one with a greater token was read.

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
/// - **A participant that died does not count**: it has a claim that its process renews. After its lease (the
///   manager's ttl unless set) the others wait for another participant instead of it;
///   [`waiting`](Self::waiting) tells how many there are. One that dies after the round was complete has taken
///   part.
/// - **A participant that lost its claim** before it learned that the round was complete gets
///   [`Error::Lost`], even where the others were let through.
/// - The count must be the same everywhere, and is not checked: the claim's note tells it to people.
/// - Claims are those of the read-write lock of that name: `lockkit show` shows them, readers of that lock count
///   as participants, and no participant enters while a writer or a mutex of that name holds. Use the name for
///   nothing else.
/// - Five round trips a round for each participant, and a notification that the round is complete. It needs a
///   register, which a quorum does not have. At most 10,000 participants.
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

/// The register of a barrier that was not used for so long is deleted: no claim is left that its token could be
/// compared with.
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

    /// Enters, and returns when the round is complete. While the backend is unreachable, this goes
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
                // The participant that completes the round reads the queue after it has entered, so it finds
                // all `n`: this one has to wait for the change of the register.
                None => self.register.changed(entry.map(|entry| entry.version)).await?,
            };
        }
    }

    /// The tokens of the participants that no round has let through, in order.
    async fn arrived(&self, through: Option<Token>) -> Result<Vec<Token>, Error> {
        let state = self.handle.core.state(&self.handle.key(Space::Lock)?).await?;
        let there = state.holders().filter(|s| s.mode == Mode::Shared && !s.broken);
        Ok(there.map(|s| s.token).filter(|token| Some(*token) > through).collect())
    }

    /// Lets all claims up to this token through, and returns what the register has then.
    async fn open(
        &self,
        entry: &Option<RegisterEntry>,
        up_to: Token,
    ) -> Result<Option<RegisterEntry>, Error> {
        match self.register.compare_and_store(entry, up_to.get().to_be_bytes()).await {
            // A conflict: another participant was faster. Without an answer, it may be stored or not.
            Ok(_) | Err(Error::Conflict { .. } | Error::Backend { retryable: true, .. }) => {
                self.now().await
            }
            Err(error) => Err(error),
        }
    }

    /// What the register has now; repeated until there is an answer.
    async fn now(&self) -> Result<Option<RegisterEntry>, Error> {
        self.handle.core.repeat("load", None, || self.register.load()).await
    }

    /// Asks the backend whether the claim is still live, so that it was one of the round.
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
            Error::permanent(backend, "the register of this barrier has content that this version of lockkit does not know")
        });
        token.map(Some)
    }
}
