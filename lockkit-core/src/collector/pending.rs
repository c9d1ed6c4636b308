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
    /// The keys, in the order of their turns.
    turns: BTreeMap<u64, Key>,
}

/// The steps of one key, in order.
struct KeyQueue {
    numbers: BTreeSet<u64>,
    turn: u64,
}

impl Pending {
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.steps.contains_key(&number)
    }

    /// Adds a step. A key that had none gets a turn of the step's number.
    pub(super) fn insert(&mut self, waiting: Waiting) {
        let key = &waiting.step.claim().key;
        let queue = match self.keys.entry(key.clone()) {
            Entry::Occupied(queue) => queue.into_mut(),
            Entry::Vacant(place) => {
                let turn = waiting.number;
                self.turns.insert(turn, key.clone());
                place.insert(KeyQueue { numbers: BTreeSet::new(), turn })
            }
        };
        queue.numbers.insert(waiting.number);
        self.steps.insert(waiting.number, waiting);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.steps.remove(&number)?;
        let key = &waiting.step.claim().key;
        if let Some(queue) = self.keys.get_mut(key) {
            queue.numbers.remove(&number);
            if queue.numbers.is_empty() {
                self.turns.remove(&queue.turn);
                self.keys.remove(key);
            }
        }
        Some(waiting)
    }

    /// Removes all steps.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Waiting> + use<> {
        std::mem::take(self).steps.into_values()
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
            let Some(number) = self.keys[key].numbers.first().copied() else { break };
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
        batch.add(self.steps.remove(&number));
        let Some(queue) = self.keys.get_mut(&key) else { return };
        queue.numbers.remove(&number);
        if queue.numbers.is_empty() {
            self.keys.remove(&key);
            return;
        }
        queue.turn = *next;
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
