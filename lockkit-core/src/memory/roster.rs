//! The claims of one list in their order, found by place, by id and by the end of their lease. It
//! keeps them; what they may do is [`line`](super::line)'s business.
//!
//! Few claims are looked through, which costs no index and, for the one holder of an uncontended
//! lock, a single allocation. Many are indexed, so that everything stays logarithmic.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::places::Places;
use crate::clock::Moment;
use crate::{BreakRecord, Claim, ClaimId, Mode, Token};

/// A claim that stands in a list.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) claim: Arc<Claim>,
    /// Its place in the order: the token that it was given when it came. (A raise changes the
    /// token, never the place.)
    pub(super) seq: u64,
    pub(super) token: Token,
    /// The claim's mode, until a downgrade.
    pub(super) mode: Mode,
    /// The claim's, or that of the last renewal.
    pub(super) hold_ttl: Duration,
    /// Only [`Roster::set_expiry`] changes it.
    expires: Moment,
    pub(super) queued_at: Moment,
    pub(super) held_since: Option<Moment>,
    pub(super) broken: Option<Arc<BreakRecord>>,
}

impl Entry {
    /// A claim that comes now, with this token.
    pub(super) fn new(claim: &Arc<Claim>, token: Token, now: Moment, holds: bool) -> Self {
        let ttl = if holds { claim.hold_ttl } else { claim.wait_ttl };
        Self {
            claim: claim.clone(),
            seq: token.get(),
            token,
            mode: claim.mode,
            hold_ttl: claim.hold_ttl,
            expires: now.after(ttl),
            queued_at: now,
            held_since: holds.then_some(now),
            broken: None,
        }
    }

    pub(super) fn holds(&self) -> bool {
        self.held_since.is_some()
    }

    pub(super) fn expires(&self) -> Moment {
        self.expires
    }

    /// A lease of `ttl` that begins now has ended when `ttl` has passed.
    pub(super) fn is_live(&self, now: Moment) -> bool {
        now < self.expires
    }
}

/// From this many claims on, a list is indexed.
const MANY: usize = 9;
/// At this many, it is looked through again.
const FEW: usize = 2;

#[derive(Debug)]
pub(super) enum Roster {
    Few(Vec<Entry>),
    Many(Box<Indexed>),
}

#[derive(Debug, Default)]
pub(super) struct Indexed {
    entries: BTreeMap<u64, (Entry, usize)>,
    by_id: HashMap<ClaimId, u64>,
    ends: BTreeSet<(Moment, u64)>,
    places: Places,
}

impl Roster {
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
    pub(super) fn push(&mut self, entry: Entry) {
        match self {
            Self::Few(entries) if entries.len() + 1 < MANY => entries.push(entry),
            Self::Few(entries) => {
                let mut indexed = Box::<Indexed>::default();
                for entry in entries.drain(..) {
                    indexed.push(entry);
                }
                indexed.push(entry);
                *self = Self::Many(indexed);
            }
            Self::Many(indexed) => indexed.push(entry),
        }
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<Entry> {
        match self {
            Self::Few(entries) => {
                let at = entries.iter().position(|e| e.seq == seq)?;
                Some(entries.remove(at))
            }
            Self::Many(indexed) => {
                let entry = indexed.remove(seq)?;
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
            Self::Few(entries) => entries.iter().find(|e| e.claim.id == *id).map(|e| e.seq),
            Self::Many(indexed) => indexed.by_id.get(id).copied(),
        }
    }

    pub(super) fn get(&self, seq: u64) -> Option<&Entry> {
        match self {
            Self::Few(entries) => entries.iter().find(|e| e.seq == seq),
            Self::Many(indexed) => indexed.entries.get(&seq).map(|(e, _)| e),
        }
    }

    pub(super) fn get_mut(&mut self, seq: u64) -> Option<&mut Entry> {
        match self {
            Self::Few(entries) => entries.iter_mut().find(|e| e.seq == seq),
            Self::Many(indexed) => indexed.entries.get_mut(&seq).map(|(e, _)| e),
        }
    }

    /// The first claim whose place is at least `seq`.
    pub(super) fn first_from(&self, seq: u64) -> Option<&Entry> {
        match self {
            Self::Few(entries) => entries.iter().find(|e| e.seq >= seq),
            Self::Many(indexed) => indexed.entries.range(seq..).next().map(|(_, (e, _))| e),
        }
    }

    /// How many claims stand ahead of this place.
    pub(super) fn ahead(&self, seq: u64) -> usize {
        match self {
            Self::Few(entries) => entries.iter().take_while(|e| e.seq < seq).count(),
            Self::Many(indexed) => match indexed.entries.get(&seq) {
                Some((_, place)) => indexed.places.ahead(*place),
                None => indexed.entries.len(),
            },
        }
    }

    /// The lease that ends first: when, and whose.
    pub(super) fn earliest(&self) -> Option<(Moment, u64)> {
        match self {
            Self::Few(entries) => entries.iter().map(|e| (e.expires, e.seq)).min(),
            Self::Many(indexed) => indexed.ends.first().copied(),
        }
    }

    pub(super) fn set_expiry(&mut self, seq: u64, expires: Moment) {
        if let Self::Many(indexed) = self
            && let Some((entry, _)) = indexed.entries.get(&seq)
        {
            indexed.ends.remove(&(entry.expires, seq));
            indexed.ends.insert((expires, seq));
        }
        if let Some(entry) = self.get_mut(seq) {
            entry.expires = expires;
        }
    }

    /// All claims in their order.
    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = &Entry> + '_> {
        match self {
            Self::Few(entries) => Box::new(entries.iter()),
            Self::Many(indexed) => Box::new(indexed.entries.values().map(|(e, _)| e)),
        }
    }
}

impl Indexed {
    fn push(&mut self, entry: Entry) {
        if self.places.is_sparse(self.entries.len()) {
            self.places = Places::default();
            for (_, place) in self.entries.values_mut() {
                *place = self.places.push();
            }
        }
        self.by_id.insert(entry.claim.id, entry.seq);
        self.ends.insert((entry.expires, entry.seq));
        let place = self.places.push();
        self.entries.insert(entry.seq, (entry, place));
    }

    fn remove(&mut self, seq: u64) -> Option<Entry> {
        let (entry, place) = self.entries.remove(&seq)?;
        self.by_id.remove(&entry.claim.id);
        self.ends.remove(&(entry.expires, seq));
        self.places.remove(place);
        // A crowd that has gone leaves no room behind.
        if self.by_id.capacity() > 64 && self.by_id.len() * 8 < self.by_id.capacity() {
            self.by_id.shrink_to(self.by_id.len() * 2);
        }
        Some(entry)
    }
}
