//! Steps that have not departed: a queue for each key, and the order in which the keys take turns.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::Waiting;
use crate::Key;
use crate::capabilities::Flights;
use crate::driver::ClaimId;

/// Pending steps of one kind: all acquires, or all releases.
///
/// Keys take turns: one whose step departed comes after those that wait already, so a crowd at one
/// key delays another by one turn, however large it is. Nothing of a key stays when it has no step.
#[derive(Default)]
pub(super) struct Pending {
    steps: BTreeMap<u64, Waiting>,
    keys: HashMap<Key, KeyQueue>,
    /// The keys whose steps may depart, in the order of their turns.
    turns: BTreeMap<u64, Key>,
    /// How many steps those keys have.
    ready: usize,
}

/// The steps of one key, in order.
struct KeyQueue {
    numbers: BTreeSet<u64>,
    /// `None` while the key is blocked.
    turn: Option<u64>,
}

impl Pending {
    /// How many steps may depart.
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.steps.contains_key(&number)
    }

    /// Whether the key of this step is blocked.
    pub(super) fn is_blocked(&self, number: u64) -> bool {
        let key = self.steps.get(&number).map(|waiting| &waiting.step.claim().key);
        key.and_then(|key| self.keys.get(key)).is_some_and(|queue| queue.turn.is_none())
    }

    /// Adds a step. A key that had none gets a turn of the step's number, unless it is blocked.
    pub(super) fn insert(&mut self, waiting: Waiting, blocked: bool) {
        let key = &waiting.step.claim().key;
        let queue = match self.keys.entry(key.clone()) {
            Entry::Occupied(queue) => queue.into_mut(),
            Entry::Vacant(place) => {
                let turn = (!blocked).then_some(waiting.number);
                if let Some(turn) = turn {
                    self.turns.insert(turn, key.clone());
                }
                place.insert(KeyQueue { numbers: BTreeSet::new(), turn })
            }
        };
        queue.numbers.insert(waiting.number);
        self.ready += usize::from(queue.turn.is_some());
        self.steps.insert(waiting.number, waiting);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.steps.remove(&number)?;
        let key = &waiting.step.claim().key;
        if let Some(queue) = self.keys.get_mut(key) {
            queue.numbers.remove(&number);
            self.ready -= usize::from(queue.turn.is_some());
            if queue.numbers.is_empty() {
                if let Some(turn) = queue.turn {
                    self.turns.remove(&turn);
                }
                self.keys.remove(key);
            }
        }
        Some(waiting)
    }

    /// Removes all steps.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Waiting> + use<> {
        std::mem::take(self).steps.into_values()
    }

    /// Removes the steps of a key that were added before this number was given.
    pub(super) fn take_before(&mut self, key: &Key, number: u64) -> Vec<Waiting> {
        let numbers = self.keys.get(key).map(|queue| queue.numbers.range(..number).copied());
        let numbers: Vec<_> = numbers.into_iter().flatten().collect();
        numbers.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    /// The number of the first step of a key.
    pub(super) fn first_of(&self, key: &Key) -> Option<u64> {
        self.keys.get(key)?.numbers.first().copied()
    }

    /// No step of this key departs until it is unblocked.
    pub(super) fn block(&mut self, key: &Key) {
        if let Some(queue) = self.keys.get_mut(key)
            && let Some(turn) = queue.turn.take()
        {
            self.turns.remove(&turn);
            self.ready -= queue.numbers.len();
        }
    }

    /// The steps of this key may depart, from this turn on.
    pub(super) fn unblock(&mut self, key: &Key, turn: u64) {
        if let Some(queue) = self.keys.get_mut(key)
            && queue.turn.is_none()
        {
            queue.turn = Some(turn);
            self.turns.insert(turn, key.clone());
            self.ready += queue.numbers.len();
        }
    }

    /// Moves steps into a batch, as the keys take turns, until it is full. With `once` it takes no key
    /// twice. `next` is the number of the next turn.
    pub(super) fn fill(&mut self, batch: &mut Batch, once: bool, next: &mut u64) {
        let end = *next;
        let mut repeated = Vec::new();
        while let Some((turn, key)) = self.turns.first_key_value() {
            if once && *turn >= end {
                break;
            }
            let Some(number) = self.first_of(key) else { break };
            match batch.fits(&self.steps[&number]) {
                Fits::Yes => self.take_turn(number, batch, next),
                Fits::Repeated => repeated.extend(self.turns.pop_first()),
                Fits::No => break,
            }
        }
        self.turns.extend(repeated);
    }

    /// Moves the first step of the key whose turn it is.
    fn take_turn(&mut self, number: u64, batch: &mut Batch, next: &mut u64) {
        let Some((_, key)) = self.turns.pop_first() else { return };
        self.ready -= 1;
        batch.add(self.steps.remove(&number));
        let Some(queue) = self.keys.get_mut(&key) else { return };
        queue.numbers.remove(&number);
        if queue.numbers.is_empty() {
            self.keys.remove(&key);
            return;
        }
        queue.turn = Some(*next);
        self.turns.insert(*next, key);
        *next += 1;
    }
}

/// Steps that depart together.
pub(super) struct Batch {
    limits: Flights,
    pub(super) steps: Vec<Waiting>,
    /// Each claim has one step in a batch.
    claims: HashSet<ClaimId>,
    weight: usize,
}

enum Fits {
    Yes,
    /// Another step of the same claim is in the batch.
    Repeated,
    /// The batch is full.
    No,
}

impl Batch {
    pub(super) fn new(limits: Flights) -> Self {
        Self { limits, steps: Vec::new(), claims: HashSet::new(), weight: 0 }
    }

    fn fits(&self, waiting: &Waiting) -> Fits {
        let claim = waiting.step.claim();
        let heavier = self.weight.saturating_add(claim.weight());
        let is_full = self.steps.len() == self.limits.steps;
        if is_full || (heavier > self.limits.bytes && !self.steps.is_empty()) {
            return Fits::No;
        }
        match self.claims.contains(&claim.id) {
            true => Fits::Repeated,
            false => Fits::Yes,
        }
    }

    fn add(&mut self, waiting: Option<Waiting>) {
        if let Some(waiting) = waiting {
            let claim = waiting.step.claim();
            self.weight = self.weight.saturating_add(claim.weight());
            self.claims.insert(claim.id);
            self.steps.push(waiting);
        }
    }
}
