//! How claims that wait learn that they hold, for drivers whose server applies the rule: a bell for
//! each claim that waits through one driver. A message of the server rings it; where messages cannot
//! come or may be lost, the driver asks, for all claims that are due in one request.
//!
//! # Using it
//! A driver keeps one [`Waiters`] and implements [`Attendant`], which says how to ask and how to
//! listen. It says which batches it is [submitting](Waiters::submitting) and what its
//! claims [acquired](Waiters::acquired), and answers
//! [`LockDriver::granted`](crate::driver::LockDriver::granted) with [`Waiters::outcome`].

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::clock::{Clock, Moment, SteadyClock};
use crate::concurrency::{locked, once_there};
use crate::driver::{Acquire, Acquisition, Batch, ClaimId, Grant, Patience, Renewal};
use crate::{Claim, Error, LossReason};

mod attend;
pub(crate) mod watchers;

pub use attend::Attendant;
pub use watchers::RegisterBells;

/// A lease ends behind its last millisecond.
const BEHIND: Duration = Duration::from_millis(1);

/// The claims that wait through one driver, by what their messages call them.
#[derive(Debug)]
pub struct Waiters<K> {
    name: fn(&ClaimId) -> K,
    waiters: Mutex<HashMap<K, Arc<Waiter>>>,
    /// Rung when a claim begins to wait.
    came: Notify,
    /// Rung when a claim is to be asked about at another time.
    rearmed: Arc<Notify>,
    /// Whether messages are known to arrive.
    told: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
}

#[derive(Debug)]
struct Waiter {
    claim: Arc<Claim>,
    note: Mutex<Note>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Note {
    outcome: Option<Result<Grant, Error>>,
    /// Ask now, whatever an answer says that was under way.
    at_once: bool,
    /// When to ask.
    at: Option<Moment>,
    /// How often it was asked about in vain.
    asked: u32,
    /// Whether a message of the server said that it holds.
    notified: bool,
    /// Whether it is known to be in line, so that an answer that it is not is the truth.
    in_line: bool,
}

impl<K: Eq + Hash> Waiters<K> {
    /// `name` says what messages call a claim: its id only where the readers of messages can read the
    /// claims as well, since the id releases the claim.
    pub fn new(name: fn(&ClaimId) -> K) -> Self {
        Self {
            name,
            waiters: Mutex::default(),
            came: Notify::new(),
            rearmed: Arc::default(),
            told: AtomicBool::new(false),
            tasks: Mutex::default(),
        }
    }

    /// This batch is about to be submitted. Its claims are known from before they are in a queue: a
    /// notification may be faster than the answer.
    pub fn submitting(&self, batch: Batch<'_>) {
        let mut waiters = locked(&self.waiters);
        for claim in batch.releases {
            waiters.remove(&(self.name)(&claim.id));
        }
        for Acquire { claim, patience } in batch.acquires {
            if *patience == Patience::Wait {
                let name = (self.name)(&claim.id);
                waiters.entry(name).or_insert_with(|| Waiter::new(claim));
            }
        }
        drop(waiters);
        self.came.notify_waiters();
    }

    /// What became of the acquire of this claim; `lease` as in [`queued`](Self::queued).
    pub fn acquired(
        &self,
        id: &ClaimId,
        result: Result<&Acquisition, &Error>,
        lease: Option<Duration>,
    ) {
        match result {
            Ok(Acquisition::Queued { ahead }) => self.queued(id, *ahead, lease),
            // It may be in the queue: it is known here until it is released.
            Err(Error::Backend { .. }) => {}
            _ => self.strike(id),
        }
    }

    /// The state of a claim after a renewal that core asked for; of one that waits, it is asked about
    /// again when `lease` is over, as in [`queued`](Self::queued).
    pub fn renewed(&self, id: &ClaimId, renewal: &Renewal, lease: Option<Duration>) {
        if let Renewal::Waits { ahead } = renewal {
            self.queued(id, *ahead, lease);
        }
    }

    /// The claim does not wait any more, or never did.
    pub fn strike(&self, id: &ClaimId) {
        locked(&self.waiters).remove(&(self.name)(id));
    }

    /// Returns once a claim waits.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn somebody(&self) {
        once_there(&self.came, || (!locked(&self.waiters).is_empty()).then_some(())).await;
    }

    /// An answer said that the claim is in line behind so many, and when the lease ends on which that
    /// depends: then it is asked about again, and before that where nobody tells it.
    pub fn queued(&self, id: &ClaimId, ahead: u32, lease: Option<Duration>) {
        let Some(waiter) = self.find(&(self.name)(id)) else { return };
        let mut note = locked(&waiter.note);
        note.in_line = true;
        let mut after = lease.map_or(attend::SELDOM, |left| left + BEHIND);
        if !self.is_told() {
            note.asked = note.asked.saturating_add(1);
            after = after.min(attend::pause(ahead, note.asked));
        }
        self.arm(&mut note, after);
    }

    /// A message, or another answer, said that the claim of this name holds.
    pub fn granted(&self, name: &K, grant: impl FnOnce(&Claim) -> Grant) {
        if let Some(waiter) = self.find(name) {
            locked(&waiter.note).notified = true;
            waiter.end(Ok(grant(&waiter.claim)));
        }
    }

