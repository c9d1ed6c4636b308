//! Who believes that he holds, and with which token: the judge of a run.

use std::sync::Mutex;

use lockkit_core::clock::Moment;
use lockkit_core::{Mode, Token};

#[derive(Default)]
pub(crate) struct Ledger {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    entries: Vec<Entry>,
    found: Option<String>,
}

struct Entry {
    mode: Mode,
    token: Token,
    from: Moment,
    until: Moment,
}

impl Ledger {
    /// Somebody begins to hold. Judges it by those who held before.
    pub(crate) fn begin(
        &self,
        mode: Mode,
        token: Token,
        now: Moment,
        until: Moment,
        exclusion: bool,
    ) -> usize {
        let mut inner = self.inner.lock().unwrap();
        let mut found = None;
        for other in &inner.entries {
            if mode == Mode::Shared && other.mode == Mode::Shared {
                continue;
            }
            if exclusion && other.until > now {
                found = Some(format!(
                    "two hold at {now:?}: {:?} {:?} since {:?}, and {mode:?} {token:?}",
                    other.mode, other.token, other.from
                ));
            } else if other.token >= token {
                let before = (other.mode, other.token, other.from);
                found = Some(format!("the token {token:?} of {mode:?} comes after {before:?}"));
            }
        }
        inner.found = inner.found.take().or(found);
        inner.entries.push(Entry { mode, token, from: now, until });
        inner.entries.len() - 1
    }

    pub(crate) fn extend(&self, entry: usize, until: Moment) {
        let mut inner = self.inner.lock().unwrap();
        let entry = &mut inner.entries[entry];
        entry.until = entry.until.max(until);
    }

    pub(crate) fn end(&self, entry: usize, now: Moment) {
        let mut inner = self.inner.lock().unwrap();
        let entry = &mut inner.entries[entry];
        entry.until = entry.until.min(now);
    }

    /// How many held, or what went wrong.
    pub(crate) fn verdict(&self) -> Result<u64, String> {
        let inner = self.inner.lock().unwrap();
        match &inner.found {
            Some(found) => Err(found.clone()),
            None => Ok(inner.entries.len() as u64),
        }
    }

    pub(crate) fn is_decided(&self) -> bool {
        self.inner.lock().unwrap().found.is_some()
    }
}
