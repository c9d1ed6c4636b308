//! One list of claims as etcd showed it: the keys under one prefix, in the order of their creation.
//! The rule itself is core's. No I/O.

use etcd_client::KeyValue;
use lockkit_core::queue::admits;
use lockkit_core::{Error, Key, Mode};

use crate::given::Given;
use crate::keys::given_limit;
use crate::value::Value;

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
    pub(crate) value: Option<Value>,
}

impl Entry {
    pub(crate) fn of(kv: &KeyValue) -> Self {
        let value = Value::parse(kv.value());
        Self {
            key: kv.key().to_vec(),
            created: kv.create_revision(),
            modified: kv.mod_revision(),
            lease: kv.lease(),
            // Whoever else stands in line wants the lock alone: so do Go's mutex and `etcdctl`.
            mode: value.as_ref().map_or(Mode::Exclusive, Value::mode),
            value,
        }
    }

    /// Whether it has the lease of a holder already.
    pub(crate) fn is_holding(&self) -> bool {
        self.value.as_ref().is_none_or(Value::is_holding)
    }
}

/// A list, or the part of it that matters to one claim.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    pub(crate) entries: Vec<Entry>,
    /// The limit that it was given, if it was.
    pub(crate) given: Option<Given>,
    /// How many entries were not shown: they stand ahead of the first one here.
    pub(crate) hidden: usize,
    /// The revision at which it was so.
    pub(crate) revision: i64,
}

impl Line {
    pub(crate) fn of(kvs: &[KeyValue], count: i64, revision: i64) -> Self {
        let given = kvs.iter().find_map(Given::of);
        let claims = kvs.iter().filter(|kv| given_limit(kv.key()).is_none());
        let mut entries: Vec<_> = claims.map(Entry::of).collect();
        entries.sort_by_key(|entry| entry.created);
        if let Some(given) = &given {
            entries.iter_mut().for_each(|entry| entry.mode = given.counted(entry.mode));
        }
        let hidden = usize::try_from(count).unwrap_or(0).saturating_sub(kvs.len());
        Self { entries, given, hidden, revision }
    }

    pub(crate) fn find(&self, key: &[u8]) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// The claim with this key, if it is the one that was created then, as far as that is known: a
    /// driver gives its keys to one claim after the other.
    pub(crate) fn own(&self, key: &[u8], created: Option<i64>) -> Option<&Entry> {
        self.find(key).filter(|own| created.is_none_or(|created| created == own.created))
    }

    /// The live claims ahead of the one that was created then.
    pub(crate) fn ahead(&self, created: i64) -> u32 {
        let shown = self.entries.iter().filter(|entry| entry.created < created).count();
        u32::try_from(shown + self.hidden).unwrap_or(u32::MAX)
    }

    /// Whether the claim that was created then holds.
    pub(crate) fn holds(&self, created: i64) -> bool {
        let mut ahead = 0;
        for entry in &self.entries {
            if entry.created == created {
                let held = self.given.as_ref().is_some_and(|given| created <= given.until);
                return held || (self.hidden == 0 && admits(ahead, entry.mode));
            }
            ahead += u64::from(entry.mode.weight());
        }
        false
    }

    /// Whether another claim would hold at once at the end of this list.
    pub(crate) fn admits(&self, mode: Mode) -> bool {
        let ahead = self.entries.iter().map(|entry| u64::from(entry.mode.weight())).sum();
        self.hidden == 0 && admits(ahead, mode)
    }

    /// Refuses a limit other than the one in use.
    pub(crate) fn check_limit(&self, key: &Key, mode: Mode) -> Result<(), Error> {
        let Some(asked) = mode.limit() else {
            return Ok(());
        };
        let given = self.given.iter().map(|given| given.limit);
        let limits = given.chain(self.entries.iter().filter_map(|entry| entry.mode.limit()));
        match limits.into_iter().find(|in_use| *in_use != asked) {
            None => Ok(()),
            Some(in_use) => {
                let name = key.name.as_str().to_owned();
                Err(Error::LimitMismatch { name, in_use, asked })
            }
        }
    }

    /// The limit that the claims here came with.
    pub(crate) fn limit_in_use(&self) -> Option<u32> {
        self.entries.iter().find_map(|entry| entry.mode.limit())
    }

    /// Whom the claim that was created then waits for: when this one goes, it is worth a look.
    /// `None` stands for everybody ahead.
    pub(crate) fn obstacle(&self, created: i64) -> Option<&Entry> {
        let mode = self.entries.iter().find(|e| e.created == created)?.mode;
        let mut ahead = self.entries.iter().filter(|e| e.created < created);
        match mode {
            Mode::Exclusive => ahead.next_back(),
            Mode::Shared => ahead.rfind(|e| e.mode != Mode::Shared),
            Mode::Permits { .. } => None,
        }
    }

    /// Takes out a claim that has gone.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        self.entries.retain(|entry| entry.key != key);
    }

    /// Notes what became of a claim that is still there.
    pub(crate) fn update(&mut self, kv: &KeyValue) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == kv.key()) {
            *entry = Entry::of(kv);
            if let Some(given) = &self.given {
                entry.mode = given.counted(entry.mode);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(created: i64, permits: u32) -> Entry {
        let mode = Mode::Permits { permits, limit: 9 };
        let key = created.to_string().into_bytes();
        Entry { key, created, modified: created, lease: 1, mode, value: None }
    }

    /// Who holds in a list of permits that was given a limit, below which some hold on.
    fn holders(permits: &[u32], limit: u32, until: i64) -> Vec<bool> {
        let given = Given { key: Vec::new(), limit, until, modified: 1 };
        let mut line = Line { given: Some(given.clone()), ..Line::default() };
        for (created, permits) in (11..).zip(permits) {
            let mut entry = entry(created, *permits);
            entry.mode = given.counted(entry.mode);
            line.entries.push(entry);
        }
        line.entries.iter().map(|entry| line.holds(entry.created)).collect()
    }

    #[test]
    fn who_held_when_the_limit_was_lowered_holds_on_and_others_by_the_sum() {
        assert_eq!(holders(&[1, 1, 1], 2, 0), [true, true, false]);
        assert_eq!(holders(&[1, 1, 1, 1], 2, 13), [true, true, true, false]);
        assert_eq!(holders(&[2, 1], 0, 11), [true, false]);
        // Those that held have left: their place means nothing for who came later.
        assert_eq!(holders(&[1, 1, 1], 2, 10), [true, true, false]);
        assert_eq!(holders(&[3, 1], 2, 0), [false, false]);
    }

    #[test]
    fn a_key_that_was_made_anew_is_another_claim() {
        let line = Line { entries: vec![entry(11, 1), entry(12, 1)], ..Line::default() };
        let created = |key: &[u8], then| line.own(key, then).map(|own| own.created);
        assert_eq!(created(b"12", Some(12)), Some(12));
        assert_eq!(created(b"12", None), Some(12));
        assert_eq!(created(b"12", Some(7)), None);
        assert_eq!(created(b"13", None), None);
    }
}
