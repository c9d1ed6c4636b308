//! A step from the side of the task that asked for it.

use std::sync::Arc;

use super::alone::Single;
use super::{Answer, Collector, HELD_UP, Queued, SLOW, Told};
use crate::Error;
use crate::clock::Moment;
use crate::flight::Step;

/// One step on its way. Dropped before it departed, it never does.
pub(crate) struct Passenger {
    collector: Arc<Collector>,
    step: Step,
    latest: Option<Moment>,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Ashore,
    InLine(Queued),
    /// Under way, or answered.
    Departed,
}

impl Passenger {
    pub(super) fn new(collector: Arc<Collector>, step: Step, latest: Option<Moment>) -> Self {
        Self { collector, step, latest, state: State::Ashore }
    }

    /// What came of the step; `None` when it was too late to depart. An error says that it did not
    /// depart either. To be asked for once.
    ///
    /// # Cancel safety
    /// [`withdraw`](Self::withdraw) says whether it had departed.
    pub(crate) async fn answer(&mut self) -> Result<Option<Answer>, Error> {
        if self.collector.flights.steps <= 1 {
            return self.by_itself().await;
        }
        if self.collector.is_lone(&self.step) {
            return Ok(self.in_place().await);
        }
        loop {
            let (place, mut hears, fetched) =
                self.collector.enqueue(self.step.clone(), self.latest)?;
            self.state = State::InLine(place);
            let alone = !fetched && {
                tokio::task::yield_now().await;
                self.collector.depart(place)
            };
            if alone {
                self.state = State::Ashore;
                return Ok(self.in_place().await);
            }
            let mut patience = HELD_UP;
            let told = loop {
                tokio::select! {
                    biased;
                    told = &mut hears => break told,
                    () = tokio::time::sleep(patience) => {}
                }
                // Thousands may wait for their turn in good order.
                patience = SLOW.min(patience * 2);
                if !self.collector.depart_past(place) {
                    break hears.await;
                }
            };
            self.state = match told {
                Ok(Told::Answer(_)) | Err(_) => State::Departed,
                Ok(_) => State::Ashore,
            };
            match told {
                Ok(Told::Answer(answer)) => return Ok(Some(answer)),
                Ok(Told::TooLate) => return Ok(None),
                Ok(Told::Closed) => return Err(Error::Closed),
                Ok(Told::Again) => {}
                // Its flight ended without a word: what it did is unknown.
                Err(_) => {
                    let backend = self.collector.driver.capabilities().backend;
                    let reply = Err(Error::retryable(backend, "the runtime of the request ended"));
                    return Ok(Some(Answer { departed: self.collector.clock.now(), reply }));
                }
            }
        }
    }

    /// For a backend that carries one step at a time.
    async fn by_itself(&mut self) -> Result<Option<Answer>, Error> {
        let collector = &self.collector;
        let turn = match self.step {
            Step::Acquire { .. } => collector.acquires.turn().await?,
            Step::Release { .. } => collector.releases.turn().await?,
        };
        let departs = || self.state = State::Departed;
        Ok(turn.ask(carry_alone(collector, &self.step, self.latest, departs)).await)
    }

    /// Carries it here, beside all flights.
    async fn in_place(&mut self) -> Option<Answer> {
        let collector = &self.collector;
        let _alone = Alone(collector);
        let single = Single::of(collector, &self.step);
        let departs = || self.state = State::Departed;
        let answer = carry_alone(collector, &self.step, self.latest, departs).await;
        if single.is_some_and(Single::end) {
            collector.go_on();
        }
        answer
    }

    /// Takes it out of the line; says whether it will never depart.
    pub(crate) fn withdraw(&mut self) -> bool {
        match self.state {
            State::Ashore => true,
            // What was left out of a flight that was sent twice may have acted.
            State::InLine(place) => {
                let waiting = self.collector.queue().lane(place).remove(place.number);
                waiting.is_some_and(|waiting| waiting.ambiguous == 0)
            }
            State::Departed => false,
        }
    }
}

impl Drop for Passenger {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// Carries a single step, unless it is too late.
pub(super) async fn carry_alone(
    collector: &Collector,
    step: &Step,
    latest: Option<Moment>,
    departs: impl FnOnce(),
) -> Option<Answer> {
    let departed = collector.clock.now();
    if latest.is_some_and(|latest| departed >= latest) {
        return None;
    }
    departs();
    let reply = match collector.driver.carry(std::slice::from_ref(step)).await {
        Ok(mut replies) => replies.pop().unwrap_or_else(|| Err(collector.driver.no_reply())),
        Err(error) => Err(error),
    };
    Some(Answer { departed, reply })
}

/// A single step is under way in place, for as long as this lives.
struct Alone<'a>(&'a Collector);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.alone = false;
        queue.lone = queue.lone.saturating_add(1);
    }
}
