//! Slots: numbers that are held, as of workers, devices or ports. They send nothing of their own: a slot
//! is a permit of a semaphore, and then a lock.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::handle::Handle;
use super::{Semaphore, working};
use crate::acquire::WaitBudget;
use crate::deadline::backoff;
use crate::name::SLOTS;
use crate::shared::Core;
use crate::state::{ListRequest, LockState};
use crate::{Error, FromLock, Guard, HeldLock, LossReason, Mode, Name, Space, Token};

/// So many numbered slots, `0` to `slots - 1`, each held by one client at a time: worker ids, devices,
/// ports.
///
/// A slot is a permit of the semaphore of this name and then the lock `lockkit.slot/NAME/NUMBER`, so a
/// client that waits does so in the semaphore's line, first come, first served, and gets the lowest number
/// that is free when it is granted.
///
/// - **Lost when either is lost.** Both are renewed; the slot is released first, the permit last.
/// - **The token is that of the slot's lock**: it grows from holder to holder of one number, and fences.
/// - **A holder that died** keeps its slot for its ttl. A client that has a permit meanwhile and finds no
///   slot asks again, after 25 ms to a second.
/// - **The number of slots belongs to the name** while it is in use: another one is
///   [`Error::LimitMismatch`]. [`resizable`](Self::resizable) slots can be given another one; a holder of a
///   number above it keeps that until it lets go.
/// - The name has 480 bytes at most. [`Error::Unsupported`] on a quorum or a mirror.
///
/// # Round trips
/// Three where the first slot that looked free is: permit, listing, lock; one more for each that was taken
/// in between. Two to release. On Redis, the listing scans the keys of the server, 1,000 in a request.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let workers = locks.slots("workers", 4);
/// let first = workers.acquire().await?;
/// let second = workers.acquire().await?;
/// assert_eq!((first.number(), second.number()), (0, 1));
/// first.release().await?;
/// assert_eq!(workers.acquire().await?.number(), 0, "the lowest that is free");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Slots {
    semaphore: Semaphore,
}

/// The longest name of slots, in bytes: a lock's name has room for a number behind it.
const MAX_BYTES: usize = 480;

/// How often a try lists the slots: one that was free may be taken before it is asked for, while another
/// is released.
const TRIES: u32 = 3;

impl Slots {
    pub(crate) fn new(core: &Arc<Core>, name: &str, slots: u32) -> Self {
        Self { semaphore: Semaphore::new(core, name, slots) }
    }

