//! Batches: the releases of many claims in one call of a script, their acquires in another, both sent
//! before either is answered. In calls of their own, since a server whose memory is full refuses a
//! script unless it has begun to write: acquires must not get in behind releases. A release and an acquire of
//! one lock go together in a third call: one contended lock is passed on so (see `exchange.rs`).

use std::slice::from_ref;
use std::sync::Arc;

use futures_util::future::join3;
use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, BatchLimits, BatchOutcome, Released,
    submit_each,
};
use lockkit_core::{Claim, Error};
use redis::Value;

use crate::decode::{Outcomes, after};
use crate::exchange::{Exchanges, merge};
use crate::inner::RedisInner;
use crate::script::{self, Call};
use crate::transport::Transport;
use crate::{decode, keys};

/// What one call carries. The server does nothing else meanwhile: 0.1 ms for claims that are alone in
/// their queues, some 2 ms when all of them are in queues where others wait.
pub(crate) const BATCH_LIMITS: BatchLimits = {
    let mut limits = BatchLimits::of(32, 8);
    limits.same_key = true;
    limits
};

impl RedisInner {
    pub(crate) async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let _known = self.waiters.claims.submitting(batch);
        if matches!(self.transport, Transport::Cluster(_)) && batch.len() > 1 {
            // The keys of a call have to be in one slot, and no claim waits for another's node.
            let acquire =
                |acquire: Acquire| async move { self.acquire(from_ref(&acquire)).await?.remove(0) };
            let release =
                |claim: Arc<Claim>| async move { self.release(from_ref(&claim)).await?.remove(0) };
            return Ok(submit_each(batch, acquire, release).await);
        }
        let mut outcome = BatchOutcome::default();
        match batch {
            Batch { releases: [], acquires } => outcome.acquired = self.acquire(acquires).await?,
            Batch { releases, acquires: [] } => outcome.released = self.release(releases).await?,
            batch => outcome = Box::pin(self.submit_both(batch)).await?,
        }
        Ok(outcome)
    }

    /// Sends up to three calls at once: releases come before acquires of other claims.
    async fn submit_both(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let Exchanges { pairs, releases, acquires } = Exchanges::of(batch);
        let (exchanged, released, acquired) =
            join3(self.exchange(batch, &pairs), self.release(&releases), self.acquire(&acquires))
                .await;
        let exchanged = each(exchanged, pairs.len(), |error| (Err(error.clone()), Err(error)))?;
        let (left, came): (Vec<_>, Vec<_>) = exchanged.into_iter().unzip();
        let released = each(released, releases.len(), Err)?;
        let acquired = each(acquired, acquires.len(), Err)?;
        Ok(BatchOutcome {
            released: merge(pairs.iter().map(|pair| pair.release), left, released),
            acquired: merge(pairs.iter().map(|pair| pair.acquire), came, acquired),
        })
    }

    pub(crate) async fn release(
        &self,
        claims: &[Arc<Claim>],
    ) -> Result<Outcomes<Released>, BatchError> {
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let (mut locks, mut args) = (Vec::new(), vec![self.publisher.client.clone()]);
        for claim in claims {
            locks.push(keys::lock(&claim.key).0);
            args.push(claim.id.to_hex());
        }
        let response = self.call(&script::RELEASE, &Call::new(&locks, &args)).await?;
        let (values, ambiguous) = decode::each(response, claims.len())?;
        let released = values.iter().map(|value| after(ambiguous, decode::released(value)));
        Ok(released.collect())
    }

    async fn acquire(&self, acquires: &[Acquire]) -> Result<Outcomes<Acquisition>, BatchError> {
        if acquires.is_empty() {
            return Ok(Vec::new());
        }
        let (mut locks, mut args, mut options) = (Vec::new(), Vec::new(), Vec::new());
        let mut buckets = Vec::with_capacity(acquires.len());
        let client = self.publisher.marked_client();
        for Acquire { claim, patience } in acquires {
            let (lock, bucket) = keys::lock(&claim.key);
            buckets.push(bucket);
            locks.extend([lock, keys::counter(bucket)]);
            args.push(keys::claim(claim, &client));
            args.push(keys::millis(claim.hold_ttl).to_string());
            args.push(keys::token(self.tokens.least(bucket)));
            options.push(keys::acquire_options(claim, *patience));
        }
        if options.iter().any(|options| !options.is_empty()) {
            args.append(&mut options);
        }
        let sent = self.call(&script::ACQUIRE, &Call::new(&locks, &args)).await;
        let response = sent.map_err(|error| self.judged(error))?;
        let (values, ambiguous) = decode::each(response, acquires.len())?;
        let decoded = acquires.iter().zip(buckets).zip(&values);
        let acquired = decoded.map(|((acquire, bucket), value)| {
            let acquired = self.acquired(&acquire.claim, bucket, value, ambiguous);
            after(ambiguous, acquired)
        });
        let mut acquired: Vec<_> = acquired.collect();
        if self.replicas.is_some() {
            Box::pin(self.confirm_grants(acquires, &mut acquired)).await;
        }
        Ok(acquired)
    }

    /// The answer to an acquire. Remembers what it says of its claim, of the tokens of its bucket, and of the
    /// server.
    pub(crate) fn acquired(
        &self,
        claim: &Claim,
        bucket: usize,
        answer: &Value,
        ambiguous: u32,
    ) -> Result<Acquisition, BatchError> {
        let (acquisition, lease) = match decode::acquisition(claim, answer) {
            Ok((acquisition, lease)) => (acquisition, lease),
            Err(error) => {
                self.waiters.claims.acquired(&claim.id, Err(&error.error), ambiguous, None);
                return Err(self.judged(error));
            }
        };
        self.waiters.claims.acquired(&claim.id, Ok(&acquisition), ambiguous, lease);
        if let Acquisition::Granted(grant) = acquisition {
            self.tokens.saw(bucket, grant.token.get());
        }
        if acquisition != Acquisition::Busy {
            self.writes.done();
        }
        Ok(acquisition)
    }

    /// The error of an acquire: a server that takes no writes may be the wrong one.
    pub(crate) fn judged(&self, mut error: BatchError) -> BatchError {
        error.error = self.writes.judge(error.error);
        error
    }

    pub(crate) async fn confirm_grants(
        &self,
        acquires: &[Acquire],
        acquired: &mut Outcomes<Acquisition>,
    ) {
        let granted = acquires.iter().zip(acquired).filter(|(_, acquired)| {
            matches!(acquired, Ok(Attempted { result: Acquisition::Granted(_), .. }))
        });
        let (claims, granted): (Vec<_>, Vec<_>) =
            granted.map(|(acquire, acquired)| (acquire.claim.clone(), acquired)).unzip();
        for (acquired, confirmed) in granted.into_iter().zip(self.confirm(&claims).await) {
            if let Err(error) = confirmed {
                *acquired = Err(BatchError::unknown(error));
            }
        }
    }

    /// Says of each grant whether enough replicas have it. What they do not have is given back. Says
    /// nothing when no replicas are asked for.
    pub(crate) async fn confirm(&self, claims: &[Arc<Claim>]) -> Vec<Result<(), Error>> {
        let Some(replicas) = &self.replicas else { return Vec::new() };
        let renewed = match replicas.renew(&self.publisher, claims).await {
            Ok(renewed) => renewed,
            Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
        };
        let confirmed: Vec<_> = renewed.into_iter().map(decode::still_holds).collect();
        let each = claims.iter().zip(&confirmed);
        let failed: Vec<_> = each.filter(|(_, it)| it.is_err()).map(|(it, _)| it.clone()).collect();
        if !failed.is_empty() {
            failed.iter().for_each(|claim| self.waiters.claims.remove(&claim.id));
            // Core gives them back as well, should this fail.
            let _ = self.release(&failed).await;
        }
        confirmed
    }
}

/// What failed for all operations of one call, when it is known what became of the other call, as the
/// error of each. A permanent error stays that of the whole batch, of which something may have been
/// carried out: it may be that one of the operations is what the server does not take.
fn each<T>(
    outcomes: Result<Vec<T>, BatchError>,
    count: usize,
    failed: impl Fn(BatchError) -> T,
) -> Result<Vec<T>, BatchError> {
    match outcomes {
        Err(error) if error.error.is_retryable() => {
            Ok((0..count).map(|_| failed(error.clone())).collect())
        }
        outcomes => outcomes.map_err(|error| error.after(1)),
    }
}
