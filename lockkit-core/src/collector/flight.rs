//! Flights of several steps: from the departure to the answers, and from these to the next departure.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::alone::Single;
use super::{Collector, HELD_UP, SLOW, Told, Waiting};
use crate::capabilities::Flights;

/// A flight that lands waits at most so many yields of the scheduler for those who come back.
const LOOKS: usize = 8;

/// From the answers of a flight to the departure of the next one.
pub(super) struct Landing<'a> {
    collector: &'a Collector,
    /// Whether it counts as landing.
    counted: bool,
    _turn: Option<tokio::sync::MutexGuard<'a, ()>>,
}

impl<'a> Landing<'a> {
    /// Waits for its turn, or until the flight before takes too long.
    pub(super) async fn begin(collector: &'a Collector) -> Self {
        collector.queue().landing += 1;
        let mut landing = Self { collector, counted: true, _turn: None };
        landing._turn = tokio::time::timeout(HELD_UP, collector.runway.lock()).await.ok();
        landing
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.collector.queue().landing -= 1;
        }
    }
}

impl Collector {
    /// Those who were answered come back with their next steps. On several threads they do so while
    /// this one looks: until two looks in a row have seen nobody new, more may be about to.
    async fn boarded(&self) {
        let (mut before, mut nobody_new) = (0, 0);
        for _ in 0..LOOKS {
            tokio::task::yield_now().await;
            let boarded = self.queue().len();
            nobody_new = if boarded == before { nobody_new + 1 } else { 0 };
            if boarded == 0 || boarded >= self.flights.steps || nobody_new == 2 {
                return;
            }
            before = boarded;
        }
    }
}

/// A flight of several steps, one after the other as long as there are any.
pub(super) struct Flight {
    collector: Arc<Collector>,
    /// Whether it counts as under way.
    counted: bool,
    /// Whether nobody depends on it any more.
    over: bool,
}

impl Flight {
    /// Departs with these steps; it is counted already.
    pub(super) fn begin(collector: &Arc<Collector>, batch: Vec<Waiting>) {
        tokio::spawn(Self { collector: collector.clone(), counted: true, over: false }.fly(batch));
    }

    async fn fly(mut self, mut batch: Vec<Waiting>) {
        let collector = self.collector.clone();
        let mut landing = None;
        loop {
            let single = match &batch[..] {
                [waiting] => Single::of(&collector, &waiting.step),
                _ => None,
            };
            // One that may wait at the backend holds up no other for longer.
            let patience = if single.is_some() { HELD_UP } else { SLOW };
            let mut carried = pin!(collector.carry(batch));
            // It departs when it is polled first.
            let begun = poll_fn(|context| Poll::Ready(carried.as_mut().poll(context))).await;
            drop(landing);
            landing = match begun {
                Poll::Ready(landing) => landing,
                Poll::Pending => tokio::select! {
                    biased;
                    landing = carried.as_mut() => landing,
                    () = tokio::time::sleep(patience) => {
                        self.make_room();
                        carried.await
                    }
                },
            };
            drop(single);
            collector.boarded().await;
            match self.next(landing.as_mut()) {
                Some(next) => batch = next,
                None => break,
            }
        }
        self.over = true;
    }

    /// What it departs with again; `None` when nobody came, or not enough and others land as well. What
    /// it cannot take departs beside it.
    fn next(&mut self, landing: Option<&mut Landing<'_>>) -> Option<Vec<Waiting>> {
        let Flights { steps, at_once, .. } = self.collector.flights;
        let mut batches = Vec::new();
        {
            let mut queue = self.collector.queue();
            queue.out -= usize::from(std::mem::take(&mut self.counted));
            if let Some(landing) = landing {
                landing.counted = false;
                queue.landing -= 1;
                if queue.landing > 0 && queue.len() < steps / 2 {
                    return None;
                }
            }
            while queue.out < at_once {
                let batch = self.collector.batch(&mut queue);
                if batch.is_empty() {
                    break;
                }
                queue.out += 1;
                batches.push(batch);
            }
        }
        self.counted = !batches.is_empty();
        let mut batches = batches.into_iter();
        let first = batches.next();
        batches.for_each(|batch| Self::begin(&self.collector, batch));
        first
    }

    /// Counts no longer, so that another may depart.
    fn make_room(&mut self) {
        if let Some(batch) = self.next(None) {
            self.counted = false;
            Self::begin(&self.collector, batch);
        }
    }
}

impl Drop for Flight {
    /// Its runtime ended, or the driver panicked: who waits sees to itself, in its own runtime.
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (releases, acquires) = {
            let mut queue = self.collector.queue();
            queue.out -= usize::from(self.counted);
            (queue.releases.drain(), queue.acquires.drain())
        };
        releases.chain(acquires).for_each(|waiting| waiting.refuse(Told::Again));
    }
}
