//! The claims of one queue in their order, found by sequence number, by id and by the end of their lease.
//! The rule is in [the parent module](super).
//!
//! Few claims are searched one by one, which needs no index and, for the one holder of an uncontended
//! lock, a single allocation. Many are indexed, so that every operation stays logarithmic.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::QueuedClaim;
use crate::claim::ClaimId;
use crate::clock::Moment;

/// From this many claims on, the queue is indexed.
const MANY: usize = 9;
/// At this many, the index goes again.
const FEW: usize = 2;

#[derive(Debug)]
pub(super) enum OrderedEntries<W> {
    Few(Vec<QueuedClaim<W>>),
    Many(Box<Indexed<W>>),
}

#[derive(Debug)]
pub(super) struct Indexed<W> {
    entries: BTreeMap<u64, (QueuedClaim<W>, usize)>,
    by_id: HashMap<ClaimId, u64>,
    ends: BTreeSet<(Moment, u64)>,
    slots: SlotCounts,
}

impl<W> OrderedEntries<W> {
    pub(super) fn new() -> Self {
        Self::Few(Vec::with_capacity(1))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(entries) => entries.len(),
            Self::Many(indexed) => indexed.entries.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a claim at the end; its sequence number is greater than all others.
    pub(super) fn push(&mut self, entry: QueuedClaim<W>) {
        match self {
            Self::Few(entries) if entries.len() + 1 < MANY => entries.push(entry),
            Self::Few(entries) => {
                let mut indexed = Box::new(Indexed::new());
                for entry in entries.drain(..) {
                    indexed.push(entry);
                }
                indexed.push(entry);
                *self = Self::Many(indexed);
            }
            Self::Many(indexed) => indexed.push(entry),
        }
    }

    pub(super) fn remove(&mut self, sequence: u64) -> Option<QueuedClaim<W>> {
        match self {
            Self::Few(entries) => {
                let at = entries.iter().position(|e| e.sequence == sequence)?;
                Some(entries.remove(at))
            }
            Self::Many(indexed) => {
                let entry = indexed.remove(sequence)?;
                if indexed.entries.len() <= FEW {
                    let entries = std::mem::take(&mut indexed.entries);
                    *self = Self::Few(entries.into_values().map(|(e, _)| e).collect());
                }
                Some(entry)
            }
        }
    }

    pub(super) fn find(&self, id: &ClaimId) -> Option<u64> {
        match self {
            Self::Few(entries) => entries.iter().find(|e| e.id == *id).map(|e| e.sequence),
            Self::Many(indexed) => indexed.by_id.get(id).copied(),
        }
    }

    pub(super) fn get(&self, sequence: u64) -> Option<&QueuedClaim<W>> {
        match self {
            Self::Few(entries) => entries.iter().find(|e| e.sequence == sequence),
            Self::Many(indexed) => indexed.entries.get(&sequence).map(|(e, _)| e),
        }
    }

    pub(super) fn get_mut(&mut self, sequence: u64) -> Option<&mut QueuedClaim<W>> {
        match self {
            Self::Few(entries) => entries.iter_mut().find(|e| e.sequence == sequence),
            Self::Many(indexed) => indexed.entries.get_mut(&sequence).map(|(e, _)| e),
        }
    }

    /// The first claim whose sequence number is at least this.
    pub(super) fn first_from(&self, sequence: u64) -> Option<&QueuedClaim<W>> {
        match self {
            Self::Few(entries) => entries.iter().find(|e| e.sequence >= sequence),
            Self::Many(indexed) => indexed.entries.range(sequence..).next().map(|(_, (e, _))| e),
        }
    }

    /// How many claims are ahead of this sequence number.
    pub(super) fn ahead(&self, sequence: u64) -> usize {
        match self {
            Self::Few(entries) => entries.iter().take_while(|e| e.sequence < sequence).count(),
            Self::Many(indexed) => match indexed.entries.get(&sequence) {
                Some((_, slot)) => indexed.slots.ahead(*slot),
                None => indexed.entries.len(),
            },
        }
    }

    /// The lease that ends first: when, and whose.
    pub(super) fn earliest(&self) -> Option<(Moment, u64)> {
        match self {
            Self::Few(entries) => entries.iter().map(|e| (e.expires, e.sequence)).min(),
            Self::Many(indexed) => indexed.ends.first().copied(),
        }
    }

    pub(super) fn set_expiry(&mut self, sequence: u64, expires: Moment) {
        if let Self::Many(indexed) = self
            && let Some((entry, _)) = indexed.entries.get(&sequence)
        {
            indexed.ends.remove(&(entry.expires, sequence));
            indexed.ends.insert((expires, sequence));
        }
        if let Some(entry) = self.get_mut(sequence) {
            entry.expires = expires;
        }
    }

    /// All claims in their order.
    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = &QueuedClaim<W>> + '_> {
        match self {
            Self::Few(entries) => Box::new(entries.iter()),
            Self::Many(indexed) => Box::new(indexed.entries.values().map(|(e, _)| e)),
        }
    }
}