    /// How long a slot stays held when its holder dies; the manager's unless set.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|semaphore| semaphore.ttl(ttl))
    }

    /// How long a claim that waits, and whose process dies, blocks those behind it.
    pub fn wait_ttl(self, ttl: Duration) -> Self {
        self.with(|semaphore| semaphore.wait_ttl(ttl))
    }

    /// Renews a slot no longer than until it was held for this long.
    pub fn max_hold(self, limit: Duration) -> Self {
        self.with(|semaphore| semaphore.max_hold(limit))
    }

    /// Keeps a slot held for so long at least, as [`Mutex::at_least`](super::Mutex::at_least).
    pub fn at_least(self, hold: Duration) -> Self {
        self.with(|semaphore| semaphore.at_least(hold))
    }

    /// Keeps a slot closed for so long after it was lost, as [`Mutex::lock_delay`](super::Mutex::lock_delay).
    pub fn lock_delay(self, delay: Duration) -> Self {
        self.with(|semaphore| semaphore.lock_delay(delay))
    }

    /// Says why, to people who look at the slot or its semaphore.
    pub fn note(self, note: impl AsRef<str>) -> Self {
        self.with(|semaphore| semaphore.note(note))
    }

    /// A label for metrics, such as `"gpu"`. Few different ones.
    pub fn class(self, class: &'static str) -> Self {
        self.with(|semaphore| semaphore.class(class))
    }

    /// The same slots, whose number is that of a [resizable](Semaphore::resizable) semaphore: change it
    /// with [`LockAdmin::resize`](crate::LockAdmin::resize).
    pub fn resizable(self) -> Self {
        self.with(Semaphore::resizable)
    }

    fn with(self, set: impl FnOnce(Semaphore) -> Semaphore) -> Self {
        Self { semaphore: set(self.semaphore) }
    }

    /// Waits for a slot. While the backend is out of reach, this goes on trying.
    ///
    /// # Cancel safety
    /// Dropping it leaves the line, or gives back what it has, in the background.
    pub async fn acquire(&self) -> Result<SlotGuard, Error> {
        self.handle().core.waited(self.take(WaitBudget::Forever).await?)
    }

    /// Takes a slot if one is free and no claim waits; otherwise `None`, at once. Also `None` while each
    /// free slot's last holder died and its lease still runs.
    ///
    /// # Cancel safety
    /// Dropping it gives back what it may have taken, in the background.
    pub async fn try_acquire(&self) -> Result<Option<SlotGuard>, Error> {
        self.take(WaitBudget::No).await
    }

    /// Waits for a slot, but not longer than this; then `None`.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_for(&self, limit: Duration) -> Result<Option<SlotGuard>, Error> {
        self.take(WaitBudget::For(limit)).await
    }

    /// Waits for a slot, runs the work under it, and releases it, as [`Mutex::run`](super::Mutex::run) does. With a bound on
    /// the wait: [`try_acquire_for`](Self::try_acquire_for), then [`SlotGuard::run`].
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases the slot in the background.
    pub fn run<T, E, F, Fut>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, F, Fut>
    where
        E: FromLock,
        F: FnOnce(SlotLease) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let this = self.clone();
        async move { this.acquire().await?.run(work).await }
    }

    async fn take(&self, wait: WaitBudget) -> Result<Option<SlotGuard>, Error> {
        self.check()?;
        wait.within(|waits| self.attempt(waits)).await
    }

    /// Refuses what cannot work, before any I/O.
    fn check(&self) -> Result<(), Error> {
        let core = &self.handle().core;
        core.check_open()?;
        let length = self.handle().name()?.as_str().len();
        if length > MAX_BYTES {
            return Err(Error::InvalidName {
                name: self.handle().given_name().chars().take(40).chain(['…']).collect(),
                reason: format!(
                    "a name of slots has at most {MAX_BYTES} bytes, this one has {length}"
                ),
            });
        }
        match core.driver().capabilities().slots {
            true => Ok(()),
            false => Err(core.driver().unsupported("slots")),
        }
    }

    /// A permit, and then a slot; again from the beginning when the permit is lost before there is a slot.
    async fn attempt(&self, waits: bool) -> Result<Option<SlotGuard>, Error> {
        loop {
            let permit = match waits {
                true => self.semaphore.acquire().await?,
                false => match self.semaphore.try_acquire().await? {
                    Some(permit) => permit,
                    None => return Ok(None),
                },
            };
            // A permit without a slot is given back at once.
            permit.set_at_least(None);
            let slot = tokio::select! {
                biased;
                reason = permit.lost() => match waits {
                    true => continue,
                    false => return Err(Error::Lost { reason }),
                },
                slot = self.slot(&permit, waits) => slot,
            };
            match slot {
                Ok(Some((number, slot))) => {
                    permit.set_at_least(self.handle().options.at_least);
                    return Ok(Some(SlotGuard::new(number, slot, permit)));
                }
                // Whatever the answer: what is not released by now, is in the background.
                nothing => {
                    let _ = permit.release().await;
                    return nothing.map(|_| None);
                }
            }
        }
    }

    /// The lowest slot that is free; `None` when there is none, and this does not wait for one.
    async fn slot(&self, permit: &Guard, waits: bool) -> Result<Option<(u32, Guard)>, Error> {
        let core = &self.handle().core;
        let slots = permit.mode().limit().unwrap_or_default();
        let mut rounds = 0;
        loop {
            let patience = if waits { None } else { Some(Duration::ZERO) };
            let taken = core.repeat("list", patience, || self.taken(slots)).await?;
            for number in (0..slots).filter(|number| !taken.contains(number)) {
                let sent = core.clock().now();
                match self.lock_of(number)?.acquire(Mode::Exclusive, "slot", WaitBudget::No).await {
                    Ok(Some(guard)) => return Ok(Some((number, guard))),
                    Ok(None) => {}
                    Err(error) if waits && error.is_retryable() => {
                        core.registry.note("acquire", sent, &error);
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
            rounds += 1;
            if !waits && rounds == TRIES {
                return Ok(None);
            }
            tokio::time::sleep(backoff(rounds)).await;
        }
    }

    /// The numbers that are held or waited for.
    async fn taken(&self, slots: u32) -> Result<HashSet<u32>, Error> {
        let handle = self.handle();
        let mut request = ListRequest {
            namespace: handle.core.namespace.clone(),
            space: Some(Space::Lock),
            prefix: format!("{SLOTS}{}/", handle.given_name()),
            after: None,
            // One page, unless slots of a longer name begin in the same way.
            limit: usize::try_from(slots).unwrap_or(usize::MAX).clamp(1, 1_000) + 1,
        };
        let mut taken = HashSet::new();
        loop {
            let page = handle.core.driver().list(&request).await?;
            taken.extend(page.states.iter().filter_map(|state| number_of(state, &request.prefix)));
            match page.next {
                Some(next) => request.after = Some(next),
                None => return Ok(taken),
            }
        }
    }

    /// The lock of one slot.
    fn lock_of(&self, number: u32) -> Result<Handle, Error> {
        let handle = self.handle();
        let name = format!("{SLOTS}{}/{number}", handle.given_name());
        let mut lock = Handle::new(&handle.core, &name, None);
        lock.options = handle.options.clone();
        lock.options.resizable = false;
        Ok(lock)
    }

    fn handle(&self) -> &Handle {
        self.semaphore.handle()
    }
}

/// The number of the slot that a list is of, if it is of one and in use.
fn number_of(state: &LockState, beginning: &str) -> Option<u32> {
    let text = state.name().as_str().strip_prefix(beginning)?;
    let number: u32 = text.parse().ok()?;
    // `+1` and `01` are other names.
    (number.to_string() == text && !state.is_free()).then_some(number)
}

/// A slot that is held. It derefs to its [`SlotLease`].
///
/// Dropping it gives the slot and its permit back in the background.
#[derive(Debug)]
#[must_use = "the slot is released when the guard is dropped"]
pub struct SlotGuard {
    // Dropped in this order: a client that has the permit looks for a slot.
    slot: Guard,
    permit: Guard,
    lease: SlotLease,
}

/// What a slot gives to the work under it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// locks.slots("gpu", 2).run(async |slot| {
///     println!("device {} under token {}", slot.number(), slot.token()?);
///     Ok::<_, lockkit_core::Error>(())
/// }).await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SlotLease {
    number: u32,
    slot: HeldLock,
    permit: HeldLock,
}

impl SlotGuard {
    fn new(number: u32, slot: Guard, permit: Guard) -> Self {
        let lease = SlotLease { number, slot: slot.lease(), permit: permit.lease() };
        Self { slot, permit, lease }
    }

    /// The lease, for tasks that work under this slot.
    pub fn lease(&self) -> SlotLease {
        self.lease.clone()
    }

    /// Gives back the slot and then its permit, and returns once the backend knows.
    ///
    /// [`Error::Lost`] when one of them was not held until now. After any other error, what was not
    /// released is released in the background. Two round trips.
    ///
    /// # Cancel safety
    /// Dropping it leaves the releases to the background.
    pub async fn release(self) -> Result<(), Error> {
        let slot = self.slot.release().await;
        let permit = self.permit.release().await;
        match (&slot, &permit) {
            (Err(Error::Lost { .. }), _) => slot,
            (_, Err(Error::Lost { .. })) => permit,
            _ => slot.and(permit),
        }
    }

    /// Runs work under this slot and releases it, as [`Guard::run`] does.
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases the slot in the background.
    pub async fn run<T, E, F, Fut>(self, work: F) -> Result<T, E>
    where
        E: FromLock,
        F: FnOnce(SlotLease) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let lease = self.lease();
        let work = work(self.lease());
        working::run(lease.lost(), work, self.release()).await
    }
}

