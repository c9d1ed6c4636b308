//! The tasks that wait for claims of one queue, and which of them keeps the time.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::clock::Moment;

/// Whom to wake once the store is unlocked.
pub(super) type Calls = Vec<Arc<Notify>>;

/// Of the waiting claims those that somebody waits for, by their places. The first of them keeps
/// the time: it looks when the next lease ends.
#[derive(Debug)]
pub(super) struct Bells {
    by_place: BTreeMap<u64, Arc<Notify>>,
    timekeeper: u64,
    /// When the timekeeper looks again.
    armed: Moment,
}

impl Bells {
    pub(super) fn new() -> Self {
        Self { by_place: BTreeMap::new(), timekeeper: 0, armed: Moment::from_nanos(0) }
    }

    /// Hangs up a bell; says until when its owner sleeps at most, if it keeps the time.
    pub(super) fn hang(
        &mut self,
        place: u64,
        bell: &Arc<Notify>,
        first_end: Option<Moment>,
    ) -> Option<Moment> {
        self.by_place.insert(place, bell.clone());
        if self.by_place.first_key_value().is_some_and(|(first, _)| *first != place) {
            return None;
        }
        self.timekeeper = place;
        self.armed = first_end?;
        first_end
    }

    /// Its owner waits no more.
    pub(super) fn take_down(&mut self, place: u64, bell: &Arc<Notify>) {
        if self.by_place.get(&place).is_some_and(|b| Arc::ptr_eq(b, bell)) {
            self.by_place.remove(&place);
        }
    }

    /// Wakes the owner of a claim for which something changed.
    pub(super) fn ring(&mut self, place: u64, calls: &mut Calls) {
        calls.extend(self.by_place.remove(&place));
    }

    /// Sees to it that somebody keeps the time. Every verb ends so.
    pub(super) fn wind(&mut self, first_end: Option<Moment>, calls: &mut Calls) {
        if let (Some((first, bell)), Some(earliest)) = (self.by_place.first_key_value(), first_end)
            && (*first != self.timekeeper || earliest < self.armed)
        {
            self.timekeeper = *first;
            self.armed = earliest;
            calls.push(bell.clone());
        }
    }
}
