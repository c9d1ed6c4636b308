//! Several locks as one: all or none, taken in one order that everybody keeps. It sends nothing of
//! its own; each lock is had, renewed and lost as any mutex is.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all, select_all};

use super::{Mutex, working};
use crate::acquire::WaitBudget;
use crate::shared::Core;
use crate::{Error, FromLock, Guard, HeldLock, LossReason, Mode, Name, Token};

/// Several mutexes, held together.
///
/// - **All or none**: while it waits for one it holds those before it, and gives them back when it
///   gives up, is dropped, or loses one of them.
/// - **No deadlock** between multi-locks, whatever the order in which callers name the locks: they
///   are taken in the order of their names, byte by byte. Over several managers, in the order of
///   the managers' [ids](crate::Settings::id), which must be the same everywhere. (A task that holds
///   a lock apart from that and then asks for a multi-lock is on its own.)
/// - **Fair** lock by lock: it enters each queue once it holds the locks before it.
/// - **Held at least** for as long as each mutex [says](super::Mutex::at_least), once it holds all; what it gives
///   back before that is free at once.
/// - **Lost when one is lost**: the guard is valid while all its locks are.
/// - One round trip when all are free: they are asked for at once together, and released so. When
///   one is not, those behind it are given back, and it takes one after the other from there on.
///   [`try_lock`](Self::try_lock) takes one after the other from the first: of two that cross, one
///   gets all. A name given twice is one lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let both = locks.multi(["account/7", "account/3"]).lock().await?;
/// let [from, to] = both.tokens()?[..] else { unreachable!("one for each name, as given") };
/// # let _ = (from, to);
/// assert!(locks.mutex("account/3").try_lock().await?.is_none());
/// both.release().await
/// # }
/// ```
///
/// Over two backends, each with an id:
///
/// ```
/// use lockkit_core::sync::MultiLock;
/// use lockkit_core::{LockManager, MemoryDriver, Settings};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let orders = LockManager::with(Arc::new(MemoryDriver::new()), Settings::default().id("orders"))?;
/// let stock = LockManager::with(Arc::new(MemoryDriver::new()), Settings::default().id("stock"))?;
/// let both = MultiLock::new([orders.mutex("42"), stock.mutex("bin-3")])?.lock().await?;
/// both.release().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    /// In the order in which they are taken.
    mutexes: Vec<Mutex>,
    /// For each lock that the caller named, its position in that order.
    positions: Vec<usize>,
}

impl MultiLock {
    /// These mutexes together. No I/O.
    ///
    /// They may be of several managers, if each of these has an [id](crate::Settings::id) and no two
    /// the same; otherwise [`Error::Config`], and so it is without any mutex.
    pub fn new(mutexes: impl IntoIterator<Item = Mutex>) -> Result<Self, Error> {
        let mutexes: Vec<_> = mutexes.into_iter().collect();
        check_ids(&mutexes)?;
        Ok(Self::ordered(mutexes))
    }

    pub(crate) fn of_names<N: AsRef<str>>(
        core: &Arc<Core>,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        let mutexes = names.into_iter().map(|name| Mutex::new(core, name.as_ref(), None));
        Self::ordered(mutexes.collect())
    }

    fn ordered(given: Vec<Mutex>) -> Self {
        let rank = |mutex: &Mutex| {
            let handle = mutex.handle();
            (handle.core.settings.id.clone(), handle.given_name().to_owned())
        };
        let mut ranked: Vec<_> = given.into_iter().map(|m| (rank(&m), m)).collect();
        let ranks: Vec<_> = ranked.iter().map(|(rank, _)| rank.clone()).collect();
        ranked.sort_by(|(a, _), (b, _)| a.cmp(b));
        ranked.dedup_by(|(a, _), (b, _)| a == b);
        let position = |rank| ranked.partition_point(|(one, _)| one < rank);
        let positions = ranks.iter().map(position).collect();
        Self { mutexes: ranked.into_iter().map(|(_, mutex)| mutex).collect(), positions }
    }

