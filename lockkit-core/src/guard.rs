//! What a lock operation returns: the lock is held for as long as the guard lives, or until it is
//! lost.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tracing::Instrument;

use crate::background::PendingGuard;
use crate::clock::sleep_until;
use crate::driver::{Attempted, Released, Renewal};
use crate::error::no_answer;
use crate::gate::not_with_neighbours;
use crate::held_lock::HeldLock;
use crate::record::{ClaimRecord, GivenBack};
use crate::shared::Core;
use crate::ticket::Ticket;
use crate::{Error, FromLock, Lifetime, LossReason, Mode, observe};

mod ending;

/// A lock that is held: exclusively, shared, or as permits of a semaphore.
///
/// Renewed in the background. [`release`](Self::release) gives it back and waits for that; dropping
/// it gives it back in the background, which needs the runtime to live for another moment, and
/// otherwise leaves the lock to the end of its lease. It derefs to its [`HeldLock`], which tells the
/// token and of the loss.
///
/// On a current-thread runtime, nothing is renewed while the holder blocks the thread, and the lease
/// ends after its ttl: move such work into `spawn_blocking`, or use `lockkit::blocking`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let guard = locks.mutex("invoice/42").lock().await?;
/// let token = guard.token()?; // fails once the lock is lost
/// tokio::select! {
///     reason = guard.lost() => eprintln!("stop the work: {reason}"),
///     () = async { /* the work, which writes with the token */ } => {}
/// }
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard {
    holding: Arc<HeldClaim>,
}

/// What the guards of one claim share; there are several only where an owner re-entered.
pub(crate) struct HeldClaim {
    /// Once it is given back: a shutdown waits until this is dropped, which is before the manager's end is seen.
    releasing: OnceLock<PendingGuard>,
    core: Arc<Core>,
    lease: HeldLock,
    /// Whether dropping this gives the lock back.
    releases_on_drop: AtomicBool,
    /// Where an owner finds it to re-enter, which stays for as long as this does.
    reentry: OnceLock<Box<dyn Reentry>>,
}

/// The entry of an owner for a claim that it holds.
pub(crate) trait Reentry: Send + Sync {
    /// Waits for the task of the owner that enters just now, if one does; none enters until what this gives is
    /// dropped.
    fn block(&self) -> BoxFuture<'static, Box<dyn Any + Send>>;
}

impl Guard {
    pub(crate) fn new(core: Arc<Core>, record: Arc<ClaimRecord>) -> Self {
        let lease = HeldLock::new(record, core.registry.clone());
        let releases_on_drop = AtomicBool::new(true);
        Self {
            holding: Arc::new(HeldClaim {
                releasing: Default::default(),
                core,
                lease,
                releases_on_drop,
                reentry: Default::default(),
            }),
        }
    }

    pub(crate) fn again(holding: Arc<HeldClaim>) -> Self {
        Self { holding }
    }

    /// Changes how long it holds at least.
    pub(crate) fn set_at_least(&self, at_least: Option<Duration>) {
        self.holding.lease.record.set_at_least(at_least);
    }

    /// It is about to be released together with others.
    pub(crate) fn expect_several(&self) {
        self.holding.core.registry.batcher.expect_several();
    }

    pub(crate) fn holding(&self) -> &Arc<HeldClaim> {
        &self.holding
    }

    /// The lease, for tasks that work under this lock.
    pub fn lease(&self) -> HeldLock {
        self.holding.lease.clone()
    }

    /// Gives the lock back, and returns once the backend knows.
    ///
    /// `Ok` means that it was held until now. [`Error::Lost`] means that it was not: what was done
    /// under it may have met another holder's work. After any other error the release is repeated
    /// in the background until the lease is over. Of an owner that re-entered, only the last guard
    /// releases, in a task of its own. A lock with a least hold is left to a lease of the rest, or where the
    /// backend cannot do so, held until then: see [`at_least`](crate::sync::Mutex::at_least). After a loss of
    /// a lock with a [lock delay](crate::sync::Mutex::lock_delay) nothing is sent. One round trip; where the
    /// backend did not have the lock, a second one asks for the reason.
    ///
    /// # Cancel safety
    /// Dropping it leaves the release to the background.
    pub async fn release(self) -> Result<(), Error> {
        let Some(holding) = Arc::into_inner(self.holding) else { return Ok(()) };
        if holding.reentry.get().is_none() {
            return holding.release().await;
        }
        // Its owner may come again before it has polled this to its end, and would then stand
        // behind its own claim.
        let backend = holding.core.backend();
        tokio::spawn(holding.release()).await.unwrap_or_else(|_| Err(no_answer(backend)))
    }

