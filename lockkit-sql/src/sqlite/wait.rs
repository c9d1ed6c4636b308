//! Waiting for a lock. A waiter has a seat, and is woken by what this process writes, through
//! whichever driver; one task a driver, alive only while somebody waits, polls for what other
//! processes did and for leases that end. It reads what is new and looks at the fronts of the lists
//! concerned, so its cost does not depend on how many wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use lockkit_core::driver::ClaimId;
use lockkit_core::driver::Grant;
use lockkit_core::{Claim, Error, Key};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::Inner;
use super::flight::{Flight, Verb, key_of};
use super::verbs::lost;
use super::worker::Failure;

/// The pause between two looks. What another process did is known within this, the time of a look
/// and what the machine adds: 50 ms are promised.
const TICK: Duration = Duration::from_millis(15);

/// The waiters of one file in this process, whichever driver they came through.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    bells: Mutex<HashMap<ClaimId, Arc<Notify>>>,
    /// Rung when this process wrote to a register.
    pub(crate) registers: Notify,
}

impl Hub {
    /// The hub of a file, known by device and inode.
    pub(crate) fn of(file: (u64, u64)) -> Arc<Self> {
        type Hubs = HashMap<(u64, u64), Weak<Hub>>;
        static HUBS: OnceLock<Mutex<Hubs>> = OnceLock::new();
        let mut hubs = lock(HUBS.get_or_init(Mutex::default));
        hubs.retain(|_, hub| hub.strong_count() > 0);
        if let Some(hub) = hubs.get(&file).and_then(Weak::upgrade) {
            return hub;
        }
        let hub = Arc::new(Self::default());
        hubs.insert(file, Arc::downgrade(&hub));
        hub
    }

    /// Wakes these, as far as they sit here.
    pub(crate) fn wake(&self, ids: Vec<ClaimId>) {
        if !ids.is_empty() {
            let bells = lock(&self.bells);
            // A permit stays with the bell if its owner is just about to listen.
            ids.iter().filter_map(|id| bells.get(id)).for_each(|bell| bell.notify_one());
        }
    }
}

/// The lists in which claims of a driver wait, and the task that polls.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    lists: HashMap<Key, Watched>,
    task: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Watched {
    waiters: usize,
    /// When to look at the list's front next, on the driver's clock: when the first of it ends, or
    /// at once.
    due: i64,
}

/// A waiter's place in the hub and on the watch.
struct Seat<'a> {
    inner: &'a Inner,
    claim: &'a Claim,
    bell: Arc<Notify>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut bells = lock(&self.inner.site.hub.bells);
        // The map and this seat: nobody else sits on it.
        if Arc::strong_count(&self.bell) <= 2 {
            bells.remove(&self.claim.id);
        }
        drop(bells);
        let mut watch = lock(&self.inner.watch);
        if let Some(list) = watch.lists.get_mut(&self.claim.key) {
            list.waiters -= 1;
            if list.waiters == 0 {
                watch.lists.remove(&self.claim.key);
            }
        }
    }
}

impl Inner {
    pub(super) async fn granted(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let seat = self.sit(claim);
        loop {
            if let Some(grant) = self.look(claim).await? {
                return Ok(grant);
            }
            seat.bell.notified().await;
        }
    }

    fn sit<'a>(self: &'a Arc<Self>, claim: &'a Claim) -> Seat<'a> {
        let bell = lock(&self.site.hub.bells).entry(claim.id).or_default().clone();
        let mut watch = lock(&self.watch);
        let list = watch.lists.entry(claim.key.clone()).or_default();
        (list.waiters, list.due) = (list.waiters + 1, 0);
        // A task whose runtime has ended is finished as well.
        if watch.task.as_ref().is_none_or(JoinHandle::is_finished) {
            watch.task = Some(tokio::spawn(self.clone().poll()));
        }
        Seat { inner: self, claim, bell }
    }