    /// As [`granted`](Self::granted); says whether the claim waits here.
    pub fn holds(&self, id: &ClaimId, grant: Grant) -> bool {
        let waiter = self.find(&(self.name)(id));
        waiter.inspect(|waiter| waiter.end(Ok(grant))).is_some()
    }

    /// Whether the claim waits here.
    pub fn is_waiting(&self, id: &ClaimId) -> bool {
        self.find(&(self.name)(id)).is_some()
    }

    /// The claim of this name is to be asked about now.
    pub fn ring(&self, name: &K) {
        if let Some(waiter) = self.find(name) {
            self.ask_at_once(&waiter);
        }
    }

    /// All are to be asked about: messages may have been missed.
    pub fn ring_all(&self) {
        let all: Vec<_> = locked(&self.waiters).values().cloned().collect();
        all.iter().for_each(|waiter| self.ask_at_once(waiter));
    }

    /// Whether messages are known to arrive.
    pub fn is_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }

    /// Messages arrive from now on. Asks about all claims: nobody listened for them until now.
    pub fn is_listening(&self) {
        self.told.store(true, Ordering::Relaxed);
        self.ring_all();
    }

    /// Nobody knows any more whether messages arrive: all are asked about from now on.
    pub fn is_deaf(&self) {
        if self.told.swap(false, Ordering::Relaxed) {
            self.ring_all();
        }
    }

    /// Returns once the claim holds, or is lost. What was told stays until the claim is
    /// [struck](Self::strike).
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn outcome(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let waiter = self.waiter(claim);
        self.expect(&waiter);
        loop {
            if let Some(outcome) = locked(&waiter.note).outcome.clone() {
                return outcome;
            }
            waiter.bell.notified().await;
        }
    }

    /// Returns once a message said that the claim holds; for
    /// [`LockDriver::notified`](crate::driver::LockDriver::notified), instead of
    /// [`outcome`](Self::outcome).
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn notified(&self, claim: &Arc<Claim>) {
        let waiter = self.waiter(claim);
        self.expect(&waiter);
        while !locked(&waiter.note).notified {
            waiter.bell.notified().await;
        }
    }

    /// Ends the tasks that [attend](Self::attend) to the claims.
    pub fn close(&self) {
        locked(&self.tasks).drain(..).for_each(|task| task.abort());
        self.told.store(false, Ordering::Relaxed);
    }

    fn waiter(&self, claim: &Arc<Claim>) -> Arc<Waiter> {
        let name = (self.name)(&claim.id);
        let waiter =
            locked(&self.waiters).entry(name).or_insert_with(|| Waiter::new(claim)).clone();
        self.came.notify_waiters();
        waiter
    }

    fn find(&self, name: &K) -> Option<Arc<Waiter>> {
        locked(&self.waiters).get(name).cloned()
    }

    /// It is in line. If nobody has asked or listened for it, what it may have missed is asked for.
    fn expect(&self, waiter: &Waiter) {
        let mut note = locked(&waiter.note);
        note.in_line = true;
        if note.at.is_none() && note.outcome.is_none() {
            self.arm(&mut note, Duration::ZERO);
        }
    }

    fn ask_at_once(&self, waiter: &Waiter) {
        locked(&waiter.note).at_once = true;
        self.rearmed.notify_one();
    }

    fn arm(&self, note: &mut Note, after: Duration) {
        note.at = Some(SteadyClock.now().after(after));
        self.rearmed.notify_one();
    }

    /// Those to ask about now, and when the next one is to be asked about.
    fn due(&self, now: Moment) -> (Vec<Arc<Waiter>>, Option<Moment>) {
        let (mut due, mut next) = (Vec::new(), None::<Moment>);
        for waiter in locked(&self.waiters).values() {
            let note = locked(&waiter.note);
            match note.at.filter(|_| note.in_line && note.outcome.is_none()) {
                Some(at) if note.at_once || at <= now => due.push(waiter.clone()),
                Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                None => {}
            }
        }
        (due, next)
    }
}

impl Waiter {
    fn new(claim: &Arc<Claim>) -> Arc<Self> {
        let (note, bell) = (Mutex::default(), Notify::new());
        Arc::new(Self { claim: claim.clone(), note, bell })
    }

    fn end(&self, outcome: Result<Grant, Error>) {
        locked(&self.note).outcome = Some(outcome);
        self.bell.notify_one();
    }

    /// What an answer says; `None` for one that waits on.
    fn told(&self, renewal: Renewal) -> Option<u32> {
        let reason = match renewal {
            Renewal::Waits { ahead } => return Some(ahead),
            Renewal::Holds(grant) => {
                self.end(Ok(grant));
                return None;
            }
            Renewal::Ended(ended) => LossReason::from(ended),
        };
        self.end(Err(Error::Lost { reason }));
        None
    }
}

impl<K> Drop for Waiters<K> {
    fn drop(&mut self) {
        locked(&self.tasks).iter().for_each(AbortHandle::abort);
    }
}

#[cfg(test)]
mod tests;