    /// Lets the lock outlive this guard, and this process: it stays held until its lease ends or
    /// until the ticket is [resumed](crate::LockManager::resume) or
    /// [released](crate::LockManager::release_ticket). No I/O.
    ///
    /// Only for locks made with `.detached()`; others are released, and the error says so.
    pub fn detach(self) -> Result<Ticket, Error> {
        let token = self.token()?;
        let claim = self.holding.lease.record.claim();
        if claim.lifetime != Lifetime::Detached || self.holding.lease.record.has_at_least() {
            let message = "only a lock made with .detached() can be detached; it was released";
            return Err(Error::config(message));
        }
        let Some(holding) = Arc::into_inner(self.holding) else {
            let message = "a lock that its owner has entered more than once cannot be detached";
            return Err(Error::config(message));
        };
        holding.releases_on_drop.store(false, Ordering::Relaxed);
        holding.core.registry.remove(claim.id, &holding.lease.record);
        holding.lease.record.give_back();
        Ok(Ticket::new(&claim, token))
    }

    /// Runs work under this lock and releases it: for a lock that was had with
    /// [`try_lock_for`](crate::sync::Mutex::try_lock_for) or another of the forms.
    ///
    /// The work is dropped at its next await point when the lock is lost, since the loss is looked for
    /// each time before the work is polled; between two await points nothing can stop it. The result is
    /// then [`Error::Lost`]; so it is when the loss shows only at the release. Otherwise the result is
    /// that of the work.
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases the lock in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
    /// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
    /// use std::time::Duration;
    ///
    /// let mut written = Vec::new();
    /// if let Some(guard) = locks.mutex("invoice/42").try_lock_for(Duration::from_secs(3)).await? {
    ///     guard.run(async |lock| lock.token().map(|token| written.push(token))).await?;
    /// }
    /// assert_eq!(written.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<T, E, F, Fut>(self, work: F) -> Result<T, E>
    where
        E: FromLock,
        F: FnOnce(HeldLock) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let lease = self.lease();
        let span = observe::hold_span(lease.record.labels, lease.name(), lease.token().ok());
        let result = tokio::select! {
            biased;
            reason = lease.lost() => {
                let error = Error::Lost { reason };
                observe::failed(&span, &error);
                Err(error.into())
            }
            result = work(self.lease()).instrument(span.clone()) => result,
        };
        match self.release().await {
            Err(error @ Error::Lost { .. }) if result.is_ok() => {
                observe::failed(&span, &error);
                Err(error.into())
            }
            // The work was done while the lock was held; the release goes on in the background.
            _ => result,
        }
    }
}

impl Deref for Guard {
    type Target = HeldLock;

    fn deref(&self) -> &HeldLock {
        &self.holding.lease
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.holding.lease).finish()
    }
}

impl HeldClaim {
    pub(crate) fn lease(&self) -> &HeldLock {
        &self.lease
    }

    pub(crate) fn keep(&self, reentry: impl Reentry + 'static) {
        let _ = self.reentry.set(Box::new(reentry));
    }

    /// Marks the claim as given back. A shutdown, which does not find it from here on, waits for its release.
    fn give_back(&self) -> GivenBack {
        self.releasing.get_or_init(|| self.core.registry.releasing());
        self.lease.record.give_back()
    }

    async fn release(self) -> Result<(), Error> {
        let record = &self.lease.record;
        let registry = &self.core.registry;
        if registry.is_forked() {
            return Err(Error::Lost { reason: LossReason::Forked });
        }
        if let Some(until) = record.least_end().filter(|_| record.loss().is_none()) {
            match registry.can_leave_lease(&record.claim()) {
                true => return self.leave_lease(until).await,
                // Held and renewed until then.
                false => {
                    let lost = tokio::select! {
                        reason = record.lost() => Some(reason),
                        () = sleep_until(&**self.core.clock(), until) => None,
                    };
                    // A lease that is not renewed lasted for that time, and ends now.
                    if matches!(lost, Some(LossReason::Expired)) && !record.is_renewed() {
                        return Ok(());
                    }
                }
            }
        }
        let mut given = self.give_back();
        if let Some(reason) = given.lost.clone().filter(|_| record.has_lock_delay()) {
            // Whatever is left of the lease keeps the name closed.
            self.releases_on_drop.store(false, Ordering::Relaxed);
            registry.remove(given.claim.id, record);
            registry.release_after_loss(record, &given);
            return Err(Error::Lost { reason });
        }
        let claim = &given.claim;
        observe::released(record.labels, claim.key.name.as_str(), given.held_for);
        registry.remove(claim.id, record);
        // From here to the answer, dropping this future drops `self`, which is still armed.
        let answer = registry.give_back(claim).await;
        if let Ok(Attempted { result: Released::Removed, .. }) = answer {
            record.removed();
        }
        let ghost_possible = record.ambiguous() > 0 || record.is_gate_ambiguous();
        self.releases_on_drop.store(answer.is_err() || ghost_possible, Ordering::Relaxed);
        match (answer.map(Attempted::released), given.lost.take()) {
            (_, Some(reason)) => Err(Error::Lost { reason }),
            (Ok(Released::Removed), None) => Ok(()),
            (Ok(_), None) => Err(Error::Lost { reason: self.missing(given).await }),
            (Err(error), None) => Err(error),
        }
    }
}

