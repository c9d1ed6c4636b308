//! The tasks that wait for claims of one queue, and which of them keeps the time.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::clock::Moment;

/// Whom to wake once the store is unlocked.
type WakeUps = Vec<Arc<Notify>>;

/// One operation on the store: when it is, and whom it wakes.
pub(super) struct StoreOperation {
    pub(super) now: Moment,
    pub(super) wake_ups: WakeUps,
}

/// Of the waiting claims those that a task waits for, by their sequence numbers. The first of them keeps
/// the time: it looks when the next lease ends.
#[derive(Debug)]
pub(super) struct WaitingTasks {
    by_place: BTreeMap<u64, Arc<Notify>>,
    timekeeper: u64,
    /// When the timekeeper looks again.
    wakes_at: Moment,
}

impl WaitingTasks {
    pub(super) fn new() -> Self {
        Self { by_place: BTreeMap::new(), timekeeper: 0, wakes_at: Moment::from_nanos(0) }
    }

    /// Hangs up a task; says until when its owner sleeps at most, if it keeps the time.
    pub(super) fn add(
        &mut self,
        sequence: u64,
        task: &Arc<Notify>,
        first_end: Option<Moment>,
    ) -> Option<Moment> {
        self.by_place.insert(sequence, task.clone());
        if self.by_place.first_key_value().is_some_and(|(first, _)| *first != sequence) {
            return None;
        }
        self.timekeeper = sequence;
        self.wakes_at = first_end?;
        first_end
    }

    /// Its owner waits no more.
    pub(super) fn remove(&mut self, sequence: u64, task: &Arc<Notify>) {
        if self.by_place.get(&sequence).is_some_and(|b| Arc::ptr_eq(b, task)) {
            self.by_place.remove(&sequence);
        }
    }

    /// Wakes the owner of a claim for which something changed.
    pub(super) fn wake(&mut self, sequence: u64, wake_ups: &mut WakeUps) {
        wake_ups.extend(self.by_place.remove(&sequence));
    }

    /// Makes sure that a task keeps the time. Every operation ends so.
    pub(super) fn arm_timer(&mut self, first_end: Option<Moment>, wake_ups: &mut WakeUps) {
        if let (Some((first, task)), Some(earliest)) = (self.by_place.first_key_value(), first_end)
            && (*first != self.timekeeper || earliest < self.wakes_at)
        {
            self.timekeeper = *first;
            self.wakes_at = earliest;
            wake_ups.push(task.clone());
        }
    }
}
