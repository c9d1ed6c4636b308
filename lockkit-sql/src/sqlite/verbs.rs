//! The lock: every verb of [`LockDriver`] as one transaction. The rule is core's; here are steps in
//! and answers out.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::clock::Clock;
use lockkit_core::driver::{
    Acquire, Acquisition, Anchored, Attempted, Batch, BatchError, BatchOutcome, BreakMode,
    ClaimEnd, ClaimId, Grant, LockDriver, Registers, Released, Renewal, SetLimit,
};
use lockkit_core::line::Answer;
use lockkit_core::state::{Health, ListRequest, Listed, LockState, Page};
use lockkit_core::{
    BreakRecord, Capabilities, Claim, Error, Key, Lifetime, Namespace, Space, Token,
};
use rusqlite::params;

use super::connection::Failure;
use super::queues::Wait;
use super::transaction::{Flight, Verb, unsigned};
use super::{BACKEND, CAPABILITIES, Shared, SqliteDriver};
use crate::rows::{break_record, check_raise, columns};
use crate::wake::Fate;

/// For how long the record of a break is shown at least.
const KEEP_BREAKS: Duration = Duration::from_secs(60);

#[async_trait]
impl LockDriver for SqliteDriver {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.shared.site.clock.clone()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let waiters = &self.shared.wakes.claims;
        waiters.submits(&batch);
        let durable = batch.claims().any(|claim| outlives(claim));
        let (releases, acquires) = (batch.releases.to_vec(), batch.acquires.to_vec());
        let apply = move |flight: &mut Flight<'_>| -> Result<_, Failure> {
            let released = releases.iter().map(|claim| release(flight, claim));
            let released = released.collect::<Result<Vec<_>, _>>()?;
            let acquired = acquires.iter().map(|one| acquire(flight, one));
            Ok((released, acquired.collect::<Result<Vec<_>, _>>()?))
        };
        let (released, acquired) = self.shared.writer.call(durable, apply).await?;
        let acquired = batch.acquires.iter().zip(acquired).map(|(one, (result, lease))| {
            waiters.acquired(&one.claim.id, result.as_ref(), lease);
            result.map(Attempted::from).map_err(BatchError::refused)
        });
        let released = released.into_iter().map(|released| Ok(released.into()));
        Ok(BatchOutcome { released: released.collect(), acquired: acquired.collect() })
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        self.shared.wakes.granted(&self.shared, claim).await
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        let told = self.shared.amend(claims, false, |claim| Verb::Renew(claim)).await?;
        Ok(self.shared.wakes.renewed(claims, told))
    }

    async fn shorten(&self, claim: &Arc<Claim>, ttl: Duration) -> Result<Renewal, Error> {
        self.shared.amend_one(claim, false, move |claim| Verb::Shorten(claim, ttl)).await
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        self.shared.amend_one(claim, false, |claim| Verb::Downgrade(claim)).await
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        check_raise(token.get())?;
        // A raised token must not go back, so this waits for the disk.
        self.shared.amend_one(claim, true, move |claim| Verb::Raise(claim, token)).await
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let (key, record) = (key.clone(), record.to_json());
        let break_it = move |flight: &mut Flight<'_>| {
            let (answer, _) = flight.step(&key, &Verb::Break(token, force))?;
            let Answer::Broke(broke) = answer else {
                return Err(unexpected(&answer));
            };
            let (namespace, space, name) = columns(&key);
            for one in &broke {
                let until = one.until.after(KEEP_BREAKS).as_nanos() as i64;
                flight.run(
                    "INSERT INTO lockkit_breaks (namespace, space, name, id, record, expires)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    params![namespace, space, name, one.id.as_bytes(), record, until],
                )?;
            }
            Ok(!broke.is_empty())
        };
        Ok(self.shared.writer.call(true, break_it).await?)
    }

    async fn anchor(&self, _: &Arc<Claim>) -> Result<Anchored, Error> {
        // A fence asks the file itself: here a transaction of the program may have it locked.
        Ok(Anchored::At(self.path().as_os_str().as_encoded_bytes().to_vec()))
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        if key.space != Space::Semaphore {
            return Err(self.unsupported("resizing a semaphore"));
        }
        let key = key.clone();
        Ok(self.shared.writer.call(true, move |flight| resize(flight, &key, limit)).await?)
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        let key = key.clone();
        Ok(self.shared.reader.call(false, move |flight| Ok(flight.inspect(&key)?)).await?)
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let request = request.clone();
        Ok(self.shared.reader.call(false, move |flight| flight.list(&request)).await?)
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Listed<Namespace>, Error> {
        let after = after.cloned();
        Ok(self
            .shared
            .reader
            .call(false, move |flight| flight.namespaces(after.as_ref(), limit))
            .await?)
    }

    async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        let (of, namespace) = (namespace.clone(), namespace.clone());
        let base = move |flight: &mut Flight<'_>| {
            let text = "SELECT base FROM lockkit_bases WHERE namespace = ?1";
            let base = flight.any(text, [namespace.as_str()], |row| row.get(0).map(unsigned))?;
            Ok(base.unwrap_or(0))
        };
        let seen = self.shared.reader.call(false, base).await?;
        self.shared.bases.saw(BACKEND, &of, seen)
    }

    async fn raise_namespace_counter(&self, namespace: &Namespace, base: u64) -> Result<(), Error> {
        check_raise(base)?;
        let namespace = namespace.clone();
        let raise = move |flight: &mut Flight<'_>| {
            let text = "INSERT INTO lockkit_bases (namespace, base) VALUES (?1, ?2)
                ON CONFLICT (namespace) DO UPDATE SET base = max(base, excluded.base)";
            Ok(flight.run(text, params![namespace.as_str(), base as i64])?)
        };
        Ok(self.shared.writer.call(true, raise).await?)
    }

    async fn health(&self) -> Result<Health, Error> {
        let epoch = self.shared.site.epoch;
        Ok(self.shared.reader.call(false, move |flight| flight.health(epoch)).await?)
    }

    async fn close(&self) {
        self.shared.wakes.claims.close();
        self.shared.writer.close().await;
        self.shared.reader.close().await;
    }
}

