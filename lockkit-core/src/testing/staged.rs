//! The memory driver behind a script: some acquires are refused, some renewals go ambiguous.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;

use crate::capabilities::Capabilities;
use crate::clock::{Clock, Moment};
use crate::driver::{
    BreakMode, Grant, LockDriver, Registers, Renewal, Replies, SetLimit, Step, no_answer,
    one_by_one,
};
use crate::shared::locked;
use crate::state::{Health, ListRequest, Listed, LockState, Page};
use crate::{BreakRecord, Claim, Error, Key, MemoryDriver, Namespace, Token};

#[derive(Debug, Default)]
pub(super) struct Staged {
    store: MemoryDriver,
    script: Mutex<Script>,
}

/// What is to happen, by the lock's name.
#[derive(Debug, Default)]
struct Script {
    refusals: HashMap<String, VecDeque<Error>>,
    held_up: HashMap<String, Moment>,
}

impl Staged {
    pub(super) fn store(&self) -> &MemoryDriver {
        &self.store
    }

    pub(super) fn refuse(&self, name: &str, error: Error) {
        self.script().refusals.entry(name.to_owned()).or_default().push_back(error);
    }

    pub(super) fn hold_up(&self, name: &str, until: Moment) {
        self.script().held_up.insert(name.to_owned(), until);
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        locked(&self.script)
    }

    fn refusal(&self, claim: &Claim) -> Option<Error> {
        self.script().refusals.get_mut(claim.key.name.as_str())?.pop_front()
    }

    /// An error for a claim that gets no answer now.
    fn answers(&self, claim: &Claim) -> Result<(), Error> {
        let until = self.script().held_up.get(claim.key.name.as_str()).copied();
        match until.is_some_and(|until| self.store.clock().now() < until) {
            true => Err(no_answer(self.store.capabilities().backend)),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl LockDriver for Staged {
    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.store.registers()
    }

    async fn carry(&self, steps: &[Step]) -> Result<Replies, Error> {
        let acquire = async |claim: Arc<Claim>, patience| match self.refusal(&claim) {
            Some(error) => Err(error),
            None => self.store.acquire(&claim, patience).await,
        };
        let release = async |claim: Arc<Claim>| self.store.release(&claim).await.map(Into::into);
        Ok(one_by_one(steps, acquire, release).await)
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        self.store.granted(claim).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let mut answers = Vec::with_capacity(claims.len());
        for claim in claims {
            answers.push(match self.answers(claim) {
                Ok(()) => self.store.renew_single(claim).await,
                Err(error) => Err(error),
            });
        }
        Ok(answers)
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        self.store.shorten(claim, ttl).await
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.store.downgrade(claim).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        self.store.break_claim(key, token, force, record).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        self.store.inspect(key).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        self.store.list(request).await
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Listed<Namespace>, Error> {
        self.store.namespaces(after, limit).await
    }

    async fn changed(&self, key: &Key, seen: &LockState) -> Result<LockState, Error> {
        LockDriver::changed(&self.store, key, seen).await
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        self.store.raise(claim, token).await
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        self.store.resize(key, limit).await
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        self.store.namespace_counter(namespace).await
    }

    async fn raise_namespace_counter(&self, namespace: &Namespace, base: u64) -> Result<(), Error> {
        self.store.raise_namespace_counter(namespace, base).await
    }

    async fn health(&self) -> Result<Health, Error> {
        self.store.health().await
    }
}
