//! A map whose items are kept for a stated time, and forgotten in passing. No timers.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::Moment;

#[derive(Debug)]
pub(super) struct Fading<K, V> {
    items: BTreeMap<K, (V, Moment)>,
    ends: BTreeSet<(Moment, K)>,
}

impl<K: Ord + Clone, V> Fading<K, V> {
    pub(super) fn new() -> Self {
        Self { items: BTreeMap::new(), ends: BTreeSet::new() }
    }

    /// Guarantee `value` until then, in place of what was there.
    pub(super) fn keep(&mut self, key: K, value: V, until: Moment) {
        if let Some((_, old)) = self.items.insert(key.clone(), (value, until)) {
            self.ends.remove(&(old, key.clone()));
        }
        self.ends.insert((until, key));
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.items.get(key).map(|(value, _)| value)
    }

    /// The value, and until when it would have been kept.
    pub(super) fn take(&mut self, key: &K) -> Option<(V, Moment)> {
        let (value, until) = self.items.remove(key)?;
        self.ends.remove(&(until, key.clone()));
        Some((value, until))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.items.len().max(self.ends.len())
    }

    /// Drops what has been kept long enough.
    pub(super) fn forget(&mut self, now: Moment) {
        while self.ends.first().is_some_and(|(end, _)| *end <= now) {
            if let Some((_, key)) = self.ends.pop_first() {
                self.items.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_again_is_kept_until_the_later_end() {
        let at = Moment::from_nanos;
        let mut fading = Fading::new();
        fading.keep("a", 1, at(10));
        fading.keep("b", 2, at(20));
        fading.keep("a", 3, at(30));
        fading.forget(at(10));
        assert_eq!(fading.get(&"a"), Some(&3));
        fading.forget(at(20));
        assert_eq!(fading.get(&"b"), None);
        assert_eq!(fading.take(&"a"), Some((3, at(30))));
        assert!(fading.items.is_empty() && fading.ends.is_empty());
    }
}