impl Shared {
    /// Does a step to each of these claims.
    pub(super) async fn amend(
        &self,
        claims: &[Arc<Claim>],
        durable: bool,
        step: impl for<'a> Fn(&'a Claim) -> Verb<'a> + Send + 'static,
    ) -> Result<Vec<Fate>, Error> {
        let durable = durable || claims.iter().any(|claim| outlives(claim));
        let claims = claims.to_vec();
        let amend = move |flight: &mut Flight<'_>| {
            let amend = |claim: &Arc<Claim>| {
                let (answer, Wait { ahead, lease }) = flight.step(&claim.key, &step(claim))?;
                let renewal = answer.renewal(ahead, || broken(flight, &claim.id))?;
                Ok((renewal, lease))
            };
            claims.iter().map(amend).collect()
        };
        Ok(self.writer.call(durable, amend).await?)
    }

    async fn amend_one(
        &self,
        claim: &Arc<Claim>,
        durable: bool,
        step: impl for<'a> Fn(&'a Claim) -> Verb<'a> + Send + 'static,
    ) -> Result<Renewal, Error> {
        let told = self.amend(from_ref(claim), durable, step).await?.into_iter().next();
        Ok(told.map_or(Renewal::Ended(ClaimEnd::NotFound), |(renewal, _)| renewal))
    }
}

/// Whether what concerns a claim waits for the disk: one that outlives its process outlives a power
/// failure as well.
fn outlives(claim: &Claim) -> bool {
    claim.lifetime == Lifetime::Detached
}

fn release(flight: &mut Flight<'_>, claim: &Claim) -> Result<Released, Failure> {
    match flight.step(&claim.key, &Verb::Release(claim))?.0 {
        Answer::Released(released) => Ok(released),
        other => Err(unexpected(&other)),
    }
}

/// What becomes of an acquire, with a lease as in [`Fate`].
type Acquired = (Result<Acquisition, Error>, Option<Duration>);

fn acquire(flight: &mut Flight<'_>, one: &Acquire) -> Result<Acquired, Failure> {
    let Acquire { claim, patience } = one;
    let given = flight.given(&claim.key)?;
    if let Err(error) = claim.check_permits(given) {
        return Ok((Err(error), None));
    }
    let note = claim.note.as_deref().map(str::to_owned);
    let with = Arc::new((claim.identity.to_json(), note));
    let acquire = Verb::Acquire { claim, with, patience: *patience, given };
    let (answer, Wait { ahead, lease }) = flight.step(&claim.key, &acquire)?;
    let broken = match answer {
        Answer::Broken => broken(flight, &claim.id)?,
        _ => None,
    };
    Ok((answer.acquisition(claim, ahead, || Ok(broken)), lease))
}

fn resize(flight: &mut Flight<'_>, key: &Key, limit: SetLimit) -> Result<u32, Failure> {
    let given = flight.given(key)?;
    let limit = match flight.step(key, &Verb::Resize { limit, given })? {
        (Answer::Limit(limit), _) => limit,
        (other, _) => return Err(unexpected(&other)),
    };
    if given != Some(limit) {
        flight.run(
            "INSERT INTO lockkit_limits (namespace, name, capacity) VALUES (?1, ?2, ?3)
             ON CONFLICT (namespace, name) DO UPDATE SET capacity = excluded.capacity",
            params![key.namespace.as_str(), key.name.as_str(), limit],
        )?;
        flight.forget_list(key);
    }
    Ok(limit)
}

/// How a claim was broken, if it was.
fn broken(flight: &Flight<'_>, id: &ClaimId) -> rusqlite::Result<Option<BreakRecord>> {
    let text = "SELECT record FROM lockkit_breaks WHERE id = ?1 ORDER BY n DESC LIMIT 1";
    let record: Option<String> = flight.any(text, [id.as_bytes()], |row| row.get(0))?;
    Ok(break_record(record))
}

fn unexpected(answer: &Answer) -> Failure {
    Error::permanent(BACKEND, format!("{answer:?} is no answer to this step")).into()
}
