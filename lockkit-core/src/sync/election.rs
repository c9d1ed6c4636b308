//! Leader election: the holder of a lock is the leader, the waiters are the candidates, and the
//! leader's value is the note of its claim. So it needs no register, and works on a quorum too.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::Stream;

use super::handle::Handle;
use crate::acquire::WaitBudget;
use crate::deadline::backoff;
use crate::shared::{Core, WATCH, with_offset};
use crate::state::LockState;
use crate::{ClientIdentity, Error, FromLock, Guard, HeldLock, Mode, Space, Token};

/// One leader at a time, known to everybody by its value, such as the address that it listens on.
///
/// - **At most one** believes to lead, within the promises of the backend: leadership is a lease,
///   and its holder knows of its end before anybody else is elected. What a leader changes should
///   check the [token](HeldLock::token), which grows from leader to leader.
/// - **Fair**: candidates are elected in the order in which they began to campaign. (A quorum
///   usually does, and promises no order.)
/// - **Hand-over**: at once when the leader [resigns](Leadership::resign); when its lease has ended,
///   if it died, stalled or was cut off.
/// - **The value** is shown by [`leader`](Self::leader) and [`observe`](Self::observe) for as long
///   as the leader leads, and stays the same: resign and campaign again to change it. At most 1,000
///   bytes without control characters.
/// - It is the lock of that name: `lockkit show` shows leader and candidates, `lockkit break`
///   deposes, and a mutex of the same name is a candidate without a value.
/// - Campaigning takes one round trip when there is no leader; looking takes one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let shard = locks.election("shard-7").value("10.0.0.7:4000");
/// shard.run(|leadership| async move {
///     let token = leadership.token()?; // goes along with every write
///     Ok::<_, lockkit_core::Error>(())
/// }).await?;
/// assert!(shard.leader().await?.is_none()); // it resigned when its work was done
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    handle: Handle,
}

/// Who leads.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let election = locks.election("shard-7").value("10.0.0.7:4000");
/// let leading = election.campaign().await?;
/// let leader = locks.election("shard-7").leader().await?.expect("there is a leader");
/// assert_eq!(leader.value.as_deref(), Some("10.0.0.7:4000"));
/// assert_eq!(leader.token, leading.token()?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// What it campaigned with.
    pub value: Option<String>,
    /// Its fencing token.
    pub token: Token,
    /// Its process.
    pub by: ClientIdentity,
    /// How long it had been leading when it was read.
    pub leads_for: Duration,
}

impl Election {
    pub(crate) fn new(core: &Arc<Core>, name: &str) -> Self {
        Self { handle: Handle::new(core, name, None) }
    }

    /// What everybody is to know of this candidate once it leads.
    pub fn value(mut self, value: impl AsRef<str>) -> Self {
        self.handle.options.note = Some(value.as_ref().into());
        self
    }

