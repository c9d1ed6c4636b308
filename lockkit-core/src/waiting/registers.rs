//! Bells of registers: rung when one was written.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::lock;
use crate::Error;
use crate::driver::{Entry, Version};

/// The registers that somebody waits for through one driver, by what messages call them.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use lockkit_core::driver::{Entry, Version};
/// use lockkit_core::waiting::RegisterBells;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let bells = RegisterBells::default();
/// let entry = Entry { value: b"event 42".to_vec(), version: Version(2), token: None };
/// // Stands for a request that loads the register; it is repeated at each ring, and every second.
/// let load = || {
///     let entry = entry.clone();
///     async move { Ok((Some(entry), Duration::from_secs(1))) }
/// };
/// let changed = bells.changed("cursor", Some(Version(1)), load).await?;
/// assert_eq!(changed, Some(entry.clone()));
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct RegisterBells(Mutex<HashMap<String, Weak<Notify>>>);

impl RegisterBells {
    /// Rings for a register that was written; `None`: any of them may have been.
    pub fn ring(&self, register: Option<&str>) {
        for (name, bell) in &*lock(&self.0) {
            if register.is_none_or(|register| register == name)
                && let Some(bell) = bell.upgrade()
            {
                bell.notify_waiters();
            }
        }
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
    ) -> Result<Option<Entry>, Error>
    where
        F: Future<Output = Result<(Option<Entry>, Duration), Error>>,
    {
        let bell = self.bell(register);
        loop {
            // Listening begins before loading, so that nothing falls in between.
            let mut rung = std::pin::pin!(bell.notified());
            rung.as_mut().enable();
            let (entry, pause) = load().await?;
            if entry.as_ref().map(|entry| entry.version) != after {
                return Ok(entry);
            }
            let _ = tokio::time::timeout(pause, rung).await;
        }
    }

    fn bell(&self, register: &str) -> Arc<Notify> {
        let mut bells = lock(&self.0);
        if let Some(bell) = bells.get(register).and_then(Weak::upgrade) {
            return bell;
        }
        bells.retain(|_, bell| bell.strong_count() > 0);
        let bell = Arc::new(Notify::new());
        bells.insert(register.to_owned(), Arc::downgrade(&bell));
        bell
    }
}