    /// How long the locks stay held when their holder dies; the managers' unless set.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.each(|mutex| mutex.ttl(ttl))
    }

    /// How long a claim that waits, and whose process dies, blocks those behind it.
    pub fn wait_ttl(self, ttl: Duration) -> Self {
        self.each(|mutex| mutex.wait_ttl(ttl))
    }

    /// Renews each lock no longer than until it was held for this long.
    pub fn max_hold(self, limit: Duration) -> Self {
        self.each(|mutex| mutex.max_hold(limit))
    }

    /// Says why, to people who look at one of the locks.
    pub fn note(self, note: impl AsRef<str>) -> Self {
        self.each(|mutex| mutex.note(&note))
    }

    fn each(mut self, change: impl Fn(Mutex) -> Mutex) -> Self {
        self.mutexes = self.mutexes.into_iter().map(change).collect();
        self
    }

    /// Waits until all are held. When one is lost meanwhile, all are given back, and it begins
    /// again. While a backend is out of reach, this goes on trying.
    ///
    /// # Cancel safety
    /// Dropping it gives back what it holds and leaves the lines, in the background.
    pub async fn lock(&self) -> Result<MultiGuard, Error> {
        loop {
            if let Some(guard) = self.attempt(WaitBudget::Forever).await? {
                return Ok(guard);
            }
        }
    }

    /// Takes all if all are free and no claim waits for one; otherwise none, and `None`, at once.
    ///
    /// # Cancel safety
    /// Dropping it gives back what it may hold, in the background.
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        self.attempt(WaitBudget::No).await
    }

    /// Waits until all are held, but not longer than this in all; then `None`.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn try_lock_for(&self, limit: Duration) -> Result<Option<MultiGuard>, Error> {
        let attempt = async |waits| match waits {
            true => self.lock().await.map(Some),
            false => self.try_lock().await,
        };
        WaitBudget::For(limit).within(attempt).await
    }

    /// Waits for all, runs the work under them, and releases, as [`Mutex::run`] does. With a bound on
    /// the wait: [`try_lock_for`](Self::try_lock_for), then [`MultiGuard::run`].
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases the locks in the background.
    pub fn run<T, E, F, Fut>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, F, Fut>
    where
        E: FromLock,
        F: FnOnce(MultiLease) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let this = self.clone();
        async move { this.lock().await?.run(work).await }
    }

    /// Takes all; `None` when one was busy, or when one that was held got lost.
    async fn attempt(&self, wait: WaitBudget) -> Result<Option<MultiGuard>, Error> {
        if self.mutexes.is_empty() {
            return Err(Error::config("a multi-lock has one lock at least"));
        }
        self.check_gates().await?;
        let mut held = match (wait, self.mutexes.len()) {
            (WaitBudget::No, _) | (_, 1) => Vec::new(),
            _ => self.take_free().await?,
        };
        for mutex in &self.mutexes[held.len()..] {
            let taking: BoxFuture<'_, _> = take(mutex, wait).boxed();
            let taken = tokio::select! {
                biased;
                _ = any_lost(held.iter().map(|guard| &**guard)) => None,
                taken = taking => taken?,
            };
            match taken {
                Some(guard) => held.push(guard),
                None => {
                    // Whatever the answers: what is not released by now, is in the background.
                    let _ = release_all(held).await;
                    return Ok(None);
                }
            }
        }
        let guard = MultiGuard::new(held, &self.positions);
        if !guard.is_valid() {
            return Ok(None);
        }
        for (guard, mutex) in guard.guards.iter().zip(&self.mutexes) {
            guard.set_at_least(mutex.handle().options.at_least);
        }
        Ok(Some(guard))
    }

    /// Refuses names that are one for neighbours: their holder would wait for itself.
    async fn check_gates(&self) -> Result<(), Error> {
        let core = |mutex: &Mutex| mutex.handle().core.clone();
        for of_one in self.mutexes.chunk_by(|a, b| Arc::ptr_eq(&core(a), &core(b))) {
            let core = core(&of_one[0]);
            if let Some(gate) = core.driver().gate().filter(|_| of_one.len() > 1) {
                let names = of_one.iter().map(|mutex| mutex.handle().name());
                gate.check_distinct(&names.collect::<Result<Vec<_>, _>>()?).await?;
            }
        }
        Ok(())
    }

    /// Takes those that are free, all at once, and gives back what lies behind one that is not: who
    /// waits may only hold what comes before.
    async fn take_free(&self) -> Result<Vec<Guard>, Error> {
        for mutex in &self.mutexes {
            mutex.handle().core.registry.batcher.expect_several();
        }
        let tries = self.mutexes.iter().map(|mutex| take(mutex, WaitBudget::No));
        let (mut held, mut behind) = (Vec::with_capacity(self.mutexes.len()), Vec::new());
        let mut is_whole = true;
        for taken in join_all(tries).await {
            match taken {
                Ok(Some(guard)) if is_whole => held.push(guard),
                Ok(Some(guard)) => behind.push(guard),
                Ok(None) => is_whole = false,
                // It is asked for again, with patience.
                Err(error) if error.is_retryable() => is_whole = false,
                Err(error) => return Err(error),
            }
        }
        // Whatever the answers: what is not released by now, is in the background.
        let _ = release_all(behind).await;
        Ok(held)
    }
}

/// One of the mutexes, without its least hold: what is given back before all are held is free at once.
async fn take(mutex: &Mutex, wait: WaitBudget) -> Result<Option<Guard>, Error> {
    let guard = mutex.handle().acquire(Mode::Exclusive, "multi", wait).await?;
    Ok(guard.inspect(|guard| guard.set_at_least(None)))
}

