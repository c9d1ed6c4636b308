//! Limits of what is open at the same time, waiting requests or connections: in all, and for each
//! caller or peer.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use lockkit_core::driver::locked;

/// A quota with permits. Cheap to clone.
#[derive(Debug)]
pub(crate) struct Quota<K>(Arc<QuotaInner<K>>);

#[derive(Debug)]
struct QuotaInner<K> {
    /// In all, and of one.
    most: (usize, usize),
    taken: Mutex<Taken<K>>,
}

#[derive(Debug)]
struct Taken<K> {
    all: usize,
    by: HashMap<K, usize>,
}

/// A permit of a quota, until it is dropped.
#[derive(Debug)]
pub(crate) struct QuotaPermit<K: Eq + Hash>(Arc<QuotaInner<K>>, K);

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// This one has as many as it may.
    OfOne(usize),
    /// All are taken.
    OfAll(usize),
}

impl<K: Clone + Eq + Hash> Quota<K> {
    /// So many in all, and of one.
    pub(crate) fn new(all: usize, of_one: usize) -> Self {
        let taken = Mutex::new(Taken { all: 0, by: HashMap::new() });
        Self(Arc::new(QuotaInner { most: (all, of_one), taken }))
    }

    /// How many are taken.
    pub(crate) fn count(&self) -> usize {
        locked(&self.0.taken).all
    }

    /// A permit for one more.
    pub(crate) fn enter(&self, who: &K) -> Result<QuotaPermit<K>, Full> {
        let (most, most_of_one) = self.0.most;
        let mut taken = locked(&self.0.taken);
        let own = taken.by.get(who).copied().unwrap_or(0);
        if own >= most_of_one {
            return Err(Full::OfOne(most_of_one));
        }
        if taken.all >= most {
            return Err(Full::OfAll(most));
        }
        taken.all += 1;
        taken.by.insert(who.clone(), own + 1);
        Ok(QuotaPermit(self.0.clone(), who.clone()))
    }
}

impl<K: Eq + Hash> Drop for QuotaPermit<K> {
    fn drop(&mut self) {
        let mut taken = locked(&self.0.taken);
        taken.all -= 1;
        match taken.by.get_mut(&self.1) {
            Some(own) if *own > 1 => *own -= 1,
            // Nothing is kept of one that has none.
            _ => drop(taken.by.remove(&self.1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cannot_take_every_place_and_leaves_none_taken() {
        let places = Quota::new(3, 2);
        let first = places.enter(&"a").unwrap();
        let second = places.enter(&"a").unwrap();
        assert_eq!(places.enter(&"a").unwrap_err(), Full::OfOne(2));
        let third = places.enter(&"b").unwrap();
        assert_eq!(places.enter(&"b").unwrap_err(), Full::OfAll(3));
        drop(first);
        drop(places.enter(&"a").unwrap());
        assert_eq!(places.count(), 2);
        drop((second, third));
        assert_eq!(places.count(), 0);
        assert!(locked(&places.0.taken).by.is_empty());
    }
}
