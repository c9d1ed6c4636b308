//! The toy's registers, and where they can be wrong.

use async_trait::async_trait;
use lockkit_core::Error;
use lockkit_core::clock::{Clock, TokioClock};
use lockkit_core::driver::{
    Attempted, FoundRegister, Precondition, RegisterEntry, RegisterKey, Registers, Version, Write,
    WriteResult,
};
use lockkit_core::state::{ListPage, RegisterRequest, RegisterState};
use tokio::task::yield_now;

use super::InjectedBug;
use super::toy::{Register, Toy};

impl Register {
    fn entry(&self) -> Option<RegisterEntry> {
        let ended = self.expires.is_some_and(|end| end <= TokioClock.now());
        let value = self.value.clone().filter(|_| !ended)?;
        Some(RegisterEntry::new(value, Version(self.version), self.token))
    }
}

#[async_trait]
impl Registers for Toy {
    async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>, Error> {
        yield_now().await;
        Ok(self.entry_of(at))
    }

    async fn write(
        &self,
        at: &RegisterKey,
        write: &Write,
    ) -> Result<Attempted<WriteResult>, Error> {
        yield_now().await;
        Ok(self.apply(at, write.clone()).into())
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<RegisterEntry>, Error> {
        if self.is(InjectedBug::RegisterMissesEarlierChanges) {
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
            // A value may also end by its ttl, without a message.
            let _ = tokio::time::timeout(std::time::Duration::from_millis(100), changed).await;
        }
    }

    async fn page(&self, request: &RegisterRequest) -> Result<ListPage<RegisterState>, Error> {
        yield_now().await;
        let registers = self.store.registers.lock().unwrap_or_else(|e| e.into_inner());
        let all = registers.iter().filter(|(at, _)| {
            at.namespace == request.namespace
                && (at.name.as_str().starts_with(&request.prefix)
                    || self.is(InjectedBug::RegistersAreListedByPattern) && request.prefix == "%")
        });
        let shown = all.filter_map(|(at, register)| {
            let entry = match register.entry() {
                None if self.is(InjectedBug::ListsDeletedRegisters) => {
                    Some(RegisterEntry::new(Vec::new(), Version(register.version), register.token))
                }
                entry => entry,
            }?;
            let (name, version, token) = (at.name.clone(), entry.version, entry.token);
            let bytes = entry.value.len();
            Some(RegisterState::new(name, version, token, bytes))
        });
        let mut shown: Vec<_> = shown.collect();
        shown.sort_by(|a, b| a.name.cmp(&b.name));
        shown.retain(|it| request.after.as_ref().is_none_or(|after| it.name > *after));
        let mut page = ListPage::first(request.limit, shown);
        if self.is(InjectedBug::SkipsARegisterBetweenPages) && page.more && page.items.len() > 1 {
            page.items.remove(0);
        }
        Ok(page)
    }
}

impl Toy {
    fn entry_of(&self, at: &RegisterKey) -> Option<RegisterEntry> {
        let registers = self.store.registers.lock().unwrap_or_else(|e| e.into_inner());
        registers.get(at)?.entry()
    }

    fn apply(&self, at: &RegisterKey, mut write: Write) -> WriteResult {
        let mut registers = self.store.registers.lock().unwrap_or_else(|e| e.into_inner());
        let register = registers.entry(at.clone()).or_default();
        let known = !self.is(InjectedBug::RegisterForgetsWrites);
        let newest = match write.expect {
            Precondition::Version(version) if self.is(InjectedBug::RegisterIgnoresVersions) => {
                version
            }
            _ => Version(register.version),
        };
        let found = FoundRegister {
            version: (register.version > 0).then_some(newest),
            present: register.entry().is_some(),
            token: register.token.filter(|_| !self.is(InjectedBug::RegisterAcceptsOldTokens)),
            last_write: register.last_write.filter(|_| known),
        };
        if self.is(InjectedBug::RegisterRepeatsOverLaterWrites) {
            write.repeated = false;
        }
        if let Some(outcome) = WriteResult::decide(&found, &write) {
            return outcome;
        }
        register.value = write.value;
        register.version += 1;
        register.last_write = Some(write.write_id);
        let expires = write.ttl.map(|ttl| TokioClock.now().after(ttl));
        register.expires = expires.filter(|_| !self.is(InjectedBug::RegisterKeepsValues));
        register.token = match write.token {
            None if self.is(InjectedBug::RegisterForgetsTokens) => None,
            None => register.token,
            token => token,
        };
        let stored = WriteResult::Stored(Version(register.version));
        drop(registers);
        self.store.changed.notify_waiters();
        stored
    }
}
