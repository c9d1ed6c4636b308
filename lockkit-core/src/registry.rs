//! The claims of one manager: those that live, and those that are to be released behind their
//! owner's back. Here meet the manager, its guards and the renewer; the last keeps it alive until
//! everything is released.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::clock::{Clock, Moment};
use crate::driver::LockDriver;
use crate::record::{NEVER, Record};
use crate::{Claim, ClaimId, observe, renewer};

pub(crate) struct Registry {
    pub(crate) driver: Arc<dyn LockDriver>,
    pub(crate) clock: Arc<dyn Clock>,
    records: Mutex<HashMap<ClaimId, Arc<Record>>>,
    releases: Mutex<Vec<(Release, Pending)>>,
    pending: Arc<watch::Sender<usize>>,
    /// Tells the renewer that there is something new.
    wake: Notify,
    /// The renewer sleeps until this moment (in nanoseconds), unless it is woken.
    sleeps_until: AtomicU64,
    task: Mutex<Option<JoinHandle<()>>>,
    orphaned: AtomicBool,
    pub(crate) closed: AtomicBool,
}

/// A claim that the renewer is to take out of its list.
pub(crate) struct Release {
    pub(crate) claim: Arc<Claim>,
    /// Not before this moment, so that a lease which simply ends lasts in full.
    pub(crate) not_before: Moment,
    /// No longer than until this moment: then its lease is over anyway.
    pub(crate) give_up: Moment,
    /// How many requests may still reach the backend after the release and put the claim in again.
    /// Then it is released again and again.
    pub(crate) under_way: u32,
}

/// Counts a release as pending for as long as it lives.
pub(crate) struct Pending(Arc<watch::Sender<usize>>);

impl Pending {
    fn new(count: &Arc<watch::Sender<usize>>) -> Self {
        count.send_modify(|n| *n += 1);
        Self(count.clone())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

impl Registry {
    pub(crate) fn new(driver: Arc<dyn LockDriver>) -> Arc<Self> {
        Arc::new(Self {
            clock: driver.clock(),
            driver,
            records: Mutex::default(),
            releases: Mutex::default(),
            pending: Arc::new(watch::Sender::new(0)),
            wake: Notify::new(),
            sleeps_until: AtomicU64::new(u64::MAX),
            task: Mutex::default(),
            orphaned: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    /// Takes care of a claim from now on. Only inside a Tokio runtime.
    pub(crate) fn insert(self: &Arc<Self>, id: ClaimId, record: &Arc<Record>) {
        locked(&self.records).insert(id, record.clone());
        self.sooner(record.next_event());
    }

    /// Cares no longer for a claim; says whether it did.
    pub(crate) fn remove(&self, id: ClaimId) -> bool {
        locked(&self.records).remove(&id).is_some()
    }

    /// All claims that are cared for.
    pub(crate) fn all(&self) -> Vec<Arc<Record>> {
        locked(&self.records).values().cloned().collect()
    }

    /// Has a claim released in the background. Works outside a runtime too: then the renewer does
    /// it when it runs, and the lease ends by itself when it does not.
    pub(crate) fn release(&self, release: Release) {
        let pending = Pending::new(&self.pending);
        locked(&self.releases).push((release, pending));
        self.wake.notify_one();
    }

    pub(crate) fn take_releases(&self) -> Vec<(Release, Pending)> {
        std::mem::take(&mut *locked(&self.releases))
    }

    /// Returns when the backend has answered every release, or the lease of the claim is over.
    pub(crate) async fn all_released(&self) {
        let _ = self.pending.subscribe().wait_for(|n| *n == 0).await;
    }

    /// Makes sure that the renewer looks no later than at `moment`.
    pub(crate) fn sooner(&self, moment: Moment) {
        let moment = moment.as_nanos();
        if moment < self.sleeps_until.fetch_min(moment, Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// Returns when something is new.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(crate) fn sleeps_until(&self) -> Moment {
        Moment::from_nanos(self.sleeps_until.load(Ordering::Acquire))
    }

    /// The next moment at which something is to be done about any claim. It is also what the
    /// renewer will sleep until, unless a claim that comes meanwhile wants it earlier.
    pub(crate) fn plan_sleep(&self, not_before: Moment) -> Moment {
        // Reset first: what is inserted from here on lowers it again, and what was inserted before
        // is seen by the scan.
        self.sleeps_until.store(u64::MAX, Ordering::SeqCst);
        let next = self.next_event().max(not_before);
        Moment::from_nanos(self.sleeps_until.fetch_min(next.as_nanos(), Ordering::SeqCst)).min(next)
    }

    pub(crate) fn next_event(&self) -> Moment {
        locked(&self.records).values().map(|r| r.next_event()).min().unwrap_or(NEVER)
    }

    /// Ends the holding claims whose deadline has passed, and has them released.
    pub(crate) fn expire(&self, now: Moment) {
        let mut over = Vec::new();
        locked(&self.records).retain(|_, record| match record.expire(now) {
            None => true,
            Some(end) => {
                over.push((end, record.clone()));
                false
            }
        });
        for ((why, lease_end), record) in over {
            observe::lost(&record, &why);
            let claim = record.claim();
            let give_up = lease_end.after(claim.hold_ttl);
            self.release(Release { claim, not_before: lease_end, give_up, under_way: 0 });
        }
    }

    /// Starts the renewer unless it runs. (It ends when its runtime does.)
    pub(crate) fn ensure_renewer(self: &Arc<Self>) {
        let mut task = locked(&self.task);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(renewer::run(self.clone())));
        }
    }

    /// Nobody can ask for anything any more: the renewer releases what is left and ends.
    pub(crate) fn orphan(&self) {
        self.orphaned.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(crate) fn is_orphaned(&self) -> bool {
        self.orphaned.load(Ordering::Acquire)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
