//! Bells of registers: rung when one was written.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::lock;
use crate::Error;
use crate::driver::{Entry, Version};

/// The registers that somebody waits for through one driver, by what messages call them.
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