impl Deref for SlotGuard {
    type Target = SlotLease;

    fn deref(&self) -> &SlotLease {
        &self.lease
    }
}

impl SlotLease {
    /// Which slot: 0 is the first.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The name of the slots, without the number.
    pub fn name(&self) -> &Name {
        self.permit.name()
    }

    /// The fencing token of the slot's lock.
    ///
    /// [`Error::Lost`] as soon as the slot or its permit can no longer be trusted; [`Error::Released`] once
    /// it was given back. No I/O.
    pub fn token(&self) -> Result<Token, Error> {
        self.permit.token().and_then(|_| self.slot.token())
    }

    /// Whether it is held as far as this process can know. No I/O.
    pub fn is_valid(&self) -> bool {
        self.token().is_ok()
    }

    /// How long until it must not be trusted any more, unless it is renewed before.
    pub fn remaining(&self) -> Duration {
        self.permit.remaining().min(self.slot.remaining())
    }

    /// The ttl that the backend gave: the lesser of the two.
    pub fn granted_ttl(&self) -> Duration {
        self.permit.granted_ttl().min(self.slot.granted_ttl())
    }

    /// Why it was lost, if it was. No I/O.
    pub fn loss(&self) -> Option<LossReason> {
        self.slot.loss().or_else(|| self.permit.loss())
    }

    /// Returns when it was lost, with the reason; at once when that has happened before. Never returns
    /// after an orderly release.
    ///
    /// # Cancel safety
    /// Dropping it does nothing; a later call tells the same.
    pub async fn lost(&self) -> LossReason {
        tokio::select! {
            biased;
            reason = self.slot.lost() => reason,
            reason = self.permit.lost() => reason,
        }
    }

    /// Renews both now, by hand. Two round trips.
    ///
    /// # Cancel safety
    /// Dropping it leaves the slot held; what was renewed is unknown.
    pub async fn renew(&self) -> Result<(), Error> {
        self.permit.renew().await?;
        self.slot.renew().await
    }

    /// The permit, whose token does not fence.
    pub fn permit(&self) -> &HeldLock {
        &self.permit
    }

    /// The lock of the slot: for [fences](crate::Fence) and [registers](super::Register), which check its
    /// token.
    pub fn lock(&self) -> &HeldLock {
        &self.slot
    }
}
