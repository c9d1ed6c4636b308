//! Breaking claims.
//!
//! Forced: the key is deleted. Graceful: the key is moved to a lease that is not kept alive. So
//! it is etcd that sees to it that the claim ends, and not the good will of its holder, who finds
//! at the next renewal that the key has left its lease. Either way a record is put beside the queue,
//! for the holder and for people; it stays for an hour.
//!
//! The new lease must end after everything that the holder may believe. What it believes at most
//! is a full ttl from a keep-alive that was sent before the move (a later one does not find the key
//! any more). So the new lease is [`GRACE`] longer than the old, and the move is given up and begun
//! again unless it is sent well within that time.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Txn, TxnOp};
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::BreakMode;
use lockkit_core::{BreakRecord, Error, Key, Result, Token};

use crate::client::{ATTEMPT, BACKEND, EtcdError, EtcdResult};
use crate::leases::seconds;
use crate::locks::EtcdLocks;
use crate::queue_snapshot::StoredClaim;
use crate::requests::{created, delete, put, put_lease, unchanged};

/// What a gracefully broken claim lives longer than its ttl, at most, in whole seconds.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// Of that, what may pass before the move is done.
const IN_TIME: Duration = Duration::from_millis(1_500);
/// How long the record of a break stays.
const REMEMBERED: Duration = Duration::from_secs(3_600);
const ATTEMPTS: usize = 8;

impl EtcdLocks {
    pub(crate) async fn break_claim(
        self: &Arc<Self>,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool> {
        for _ in 0..ATTEMPTS {
            let snapshot = self.snapshot(key, ATTEMPT).await?;
            let with_token =
                |stored: &&StoredClaim| u64::try_from(stored.created) == Ok(token.get());
            let Some(stored) = snapshot.entries().iter().find(with_token) else {
                return Ok(false);
            };
            let done = match force {
                BreakMode::Forced => self.remove(key, stored, record).await,
                BreakMode::Graceful => self.end_gracefully(key, stored, record).await,
            };
            match done {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                // That of the record, usually.
                Err(EtcdError::LeaseGone) => self.leases.forget_lasting().await,
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(Error::retryable(BACKEND, "the claim was written by others again and again"))
    }

    async fn remove(
        &self,
        key: &Key,
        stored: &StoredClaim,
        record: &BreakRecord,
    ) -> EtcdResult<bool> {
        let word = self.word(key, stored, record, Duration::ZERO).await?;
        let txn = Txn::new()
            .when([created(&stored.key, stored.created)])
            .and_then([delete(&stored.key), word]);
        let answer = self.client.txn(txn).await?;
        // If an earlier attempt did it, its record is there.
        Ok(answer.answer.succeeded()
            || (answer.is_repeated() && self.is_broken(key, stored).await?))
    }

    async fn end_gracefully(
        &self,
        key: &Key,
        stored: &StoredClaim,
        record: &BreakRecord,
    ) -> EtcdResult<bool> {
        if self.is_broken(key, stored).await? {
            return Ok(true);
        }
        let Some(old) = self.leases.find(stored.lease).await? else {
            return Ok(false); // it is just ending, or has been moved
        };
        let word = self.word(key, stored, record, old.ttl).await?;
        let sent = SteadyClock.now();
        let last = self.leases.grant(seconds(old.ttl + GRACE)).await?;
        if !in_time(sent) {
            last.end();
            return Ok(false);
        }
        let txn =
            Txn::new().when([unchanged(stored)]).and_then([put_lease(&stored.key, last.id), word]);
        let within = IN_TIME.saturating_sub(SteadyClock.now().since(sent));
        // Where no answer comes in time the move may yet come, so its lease stays.
        let reply = tokio::time::timeout(within, self.client.txn(txn)).await;
        let moved = match reply {
            Ok(reply) => reply?.answer.succeeded(),
            Err(_) => false,
        };
        Ok(moved || self.is_broken(key, stored).await?)
    }

    /// The operation that leaves the record.
    async fn word(
        &self,
        key: &Key,
        stored: &StoredClaim,
        record: &BreakRecord,
        ttl: Duration,
    ) -> EtcdResult<TxnOp> {
        let lease = self.leases.lasting(REMEMBERED.max(ttl * 2)).await?;
        let at = self.root.broken(key, &stored.key);
        Ok(put(&at, record.to_json(), lease.id))
    }

    async fn is_broken(&self, key: &Key, stored: &StoredClaim) -> EtcdResult<bool> {
        let at = self.root.broken(key, &stored.key);
        let txn = Txn::new().when([created(&at, 0)]);
        Ok(!self.client.txn(txn).await?.answer.succeeded())
    }
}

fn in_time(sent: Moment) -> bool {
    SteadyClock.now().since(sent) < IN_TIME
}
