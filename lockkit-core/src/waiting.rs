//! How claims that wait learn that they hold, for drivers whose server applies the rule: a notification for
//! each claim that waits through one driver. A message of the server triggers it; where messages cannot
//! come or may be lost, the driver asks, for all claims that are due in one request.
//!
//! # Using it
//! A driver keeps one [`Waiters`] and implements [`PolledDriver`], which says how to ask and how to
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
use crate::{Claim, Error};

mod pace;
mod poller;
pub(crate) mod watchers;

use pace::{HandOverTimes, Progress};
pub use poller::PolledDriver;
pub use watchers::RegisterWatchers;

/// A lease ends behind its last millisecond.
const BEHIND: Duration = Duration::from_millis(1);

/// The claims that wait through one driver, by what their messages call them.
#[derive(Debug)]
pub struct Waiters<K> {
    name: fn(&ClaimId) -> K,
    waiters: Mutex<HashMap<K, Arc<Waiter>>>,
    /// Notified when a claim begins to wait.
    queued_one: Notify,
    /// Notified when a claim is to be asked about at another time.
    rearmed: Arc<Notify>,
    /// Whether messages are known to arrive.
    notified: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
    hand_overs: HandOverTimes,
    clock: Arc<dyn Clock>,
}

/// A batch that is under way. Dropping it forgets the claims of which nothing says that they wait.
#[derive(Debug)]
#[must_use = "its claims are known for as long as this lives"]
pub struct SubmittedBatch<'a, K: Eq + Hash> {
    waiters: &'a Waiters<K>,
    batch: Batch<'a>,
}

impl<K: Eq + Hash> Drop for SubmittedBatch<'_, K> {
    fn drop(&mut self) {
        let mut waiters = locked(&self.waiters.waiters);
        for Acquire { claim, .. } in self.batch.acquires {
            let name = (self.waiters.name)(&claim.id);
            let waits = |waiter: &Arc<Waiter>| {
                let note = locked(&waiter.note);
                note.is_queued || note.outcome.is_some()
            };
            if waiters.get(&name).is_some_and(|waiter| !waits(waiter)) {
                waiters.remove(&name);
            }
        }
    }
}

#[derive(Debug)]
struct Waiter {
    claim: Arc<Claim>,
    note: Mutex<Note>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Note {
    outcome: Option<Result<Grant, Error>>,
    /// Ask now, whatever an answer says that was under way.
    ask_now: bool,
    /// When to ask.
    at: Option<Moment>,
    /// Where it was when it was last asked about.
    progress: Option<Progress>,
    /// Whether a message of the server said that it holds.
    notified: bool,
    /// Whether it is known to be in its queue, so that an answer that it is not is the truth.
    is_queued: bool,
}

impl<K: Eq + Hash> Waiters<K> {
    /// `name` says what messages call a claim: its id only where the readers of messages can read the
    /// claims as well, since the id releases the claim.
    pub fn new(name: fn(&ClaimId) -> K) -> Self {
        Self {
            name,
            waiters: Mutex::default(),
            queued_one: Notify::new(),
            rearmed: Arc::default(),
            notified: AtomicBool::new(false),
            tasks: Mutex::default(),
            hand_overs: HandOverTimes::default(),
            clock: SteadyClock::shared(),
        }
    }

    /// This batch is about to be submitted. Its claims are known from before they are in a queue, as a
    /// notification may be faster than the answer, until what this returns is dropped, when the outcomes are
    /// [noted](Self::acquired) or there are none: from then on only those that wait are.
    pub fn submitting<'a>(&'a self, batch: Batch<'a>) -> SubmittedBatch<'a, K> {
        let mut waiters = locked(&self.waiters);
        for claim in batch.releases {
            waiters.remove(&(self.name)(&claim.id));
        }
        for Acquire { claim, patience } in batch.acquires {
            if *patience == Patience::Wait {
                // What was said after an attempt without an answer may be over when this one is carried out.
                waiters.insert((self.name)(&claim.id), Waiter::new(claim));
            }
        }
        drop(waiters);
        self.queued_one.notify_waiters();
        SubmittedBatch { waiters: self, batch }
    }

