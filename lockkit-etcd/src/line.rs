//! One list of claims as etcd showed it: the keys under one prefix, in the order of their creation.
//! The rule itself is core's. No I/O.

use etcd_client::KeyValue;
use lockkit_core::driver::ClaimData;
use lockkit_core::queue::{Ahead, Member, Queue, Verdict};
use lockkit_core::{Claim, Error, Mode};

use crate::keys::given_limit;
use crate::value::given_by;

/// A key of a list.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    /// The create revision: the place in the line, and the token.
    pub(crate) created: i64,
    /// The revision of its last change: whoever writes it anew says from which state.
    pub(crate) modified: i64,
    pub(crate) lease: i64,
    pub(crate) mode: Mode,
    /// `None` for a key that is not ours, such as one of `etcdctl lock`.
    pub(crate) value: Option<ClaimData>,
}

impl Entry {
    pub(crate) fn of(kv: &KeyValue) -> Self {
        let value = ClaimData::from_json(kv.value());
        Self {
            key: kv.key().to_vec(),
            created: kv.create_revision(),
            modified: kv.mod_revision(),
            lease: kv.lease(),
            // Whoever else stands in line wants the lock alone: so do Go's mutex and `etcdctl`.
            mode: value.as_ref().map_or(Mode::Exclusive, ClaimData::mode),
            value,
        }
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

impl Member for Entry {
    fn mode(&self) -> Mode {
        self.mode
    }

    fn count_as(&mut self, mode: Mode) {
        self.mode = mode;
    }
}

/// A list, or the part of it that matters to one claim.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    queue: Queue<Entry>,
    /// The revision at which its limit was written last; 0 when it was given none.
    pub(crate) limit_modified: i64,
    /// The revision at which it was so.
    pub(crate) revision: i64,
}

impl Line {
    pub(crate) fn of(kvs: &[KeyValue], count: i64, revision: i64) -> Self {
        let given = kvs.iter().find_map(|kv| Some((given_by(kv)?, kv.mod_revision())));
        let claims = kvs.iter().filter(|kv| given_limit(kv.key()).is_none());
        let mut entries: Vec<_> = claims.map(Entry::of).collect();
        entries.sort_by_key(|entry| entry.created);
        let hidden = usize::try_from(count).unwrap_or(0).saturating_sub(kvs.len());
        let queue = Queue::new(entries, given.map(|(limit, _)| limit), hidden);
        Self { queue, limit_modified: given.map_or(0, |(_, modified)| modified), revision }
    }

    pub(crate) fn queue(&self) -> &Queue<Entry> {
        &self.queue
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        self.queue.members()
    }

    pub(crate) fn find(&self, key: &[u8]) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// The claim with this key, if it is the one that was created then, as far as that is known: a
    /// driver gives its keys to one claim after the other.
    pub(crate) fn own(&self, key: &[u8], created: Option<i64>) -> Option<&Entry> {
        self.find(key).filter(|own| created.is_none_or(|created| created == own.created))
    }

    /// The live claims ahead of the one that was created then.
    pub(crate) fn ahead(&self, created: i64) -> u32 {
        self.queue.ahead(self.entries().partition_point(|entry| entry.created < created))
    }

    /// What the rule says about the claim that was created then, if it is there.
    fn verdict(&self, created: i64) -> Option<Verdict<'_, Entry>> {
        let place = self.entries().iter().position(|entry| entry.created == created)?;
        Some(self.queue.verdict(place, created.unsigned_abs()))
    }

    /// Whether the claim that was created then holds.
    pub(crate) fn holds(&self, created: i64) -> bool {
        matches!(self.verdict(created), Some(Verdict::Holds))
    }

    /// Whether this claim would hold at once at the end of this list; refuses a limit other than the
    /// one in use.
    pub(crate) fn admits(&self, claim: &Claim) -> Result<bool, Error> {
        match self.queue.verdict_at_end(claim.mode) {
            Verdict::Holds => Ok(true),
            Verdict::Waits(_) => Ok(false),
            Verdict::OtherLimit(in_use) => Err(claim.other_limit(in_use)),
        }
    }

    /// Whom the claim that was created then waits for: when this one goes, it is worth a look.
    /// `None` stands for everybody ahead.
    pub(crate) fn obstacle(&self, created: i64) -> Option<&Entry> {
        match self.verdict(created)? {
            Verdict::Waits(Ahead { blocker, .. }) => blocker,
            _ => None,
        }
    }

    /// Takes out a claim that has gone.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        self.queue.retain(|entry| entry.key != key);
    }

    /// Notes what became of a claim that is still there.
    pub(crate) fn update(&mut self, kv: &KeyValue) {
        if let Some(place) = self.entries().iter().position(|entry| entry.key == kv.key()) {
            self.queue.update(place, Entry::of(kv));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_made_anew_is_another_claim() {
        let entry = |created: i64| {
            let (key, mode) = (created.to_string().into_bytes(), Mode::Exclusive);
            Entry { key, created, modified: created, lease: 1, mode, value: None }
        };
        let queue = Queue::new(vec![entry(11), entry(12)], None, 0);
        let line = Line { queue, ..Line::default() };
        let created = |key: &[u8], then| line.own(key, then).map(|own| own.created);
        assert_eq!(created(b"12", Some(12)), Some(12));
        assert_eq!(created(b"12", None), Some(12));
        assert_eq!(created(b"12", Some(7)), None);
        assert_eq!(created(b"13", None), None);
    }
}