    /// Whether a queued claim holds by now.
    async fn look(&self, claim: &Arc<Claim>) -> Result<Option<Grant>, Error> {
        let claim = claim.clone();
        let waits = "SELECT 1 FROM lockkit_claims WHERE id = ?1 AND held IS NULL";
        let look = move |flight: &mut Flight<'_>| {
            flight.step(&claim.key, &Verb::Look)?;
            let line = flight.line(&claim.key);
            match line.and_then(|line| line.get(line.find(&claim.id)?)) {
                // Its lease began with a request that was answered, or later.
                Some(e) if e.holds() => {
                    Ok(Some(Grant { token: e.token, ttl: e.hold_ttl, since: None }))
                }
                Some(_) => Ok(None),
                // Beyond the window there are only waiters.
                None if flight.any(waits, [claim.id.as_bytes()], |_| Ok(()))?.is_some() => Ok(None),
                None => Err(lost(flight, &claim.id)?.into()),
            }
        };
        self.writer.call(false, look).await
    }

    /// Looks until nobody waits.
    async fn poll(self: Arc<Self>) {
        let mut seen = -1;
        loop {
            let begun = tokio::time::Instant::now();
            if let Err(error) = self.tick(&mut seen).await {
                tracing::debug!(%error, "looking for news failed; looking again");
            }
            // A look that takes long takes a tenth of one core at most.
            tokio::time::sleep(TICK.max(begun.elapsed() * 9)).await;
            let mut watch = lock(&self.watch);
            if watch.lists.is_empty() {
                // Under the lock: who comes now finds no task and starts one.
                watch.task = None;
                return;
            }
        }
    }

    async fn tick(&self, seen: &mut i64) -> Result<(), Error> {
        let after = *seen;
        let read = move |flight: &mut Flight<'_>| {
            let text = "SELECT namespace, space, name, n FROM lockkit_news WHERE n > ?1 ORDER BY n";
            let rows =
                flight.all(text, [after], |row| Ok((key_of(row)?, row.get::<_, i64>(3)?)))?;
            Ok(rows)
        };
        let news = self.reader.call(false, read).await?;
        // Some may have been removed before it was read.
        let all = news.first().is_some_and(|(_, n)| *n > after + 1);
        *seen = news.last().map_or(after, |(_, n)| *n);
        let now = self.site.clock.now().as_nanos() as i64;
        let due: Vec<Key> = {
            let lists = &mut lock(&self.watch).lists;
            // Due until a look succeeded.
            if all {
                lists.values_mut().for_each(|list| list.due = 0);
            }
            for key in news.iter().filter_map(|(key, _)| key.as_ref()) {
                lists.entry(key.clone()).and_modify(|list| list.due = 0);
            }
            lists.iter().filter(|(_, list)| list.due <= now).map(|(key, _)| key.clone()).collect()
        };
        if due.is_empty() {
            return Ok(());
        }
        let look = move |flight: &mut Flight<'_>| {
            due.iter().map(|key| Ok((key.clone(), flight.look_at(key)?))).collect()
        };
        let ends: Vec<(Key, i64)> = self.writer.call(false, look).await?;
        let mut watch = lock(&self.watch);
        for (key, end) in ends {
            watch.lists.entry(key).and_modify(|list| list.due = end);
        }
        Ok(())
    }
}

impl Flight<'_> {
    /// Lets a list move on, wakes who holds, and says when its first lease ends.
    fn look_at(&mut self, key: &Key) -> Result<i64, Failure> {
        self.step(key, &Verb::Look)?;
        let Some(line) = self.line(key) else {
            return Ok(i64::MAX);
        };
        let end = line.first_end().map_or(i64::MAX, |end| end.as_nanos() as i64);
        let holders: Vec<_> = line.entries().take_while(|e| e.holds()).map(|e| e.id).collect();
        self.wake(holders);
        Ok(end)
    }
}

/// Nothing panics while it holds one of these locks, so what is poisoned is sound.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
