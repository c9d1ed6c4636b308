//! Who wants to be told that something has changed. Nothing stays of who went away.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::shared::locked;

/// Bells of those who watch, by what they watch.
#[derive(Debug)]
pub(crate) struct Watchers<K>(Mutex<BTreeMap<K, Vec<Arc<Notify>>>>);

/// Somebody watches, for as long as this lives.
pub(crate) struct Watch<'a, K: Ord> {
    watchers: &'a Watchers<K>,
    key: K,
    /// Rung when what is watched has changed.
    pub(crate) bell: Arc<Notify>,
}

impl<K> Default for Watchers<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord + Clone> Watchers<K> {
    pub(crate) fn watch(&self, key: K) -> Watch<'_, K> {
        let bell = Arc::new(Notify::new());
        locked(&self.0).entry(key.clone()).or_default().push(bell.clone());
        Watch { watchers: self, key, bell }
    }

    /// The bells of those who watch this.
    pub(crate) fn of<Q: Ord + ?Sized>(&self, key: &Q) -> Vec<Arc<Notify>>
    where
        K: Borrow<Q>,
    {
        locked(&self.0).get(key).cloned().unwrap_or_default()
    }

    /// All bells.
    pub(crate) fn all(&self) -> Vec<Arc<Notify>> {
        locked(&self.0).values().flatten().cloned().collect()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        locked(&self.0).len()
    }
}

impl<K: Ord> Drop for Watch<'_, K> {
    fn drop(&mut self) {
        let mut watchers = locked(&self.watchers.0);
        if let Some(bells) = watchers.get_mut(&self.key) {
            bells.retain(|bell| !Arc::ptr_eq(bell, &self.bell));
            if bells.is_empty() {
                watchers.remove(&self.key);
            }
        }
    }
}
