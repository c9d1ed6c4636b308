//! Who wants to be told that something has changed. Nothing stays of who went away.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

use super::bells::Calls;

#[derive(Debug)]
pub(super) struct Watchers<K>(BTreeMap<K, Vec<Arc<Notify>>>);

impl<K: Ord + Clone> Watchers<K> {
    pub(super) fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(super) fn add(&mut self, key: &K, bell: &Arc<Notify>) {
        let bells = self.0.entry(key.clone()).or_default();
        bells.push(bell.clone());
    }

    pub(super) fn remove(&mut self, key: &K, bell: &Arc<Notify>) {
        let Some(bells) = self.0.get_mut(key) else {
            return;
        };
        bells.retain(|b| !Arc::ptr_eq(b, bell));
        if bells.is_empty() {
            self.0.remove(key);
        }
    }

    pub(super) fn call(&self, key: &K, calls: &mut Calls) {
        if self.0.is_empty() {
            return;
        }
        for bell in self.0.get(key).into_iter().flatten() {
            calls.add(bell.clone());
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