    /// What became of the acquire of this claim, of which so many attempts before got no answer; `lease` as in
    /// [`queued`](Self::queued).
    pub fn acquired(
        &self,
        id: &ClaimId,
        result: Result<&Acquisition, &Error>,
        ambiguous: u32,
        lease: Option<Duration>,
    ) {
        match result {
            Ok(Acquisition::Queued { ahead }) => {
                if ambiguous > 0 {
                    self.doubt(id);
                }
                self.queued(id, *ahead, lease);
            }
            // After an error it may be in the queue. Core acquires it again, or releases it.
            _ => self.remove(id),
        }
    }

    /// The state of a claim after a renewal that core asked for; of one that waits, it is asked about
    /// again when `lease` is over, as in [`queued`](Self::queued).
    pub fn renewed(&self, id: &ClaimId, renewal: &Renewal, lease: Option<Duration>) {
        if let Renewal::Waits { ahead } = renewal {
            self.queued(id, *ahead, lease);
        }
    }

    /// A message may have been about an attempt that got no answer, whose claim has ended since: what is true is
    /// asked for.
    fn doubt(&self, id: &ClaimId) {
        let Some(waiter) = self.find(&(self.name)(id)) else { return };
        {
            let mut note = locked(&waiter.note);
            (note.outcome, note.notified) = (None, false);
        }
        self.ask_at_once(&waiter);
    }

    /// The claim does not wait any more, or never did.
    pub fn remove(&self, id: &ClaimId) {
        locked(&self.waiters).remove(&(self.name)(id));
    }

    /// Returns once a claim waits.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn once_any(&self) {
        once_there(&self.queued_one, || (!locked(&self.waiters).is_empty()).then_some(())).await;
    }

    /// An answer said that so many claims are ahead of this one, and when the lease ends on which that
    /// depends: then it is asked about again, and before that where no message comes.
    pub fn queued(&self, id: &ClaimId, ahead: u32, lease: Option<Duration>) {
        let Some(waiter) = self.find(&(self.name)(id)) else { return };
        let mut note = locked(&waiter.note);
        note.is_queued = true;
        let mut after = lease.map_or(pace::SELDOM, |left| left + BEHIND);
        let (key, now) = (&waiter.claim.key, self.clock.now());
        if let Some(last) = note.progress {
            self.hand_overs.saw(key, last, ahead, now);
        }
        let progress = Progress::next(note.progress, ahead, now);
        note.progress = Some(progress);
        if !self.gets_notifications() {
            after = after.min(progress.pause(now, self.hand_overs.last(key)));
        }
        self.arm(&mut note, after);
    }

    /// A message, or another answer, said that the claim of this name holds.
    pub fn granted(&self, name: &K, grant: impl FnOnce(&Claim) -> Grant) {
        if let Some(waiter) = self.find(name) {
            locked(&waiter.note).notified = true;
            self.grant(&waiter, grant(&waiter.claim));
        }
    }

    /// As [`granted`](Self::granted); says whether the claim waits here.
    pub fn holds(&self, id: &ClaimId, grant: Grant) -> bool {
        let waiter = self.find(&(self.name)(id));
        waiter.inspect(|waiter| self.grant(waiter, grant)).is_some()
    }

    /// Whether the claim waits here.
    pub fn is_waiting(&self, id: &ClaimId) -> bool {
        self.find(&(self.name)(id)).is_some()
    }

    /// The claim of this name is to be asked about now.
    pub fn ask_now(&self, name: &K) {
        if let Some(waiter) = self.find(name) {
            self.ask_at_once(&waiter);
        }
    }

    /// Those claims are to be asked about now: an answer that may have been about them was lost, say.
    pub fn ask_about_those(&self, which: impl Fn(&Claim) -> bool) {
        let waiters = locked(&self.waiters);
        let those: Vec<_> = waiters.values().filter(|it| which(&it.claim)).cloned().collect();
        drop(waiters);
        those.iter().for_each(|waiter| self.ask_at_once(waiter));
    }

    /// All are to be asked about: messages may have been missed.
    pub fn ask_about_all(&self) {
        self.ask_about_those(|_| true);
    }

