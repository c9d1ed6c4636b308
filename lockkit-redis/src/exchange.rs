//! A release and an acquire of one lock in one call of a script. With many tasks that wait for one lock these
//! are the release of the claim that holds and the next acquire of the one before it, and the call is a
//! hand-over: its answer says which waiting claim of this client holds now.

use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, Patience, Released,
};
use lockkit_core::{Claim, Mode};
use std::sync::Arc;

use crate::decode::{Outcomes, after};
use crate::inner::RedisInner;
use crate::script::{self, Call};
use crate::{decode, keys};

/// A batch, divided.
pub(crate) struct Exchanges {
    pub(crate) pairs: Vec<Pair>,
    /// The other releases and acquires, in their order.
    pub(crate) releases: Vec<Arc<Claim>>,
    pub(crate) acquires: Vec<Acquire>,
}

/// A release and an acquire of a batch, by where they are in it.
pub(crate) struct Pair {
    pub(crate) release: usize,
    pub(crate) acquire: usize,
}

/// What became of both.
pub(crate) type Exchanged =
    (Result<Attempted<Released>, BatchError>, Result<Attempted<Acquisition>, BatchError>);

impl Exchanges {
    /// The pairs of a batch: the only release and the only acquire of a lock, of exclusive claims, of which the
    /// one that comes waits. Others of the lock would be in another call, which may be carried out before this
    /// one where the server has forgotten this script.
    pub(crate) fn of(batch: Batch<'_>) -> Self {
        let Batch { releases, acquires } = batch;
        let pairs = releases.iter().enumerate().filter_map(|(release, leaves)| {
            let mut same = (0..acquires.len()).filter(|at| acquires[*at].claim.key == leaves.key);
            let (acquire, None) = (same.next()?, same.next()) else { return None };
            let Acquire { claim, patience } = &acquires[acquire];
            let is_exclusive = leaves.mode == Mode::Exclusive && claim.mode == Mode::Exclusive;
            let is_only = releases.iter().filter(|it| it.key == leaves.key).count() == 1;
            let is_pair = is_exclusive && is_only && *patience == Patience::Wait;
            is_pair.then_some(Pair { release, acquire })
        });
        let pairs: Vec<_> = pairs.collect();
        let others = (0..releases.len()).filter(|at| pairs.iter().all(|pair| pair.release != *at));
        let others = others.map(|at| releases[at].clone()).collect();
        let waiting = (0..acquires.len()).filter(|at| pairs.iter().all(|pair| pair.acquire != *at));
        let waiting = waiting.map(|at| acquires[at].clone()).collect();
        Self { pairs, releases: others, acquires: waiting }
    }
}

/// Puts results back into the order of the batch: those of the pairs where they are in it, the others between.
pub(crate) fn merge<T>(at: impl Iterator<Item = usize>, pairs: Vec<T>, others: Vec<T>) -> Vec<T> {
    let mut paired: Vec<_> = at.zip(pairs).collect();
    paired.sort_by_key(|(at, _)| *at);
    let mut all = others;
    paired.into_iter().for_each(|(at, result)| all.insert(at, result));
    all
}

impl RedisInner {
    pub(crate) async fn exchange(
        &self,
        batch: Batch<'_>,
        pairs: &[Pair],
    ) -> Result<Vec<Exchanged>, BatchError> {
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let (mut locks, mut buckets) = (Vec::new(), Vec::new());
        let mut args = vec![self.publisher.client.clone()];
        let client = self.publisher.marked_client();
        for Pair { release, acquire } in pairs {
            let claim = &batch.acquires[*acquire].claim;
            let (lock, bucket) = keys::lock(&claim.key);
            buckets.push(bucket);
            locks.extend([lock, keys::counter(bucket)]);
            args.push(batch.releases[*release].id.to_hex());
            args.push(keys::claim(claim, &client));
            args.push(keys::millis(claim.hold_ttl).to_string());
            args.push(keys::token(self.tokens.least(bucket)));
        }
        let sent = self.call(&script::EXCHANGE, &Call::new(&locks, &args)).await;
        let response = sent.map_err(|error| self.judged(error))?;
        let (values, ambiguous) = decode::each(response, 2 * pairs.len())?;
        let (mut left, mut came, mut acquires): (Vec<_>, Outcomes<Acquisition>, Vec<_>) =
            Default::default();
        for ((pair, bucket), values) in pairs.iter().zip(buckets).zip(values.chunks_exact(2)) {
            let acquire = batch.acquires[pair.acquire].clone();
            left.push(after(ambiguous, decode::released(&values[0])));
            let acquired = self.acquired(&acquire.claim, bucket, &values[1], ambiguous);
            came.push(after(ambiguous, acquired));
            acquires.push(acquire);
        }
        if self.replicas.is_some() {
            Box::pin(self.confirm_grants(&acquires, &mut came)).await;
        }
        Ok(left.into_iter().zip(came).collect())
    }
}
