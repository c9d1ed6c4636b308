//! The registers of the memory driver: their state and its rules. Waiting is the driver's.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::MemoryDriver;
use super::store::least_name;
use super::waiting_tasks::StoreOperation;
use crate::clock::Moment;
use crate::driver::{
    Attempted, FoundRegister, MAX_REGISTER_BYTES, RegisterEntry, RegisterKey, Registers, Version,
    Write, WriteId, WriteResult,
};
use crate::state::{ListPage, RegisterRequest, RegisterState};
use crate::waiting::watchers::Watchers;
use crate::{Error, Namespace, Token};

/// A register without value and token is remembered for this long after its last write, so that a
/// deletion whose answer got lost can be asked for again.
const ABSENCE_STAYS: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Register {
    value: Option<Vec<u8>>,
    version: Version,
    /// The highest token seen. A register that has one is remembered for good.
    token: Option<Token>,
    last_write: WriteId,
    /// When the value ends, or, where there is none, when the register is forgotten.
    due: Option<Moment>,
}

#[derive(Debug)]
pub(super) struct RegisterStore {
    registers: BTreeMap<RegisterKey, Register>,
    /// Of all registers, so that versions grow where one was forgotten.
    last_version: u64,
    due: BTreeSet<(Moment, RegisterKey)>,
    watchers: Arc<Watchers<RegisterKey>>,
}

impl RegisterStore {
    pub(super) fn new(watchers: &Arc<Watchers<RegisterKey>>) -> Self {
        Self {
            registers: BTreeMap::new(),
            last_version: 0,
            due: BTreeSet::new(),
            watchers: watchers.clone(),
        }
    }

    pub(super) fn load(&mut self, at: &RegisterKey, now: Moment) -> Option<RegisterEntry> {
        self.expire(now);
        let register = self.registers.get(at)?;
        Some(RegisterEntry::new(register.value.clone()?, register.version, register.token))
    }

    /// A page of the registers that have a value, in the order of their names.
    pub(super) fn list(
        &mut self,
        request: &RegisterRequest,
        now: Moment,
    ) -> ListPage<RegisterState> {
        self.expire(now);
        let key = |name| RegisterKey { namespace: request.namespace.clone(), name };
        let from = match (&request.after, least_name(&request.prefix)) {
            (Some(after), _) => Bound::Excluded(key(after.clone())),
            (None, Some(least)) => Bound::Included(key(least)),
            (None, None) => return ListPage::first(1, []),
        };
        let matching = self.registers.range((from, Bound::Unbounded)).take_while(|(at, _)| {
            at.namespace == request.namespace && at.name.as_str().starts_with(&request.prefix)
        });
        let states = matching.filter_map(|(at, register)| {
            Some(RegisterState::new(
                at.name.clone(),
                register.version,
                register.token,
                register.value.as_ref()?.len(),
            ))
        });
        ListPage::first(request.limit, states)
    }

    /// The namespaces in which a register has a value.
    pub(super) fn namespaces(&mut self, now: Moment) -> BTreeSet<Namespace> {
        self.expire(now);
        let there = self.registers.iter().filter(|(_, register)| register.value.is_some());
        there.map(|(at, _)| at.namespace.clone()).collect()
    }

    /// Whether the value has another version than this, and if not, when it ends.
    pub(super) fn changed_since(
        &mut self,
        at: &RegisterKey,
        known: Option<Version>,
        now: Moment,
    ) -> (bool, Option<Moment>) {
        self.expire(now);
        let register = self.registers.get(at).filter(|r| r.value.is_some());
        let differs = register.map(|r| r.version) != known;
        (differs, register.and_then(|r| r.due))
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.registers.len() + self.due.len() + self.watchers.len()
    }

    pub(super) fn write(
        &mut self,
        at: &RegisterKey,
        write: &Write,
        operation: &mut StoreOperation,
    ) -> WriteResult {
        let now = operation.now;
        self.expire(now);
        let old = self.registers.get(at);
        let highest = old.and_then(|old| old.token);
        let found = FoundRegister {
            version: old.map(|old| old.version),
            present: old.is_some_and(|old| old.value.is_some()),
            token: highest,
            last_write: old.map(|old| old.last_write),
        };
        if let Some(outcome) = WriteResult::decide(&found, write) {
            return outcome;
        }
        self.last_version += 1;
        let version = Version(self.last_version);
        let mut register = Register {
            value: write.value.clone(),
            version,
            token: write.token.or(highest),
            last_write: write.write_id,
            due: None,
        };
        register.due = match &register.value {
            Some(_) => write.ttl.map(|ttl| now.after(ttl)),
            None => forgotten_at(&register, now),
        };
        self.put(at, register);
        operation.wake_ups.extend(self.watchers.of(at));
        WriteResult::Stored(version)
    }

    fn put(&mut self, at: &RegisterKey, register: Register) {
        let due = register.due;
        let old = self.registers.insert(at.clone(), register);
        if let Some(old) = old.and_then(|old| old.due) {
            self.due.remove(&(old, at.clone()));
        }
        if let Some(due) = due {
            self.due.insert((due, at.clone()));
        }
    }

    /// Ends the values whose time is over, and forgets registers that have nothing to remember.
    /// Who watches one of them keeps the time on its own.
    fn expire(&mut self, now: Moment) {
        while self.due.first().is_some_and(|(due, _)| *due <= now)
            && let Some((ended, at)) = self.due.pop_first()
        {
            let Some(register) = self.registers.get_mut(&at) else {
                continue;
            };
            if register.value.take().is_none() {
                self.registers.remove(&at);
                continue;
            }
            register.due = forgotten_at(register, ended);
            if let Some(due) = register.due {
                self.due.insert((due, at));
            }
        }
    }
}

fn forgotten_at(absent: &Register, since: Moment) -> Option<Moment> {
    absent.token.is_none().then(|| since.after(ABSENCE_STAYS))
}

#[async_trait]
impl Registers for MemoryDriver {
    async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>, Error> {
        self.shared.registers.apply(|registers, operation| registers.load(at, operation.now))
    }

    async fn write(
        &self,
        at: &RegisterKey,
        write: &Write,
    ) -> Result<Attempted<WriteResult>, Error> {
        if write.value.as_ref().is_some_and(|value| value.len() > MAX_REGISTER_BYTES) {
            let message = format!("a register holds at most {MAX_REGISTER_BYTES} bytes");
            return Err(Error::config(message));
        }
        self.shared
            .registers
            .apply(|registers, operation| registers.write(at, write, operation).into())
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<RegisterEntry>, Error> {
        let watching = self.shared.registers.watchers.watch(at.clone());
        loop {
            let (known, end) = self.shared.registers.apply(|registers, operation| {
                let (differs, end) = registers.changed_since(at, after, operation.now);
                (differs.then(|| registers.load(at, operation.now)), end)
            })?;
            if let Some(entry) = known {
                return Ok(entry);
            }
            self.shared.registers.wait(&watching.wake, end).await;
        }
    }

    async fn page(&self, request: &RegisterRequest) -> Result<ListPage<RegisterState>, Error> {
        self.shared.registers.apply(|registers, operation| registers.list(request, operation.now))
    }
}
