//! The claims of one list in their order, found by place, by id and by the end of their lease. It
//! keeps them; what they may do is [`line`](super)'s business.
//!
//! Few claims are looked through, which costs no index and, for the one holder of an uncontended
//! lock, a single allocation. Many are indexed, so that everything stays logarithmic.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Entry;
use crate::claim::ClaimId;
use crate::clock::Moment;

/// From this many claims on, a list is indexed.
const MANY: usize = 9;
/// At this many, it is looked through again.
const FEW: usize = 2;

#[derive(Debug)]
pub(super) enum OrderedEntries<W> {
    Few(Vec<Entry<W>>),
    Many(Box<Indexed<W>>),
}

#[derive(Debug)]
pub(super) struct Indexed<W> {
    entries: BTreeMap<u64, (Entry<W>, usize)>,
    by_id: HashMap<ClaimId, u64>,
    ends: BTreeSet<(Moment, u64)>,
    places: Places,
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

    /// Puts a claim at the end; its place is greater than all others.
    pub(super) fn push(&mut self, entry: Entry<W>) {
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

    pub(super) fn remove(&mut self, place: u64) -> Option<Entry<W>> {
        match self {
            Self::Few(entries) => {
                let at = entries.iter().position(|e| e.place == place)?;
                Some(entries.remove(at))
            }
            Self::Many(indexed) => {
                let entry = indexed.remove(place)?;
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
            Self::Few(entries) => entries.iter().find(|e| e.id == *id).map(|e| e.place),
            Self::Many(indexed) => indexed.by_id.get(id).copied(),
        }
    }

    pub(super) fn get(&self, place: u64) -> Option<&Entry<W>> {
        match self {
            Self::Few(entries) => entries.iter().find(|e| e.place == place),
            Self::Many(indexed) => indexed.entries.get(&place).map(|(e, _)| e),
        }
    }

    pub(super) fn get_mut(&mut self, place: u64) -> Option<&mut Entry<W>> {
        match self {
            Self::Few(entries) => entries.iter_mut().find(|e| e.place == place),
            Self::Many(indexed) => indexed.entries.get_mut(&place).map(|(e, _)| e),
        }
    }

    /// The first claim whose place is at least `place`.
    pub(super) fn first_from(&self, place: u64) -> Option<&Entry<W>> {
        match self {
            Self::Few(entries) => entries.iter().find(|e| e.place >= place),
            Self::Many(indexed) => indexed.entries.range(place..).next().map(|(_, (e, _))| e),
        }
    }

    /// How many claims stand ahead of this place.
    pub(super) fn ahead(&self, place: u64) -> usize {
        match self {
            Self::Few(entries) => entries.iter().take_while(|e| e.place < place).count(),
            Self::Many(indexed) => match indexed.entries.get(&place) {
                Some((_, position)) => indexed.places.ahead(*position),
                None => indexed.entries.len(),
            },
        }
    }

    /// The lease that ends first: when, and whose.
    pub(super) fn earliest(&self) -> Option<(Moment, u64)> {
        match self {
            Self::Few(entries) => entries.iter().map(|e| (e.expires, e.place)).min(),
            Self::Many(indexed) => indexed.ends.first().copied(),
        }
    }

    pub(super) fn set_expiry(&mut self, place: u64, expires: Moment) {
        if let Self::Many(indexed) = self
            && let Some((entry, _)) = indexed.entries.get(&place)
        {
            indexed.ends.remove(&(entry.expires, place));
            indexed.ends.insert((expires, place));
        }
        if let Some(entry) = self.get_mut(place) {
            entry.expires = expires;
        }
    }

    /// All claims in their order.
    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = &Entry<W>> + '_> {
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
            places: Places::default(),
        }
    }

    fn push(&mut self, entry: Entry<W>) {
        if self.places.is_sparse(self.entries.len()) {
            self.places = Places::default();
            for (_, position) in self.entries.values_mut() {
                *position = self.places.push();
            }
        }
        self.by_id.insert(entry.id, entry.place);
        self.ends.insert((entry.expires, entry.place));
        let position = self.places.push();
        self.entries.insert(entry.place, (entry, position));
    }

    fn remove(&mut self, place: u64) -> Option<Entry<W>> {
        let (entry, position) = self.entries.remove(&place)?;
        self.by_id.remove(&entry.id);
        self.ends.remove(&(entry.expires, place));
        self.places.remove(position);
        // A crowd that has gone leaves no room behind.
        if self.by_id.capacity() > 64 && self.by_id.len() * 8 < self.by_id.capacity() {
            self.by_id.shrink_to(self.by_id.len() * 2);
        }
        Some(entry)
    }
}

/// Places 0, 1, 2 …, each taken or empty.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Item `i - 1` sums the taken places of the `i & -i` places that end with place `i - 1`.
    sums: Vec<u32>,
}

impl Places {
    /// Takes the next place.
    pub(super) fn push(&mut self) -> usize {
        let place = self.sums.len();
        let i = place + 1;
        let mut sum = 1;
        let mut step = 1;
        while step < lowest_bit(i) {
            sum += self.sums[i - step - 1];
            step *= 2;
        }
        self.sums.push(sum);
        place
    }

    /// Empties a taken place.
    pub(super) fn remove(&mut self, place: usize) {
        let mut i = place + 1;
        while i <= self.sums.len() {
            self.sums[i - 1] -= 1;
            i += lowest_bit(i);
        }
    }

    /// How many places before this one are taken.
    pub(super) fn ahead(&self, place: usize) -> usize {
        let mut ahead = 0;
        let mut i = place;
        while i > 0 {
            ahead += self.sums[i - 1] as usize;
            i -= lowest_bit(i);
        }
        ahead
    }

    /// Whether most places are empty, `taken` being taken: time to give out new ones. Every
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
        let mut places = Places::default();
        let mut taken = Vec::new();
        for round in 0..300_usize {
            assert_eq!(places.push(), round);
            taken.push(true);
            let leaver = round * 7 % (round + 1);
            if round % 3 != 0 && std::mem::replace(&mut taken[leaver], false) {
                places.remove(leaver);
            }
            for place in 0..=round {
                let naive = taken[..place].iter().filter(|t| **t).count();
                assert_eq!(places.ahead(place), naive);
            }
        }
    }
}