    /// How long a leader that vanished stays the leader; the manager's unless set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.handle.options.ttl = ttl;
        self
    }

    /// How long a candidate that vanished blocks those behind it; the manager's unless set.
    pub fn wait_ttl(mut self, ttl: Duration) -> Self {
        self.handle.options.wait_ttl = ttl;
        self
    }

    /// Leads no longer than this at a time.
    pub fn max_term(mut self, limit: Duration) -> Self {
        self.handle.options.max_hold = Some(limit);
        self
    }

    /// A label for metrics, such as `"shard"`. Few different ones.
    pub fn class(mut self, class: &'static str) -> Self {
        self.handle.options.class = Some(class);
        self
    }

    /// Waits until this candidate is the leader. While the backend is out of reach, this goes on
    /// trying.
    ///
    /// # Cancel safety
    /// Dropping it withdraws the candidacy in the background. Its position in the queue is lost.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        Ok(Leadership { guard: self.handle.wait(Mode::Exclusive, "election").await? })
    }

    /// Leads if there is neither a leader nor another candidate; otherwise `None`, at once.
    ///
    /// # Cancel safety
    /// Dropping it resigns, in the background, if it had been elected.
    pub async fn try_campaign(&self) -> Result<Option<Leadership>, Error> {
        self.campaign_until(WaitBudget::No).await
    }

    /// Campaigns, but not longer than this; then `None`.
    ///
    /// # Cancel safety
    /// As [`campaign`](Self::campaign).
    pub async fn campaign_for(&self, limit: Duration) -> Result<Option<Leadership>, Error> {
        self.campaign_until(WaitBudget::For(limit)).await
    }

    async fn campaign_until(&self, wait: WaitBudget) -> Result<Option<Leadership>, Error> {
        let guard = self.handle.acquire(Mode::Exclusive, "election", wait).await?;
        Ok(guard.map(|guard| Leadership { guard }))
    }

    /// Campaigns, and does the work while it leads. When the leadership is lost, the work is
    /// dropped at its next await point, and this campaigns again, and begins the work again with a
    /// greater token. When the work ends, it resigns and returns its result.
    ///
    /// An error other than a loss, of the campaign, ends it; so does a loss that shows only when
    /// the work has ended ([`Error::Lost`]).
    ///
    /// The work begins again with each term, so it is a function that returns a future, and may change
    /// what is around it before that: `|lease| { terms += 1; async move { … } }`.
    ///
    /// # Cancel safety
    /// Dropping it drops the work, and resigns in the background.
    pub async fn run<T, E, F, Fut>(&self, mut work: F) -> Result<T, E>
    where
        E: FromLock,
        F: FnMut(HeldLock) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let mut losses = 0;
        loop {
            match self.campaign().await {
                Ok(leadership) => {
                    let result = tokio::select! {
                        biased;
                        _ = leadership.lost() => None,
                        result = work(leadership.lease()) => Some(result),
                    };
                    match (result, leadership.resign().await) {
                        (None, _) => {}
                        (Some(Ok(_)), Err(error @ Error::Lost { .. })) => return Err(error.into()),
                        (Some(result), _) => return result,
                    }
                }
                // It was broken while it waited.
                Err(Error::Lost { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            losses += 1;
            tokio::time::sleep(backoff(losses)).await;
        }
    }

    /// Who leads now. One round trip.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let core = &self.handle.core;
        core.check_open()?;
        Ok(leader_of(core.state(&self.handle.key(Space::Lock)?).await?))
    }

    /// The leaders: the one of now, if there is one, and then each that follows, in order. One that
    /// led for a short time only may be left out; none is shown twice or after a later one.
    ///
    /// While the backend is out of reach, this goes on trying, and then tells who leads by then.
    pub fn observe(&self) -> impl Stream<Item = Result<Leader, Error>> + Send + 'static {
        let core = self.handle.core.clone();
        let key = self.handle.key(Space::Lock);
        async_stream::try_stream! {
            let key = key?;
            let base = core.namespace_counter().await?;
            let mut last = None;
            let mut before: Option<LockState> = None;
            loop {
                let read = || async {
                    match &before {
                        None => core.driver().inspect(&key).await,
                        Some(before) => core.driver().changed(&key, before).await,
                    }
                };
                let state = core.repeat(WATCH, None, read).await?;
                let leader = leader_of(with_offset(state.clone(), base));
                before = Some(state);
                if let Some(leader) = leader.filter(|l| last.is_none_or(|t| t < l.token)) {
                    last = Some(leader.token);
                    yield leader;
                }
            }
        }
    }
}

/// Who holds the lock alone.
fn leader_of(state: LockState) -> Option<Leader> {
    let first = state.queue.into_iter().find(|s| s.holds() && s.mode == Mode::Exclusive)?;
    let leads_for = first.held_for.unwrap_or_default();
    Some(Leader { value: first.note, token: first.token, by: first.identity, leads_for })
}

/// This process leads, for as long as this lives or until the leadership is lost.
///
/// It derefs to its [`HeldLock`], which has the token and tells of the loss. Dropping it resigns in
/// the background.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let leading = locks.election("shard-7").campaign().await?;
/// assert!(locks.election("shard-7").try_campaign().await?.is_none());
/// leading.resign().await?;
/// assert!(locks.election("shard-7").leader().await?.is_none());
/// # Ok(()) }
/// ```
#[must_use = "leadership ends when this is dropped"]
#[derive(Debug)]
pub struct Leadership {
    guard: Guard,
}

impl Leadership {
    /// The lease, for tasks that work for the leader.
    pub fn lease(&self) -> HeldLock {
        self.guard.lease()
    }

    /// Leads no more, and returns once the backend knows; the next candidate leads at once.
    ///
    /// [`Error::Lost`] when it had not led until now. One round trip.
    ///
    /// # Cancel safety
    /// Dropping it leaves the resignation to the background.
    pub async fn resign(self) -> Result<(), Error> {
        self.guard.release().await
    }
}

impl Deref for Leadership {
    type Target = HeldLock;

    fn deref(&self) -> &HeldLock {
        &self.guard
    }
}
