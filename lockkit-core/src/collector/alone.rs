//! Steps that a driver left out of a flight ([`Reply::SendAlone`](crate::driver::Reply::SendAlone)): each
//! is sent again by itself, outside the limit of flights. The driver says how many such requests it has
//! under way at once; here the steps of one key keep their order. A key has one such request at a time,
//! and what else is asked of the key stands behind it.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::passenger::carry_alone;
use super::{Answer, Collector, Told, Waiting};
use crate::Key;
use crate::flight::Step;

/// A request of one step is under way, for as long as this lives.
pub(super) struct Single {
    collector: Arc<Collector>,
    key: Key,
    /// Whether it counts.
    counted: bool,
}

impl Single {
    /// About to be sent with this step. `None` where such requests never wait.
    pub(super) fn of(collector: &Arc<Collector>, step: &Step) -> Option<Self> {
        if !collector.flights.waits {
            return None;
        }
        let key = step.claim().key.clone();
        *collector.queue().singles.entry(key.clone()).or_default() += 1;
        Some(Self { collector: collector.clone(), key, counted: true })
    }

    /// It was answered; says whether steps may depart now that stood behind it.
    pub(super) fn end(mut self) -> bool {
        self.uncount()
    }

    fn uncount(&mut self) -> bool {
        if !std::mem::take(&mut self.counted) {
            return false;
        }
        let mut queue = self.collector.queue();
        let Entry::Occupied(mut singles) = queue.singles.entry(self.key.clone()) else {
            return false;
        };
        *singles.get_mut() -= 1;
        if *singles.get() > 0 {
            return false;
        }
        singles.remove();
        let was_blocked = queue.blocked.remove(&self.key);
        if was_blocked {
            let turns = (queue.next(), queue.next());
            queue.releases.unblock(&self.key, turns.0);
            queue.acquires.unblock(&self.key, turns.1);
        }
        was_blocked
    }
}

impl Drop for Single {
    fn drop(&mut self) {
        self.uncount();
    }
}

impl Collector {
    /// Puts steps back that were left out, and sends the first of each key by itself; or waits for the
    /// one that is under way.
    pub(super) fn send_alone(self: &Arc<Self>, left_out: Vec<Waiting>) {
        let mut first = Vec::new();
        {
            let mut queue = self.queue();
            let mut keys = Vec::new();
            for waiting in left_out {
                let is_refused = queue.closed && matches!(waiting.step, Step::Acquire { .. });
                if is_refused || waiting.told.is_closed() {
                    waiting.refuse(Told::Closed);
                    continue;
                }
                let key = waiting.step.claim().key.clone();
                if queue.blocked.insert(key.clone()) {
                    queue.releases.block(&key);
                    queue.acquires.block(&key);
                    keys.push(key);
                }
                queue.insert(waiting);
            }
            for key in keys {
                if !queue.singles.contains_key(&key)
                    && let Some(waiting) = queue.take_first(&key)
                {
                    queue.singles.insert(key.clone(), 1);
                    first.push((Single { collector: self.clone(), key, counted: true }, waiting));
                }
            }
        }
        for (single, waiting) in first {
            tokio::spawn(by_itself(single, waiting));
        }
    }
}

/// Sends a step by itself; then what stood behind it may depart. Where it waited in vain, so did the
/// steps behind it: otherwise each of many would wait as long, one after the other.
async fn by_itself(single: Single, waiting: Waiting) {
    let collector = single.collector.clone();
    let (key, begun) = (single.key.clone(), collector.queue().next());
    let answer = carry_alone(&collector, &waiting.step, waiting.latest, || ()).await;
    let mut behind = Vec::new();
    if let Some(Answer { reply: Err(error), .. }) = &answer
        && error.is_retryable()
    {
        let mut queue = collector.queue();
        behind = queue.acquires.take_before(&key, begun);
        // A release waits for longer than an acquire.
        if matches!(waiting.step, Step::Release { .. }) {
            behind.extend(queue.releases.take_before(&key, begun));
        }
    }
    let goes_on = single.end();
    match answer {
        Some(Answer { departed, mut reply }) => {
            for waiting in behind {
                let reply = reply.clone();
                let _ = waiting.told.send(Told::Answer(Answer { departed, reply }));
            }
            reply.iter_mut().for_each(|reply| reply.ambiguous += waiting.ambiguous);
            let _ = waiting.told.send(Told::Answer(Answer { departed, reply }));
        }
        None => waiting.refuse(Told::TooLate),
    }
    if goes_on {
        collector.go_on();
    }
}