impl Drop for HeldClaim {
    fn drop(&mut self) {
        if self.core.registry.is_forked() {
            // The parent's, which stays taken.
            std::mem::forget(self.releasing.take());
            return;
        }
        if !self.releases_on_drop.load(Ordering::Relaxed) {
            return;
        }
        let record = &self.lease.record;
        let registry = &self.core.registry;
        let given = self.give_back();
        registry.remove(given.claim.id, record);
        match given.lost.is_some() && record.has_lock_delay() {
            true => registry.release_after_loss(record, &given),
            false => registry.release_of(record),
        }
    }
}

/// A read-write lock held for writing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let prices = locks.rwlock("prices");
/// let writing = prices.write().await?;
/// let reading = writing.downgrade().await?; // others read from now on, no one writes
/// assert!(prices.try_read().await?.is_some());
/// assert!(prices.try_write().await?.is_none());
/// reading.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
#[derive(Debug)]
pub struct WriteGuard {
    guard: Guard,
}

impl WriteGuard {
    pub(crate) fn new(guard: Guard) -> Self {
        Self { guard }
    }

    /// Gives the lock back, as [`Guard::release`] does.
    ///
    /// # Cancel safety
    /// Dropping it leaves the release to the background.
    pub async fn release(self) -> Result<(), Error> {
        self.guard.release().await
    }

    /// Runs work under this lock and releases it, as [`Guard::run`] does.
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases the lock in the background.
    pub async fn run<T, E, F, Fut>(self, work: F) -> Result<T, E>
    where
        E: FromLock,
        F: FnOnce(HeldLock) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.guard.run(work).await
    }

    /// Lets the lock outlive this guard, as [`Guard::detach`] does.
    pub fn detach(self) -> Result<Ticket, Error> {
        self.guard.detach()
    }

    /// Goes on as a reader, in the same place: readers right behind come in, a waiting writer does
    /// not slip in between, and the token stays. There is no upgrade.
    ///
    /// One round trip, repeated while the backend does not answer and the lease lasts. After an
    /// error the lock is given back. Of an owner that can enter again, other tasks wait meanwhile.
    ///
    /// # Cancel safety
    /// Dropping it gives the lock back in the background.
    pub async fn downgrade(self) -> Result<Guard, Error> {
        // Its owner would enter as a writer what the backend has for a reader already. Dropped after the
        // guard, also with this future: the owner finds the claim shared, or given back.
        let _blocked = match self.guard.holding.reentry.get().map(|reentry| reentry.block()) {
            Some(blocked) => Some(blocked.await),
            None => None,
        };
        let Self { guard } = self;
        let holding = &guard.holding;
        if Arc::strong_count(holding) > 1 {
            let message = "a lock that its owner has entered more than once cannot be downgraded";
            return Err(Error::config(message));
        }
        let lease = &holding.lease;
        let claim = lease.record.claim();
        if holding.core.registry.gate_of(&claim).is_some() {
            return Err(not_with_neighbours("a read lock"));
        }
        let ask = || async {
            let sent = lease.record.now();
            Ok((lease.within(lease.registry.driver.downgrade(&claim)).await?, sent))
        };
        let (renewal, sent) = tokio::select! {
            biased;
            reason = lease.lost() => return Err(Error::Lost { reason }),
            answer = holding.core.repeat("downgrade", None, ask) => answer?,
        };
        let holds = matches!(renewal, Renewal::Holds(_));
        if holds {
            lease.record.set_claim(Arc::new((*claim).clone().with_mode(Mode::Shared)));
        }
        lease.answered(&renewal, sent)?;
        match holds {
            true => Ok(guard),
            false => Err(Error::Lost { reason: LossReason::Vanished }),
        }
    }
}

impl Deref for WriteGuard {
    type Target = HeldLock;

    fn deref(&self) -> &HeldLock {
        &self.guard
    }
}
