//! The toy's registers, and where they can be wrong.

use async_trait::async_trait;
use lockkit_core::clock::{Clock, Moment, TokioClock};
use lockkit_core::driver::{
    Delete, Entry, Expect, RegisterKey, Registers, Store, StoreOutcome, Version, WriteId,
};
use lockkit_core::{Error, Token};
use tokio::task::yield_now;

use super::Flaw;
use super::toy::Toy;

/// One register.
#[derive(Debug, Default)]
pub(super) struct Register {
    value: Option<Vec<u8>>,
    version: u64,
    token: Option<Token>,
    last_write: Option<WriteId>,
    expires: Option<Moment>,
}

impl Register {
    fn entry(&self) -> Option<Entry> {
        let ended = self.expires.is_some_and(|end| end <= TokioClock.now());
        let value = self.value.clone().filter(|_| !ended)?;
        Some(Entry { value, version: Version(self.version), token: self.token })
    }
}

#[async_trait]
impl Registers for Toy {
    async fn load(&self, at: &RegisterKey) -> Result<Option<Entry>, Error> {
        yield_now().await;
        Ok(self.entry_of(at))
    }

    async fn store(&self, at: &RegisterKey, store: &Store) -> Result<StoreOutcome, Error> {
        yield_now().await;
        let value = Some(store.value.clone());
        let expires = store.ttl.map(|ttl| TokioClock.now().after(ttl));
        let write = (store.expect, store.token, store.write_id);
        Ok(self.write(at, write, value, expires))
    }

    async fn delete(&self, at: &RegisterKey, delete: &Delete) -> Result<StoreOutcome, Error> {
        yield_now().await;
        let write = (delete.expect, delete.token, delete.write_id);
        Ok(self.write(at, write, None, None))
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<Entry>, Error> {
        if self.is(Flaw::RegisterMissesEarlierChanges) {
            self.store.changed.notified().await;
        }
        loop {
            let changed = self.store.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let entry = self.entry_of(at);
            if entry.as_ref().map(|e| e.version) != after {
                return Ok(entry);
            }
            // A value may also end by its ttl, of which nobody tells.
            let _ = tokio::time::timeout(std::time::Duration::from_millis(100), changed).await;
        }
    }
}

impl Toy {
    fn entry_of(&self, at: &RegisterKey) -> Option<Entry> {
        let registers = self.store.registers.lock().unwrap_or_else(|e| e.into_inner());
        registers.get(at)?.entry()
    }

    fn write(
        &self,
        at: &RegisterKey,
        (expect, token, write_id): (Expect, Option<Token>, WriteId),
        value: Option<Vec<u8>>,
        expires: Option<Moment>,
    ) -> StoreOutcome {
        let mut registers = self.store.registers.lock().unwrap_or_else(|e| e.into_inner());
        let register = registers.entry(at.clone()).or_default();
        let seen_before = register.last_write == Some(write_id);
        if seen_before && !self.is(Flaw::RegisterForgetsWrites) {
            return StoreOutcome::Stored(Version(register.version));
        }
        if let (Some(token), Some(highest)) = (token, register.token)
            && token < highest
            && !self.is(Flaw::RegisterAcceptsOldTokens)
        {
            return StoreOutcome::Stale { highest };
        }
        let version = register.entry().map(|e| e.version);
        let as_expected = match expect {
            Expect::Anything => true,
            Expect::Absent => version.is_none(),
            Expect::Version(v) => version == Some(v) || self.is(Flaw::RegisterIgnoresVersions),
        };
        if !as_expected {
            return StoreOutcome::Conflict;
        }
        register.value = value;
        register.version += 1;
        register.last_write = Some(write_id);
        register.expires = expires.filter(|_| !self.is(Flaw::RegisterKeepsValues));
        register.token = match token {
            None if self.is(Flaw::RegisterForgetsTokens) => None,
            None => register.token,
            token => token,
        };
        let stored = StoreOutcome::Stored(Version(register.version));
        drop(registers);
        self.store.changed.notify_waiters();
        stored
    }
}
