//! A memory of bounded size, for drivers that save round trips by what they saw last.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard};

use crate::concurrency::locked;

/// How things were when they were seen last. Others change them too, so this may be wrong: use it to
/// choose which request to try first, and let the server's answer decide.
#[derive(Debug)]
pub struct Recent<K, V> {
    most: usize,
    generations: Mutex<Generations<K, V>>,
}

#[derive(Debug)]
struct Generations<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Eq + Hash, V: Clone> Recent<K, V> {
    /// Remembers the last `most` things at least, and at most twice as many.
    pub fn new(most: usize) -> Self {
        let generations = Generations { young: HashMap::new(), old: HashMap::new() };
        Self { most, generations: Mutex::new(generations) }
    }

    /// How this was when it was seen last, if that is remembered.
    pub fn last<Q: Eq + Hash + ?Sized>(&self, of: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let generations = self.generations();
        generations.young.get(of).or_else(|| generations.old.get(of)).cloned()
    }

    /// Remembers how this is.
    pub fn saw(&self, of: impl Into<K>, is: V) {
        let of = of.into();
        let mut generations = self.generations();
        if generations.young.len() >= self.most && !generations.young.contains_key(&of) {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(of, is);
    }

    /// Forgets how this was.
    pub fn forget<Q: Eq + Hash + ?Sized>(&self, of: &Q)
    where
        K: Borrow<Q>,
    {
        let mut generations = self.generations();
        generations.young.remove(of);
        generations.old.remove(of);
    }

    fn generations(&self) -> MutexGuard<'_, Generations<K, V>> {
        locked(&self.generations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_last_is_remembered() {
        let recent = Recent::<String, _>::new(4);
        assert_eq!(recent.last("a"), None);
        recent.saw("a", 1);
        recent.saw("a", 2);
        assert_eq!(recent.last("a"), Some(2));
        recent.forget("a");
        assert_eq!(recent.last("a"), None);
    }

    #[test]
    fn the_last_ones_are_remembered_and_no_more_than_twice_as_many() {
        let recent = Recent::<i32, i32>::new(8);
        (0..100).for_each(|n| recent.saw(n, n));
        assert!((92..100).all(|n| recent.last(&n) == Some(n)));
        assert!((0..84).all(|n| recent.last(&n).is_none()));
        // Forgotten for good, and not shown as it once was.
        (0..9).for_each(|_| recent.saw(7, 7));
        (200..208).for_each(|n| recent.saw(n, n));
        recent.saw(7, 8);
        recent.forget(&7);
        assert_eq!(recent.last(&7), None);
    }
}
