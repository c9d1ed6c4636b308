//! Pending operations: a queue for each key, and the order in which the keys take turns.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::{NotSubmitted, SubmitResult};
use crate::capabilities::BatchLimits;
use crate::clock::Moment;
use crate::driver::{Acquire, Acquisition, ClaimId, Patience};
use crate::{Claim, Key};

/// An operation that was not submitted yet: an acquire or a release, by its result.
pub(crate) struct PendingOperation<T> {
    /// Numbers grow in the order in which operations were asked for.
    pub(super) number: u64,
    pub(super) claim: Arc<Claim>,
    /// Of an acquire.
    pub(super) patience: Patience,
    /// Not to be submitted after this.
    pub(super) latest: Option<Moment>,
    /// How many earlier requests with it got no answer.
    pub(super) ambiguous: u32,
    pub(super) outcome: oneshot::Sender<SubmitResult<T>>,
}

impl<T> PendingOperation<T> {
    /// Says why it is not submitted: only where no earlier request may have carried it out.
    pub(super) fn refuse(self, why: NotSubmitted) {
        if self.ambiguous == 0 {
            let _ = self.outcome.send(Err(why));
        }
    }
}

impl PendingOperation<Acquisition> {
    pub(super) fn acquire(&self) -> Acquire {
        Acquire { claim: self.claim.clone(), patience: self.patience }
    }
}

/// Pending operations of one kind: all acquires, or all releases.
///
/// Keys take turns: one of which an operation was submitted comes after those that wait already, so a
/// crowd at one key delays another by one turn, however large it is.
pub(crate) struct Queue<T> {
    keys: HashMap<Key, KeyQueue<T>>,
    /// The keys with operations, except blocked ones.
    turns: VecDeque<Key>,
    len: usize,
}

/// The operations of one key, in order.
struct KeyQueue<T> {
    operations: BTreeMap<u64, PendingOperation<T>>,
    /// Whether the key is in the order of turns. One whose last operation was withdrawn stays there
    /// until its turn.
    is_scheduled: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { keys: HashMap::new(), turns: VecDeque::new(), len: 0 }
    }
}

impl<T> Queue<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn contains(&self, key: &Key, number: u64) -> bool {
        self.keys.get(key).is_some_and(|queue| queue.operations.contains_key(&number))
    }

    /// Adds an operation; one that was taken out before goes back to where it was among those of its key.
    pub(super) fn insert(&mut self, pending: PendingOperation<T>) {
        let key = &pending.claim.key;
        self.len += 1;
        if let Some(queue) = self.keys.get_mut(key) {
            if !queue.is_scheduled {
                queue.is_scheduled = true;
                self.turns.push_back(key.clone());
            }
            queue.operations.insert(pending.number, pending);
            return;
        }
        let key = key.clone();
        self.turns.push_back(key.clone());
        let operations = BTreeMap::from([(pending.number, pending)]);
        self.keys.insert(key, KeyQueue { operations, is_scheduled: true });
    }

    pub(super) fn remove(&mut self, key: &Key, number: u64) -> Option<PendingOperation<T>> {
        let queue = self.keys.get_mut(key)?;
        let removed = queue.operations.remove(&number)?;
        self.len -= 1;
        if queue.operations.is_empty() && !queue.is_scheduled {
            self.keys.remove(key);
        }
        Some(removed)
    }

    /// Removes all operations.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = PendingOperation<T>> + use<T> {
        let keys = std::mem::take(self).keys.into_values();
        keys.flat_map(|queue| queue.operations.into_values())
    }

    /// The number of the first operation of a key.
    pub(super) fn first_of(&self, key: &Key) -> Option<u64> {
        self.keys.get(key)?.operations.first_key_value().map(|(number, _)| *number)
    }

    /// Removes the operations of a key that were asked for before this number was given.
    pub(super) fn take_before(&mut self, key: &Key, number: u64) -> Vec<PendingOperation<T>> {
        let numbers = self.keys.get(key).map(|queue| queue.operations.range(..number));
        let numbers: Vec<_> = numbers.into_iter().flatten().map(|(number, _)| *number).collect();
        numbers.into_iter().filter_map(|number| self.remove(key, number)).collect()
    }

    /// A key that was blocked takes turns again.
    pub(super) fn unblock(&mut self, key: &Key) {
        if let Some(queue) = self.keys.get_mut(key)
            && !std::mem::replace(&mut queue.is_scheduled, true)
        {
            self.turns.push_back(key.clone());
        }
    }

    /// Takes operations for a batch, as the keys take turns, until it is full. With `once` it takes no
    /// key twice.
    pub(super) fn fill(
        &mut self,
        batch: &mut BatchCapacity,
        once: bool,
        is_blocked: impl Fn(&Key) -> bool,
    ) -> Vec<PendingOperation<T>> {
        let mut taken = Vec::new();
        loop {
            let before = taken.len();
            for _ in 0..self.turns.len() {
                let Some(key) = self.turns.pop_front() else { break };
                let Some(queue) = self.keys.get_mut(&key) else { continue };
                let Some(first) = queue.operations.first_entry() else {
                    self.keys.remove(&key);
                    continue;
                };
                if is_blocked(&key) {
                    queue.is_scheduled = false;
                    continue;
                }
                match batch.fits(&first.get().claim) {
                    Fits::Yes => {
                        self.len -= 1;
                        taken.push(first.remove());
                        if queue.operations.is_empty() {
                            self.keys.remove(&key);
                            continue;
                        }
                    }
                    Fits::Repeated => {}
                    Fits::No => {
                        self.turns.push_front(key);
                        return taken;
                    }
                }
                self.turns.push_back(key);
            }
            if once || taken.len() == before {
                return taken;
            }
        }
    }
}

/// What a batch has room for.
pub(super) struct BatchCapacity {
    limits: BatchLimits,
    operations: usize,
    bytes: usize,
    /// Each claim has one operation in a batch.
    claims: HashSet<ClaimId>,
}

enum Fits {
    Yes,
    /// Another operation of the same claim is in the batch.
    Repeated,
    /// The batch is full.
    No,
}

impl BatchCapacity {
    pub(super) fn new(limits: BatchLimits) -> Self {
        Self { limits, operations: 0, bytes: 0, claims: HashSet::new() }
    }

    /// Takes the room for an operation of this claim, where there is some.
    fn fits(&mut self, claim: &Claim) -> Fits {
        let bytes = self.bytes.saturating_add(claim.weight());
        let is_full = self.operations >= self.limits.operations;
        if is_full || (bytes > self.limits.bytes && self.operations > 0) {
            return Fits::No;
        }
        if !self.claims.insert(claim.id) {
            return Fits::Repeated;
        }
        self.operations += 1;
        self.bytes = bytes;
        Fits::Yes
    }
}