    /// For a driver that reads in one request what happened in all queues, and then says of which claims it
    /// [asks now](Self::ask_now): after how long it reads again, at the pace of the first waiter whose queue moves
    /// fastest, and after this at most.
    pub fn next_poll(&self, longest: Duration) -> Duration {
        let now = self.clock.now();
        let pause = |waiter: &Arc<Waiter>| {
            let progress = locked(&waiter.note).progress?;
            Some(progress.pause(now, self.hand_overs.last(&waiter.claim.key)))
        };
        locked(&self.waiters).values().filter_map(pause).fold(longest, Duration::min)
    }

    /// Whether messages are known to arrive.
    pub fn gets_notifications(&self) -> bool {
        self.notified.load(Ordering::Relaxed)
    }

    /// Messages arrive from now on. Asks about all claims: none was listened for until now.
    pub fn listening_started(&self) {
        self.notified.store(true, Ordering::Relaxed);
        self.ask_about_all();
    }

    /// It is unknown whether messages still arrive: all claims are asked about from now on.
    pub fn listening_ended(&self) {
        if self.notified.swap(false, Ordering::Relaxed) {
            self.ask_about_all();
        }
    }

    /// Returns once the claim holds, or is lost. What was told stays until the claim is
    /// [removed](Self::remove).
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
            waiter.wake.notified().await;
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
            waiter.wake.notified().await;
        }
    }

    /// Ends the tasks that [attend](Self::start_polling) to the claims.
    pub fn close(&self) {
        locked(&self.tasks).drain(..).for_each(|task| task.abort());
        self.notified.store(false, Ordering::Relaxed);
    }

    fn waiter(&self, claim: &Arc<Claim>) -> Arc<Waiter> {
        let name = (self.name)(&claim.id);
        let waiter =
            locked(&self.waiters).entry(name).or_insert_with(|| Waiter::new(claim)).clone();
        self.queued_one.notify_waiters();
        waiter
    }

    fn find(&self, name: &K) -> Option<Arc<Waiter>> {
        locked(&self.waiters).get(name).cloned()
    }

    /// It is in its queue. If it was not asked about or listened for, what it may have missed is asked for.
    fn expect(&self, waiter: &Waiter) {
        let mut note = locked(&waiter.note);
        note.is_queued = true;
        if note.at.is_none() && note.outcome.is_none() {
            self.arm(&mut note, Duration::ZERO);
        }
    }

    fn ask_at_once(&self, waiter: &Waiter) {
        locked(&waiter.note).ask_now = true;
        self.rearmed.notify_one();
    }

    /// It holds, so its queue has moved.
    fn grant(&self, waiter: &Waiter, grant: Grant) {
        let progress = locked(&waiter.note).progress.take();
        if let Some(progress) = progress {
            self.hand_overs.saw(&waiter.claim.key, progress, 0, self.clock.now());
        }
        waiter.end(Ok(grant));
    }

    fn arm(&self, note: &mut Note, after: Duration) {
        note.at = Some(self.clock.now().after(after));
        self.rearmed.notify_one();
    }

    /// Those to ask about now, and when the next one is to be asked about.
    fn due(&self, now: Moment) -> (Vec<Arc<Waiter>>, Option<Moment>) {
        let (mut due, mut next) = (Vec::new(), None::<Moment>);
        for waiter in locked(&self.waiters).values() {
            let note = locked(&waiter.note);
            match note.at.filter(|_| note.is_queued && note.outcome.is_none()) {
                Some(at) if note.ask_now || at <= now => due.push(waiter.clone()),
                Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                None => {}
            }
        }
        (due, next)
    }
}

impl Waiter {
    fn new(claim: &Arc<Claim>) -> Arc<Self> {
        let (note, wake) = (Mutex::default(), Notify::new());
        Arc::new(Self { claim: claim.clone(), note, wake })
    }

    fn end(&self, outcome: Result<Grant, Error>) {
        locked(&self.note).outcome = Some(outcome);
        self.wake.notify_one();
    }
}

impl<K> Drop for Waiters<K> {
    fn drop(&mut self) {
        locked(&self.tasks).iter().for_each(AbortHandle::abort);
    }
}

#[cfg(test)]
mod tests;
