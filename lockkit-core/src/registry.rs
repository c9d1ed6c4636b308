//! The claims of one manager: those that live, and those that are to be released behind their
//! owner's back. Here meet the manager, its guards and the renewer; the last keeps it alive until
//! everything is released.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use crate::background::{PendingCounter, PendingGuard};
use crate::batcher::Batcher;
use crate::clock::{Clock, Moment};
use crate::concurrency::locked;
use crate::driver::{
    Attempted, ClaimId, LockDriver, Released, Renewal, Renewed, ServerChanges, ServerHistory,
};
use crate::error::in_time;
use crate::outage::{NOTABLE, Outages};
use crate::record::{ClaimRecord, NEVER};
use crate::runtimes::Runtimes;
use crate::{Claim, Error, LossReason, Name, observe};

mod gate;
mod release;

/// How long a release waits for its answer before it is asked for again.
const RELEASE: Duration = Duration::from_secs(5);

pub(crate) struct Registry {
    pub(crate) driver: Arc<dyn LockDriver>,
    pub(crate) clock: Arc<dyn Clock>,
    records: Mutex<HashMap<ClaimId, Arc<ClaimRecord>>>,
    releases: Mutex<Vec<(Release, PendingGuard)>>,
    /// Releases that are not answered.
    pending: Arc<PendingCounter>,
    /// Claims that were asked for and are not in `records` yet.
    asking: Arc<PendingCounter>,
    /// The longest and the shortest lease that was asked for, in nanoseconds.
    longest: AtomicU64,
    shortest: AtomicU64,
    /// Operations that are repeated until they are answered, beside those of `asking`.
    repeating: Arc<PendingCounter>,
    pub(crate) outages: Outages,
    /// What answers have shown of the servers.
    servers: Mutex<ServerHistory>,
    /// Whether the renewer looks whether requests are answered.
    watched: AtomicBool,
    /// Acquires and releases are batched; renewals wait for neither.
    pub(crate) batcher: Batcher,
    /// Tells the renewer that there is something new.
    wake: Notify,
    /// The renewer sleeps until this moment (in nanoseconds), unless it is woken.
    sleeps_until: AtomicU64,
    runtimes: Mutex<Runtimes>,
    /// Whether there are several runtimes.
    shared: AtomicBool,
    /// How many renewers were started: the last one works.
    renewers: AtomicU64,
    /// When it was polled last, in nanoseconds.
    polled: AtomicU64,
    orphaned: AtomicBool,
    pub(crate) closed: AtomicBool,
    /// The process that this was made in.
    pid: AtomicU32,
}

/// A claim that the renewer is to take out of its list.
pub(crate) struct Release {
    pub(crate) claim: Arc<Claim>,
    /// Not before this moment, so that a lease which simply ends lasts in full.
    pub(crate) not_before: Moment,
    /// No longer than until this moment: then its lease is over anyway.
    pub(crate) give_up: Moment,
    /// How many requests that got no answer may still reach the backend after the release, and put the
    /// claim in again; and one more where it is in its queue already. So many times it may be removed: until
    /// then it is released again and again.
    pub(crate) ambiguous: u32,
    /// Whether an attempt that got no answer may still take the gate: then it is given back again and again.
    pub(crate) is_gate_ambiguous: bool,
    /// It is to stay held until then: its lease is shortened to that where the backend can, and it is not
    /// released before.
    pub(crate) least: Option<Moment>,
}

impl Release {
    /// Of a claim from this moment on, whatever its lease, without an attempt that got no answer.
    pub(crate) fn of(claim: Arc<Claim>, not_before: Moment) -> Self {
        let give_up = not_before.after(claim.hold_ttl.max(claim.wait_ttl));
        Self { claim, not_before, give_up, ambiguous: 0, is_gate_ambiguous: false, least: None }
    }
}

