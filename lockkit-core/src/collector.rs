//! Gathers the acquires and releases of a manager's tasks into flights; [`flight`](crate::flight) says
//! when one departs. Renewals do not come here: they leave in calls of their own, at once.
//!
//! A step that is alone is carried by the future that asked, in place, and where none met another of
//! late, at once. Flights of several are carried by tasks of their own, so that nobody waits for a
//! future that its owner does not poll. A step that the driver leaves out of a flight, since it would have
//! to wait at the backend, is sent again by itself ([`alone`]).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::capabilities::Flights;
use crate::clock::{Clock, Moment};
use crate::deadline::Jitter;
use crate::driver::{Attempted, LockDriver, Released};
use crate::flight::{Reply, Step};
use crate::lane::Lane;
use crate::{Claim, Error, Key};

mod alone;
mod flight;
mod passenger;
mod pending;

use flight::{Flight, Landing};
pub(crate) use passenger::Passenger;
use pending::{Batch, Pending};

/// A flight that has no answer after this makes room for another: what is stuck at one node, or
/// behind one row, must not hold up the rest. Drivers end their attempts after some seconds, so that a
/// few times [`Flights::at_once`] are under way at most.
const SLOW: Duration = Duration::from_secs(1);
/// A landing that takes longer than this holds nobody up: its thread does other work than its runtime's.
const HELD_UP: Duration = Duration::from_millis(20);
/// After so many single steps in a row that met nobody, the next departs without a yield: a program
/// that locks one thing after the other would look at its sockets once more for each step.
const LONE: u32 = 4;

pub(crate) struct Collector {
    driver: Arc<dyn LockDriver>,
    clock: Arc<dyn Clock>,
    flights: Flights,
    /// Of the pauses before steps are repeated: what failed together is repeated together.
    pub(crate) jitter: Jitter,
    queue: Mutex<Queue>,
    /// Flights land one after the other. When the answers of two come together, the backend works on
    /// the next flight of one while that of the other is prepared; otherwise both would depart together
    /// from then on, and client and server take turns.
    runway: tokio::sync::Mutex<()>,
    /// For a backend that carries one step at a time: acquires and releases wait for no flight, and
    /// not for each other.
    acquires: Lane,
    releases: Lane,
}

#[derive(Default)]
struct Queue {
    /// Releases depart first.
    releases: Pending,
    acquires: Pending,
    /// The next number: of a step, or of a key's turn.
    next: u64,
    /// Flights under way in tasks of their own.
    out: usize,
    /// Whether a single step is under way in place.
    alone: bool,
    /// How many single steps in a row met nobody.
    lone: u32,
    /// How many requests of one step are under way, by key, where such a request may wait at the backend.
    singles: HashMap<Key, u32>,
    /// Keys of which a step was left out of a flight. Nothing of them departs until a request of one step
    /// has ended, so that their steps keep their order.
    blocked: HashSet<Key>,
    /// Flights that were answered and have not departed again: they take along what comes.
    landing: usize,
    closed: bool,
}

/// A step that has not departed.
struct Waiting {
    number: u64,
    step: Step,
    /// Not to depart after this.
    latest: Option<Moment>,
    told: oneshot::Sender<Told>,
    /// How many requests with it got no answer before it was left out of a flight.
    ambiguous: u32,
}

impl Waiting {
    /// Says that nothing was sent; or nothing at all where an earlier request may have acted.
    fn refuse(self, told: Told) {
        if self.ambiguous == 0 {
            let _ = self.told.send(told);
        }
    }
}

enum Told {
    Answer(Answer),
    /// Its time to depart is over; nothing was sent.
    TooLate,
    /// The manager was shut down; nothing was sent.
    Closed,
    /// The runtime of the flights ended; nothing was sent: ask again.
    Again,
}

/// What came of a step that departed.
pub(crate) struct Answer {
    /// When its flight departed.
    pub(crate) departed: Moment,
    pub(crate) reply: Result<Attempted<Reply>, Error>,
}

impl Collector {
    pub(crate) fn new(driver: Arc<dyn LockDriver>) -> Arc<Self> {
        Arc::new(Self {
            clock: driver.clock(),
            flights: driver.capabilities().flights,
            jitter: Jitter::random(),
            driver,
            queue: Mutex::default(),
            runway: tokio::sync::Mutex::default(),
            acquires: Lane::new(),
            releases: Lane::new(),
        })
    }

