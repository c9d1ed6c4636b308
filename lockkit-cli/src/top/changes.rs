//! How often locks change hands, as far as looks show it: claims that began to hold since the look
//! before. What came and went between two looks is not seen.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use lockkit::state::LockState;
use lockkit::{Space, Token};

/// The time over which a rate is taken.
pub(super) const WINDOW: Duration = Duration::from_secs(60);

/// Space and name of a lock.
pub(super) type Id = (Space, String);

pub(super) fn id(state: &LockState) -> Id {
    (state.space(), state.name().as_str().to_owned())
}

#[derive(Debug, Default)]
pub(super) struct Changes {
    began: Option<Duration>,
    now: Duration,
    of: HashMap<Id, Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    holders: BTreeSet<Token>,
    /// When how many began to hold.
    grants: VecDeque<(Duration, usize)>,
}

impl Changes {
    /// Counts what is new in a look, taken at this time. The first shows nothing that is new.
    pub(super) fn update(&mut self, states: &[LockState], at: Duration) {
        let first = self.began.is_none();
        self.began.get_or_insert(at);
        self.now = at;
        let mut gone: BTreeSet<Id> = self.of.keys().cloned().collect();
        for state in states {
            let id = id(state);
            gone.remove(&id);
            let seen = self.of.entry(id).or_default();
            let holders: BTreeSet<Token> = state.holders().map(|s| s.token).collect();
            let new = holders.difference(&seen.holders).count();
            if new > 0 && !first {
                seen.grants.push_back((at, new));
            }
            seen.holders = holders;
        }
        for id in gone {
            self.of.entry(id).or_default().holders.clear();
        }
        self.of.retain(|_, seen| {
            seen.grants.retain(|(when, _)| *when + WINDOW > at);
            !(seen.grants.is_empty() && seen.holders.is_empty())
        });
    }

    /// Forgets everything: the looks that follow are of other names.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// How many claims of this lock began to hold, a minute.
    pub(super) fn rate(&self, id: &Id) -> f64 {
        self.per_minute(self.of.get(id).map_or(0, Seen::count))
    }

    /// The same over all.
    pub(super) fn total(&self) -> f64 {
        self.per_minute(self.of.values().map(Seen::count).sum())
    }

    fn per_minute(&self, count: usize) -> f64 {
        let watched_for = self.now.saturating_sub(self.began.unwrap_or_default());
        // One grant in the first second is not yet sixty a minute.
        let over = watched_for.clamp(WINDOW / 6, WINDOW);
        count as f64 * 60.0 / over.as_secs_f64()
    }
}

impl Seen {
    fn count(&self) -> usize {
        self.grants.iter().map(|(_, count)| count).sum()
    }
}