impl<W> Indexed<W> {
    fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            by_id: HashMap::new(),
            ends: BTreeSet::new(),
            slots: SlotCounts::default(),
        }
    }

    fn push(&mut self, entry: QueuedClaim<W>) {
        if self.slots.is_sparse(self.entries.len()) {
            self.slots = SlotCounts::default();
            for (_, slot) in self.entries.values_mut() {
                *slot = self.slots.push();
            }
        }
        self.by_id.insert(entry.id, entry.sequence);
        self.ends.insert((entry.expires, entry.sequence));
        let slot = self.slots.push();
        self.entries.insert(entry.sequence, (entry, slot));
    }

    fn remove(&mut self, sequence: u64) -> Option<QueuedClaim<W>> {
        let (entry, slot) = self.entries.remove(&sequence)?;
        self.by_id.remove(&entry.id);
        self.ends.remove(&(entry.expires, sequence));
        self.slots.remove(slot);
        // Returns the memory of many claims that have left.
        if self.by_id.capacity() > 64 && self.by_id.len() * 8 < self.by_id.capacity() {
            self.by_id.shrink_to(self.by_id.len() * 2);
        }
        Some(entry)
    }
}

/// Slots 0, 1, 2 …, each taken or empty, in the order of the claims.
#[derive(Debug, Default)]
pub(super) struct SlotCounts {
    /// Item `i - 1` counts the taken ones of the `i & -i` slots that end with slot `i - 1`.
    sums: Vec<u32>,
}

impl SlotCounts {
    /// Takes the next slot.
    pub(super) fn push(&mut self) -> usize {
        let slot = self.sums.len();
        let i = slot + 1;
        let mut sum = 1;
        let mut step = 1;
        while step < lowest_bit(i) {
            sum += self.sums[i - step - 1];
            step *= 2;
        }
        self.sums.push(sum);
        slot
    }

    /// Empties a taken slot.
    pub(super) fn remove(&mut self, slot: usize) {
        let mut i = slot + 1;
        while i <= self.sums.len() {
            self.sums[i - 1] -= 1;
            i += lowest_bit(i);
        }
    }

    /// How many slots before this one are taken.
    pub(super) fn ahead(&self, slot: usize) -> usize {
        let mut ahead = 0;
        let mut i = slot;
        while i > 0 {
            ahead += self.sums[i - 1] as usize;
            i -= lowest_bit(i);
        }
        ahead
    }

    /// Whether most slots are empty, `taken` being taken: time to give out new ones. Every
    /// renumbering is paid for by as many pushes before it.
    pub(super) fn is_sparse(&self, taken: usize) -> bool {
        self.sums.len() > 2 * taken + 64
    }
}

fn lowest_bit(i: usize) -> usize {
    i & i.wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_ahead_is_that_of_the_taken_places_before() {
        let mut slots = SlotCounts::default();
        let mut taken = Vec::new();
        for round in 0..300_usize {
            assert_eq!(slots.push(), round);
            taken.push(true);
            let leaver = round * 7 % (round + 1);
            if round % 3 != 0 && std::mem::replace(&mut taken[leaver], false) {
                slots.remove(leaver);
            }
            for slot in 0..=round {
                let naive = taken[..slot].iter().filter(|t| **t).count();
                assert_eq!(slots.ahead(slot), naive);
            }
        }
    }
}
