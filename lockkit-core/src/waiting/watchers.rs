//! Tasks that wait for a change. Nothing stays of one that went away.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::Error;
use crate::concurrency::locked;
use crate::driver::{RegisterEntry, Version};

/// Bells of those who watch, by what they watch.
#[derive(Debug)]
pub(crate) struct Watchers<K>(Mutex<BTreeMap<K, Vec<Arc<Notify>>>>);

/// One that watches, for as long as this lives.
pub(crate) struct Watch<'a, K: Ord> {
    watchers: &'a Watchers<K>,
    key: K,
    /// Rung when what is watched has changed.
    pub(crate) wake: Arc<Notify>,
}

impl<K> Default for Watchers<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord + Clone> Watchers<K> {
    pub(crate) fn watch(&self, key: K) -> Watch<'_, K> {
        let wake = Arc::new(Notify::new());
        locked(&self.0).entry(key.clone()).or_default().push(wake.clone());
        Watch { watchers: self, key, wake }
    }

    /// The notifies of those who watch this.
    pub(crate) fn of<Q: Ord + ?Sized>(&self, key: &Q) -> Vec<Arc<Notify>>
    where
        K: Borrow<Q>,
    {
        locked(&self.0).get(key).cloned().unwrap_or_default()
    }

    /// All notifies.
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
        if let Some(notifies) = watchers.get_mut(&self.key) {
            notifies.retain(|wake| !Arc::ptr_eq(wake, &self.wake));
            if notifies.is_empty() {
                watchers.remove(&self.key);
            }
        }
    }
}

/// The registers whose changes are waited for through one driver, by what messages call them.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use lockkit_core::driver::{RegisterEntry, Version};
/// use lockkit_core::waiting::RegisterWatchers;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let notifies = RegisterWatchers::default();
/// let entry = RegisterEntry::new(b"event 42".to_vec(), Version(2), None);
/// // Stands for a request that loads the register; it is repeated at each ring, and every second.
/// let load = || {
///     let entry = entry.clone();
///     async move { Ok((Some(entry), Duration::from_secs(1))) }
/// };
/// let changed = notifies.changed("cursor", Some(Version(1)), load).await?;
/// assert_eq!(changed, Some(entry.clone()));
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct RegisterWatchers(Watchers<String>);

impl RegisterWatchers {
    /// Rings for a register that was written; `None`: any of them may have been.
    pub fn notify(&self, register: Option<&str>) {
        let notifies = register.map_or_else(|| self.0.all(), |register| self.0.of(register));
        notifies.iter().for_each(|wake| wake.notify_one());
    }

    /// Answers [`Registers::changed`](crate::driver::Registers::changed): loads the register until its
    /// version is not `after`, whenever the bell rings and after the pause that `load` says beside the
    /// entry.
    ///
    /// # Cancel safety
    /// Dropping it does nothing.
    pub async fn changed<F>(
        &self,
        register: &str,
        after: Option<Version>,
        mut load: impl FnMut() -> F,
    ) -> Result<Option<RegisterEntry>, Error>
    where
        F: Future<Output = Result<(Option<RegisterEntry>, Duration), Error>>,
    {
        // Listening begins before loading, so that nothing falls in between.
        let watch = self.0.watch(register.to_owned());
        loop {
            let (entry, pause) = load().await?;
            if entry.as_ref().map(|entry| entry.version) != after {
                return Ok(entry);
            }
            let _ = tokio::time::timeout(pause, watch.wake.notified()).await;
        }
    }
}