    /// A step that is about to depart. It does when it is polled.
    pub(crate) fn step(self: &Arc<Self>, step: Step, latest: Option<Moment>) -> Passenger {
        Passenger::new(self.clone(), step, latest)
    }

    /// Takes a claim out of its list. "Not there" after an attempt that got no answer is taken for
    /// the end of that attempt.
    pub(crate) async fn release(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Released, Error> {
        let step = Step::Release { claim: claim.clone() };
        match self.step(step, None).answer().await?.map(|answer| answer.reply) {
            Some(Ok(Attempted { result: Reply::Released(_), ambiguous: 1.. })) => {
                Ok(Released::Removed)
            }
            Some(Ok(Attempted { result: Reply::Released(answer), .. })) => Ok(answer),
            Some(Err(error)) => Err(error),
            _ => Err(self.driver.no_reply()),
        }
    }

    /// No acquire departs any more.
    pub(crate) fn close(&self) {
        self.acquires.close();
        let waiting = {
            let mut queue = self.queue();
            queue.closed = true;
            queue.acquires.drain()
        };
        waiting.for_each(|waiting| waiting.refuse(Told::Closed));
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a step in line, unless nothing may depart any more; says whether a flight that lands will
    /// take it along.
    fn enqueue(
        &self,
        step: Step,
        latest: Option<Moment>,
    ) -> Result<(Queued, oneshot::Receiver<Told>, bool), Error> {
        let (told, hears) = oneshot::channel();
        let mut queue = self.queue();
        let place = Queued { number: queue.next, release: matches!(step, Step::Release { .. }) };
        if queue.closed && !place.release {
            return Err(Error::Closed);
        }
        if queue.alone || queue.out > 0 || queue.len() > 0 {
            queue.lone = 0;
        }
        let waiting = Waiting { number: queue.next(), step, latest, told, ambiguous: 0 };
        queue.insert(waiting);
        Ok((place, hears, queue.landing > 0))
    }

    /// Many steps are about to be asked for: the first waits for the others.
    pub(crate) fn gather(&self) {
        self.queue().lone = 0;
    }

    /// Whether a step departs at once, in place: nobody is there, and nobody was of late.
    fn is_lone(&self, step: &Step) -> bool {
        let mut queue = self.queue();
        let lone = queue.lone >= LONE && !queue.alone && queue.out == 0 && queue.len() == 0;
        let departs = lone && !queue.closed && !queue.is_blocked(&step.claim().key);
        queue.alone |= departs;
        departs
    }

    /// Called when a step was in line while others ran. `true`: it is alone, and is carried in place.
    /// Otherwise it has departed, or will with the next flight.
    fn depart(self: &Arc<Self>, place: Queued) -> bool {
        let batch = {
            let mut queue = self.queue();
            if !queue.may_depart(place) {
                return false;
            }
            if queue.len() == 1 && queue.out == 0 && !queue.alone {
                queue.alone = true;
                queue.lane(place).remove(place.number);
                return true;
            }
            if queue.out >= self.flights.at_once || queue.landing > 0 {
                return false;
            }
            self.next_batch(&mut queue)
        };
        if let Some(batch) = batch {
            Flight::begin(self, batch);
        }
        false
    }

    /// Departs with what is in line although others land, if this step still is; says whether it
    /// stays in line.
    fn depart_past(self: &Arc<Self>, place: Queued) -> bool {
        let batch = {
            let mut queue = self.queue();
            if !queue.lane(place).contains(place.number) {
                return false;
            }
            self.next_batch(&mut queue)
        };
        if let Some(batch) = batch {
            Flight::begin(self, batch);
        }
        true
    }

    /// Departs with what may depart now.
    fn go_on(self: &Arc<Self>) {
        let batch = self.next_batch(&mut self.queue());
        if let Some(batch) = batch {
            Flight::begin(self, batch);
        }
    }

    /// What departs next, where there is room for a flight.
    fn next_batch(&self, queue: &mut Queue) -> Option<Vec<Waiting>> {
        if queue.out >= self.flights.at_once {
            return None;
        }
        let batch = self.batch(queue);
        queue.out += usize::from(!batch.is_empty());
        (!batch.is_empty()).then_some(batch)
    }

    /// Who departs next, together: releases first, each claim once, and each key where the backend
    /// asks for that.
    fn batch(&self, queue: &mut Queue) -> Vec<Waiting> {
        let mut batch = Batch::new(self.flights);
        let Queue { releases, acquires, next, .. } = queue;
        releases.fill(&mut batch, false, next);
        acquires.fill(&mut batch, !self.flights.same_key, next);
        batch.steps
    }

    /// Carries a flight, and tells each step what came of it.
    async fn carry(self: &Arc<Self>, batch: Vec<Waiting>) -> Option<Landing<'_>> {
        let mut parts = vec![(batch, 0)];
        let mut landing = None;
        while let Some((mut batch, ambiguous)) = parts.pop() {
            drop(landing.take());
            let departed = self.clock.now();
            let late = |waiting: &mut Waiting| waiting.latest.is_some_and(|it| it <= departed);
            batch.extract_if(.., late).for_each(|late| late.refuse(Told::TooLate));
            if batch.is_empty() {
                continue;
            }
            let steps: Vec<_> = batch.iter().map(|waiting| waiting.step.clone()).collect();
            let replies = match self.driver.carry(&steps).await {
                Ok(replies) if replies.len() == steps.len() => replies,
                Ok(_) => vec![Err(self.driver.no_reply()); steps.len()],
                // One of them may be what the backend does not take: let it fail by itself.
                Err(error) if !error.is_retryable() && batch.len() > 1 => {
                    let half = batch.split_off(batch.len() / 2);
                    parts.push((half, ambiguous + 1));
                    parts.push((batch, ambiguous + 1));
                    continue;
                }
                Err(error) => vec![Err(error); steps.len()],
            };
            landing = Some(Landing::begin(self).await);
            let mut left_out = Vec::new();
            for (mut waiting, reply) in batch.into_iter().zip(replies) {
                let reply = reply.map(|mut reply| {
                    reply.ambiguous += ambiguous + waiting.ambiguous;
                    reply
                });
                match reply {
                    Ok(Attempted { result: Reply::SendAlone, ambiguous }) if steps.len() > 1 => {
                        waiting.ambiguous = ambiguous;
                        left_out.push(waiting);
                    }
                    reply => drop(waiting.told.send(Told::Answer(Answer { departed, reply }))),
                }
            }
            self.send_alone(left_out);
        }
        landing
    }
}

impl Queue {
    /// How many steps may depart.
    fn len(&self) -> usize {
        self.releases.ready() + self.acquires.ready()
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Adds a step, in the order of the numbers of its key.
    fn insert(&mut self, waiting: Waiting) {
        let blocked = self.is_blocked(&waiting.step.claim().key);
        match waiting.step {
            Step::Release { .. } => self.releases.insert(waiting, blocked),
            Step::Acquire { .. } => self.acquires.insert(waiting, blocked),
        }
    }

    /// Takes out the step of this key that was asked for first.
    fn take_first(&mut self, key: &Key) -> Option<Waiting> {
        match (self.releases.first_of(key), self.acquires.first_of(key)) {
            (Some(release), acquire) if acquire.is_none_or(|acquire| release < acquire) => {
                self.releases.remove(release)
            }
            (_, acquire) => self.acquires.remove(acquire?),
        }
    }

    fn is_blocked(&self, key: &Key) -> bool {
        !self.blocked.is_empty() && self.blocked.contains(key)
    }

    /// Whether this step is in line, and not held back.
    fn may_depart(&mut self, place: Queued) -> bool {
        let is_any_blocked = !self.blocked.is_empty();
        let lane = self.lane(place);
        lane.contains(place.number) && !(is_any_blocked && lane.is_blocked(place.number))
    }

    fn lane(&mut self, place: Queued) -> &mut Pending {
        match place.release {
            true => &mut self.releases,
            false => &mut self.acquires,
        }
    }
}

/// Where a step stands that has not departed.
#[derive(Clone, Copy)]
struct Queued {
    number: u64,
    release: bool,
}
