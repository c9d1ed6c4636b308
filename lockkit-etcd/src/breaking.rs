//! Breaking claims.
//!
//! By force: the key is deleted. Gracefully: the key is moved to a lease that nobody keeps alive. So
//! it is etcd that sees to it that the claim ends, and not the good will of its holder, who finds
//! at the next renewal that the key has left its lease. Either way a record is put beside the list,
//! for the holder and for people; it stays for an hour.
//!
//! The new lease must end after everything that the holder may believe. What it believes at most
//! is a full ttl from a keep-alive that was sent before the move (a later one does not find the key
//! any more). So the new lease is [`GRACE`] longer than the old, and the move is given up and begun
//! anew unless it is sent well within that time.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Txn, TxnOp};
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::BreakMode;
use lockkit_core::{BreakRecord, Error, Key, Token};

use crate::calls::{BACKEND, EtcdError};
use crate::leases::seconds;
use crate::line::Entry;
use crate::locks::Locks;
use crate::requests::{created, delete, put, put_lease, unchanged};

/// What a gracefully broken claim lives longer than its ttl, at most, in whole seconds.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// Of that, what may pass before the move is done.
const IN_TIME: Duration = Duration::from_millis(1_500);
/// How long the word of a break stays.
const REMEMBERED: Duration = Duration::from_secs(3_600);
const ATTEMPTS: usize = 8;

impl Locks {
    pub(crate) async fn break_claim(
        self: &Arc<Self>,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        for _ in 0..ATTEMPTS {
            let line = self.line(key).await?;
            let with_token = |entry: &&Entry| u64::try_from(entry.created) == Ok(token.get());
            let Some(entry) = line.entries().iter().find(with_token) else {
                return Ok(false);
            };
            let done = match force {
                BreakMode::Forced => self.take_out(key, entry, record).await,
                BreakMode::Graceful => self.let_end(key, entry, record).await,
            };
            match done {
                Ok(true) => return Ok(true),
                Ok(false) | Err(EtcdError::LeaseGone) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(Error::retryable(BACKEND, "the claim was written by others again and again"))
    }

    async fn take_out(
        &self,
        key: &Key,
        entry: &Entry,
        record: &BreakRecord,
    ) -> Result<bool, EtcdError> {
        let word = self.word(key, entry, record, Duration::ZERO).await?;
        let txn = Txn::new()
            .when([created(&entry.key, entry.created)])
            .and_then([delete(&entry.key), word]);
        let answer = self.calls.txn(txn).await?;
        // If an earlier attempt did it, its record is there.
        Ok(answer.answer.succeeded()
            || (answer.is_repeated() && self.is_broken(key, entry).await?))
    }

    async fn let_end(
        &self,
        key: &Key,
        entry: &Entry,
        record: &BreakRecord,
    ) -> Result<bool, EtcdError> {
        if self.is_broken(key, entry).await? {
            return Ok(true);
        }
        let Some(old) = self.leases.find(entry.lease).await? else {
            return Ok(false); // it is just ending, or has been moved
        };
        let word = self.word(key, entry, record, old.ttl).await?;
        let sent = SteadyClock.now();
        let last = self.leases.grant(seconds(old.ttl + GRACE)).await?;
        if !in_time(sent) {
            last.end();
            return Ok(false);
        }
        let txn =
            Txn::new().when([unchanged(entry)]).and_then([put_lease(&entry.key, last.id), word]);
        let within = IN_TIME.saturating_sub(SteadyClock.now().since(sent));
        // Where no answer comes in time the move may yet come, so its lease stays.
        let reply = tokio::time::timeout(within, self.calls.txn(txn)).await;
        let moved = match reply {
            Ok(reply) => reply?.answer.succeeded(),
            Err(_) => false,
        };
        Ok(moved || self.is_broken(key, entry).await?)
    }

    /// The operation that leaves the record.
    async fn word(
        &self,
        key: &Key,
        entry: &Entry,
        record: &BreakRecord,
        ttl: Duration,
    ) -> Result<TxnOp, EtcdError> {
        let lease = self.leases.lasting(REMEMBERED.max(ttl * 2)).await?;
        let at = self.root.broken(key, &entry.key);
        Ok(put(&at, record.to_json(), lease.id))
    }

    async fn is_broken(&self, key: &Key, entry: &Entry) -> Result<bool, EtcdError> {
        let at = self.root.broken(key, &entry.key);
        let txn = Txn::new().when([created(&at, 0)]);
        Ok(!self.calls.txn(txn).await?.answer.succeeded())
    }
}

fn in_time(sent: Moment) -> bool {
    SteadyClock.now().since(sent) < IN_TIME
}
