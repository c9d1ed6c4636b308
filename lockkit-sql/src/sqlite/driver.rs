//! The lock: every operation of [`LockDriver`] as one transaction. The rule is core's; here are operations in
//! and answers out.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::claim_list::OperationResult;
use lockkit_core::clock::Clock;
use lockkit_core::driver::{
    Acquire, Acquisition, Anchored, Attempted, Batch, BatchError, BatchOutcome, BreakMode,
    ClaimEnd, ClaimId, Grant, LockDriver, Registers, Released, Renewal, SetLimit,
};
use lockkit_core::state::{Health, ListPage, ListRequest, LockState, Page};
use lockkit_core::{
    BreakRecord, Capabilities, Claim, Error, Key, Lifetime, Namespace, Result, Space, Token,
};
use rusqlite::params;

use super::connection::TransactionError;
use super::queues::NextPoll;
use super::transaction::{Operation, Transaction, unsigned};
use super::{BACKEND, CAPABILITIES, SqliteDriver, SqliteInner};
use crate::rows::{break_record, check_raise, columns};
use crate::waiters::PolledState;

/// For how long the record of a break is shown at least.
const KEEP_BREAKS: Duration = Duration::from_secs(60);

#[async_trait]
impl LockDriver for SqliteDriver {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.context.clock.clone()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let waiters = &self.inner.waiters.claims;
        let _known = waiters.submitting(batch);
        let durable = batch.claims().any(|claim| outlives(claim));
        let (releases, acquires) = (batch.releases.to_vec(), batch.acquires.to_vec());
        let apply = move |transaction: &mut Transaction<'_>| -> Result<_, TransactionError> {
            let released = releases.iter().map(|claim| release(transaction, claim));
            let released = released.collect::<Result<Vec<_>, _>>()?;
            let acquired = acquires.iter().map(|one| acquire(transaction, one));
            Ok((released, acquired.collect::<Result<Vec<_>, _>>()?))
        };
        let (released, acquired) = self.inner.writer.submit(durable, apply).await?;
        let acquired = batch.acquires.iter().zip(acquired).map(|(one, (result, lease))| {
            waiters.acquired(&one.claim.id, result.as_ref(), 0, lease);
            result.map(Attempted::from).map_err(BatchError::refused)
        });
        let released = released.into_iter().map(|released| Ok(released.into()));
        Ok(BatchOutcome { released: released.collect(), acquired: acquired.collect() })
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant> {
        self.inner.waiters.granted(&self.inner, claim).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal>>> {
        let told = self.inner.amend(claims, false, |claim| Operation::Renew(claim)).await?;
        Ok(self.inner.waiters.renewed(claims, told.into_iter().map(Ok)))
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal> {
        self.inner.amend_one(claim, false, move |claim| Operation::Shorten(claim, ttl)).await
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal> {
        self.inner.amend_one(claim, false, |claim| Operation::Downgrade(claim)).await
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal> {
        check_raise(token.get())?;
        // A raised token must not go back, so this waits for the disk.
        self.inner.amend_one(claim, true, move |claim| Operation::Raise(claim, token)).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool> {
        let (key, record) = (key.clone(), record.to_json());
        let break_it = move |transaction: &mut Transaction<'_>| {
            let (answer, _) = transaction.step(&key, &Operation::Break(token, force))?;
            let OperationResult::BrokenClaims(broke) = answer else {
                return Err(unexpected(&answer));
            };
            let (namespace, space, name) = columns(&key);
            for one in &broke {
                let until = one.until.after(KEEP_BREAKS).as_nanos() as i64;
                transaction.run(
                    "INSERT INTO lockkit_breaks (namespace, space, name, id, record, expires)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    params![namespace, space, name, one.id.as_bytes(), record, until],
                )?;
            }
            Ok(!broke.is_empty())
        };
        self.inner.writer.call(true, break_it).await
    }

    async fn anchor(&self, _: &Arc<Claim>) -> Result<Anchored> {
        // A fence asks the file itself: here a transaction of the program may have it locked.
        Ok(Anchored::At(self.path().as_os_str().as_encoded_bytes().to_vec()))
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32> {
        if key.space != Space::Semaphore {
            return Err(self.unsupported("resizing a semaphore"));
        }
        let key = key.clone();
        self.inner.writer.call(true, move |transaction| resize(transaction, &key, limit)).await
    }

    async fn inspect(&self, key: &Key) -> Result<LockState> {
        let key = key.clone();
        self.inner.reader.call(false, move |transaction| Ok(transaction.inspect(&key)?)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Page> {
        let request = request.clone();
        self.inner.reader.call(false, move |transaction| transaction.list(&request)).await
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>> {
        let after = after.cloned();
        self.inner
            .reader
            .call(false, move |transaction| transaction.namespaces(after.as_ref(), limit))
            .await
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64> {
        let (of, namespace) = (namespace.clone(), namespace.clone());
        let base = move |transaction: &mut Transaction<'_>| {
            let text = "SELECT counter FROM lockkit_counters WHERE namespace = ?1";
            let base =
                transaction.any(text, [namespace.as_str()], |row| row.get(0).map(unsigned))?;
            Ok(base.unwrap_or(0))
        };
        let seen = self.inner.reader.call(false, base).await?;
        self.inner.bases.saw(BACKEND, &of, seen)
    }

    async fn raise_namespace_counter(&self, namespace: &Namespace, base: u64) -> Result<()> {
        check_raise(base)?;
        let namespace = namespace.clone();
        let raise = move |transaction: &mut Transaction<'_>| {
            let text = "INSERT INTO lockkit_counters (namespace, counter) VALUES (?1, ?2)
                ON CONFLICT (namespace) DO UPDATE SET counter = max(counter, excluded.counter)";
            Ok(transaction.run(text, params![namespace.as_str(), base as i64])?)
        };
        self.inner.writer.call(true, raise).await
    }

    async fn health(&self) -> Result<Health> {
        let epoch = self.inner.context.epoch;
        self.inner.reader.call(false, move |transaction| transaction.health(epoch)).await
    }

    async fn close(&self) {
        self.inner.waiters.claims.close();
        self.inner.writer.close().await;
        self.inner.reader.close().await;
    }
}

impl SqliteInner {
    /// Does an operation to each of these claims.
    pub(super) async fn amend(
        &self,
        claims: &[Arc<Claim>],
        durable: bool,
        step: impl for<'a> Fn(&'a Claim) -> Operation<'a> + Send + 'static,
    ) -> Result<Vec<PolledState>> {
        let durable = durable || claims.iter().any(|claim| outlives(claim));
        let claims = claims.to_vec();
        let amend = move |transaction: &mut Transaction<'_>| {
            let amend = |claim: &Arc<Claim>| {
                let (answer, NextPoll { ahead, lease }) =
                    transaction.step(&claim.key, &step(claim))?;
                let renewal = answer.renewal(ahead, || broken(transaction, &claim.id))?;
                Ok((renewal, lease))
            };
            claims.iter().map(amend).collect()
        };
        self.writer.call(durable, amend).await
    }

    async fn amend_one(
        &self,
        claim: &Arc<Claim>,
        durable: bool,
        step: impl for<'a> Fn(&'a Claim) -> Operation<'a> + Send + 'static,
    ) -> Result<Renewal> {
        let told = self.amend(from_ref(claim), durable, step).await?.into_iter().next();
        Ok(told.map_or(Renewal::Ended(ClaimEnd::NotFound), |(renewal, _)| renewal))
    }
}

/// Whether what concerns a claim waits for the disk: one that outlives its process outlives a power
/// failure as well.
fn outlives(claim: &Claim) -> bool {
    claim.lifetime == Lifetime::Detached
}

fn release(transaction: &mut Transaction<'_>, claim: &Claim) -> Result<Released, TransactionError> {
    match transaction.step(&claim.key, &Operation::Release(claim))?.0 {
        OperationResult::Released(released) => Ok(released),
        other => Err(unexpected(&other)),
    }
}

/// What becomes of an acquire, with a lease as in [`PolledState`].
type Acquired = (Result<Acquisition>, Option<Duration>);

fn acquire(transaction: &mut Transaction<'_>, one: &Acquire) -> Result<Acquired, TransactionError> {
    let Acquire { claim, patience } = one;
    let given = transaction.given(&claim.key)?;
    if let Err(error) = claim.check_permits(given) {
        return Ok((Err(error), None));
    }
    let note = claim.note.as_deref().map(str::to_owned);
    let with = Arc::new((claim.identity.to_json(), note));
    let acquire = Operation::Acquire { claim, with, patience: *patience, given };
    let (answer, NextPoll { ahead, lease }) = transaction.step(&claim.key, &acquire)?;
    let broken = match answer {
        OperationResult::Broken => broken(transaction, &claim.id)?,
        _ => None,
    };
    Ok((answer.acquisition(claim, ahead, || Ok(broken)), lease))
}

fn resize(
    transaction: &mut Transaction<'_>,
    key: &Key,
    limit: SetLimit,
) -> Result<u32, TransactionError> {
    let given = transaction.given(key)?;
    let limit = match transaction.step(key, &Operation::Resize { limit, given })? {
        (OperationResult::Limit(limit), _) => limit,
        (other, _) => return Err(unexpected(&other)),
    };
    if given != Some(limit) {
        transaction.run(
            "INSERT INTO lockkit_limits (namespace, name, capacity) VALUES (?1, ?2, ?3)
             ON CONFLICT (namespace, name) DO UPDATE SET capacity = excluded.capacity",
            params![key.namespace.as_str(), key.name.as_str(), limit],
        )?;
        transaction.forget_list(key);
    }
    Ok(limit)
}

/// How a claim was broken, if it was.
fn broken(transaction: &Transaction<'_>, id: &ClaimId) -> rusqlite::Result<Option<BreakRecord>> {
    let text = "SELECT record FROM lockkit_breaks WHERE id = ?1 ORDER BY n DESC LIMIT 1";
    let record: Option<String> = transaction.any(text, [id.as_bytes()], |row| row.get(0))?;
    Ok(break_record(record))
}

fn unexpected(answer: &OperationResult) -> TransactionError {
    Error::permanent(BACKEND, format!("{answer:?} is no answer to this step")).into()
}