impl Registry {
    pub(crate) fn new(driver: Arc<dyn LockDriver>) -> Arc<Self> {
        Arc::new(Self {
            clock: driver.clock(),
            outages: Outages::new(driver.capabilities().backend, driver.clock()),
            repeating: Arc::default(),
            servers: Mutex::default(),
            watched: AtomicBool::new(false),
            batcher: Batcher::new(driver.clone()),
            driver,
            records: Mutex::default(),
            releases: Mutex::default(),
            pending: Arc::default(),
            asking: Arc::default(),
            longest: AtomicU64::new(0),
            shortest: AtomicU64::new(u64::MAX),
            wake: Notify::new(),
            sleeps_until: AtomicU64::new(u64::MAX),
            runtimes: Mutex::default(),
            shared: AtomicBool::new(false),
            renewers: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            orphaned: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            pid: AtomicU32::new(std::process::id()),
        })
    }

    pub(crate) fn backend(&self) -> &'static str {
        self.driver.capabilities().backend
    }

    /// Whether this process is a fork of the one that this was made in. Then nothing here may be
    /// touched: a thread that is only in the parent may hold any of its mutexes.
    pub(crate) fn is_forked(&self) -> bool {
        self.pid.load(Ordering::Relaxed) != std::process::id()
    }

    /// From now on as in a fork.
    #[cfg(feature = "testing")]
    pub(crate) fn fork(&self) {
        self.pid.store(0, Ordering::Relaxed);
    }

    /// Takes care of a claim from now on. Only inside a Tokio runtime.
    ///
    /// [`Error::Closed`] after a shutdown, which ended all that it found here; [`Error::Config`]
    /// when it takes care of this claim already.
    pub(crate) fn insert(
        self: &Arc<Self>,
        id: ClaimId,
        record: &Arc<ClaimRecord>,
    ) -> Result<(), Error> {
        {
            let mut records = locked(&self.records);
            if self.closed.load(Ordering::SeqCst) {
                return Err(Error::Closed);
            }
            match records.entry(id) {
                Entry::Vacant(entry) => entry.insert(record.clone()),
                Entry::Occupied(_) => {
                    let message = "this manager holds the lock of this ticket: it is resumed once \
                                   at a time";
                    return Err(Error::config(message));
                }
            };
        }
        self.sooner(record.next_event());
        Ok(())
    }

    /// A claim is asked for from now on, until this is dropped: then it is in the records, about to
    /// be released, or nowhere.
    pub(crate) fn asking(&self, claim: &Claim) -> PendingGuard {
        self.note_ttls(claim);
        let pending = PendingGuard::new(&self.asking);
        if !self.watched.load(Ordering::Relaxed) && !self.watched.swap(true, Ordering::SeqCst) {
            self.wake.notify_one();
        }
        pending
    }

    /// Remembers the longest and the shortest lease.
    pub(crate) fn note_ttls(&self, claim: &Claim) {
        let nanos = |ttl: Duration| u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
        let longest = nanos(claim.hold_ttl.max(claim.wait_ttl));
        let shortest = nanos(claim.hold_ttl.min(claim.wait_ttl));
        if self.longest.load(Ordering::Relaxed) < longest {
            self.longest.fetch_max(longest, Ordering::Relaxed);
        }
        if self.shortest.load(Ordering::Relaxed) > shortest {
            self.shortest.fetch_min(shortest, Ordering::Relaxed);
        }
    }

    /// The shortest lease that was asked for.
    pub(crate) fn shortest(&self) -> Duration {
        Duration::from_nanos(self.shortest.load(Ordering::Relaxed))
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    /// Nothing was answered since `before`: says so, if anything was asked for. Returns whether to ask
    /// again.
    pub(crate) fn look_for_answers(&self, before: Moment, answered: bool) -> bool {
        let asked = || self.asking.count() > 0;
        if asked() {
            if !answered {
                self.outages.silent(before, || self.waiting());
            }
            return true;
        }
        self.watched.store(false, Ordering::SeqCst);
        // One that was asked for in between did not wake the renewer.
        asked() && !self.watched.swap(true, Ordering::SeqCst)
    }

    /// Takes note of a request that was sent at `sent`, failed, and is repeated.
    pub(crate) fn note(&self, operation: &'static str, sent: Moment, error: &Error) {
        self.outages.failed(operation, sent, error, || self.waiting());
    }

    /// The answer to a request that is answered at once by a backend that works; says when it is not.
    pub(crate) async fn watched<T>(&self, request: impl Future<Output = T>) -> T {
        let mut request = std::pin::pin!(request);
        loop {
            // Made when the answer is not there at once.
            let silence = async {
                let (since, answers) = (self.clock.now(), self.outages.answers());
                tokio::time::sleep(NOTABLE).await;
                (self.outages.answers() == answers).then_some(since)
            };
            tokio::select! {
                biased;
                answer = request.as_mut() => return answer,
                silent = silence => if let Some(since) = silent {
                    self.outages.silent(since, || self.waiting());
                },
            }
        }
    }

    /// An operation is repeated from now on, until this is dropped.
    pub(crate) fn repeating(&self) -> PendingGuard {
        PendingGuard::new(&self.repeating)
    }

    /// How many operations and claims wait.
    fn waiting(&self) -> usize {
        let claims = locked(&self.records).values().filter(|record| record.is_waiting()).count();
        claims + self.asking.count() + self.repeating.count()
    }

    /// Ends all claims and takes no more: what is left to be released is returned.
    pub(crate) fn close(&self) -> Vec<Arc<ClaimRecord>> {
        self.closed.store(true, Ordering::SeqCst);
        self.batcher.close();
        locked(&self.records).drain().map(|(_, record)| record).collect()
    }

    /// Takes a claim out of its list, in bounded time, and gives its gate back before, where it may have one.
    pub(crate) async fn give_back(&self, claim: &Arc<Claim>) -> Result<Attempted<Released>, Error> {
        self.give_gate(claim).await?;
        let answer = in_time(self.backend(), RELEASE, self.batcher.release(claim)).await;
        if answer.is_ok() {
            self.outages.answered();
        }
        answer
    }

    /// Cares no longer for a claim under this record. (A ticket may have been resumed under another
    /// one meanwhile.)
    pub(crate) fn remove(&self, id: ClaimId, record: &Arc<ClaimRecord>) {
        if let Entry::Occupied(entry) = locked(&self.records).entry(id)
            && Arc::ptr_eq(entry.get(), record)
        {
            entry.remove();
        }
    }

    /// Cares no longer for a claim, under whatever record.
    pub(crate) fn take(&self, id: ClaimId) -> Option<Arc<ClaimRecord>> {
        locked(&self.records).remove(&id)
    }

    /// All claims that are cared for.
    pub(crate) fn all(&self) -> Vec<Arc<ClaimRecord>> {
        locked(&self.records).values().cloned().collect()
    }

    /// The names of the locks that are held.
    pub(crate) fn held(&self) -> Vec<Name> {
        let records = locked(&self.records);
        let held = records.values().filter(|record| record.is_holding());
        held.map(|record| record.claim().key.name.clone()).collect()
    }

    /// How many releases are not answered.
    pub(crate) fn unreleased(&self) -> usize {
        self.pending.count()
    }

    /// Takes the answer to a renewal that was sent at `sent`. Cares no longer for a claim that it ended.
    pub(crate) fn renewed(&self, record: &Arc<ClaimRecord>, answer: &Renewal, sent: Moment) {
        let lease_end = record.lease_end();
        if record.renewed(answer, sent) {
            self.remove(record.claim().id, record);
            // With the claim ends its gate, but not before a holder that winds up has given it back.
            let stays = record.has_lock_delay() || record.has_gate();
            if let Some(lease_end) = lease_end.filter(|_| stays) {
                self.release_at(record.claim(), lease_end);
            }
            if let Some(why) = record.loss() {
                observe::lost(record.labels, &record.claim(), &why);
            }
        }
    }

    /// Takes the answers to a renewal that was sent at `sent`, one for each of these claims.
    pub(crate) fn all_renewed(
        &self,
        batch: &[Arc<ClaimRecord>],
        answers: &[Result<Renewed, Error>],
        sent: Moment,
    ) {
        let Some(margin) = batch.first().map(|record| record.margin()) else { return };
        let now = self.clock.now();
        let runs: Vec<_> = batch.iter().map(|record| record.run()).collect();
        let mut servers = locked(&self.servers);
        let answered_by = runs.iter().zip(answers).filter_map(|(run, answer)| {
            Some((run.as_deref(), answer.as_ref().ok()?.evidence.as_deref()?))
        });
        let judged = servers.hear(answered_by, sent, now, margin);
        for ((record, run), answer) in batch.iter().zip(&runs).zip(answers) {
            match answer {
                Ok(Renewed { renewal, evidence }) => {
                    if let Some(evidence) = evidence {
                        let rate = servers.rate(evidence, margin);
                        record.answered_by(&evidence.run, rate, judged.doubt(run.as_deref()));
                    }
                    self.renewed(record, renewal, sent);
                }
                Err(error) => record.renewal_failed(&LossReason::of_renewals(error)),
            }
        }
        drop(servers);
        if !judged.is_empty() {
            self.doubt(&judged, sent, now);
        }
    }

    /// Has the claims renewed at once whose last answer is in doubt: all in one request, and not at the
    /// very moment at which all other clients of that server do.
    fn doubt(&self, judged: &ServerChanges, sent: Moment, now: Moment) {
        let jitter = self.shortest().min(Duration::from_secs(10)) / 10;
        let due = now.after(jitter.mul_f64(rand::random()));
        let all = self.all();
        let count = all.iter().filter(|it| it.doubt(judged, sent, due)).count();
        if let Some(why) = judged.doubt(None) {
            observe::in_doubt(self.backend(), &why, count);
        }
    }

    /// Returns when nothing is asked for any more and the backend has answered every release, or
    /// the lease of the claim is over.
    pub(crate) async fn all_released(&self) {
        let longest = Duration::from_nanos(self.longest.load(Ordering::Relaxed));
        let _ = tokio::time::timeout(longest, self.asking.done()).await;
        // They are over by then, also where the runtime that releases them is blocked.
        let _ = tokio::time::timeout(longest, self.pending.done()).await;
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
            let claim = record.claim();
            observe::lost(record.labels, &claim, &why);
            self.release_at(claim, lease_end);
        }
    }

    /// Where the renewer runs.
    pub(crate) fn runtimes(&self) -> MutexGuard<'_, Runtimes> {
        locked(&self.runtimes)
    }

    /// The manager is used in several runtimes from now on.
    pub(crate) fn share(&self) {
        self.shared.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::SeqCst)
    }

    /// The number of a renewer that is about to start. The one before does nothing from now on.
    pub(crate) fn next_renewer(&self) -> u64 {
        self.renewers.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn renewers(&self) -> u64 {
        self.renewers.load(Ordering::SeqCst)
    }

    pub(crate) fn renewer_polled(&self) {
        self.polled.store(self.clock.now().as_nanos(), Ordering::SeqCst);
    }

    /// When the renewer was polled last.
    pub(crate) fn polled(&self) -> Moment {
        Moment::from_nanos(self.polled.load(Ordering::SeqCst))
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// The last handle is gone: the renewer releases what is left and ends.
    pub(crate) fn orphan(&self) {
        self.orphaned.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(crate) fn is_orphaned(&self) -> bool {
        self.orphaned.load(Ordering::Acquire)
    }
}
