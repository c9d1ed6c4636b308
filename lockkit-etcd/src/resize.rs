//! Giving a semaphore a limit.
//!
//! The limit is a key among those of the claims, which every read of the queue returns with them; so
//! whatever is decided about a claim is decided from list and limit of one revision. To *give* a
//! limit to a queue without one changes nothing for the claims there, since it is the one that they
//! came with. To *change* it moves the key, which waiters see as they see a claim leave.
//!
//! # Which claims keep holding
//! Which claims hold follows from the queue and its limit. Below a limit that was lowered some hold
//! that would not be let in: so with the limit it is written up to which place claims hold, as it
//! was under the old one. That is read before it is written, and the write is refused when a client
//! came in between, or left in whose place another may have begun to hold. Where that happens again
//! and again, or where it would be too much to ask for, the limit is written all the same: it is in
//! force then for all later claims, and no claim is evicted; but one that began to hold in that
//! moment, by the old limit, may be shown as waiting until there is room.

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};
use lockkit_core::driver::SetLimit;
use lockkit_core::queue::{EXACT_ATTEMPTS, GivenLimit, LimitWrite, Resizing};
use lockkit_core::{Error, Key, Result};

use crate::client::{BACKEND, EtcdResult, ranges, revision};
use crate::keys::{end_of_claims, fixed_limit_key, fixed_limits, other_limits};
use crate::locks::EtcdLocks;
use crate::queue_snapshot::{QueueSnapshot, StoredClaim};
use crate::requests::{created, delete, get_list, none_in, unexpected_response, written};
use crate::value::until_bytes;

/// How often it begins again because others changed the limit, or the queue.
const ATTEMPTS: usize = 256;
/// Of how many claims it is asked whether they are still there. (A transaction has 128 conditions
/// at most, unless etcd is configured otherwise.)
const ASKED_FOR: usize = 100;

impl EtcdLocks {
    pub(crate) async fn resize(&self, key: &Key, to: SetLimit) -> Result<u32> {
        let (SetLimit::IfUnset(wanted) | SetLimit::To(wanted)) = to;
        let list = self.root.list(key);
        let mut first = wanted;
        for attempt in 0..ATTEMPTS {
            let snapshot = match self.give(&list, first).await? {
                Some(snapshot) => snapshot,
                // Now it has one that can be changed.
                None if matches!(to, SetLimit::To(limit) if limit != first) => continue,
                None => return Ok(first),
            };
            let limit = match snapshot.queue().limit_write(to) {
                LimitWrite::None(limit) => return Ok(limit),
                LimitWrite::To(limit) => limit,
            };
            let Some(now) = snapshot.queue().given() else {
                // The first limit is the one that it is in use with.
                first = snapshot.queue().limit().unwrap_or(wanted);
                continue;
            };
            let exact = attempt < EXACT_ATTEMPTS;
            if self.change(&list, &snapshot, now, limit, exact).await? {
                return Ok(limit);
            }
        }
        Err(Error::retryable(BACKEND, "others keep resizing this semaphore"))
    }

    /// Gives a queue its first limit, if it is not in use with another one; otherwise shows it.
    async fn give(&self, list: &[u8], limit: u32) -> EtcdResult<Option<QueueSnapshot>> {
        let (start, end) = fixed_limits(list);
        let mut fits = vec![none_in(&start, &end)];
        fits.extend(other_limits(list, limit).iter().map(|(from, to)| none_in(from, to)));
        let txn = Txn::new().when(fits).and_then([stays(list, limit, 0)]).or_else([get_list(list)]);
        let answer = self.client.txn(txn).await?.answer;
        if answer.succeeded() {
            return Ok(None);
        }
        let shown = ranges(&answer).pop().ok_or_else(unexpected_response)?;
        Ok(Some(QueueSnapshot::of(shown.kvs(), shown.count(), revision(&answer))))
    }

    /// Changes the limit, if it is still the one that was seen, and, if asked, if no other client has
    /// come to hold by that since. Says whether it was changed.
    async fn change(
        &self,
        list: &[u8],
        snapshot: &QueueSnapshot,
        now: GivenLimit,
        limit: u32,
        exact: bool,
    ) -> EtcdResult<bool> {
        let key = fixed_limit_key(list, now.limit);
        let mut still = vec![written(&key, snapshot.limit_modified)];
        let tokens: Vec<_> = snapshot.entries().iter().map(StoredClaim::token).collect();
        let Resizing { given: to, rests_on } = snapshot.queue().resizing(limit, &tokens);
        if exact && limit < now.limit {
            still.push(none_came(list, snapshot.revision));
            let matter = &snapshot.entries()[..rests_on];
            if rests_on <= ASKED_FOR {
                still.extend(matter.iter().map(|stored| created(&stored.key, stored.created)));
            }
        }
        let steps = [delete(&key), stays(list, limit, to.until)];
        let answer = self.client.txn(Txn::new().when(still).and_then(steps)).await?.answer;
        Ok(answer.succeeded())
    }
}

/// A limit is put, for good.
fn stays(list: &[u8], limit: u32, until: u64) -> TxnOp {
    TxnOp::put(fixed_limit_key(list, limit), until_bytes(until), None::<PutOptions>)
}

/// "All claims of this queue were there at this revision."
fn none_came(list: &[u8], revision: i64) -> Compare {
    let old = Compare::create_revision(list, CompareOp::Less, revision + 1);
    old.with_range(end_of_claims(list))
}