/// Several managers need one order, the same in all processes: that of their ids.
fn check_ids(mutexes: &[Mutex]) -> Result<(), Error> {
    let core = |mutex: &Mutex| mutex.handle().core.clone();
    for (i, one) in mutexes.iter().map(core).enumerate() {
        for other in mutexes[..i].iter().map(core).filter(|other| !Arc::ptr_eq(other, &one)) {
            match (&one.settings.id, &other.settings.id) {
                (Some(a), Some(b)) if a != b => {}
                (Some(id), Some(_)) => {
                    return Err(Error::Config(format!(
                        "two managers of this multi-lock have the id {id:?}: give each its own"
                    )));
                }
                _ => {
                    return Err(Error::config(
                        "a multi-lock over several managers takes them in the order of their ids: \
                         give each one with Settings::id, the same in all processes",
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Several locks that are held. It derefs to its [`MultiLease`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let both = locks.multi(["account/7", "account/3"]).lock().await?;
/// assert_eq!(both.tokens()?.len(), 2);
/// assert!(locks.mutex("account/3").try_lock().await?.is_none());
/// both.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the locks are released when the guard is dropped"]
pub struct MultiGuard {
    guards: Vec<Guard>,
    lease: MultiLease,
}

/// What several locks give to the work that they protect.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// let both = locks.multi(["account/7", "account/3"]).lock().await?;
/// let lease = both.lease(); // for a task that works under both
/// assert!(lease.is_valid());
/// assert_eq!(lease.tokens()?.len(), 2);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MultiLease {
    /// As the caller named them.
    leases: Vec<HeldLock>,
}

impl MultiGuard {
    /// Of guards in the order in which they were taken, for a caller who named them in this one.
    fn new(guards: Vec<Guard>, positions: &[usize]) -> Self {
        let leases = positions.iter().map(|position| guards[*position].lease()).collect();
        Self { guards, lease: MultiLease { leases } }
    }

    /// The lease, for tasks that work under these locks.
    pub fn lease(&self) -> MultiLease {
        self.lease.clone()
    }

    /// Gives all back, and returns once the backends know.
    ///
    /// [`Error::Lost`] when one of them was not held until now. After any other error, what was not
    /// released is released in the background.
    ///
    /// # Cancel safety
    /// Dropping it leaves the releases to the background.
    pub async fn release(self) -> Result<(), Error> {
        release_all(self.guards).await
    }

    /// Runs work under these locks and releases them, as [`Guard::run`] does: for locks that were had
    /// with [`try_lock_for`](super::MultiLock::try_lock_for).
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases the locks in the background.
    pub async fn run<T, E, F, Fut>(self, work: F) -> Result<T, E>
    where
        E: FromLock,
        F: FnOnce(MultiLease) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let lease = self.lease();
        let lost = async { lease.lost().await.1 };
        let work = work(self.lease());
        working::run(lost, work, self.release()).await
    }
}

impl Deref for MultiGuard {
    type Target = MultiLease;

    fn deref(&self) -> &MultiLease {
        &self.lease
    }
}

impl MultiLease {
    /// The fencing tokens, one for each lock, in the order in which the caller named them.
    ///
    /// [`Error::Lost`] as soon as one of the locks can no longer be trusted. No I/O.
    pub fn tokens(&self) -> Result<Vec<Token>, Error> {
        self.leases.iter().map(HeldLock::token).collect()
    }

    /// The leases of the locks, in the order in which the caller named them: for fences.
    pub fn leases(&self) -> &[HeldLock] {
        &self.leases
    }

    /// Whether all are held as far as this process can know. No I/O.
    pub fn is_valid(&self) -> bool {
        self.leases.iter().all(HeldLock::is_valid)
    }

    /// How long until one of them must not be trusted any more, unless renewed before.
    pub fn remaining(&self) -> Duration {
        self.leases.iter().map(HeldLock::remaining).min().unwrap_or_default()
    }

    /// Returns when one was lost, with its name and the reason; at once when that has happened
    /// before. Never returns after an orderly release.
    ///
    /// # Cancel safety
    /// Dropping it does nothing; a later call tells the same.
    pub async fn lost(&self) -> (Name, LossReason) {
        any_lost(self.leases.iter()).await
    }
}

/// Returns when one of these was lost; never when there are none.
async fn any_lost(leases: impl Iterator<Item = &HeldLock>) -> (Name, LossReason) {
    let losses = leases.map(|lease| {
        Box::pin(async move {
            let reason = lease.lost().await;
            (lease.name().clone(), reason)
        })
    });
    let losses: Vec<_> = losses.collect();
    match losses.is_empty() {
        true => std::future::pending().await,
        false => select_all(losses).await.0,
    }
}

/// Releases all at once. A loss is reported before any other error.
async fn release_all(guards: Vec<Guard>) -> Result<(), Error> {
    let mut result = Ok(());
    guards.iter().for_each(Guard::expect_several);
    for released in join_all(guards.into_iter().map(Guard::release)).await {
        match (&result, &released) {
            (Ok(()), Err(_)) | (Err(Error::Backend { .. }), Err(Error::Lost { .. })) => {
                result = released;
            }
            _ => {}
        }
    }
    result
}
