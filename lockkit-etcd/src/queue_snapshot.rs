//! A queue of claims as one request read it: the keys under one prefix, in the order of their creation.
//! The rule itself is core's. No I/O.

use etcd_client::KeyValue;
use lockkit_core::driver::ClaimData;
use lockkit_core::queue::{Ahead, Queue, QueueMember, RuleResult};
use lockkit_core::{Claim, Mode, Result};

use crate::keys::fixed_limit_of;
use crate::value::stored_limit;

/// What identifies a claim in all queues, then and later: its key and its create revision.
pub(crate) type Position = (Vec<u8>, i64);

/// A key of a queue.
#[derive(Clone, Debug)]
pub(crate) struct StoredClaim {
    pub(crate) key: Vec<u8>,
    /// The create revision: the position in the queue, and the token.
    pub(crate) created: i64,
    /// The revision of its last change: a client that writes it again says from which state.
    pub(crate) modified: i64,
    pub(crate) lease: i64,
    pub(crate) mode: Mode,
    /// `None` for a key that is not ours, such as one of `etcdctl lock`.
    pub(crate) value: Option<ClaimData>,
}

impl StoredClaim {
    pub(crate) fn of(kv: &KeyValue) -> Self {
        let value = ClaimData::from_json(kv.value());
        Self {
            key: kv.key().to_vec(),
            created: kv.create_revision(),
            modified: kv.mod_revision(),
            lease: kv.lease(),
            // Any other library wants the lock exclusively: so do Go's mutex and `etcdctl`.
            mode: value.as_ref().map_or(Mode::Exclusive, ClaimData::mode),
            value,
        }
    }

    pub(crate) fn position(&self) -> Position {
        (self.key.clone(), self.created)
    }

    /// Whether it holds, as its client has written, and excludes all others: then nothing is ahead of it.
    pub(crate) fn is_sole_holder(&self) -> bool {
        self.mode == Mode::Exclusive && self.value.as_ref().is_some_and(ClaimData::is_holding)
    }

    /// Its token.
    pub(crate) fn token(&self) -> u64 {
        self.created.unsigned_abs()
    }

    /// Whether it has the lease of a holder already.
    pub(crate) fn is_holding(&self) -> bool {
        self.value.as_ref().is_none_or(ClaimData::is_holding)
    }
}

impl QueueMember for StoredClaim {
    fn mode(&self) -> Mode {
        self.mode
    }

    fn count_as(&mut self, mode: Mode) {
        self.mode = mode;
    }
}

/// A queue, or the part of it that matters to one claim.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueSnapshot {
    queue: Queue<StoredClaim>,
    /// The revision at which its limit was written last; 0 when it has no fixed one.
    pub(crate) limit_modified: i64,
    /// The revision at which it was so.
    pub(crate) revision: i64,
}

impl QueueSnapshot {
    pub(crate) fn of(kvs: &[KeyValue], count: i64, revision: i64) -> Self {
        let given = kvs.iter().find_map(|kv| Some((stored_limit(kv)?, kv.mod_revision())));
        let claims = kvs.iter().filter(|kv| fixed_limit_of(kv.key()).is_none());
        let mut entries: Vec<_> = claims.map(StoredClaim::of).collect();
        entries.sort_by_key(|stored| stored.created);
        let hidden = usize::try_from(count).unwrap_or(0).saturating_sub(kvs.len());
        let queue = Queue::new(entries, given.map(|(limit, _)| limit), hidden);
        Self { queue, limit_modified: given.map_or(0, |(_, modified)| modified), revision }
    }

    /// The same of these claims, in order.
    #[cfg(test)]
    pub(crate) fn shown(entries: Vec<StoredClaim>) -> Self {
        Self { queue: Queue::new(entries, None, 0), ..Self::default() }
    }

    pub(crate) fn queue(&self) -> &Queue<StoredClaim> {
        &self.queue
    }

    pub(crate) fn entries(&self) -> &[StoredClaim] {
        self.queue.members()
    }

    pub(crate) fn find(&self, key: &[u8]) -> Option<&StoredClaim> {
        self.entries().iter().find(|stored| stored.key == key)
    }

    /// The claim with this key, if it is the one that was created then, as far as that is known: a
    /// driver gives its keys to one claim after the other.
    pub(crate) fn own(&self, key: &[u8], created: Option<i64>) -> Option<&StoredClaim> {
        self.find(key).filter(|own| created.is_none_or(|created| created == own.created))
    }

    /// The live claims ahead of the one that was created then.
    pub(crate) fn ahead(&self, created: i64) -> u32 {
        self.queue.ahead(self.entries().partition_point(|stored| stored.created < created))
    }

    /// What the rule says about the claim that was created then, if it is there.
    fn rule_result(&self, created: i64) -> Option<RuleResult<'_, StoredClaim>> {
        let position = self.entries().iter().position(|stored| stored.created == created)?;
        Some(self.queue.rule_for(position, created.unsigned_abs()))
    }

    /// Whether the claim that was created then holds.
    pub(crate) fn holds(&self, created: i64) -> bool {
        matches!(self.rule_result(created), Some(RuleResult::Holds))
    }

    /// Whether this claim would hold at once at the end of this queue; refuses a limit other than the
    /// one in use.
    pub(crate) fn admits(&self, claim: &Claim) -> Result<bool> {
        match self.queue.rule_at_end(claim.mode) {
            RuleResult::Holds => Ok(true),
            RuleResult::Waits(_) => Ok(false),
            RuleResult::OtherLimit(in_use) => Err(claim.other_limit(in_use)),
        }
    }

    /// The claim that the one that was created then waits for: when it goes, it is worth a read.
    /// `None`: any of the claims ahead.
    pub(crate) fn claim_ahead(&self, created: i64) -> Option<&StoredClaim> {
        match self.rule_result(created)? {
            RuleResult::Waits(Ahead { blocker, .. }) => blocker,
            _ => None,
        }
    }

    /// Takes out a claim that has gone.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        self.queue.retain(|stored| stored.key != key);
    }

    /// Notes what became of a claim that is still there.
    pub(crate) fn update(&mut self, kv: &KeyValue) {
        if let Some(position) = self.entries().iter().position(|stored| stored.key == kv.key()) {
            self.queue.update(position, StoredClaim::of(kv));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_made_anew_is_another_claim() {
        let stored = |created: i64| {
            let (key, mode) = (created.to_string().into_bytes(), Mode::Exclusive);
            StoredClaim { key, created, modified: created, lease: 1, mode, value: None }
        };
        let snapshot = QueueSnapshot::shown(vec![stored(11), stored(12)]);
        let created = |key: &[u8], then| snapshot.own(key, then).map(|own| own.created);
        assert_eq!(created(b"12", Some(12)), Some(12));
        assert_eq!(created(b"12", None), Some(12));
        assert_eq!(created(b"12", Some(7)), None);
        assert_eq!(created(b"13", None), None);
    }
}
