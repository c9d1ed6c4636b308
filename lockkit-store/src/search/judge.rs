//! What the clients of a schedule say of their locks, and whether it can be true.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkit_core::driver::ClaimId;
use lockkit_core::{Mode, Token};
use tokio::time::Instant;

/// How much of a history is printed.
const SHOWN: usize = 60;

/// Every grant of a schedule, and what was wrong with them.
pub(super) struct Judge {
    begun: Instant,
    locks: BTreeMap<String, JudgedLock>,
    history: Vec<String>,
    violations: Vec<String>,
    pub(super) grants: u64,
}

#[derive(Default)]
struct JudgedLock {
    holders: BTreeMap<ClaimId, JudgedHolder>,
    /// Claims that ended, or whose deadline passed: core believes no later answer about them.
    ended: BTreeSet<ClaimId>,
    greatest: Option<(Token, Mode)>,
    greatest_exclusive: Option<Token>,
}

struct JudgedHolder {
    client: usize,
    mode: Mode,
    token: Token,
    valid_until: Instant,
}

impl Judge {
    pub(super) fn new() -> Self {
        Self {
            begun: Instant::now(),
            locks: BTreeMap::new(),
            history: Vec::new(),
            violations: Vec::new(),
            grants: 0,
        }
    }

    pub(super) fn note(&mut self, what: impl AsRef<str>) {
        let at = self.begun.elapsed().as_millis();
        self.history.push(format!("{at:>6} ms  {}", what.as_ref()));
    }

    fn violated(&mut self, what: String) {
        self.note(format!("VIOLATION: {what}"));
        self.violations.push(what);
    }

    /// A client believes that its claim holds for so long.
    pub(super) fn holds(
        &mut self,
        client: usize,
        lock: &str,
        (id, mode): (ClaimId, Mode),
        token: Token,
        remaining: Duration,
    ) {
        let now = Instant::now();
        let judged = self.locks.entry(lock.to_owned()).or_default();
        let lapsed = judged.holders.iter().filter(|(_, holder)| holder.valid_until <= now);
        judged.ended.extend(lapsed.map(|(id, _)| *id));
        judged.holders.retain(|_, holder| holder.valid_until > now);
        if judged.ended.contains(&id) {
            return;
        }
        let is_new = !judged.holders.contains_key(&id);
        let mut wrong = Vec::new();
        for (other, holder) in &judged.holders {
            let conflicts = mode == Mode::Exclusive || holder.mode == Mode::Exclusive;
            if *other != id && conflicts {
                wrong.push(format!(
                    "{lock}: client {client} holds with token {token} while client {} does with {}",
                    holder.client, holder.token
                ));
            }
        }
        if is_new {
            let before = match mode {
                Mode::Exclusive => judged.greatest.map(|(token, _)| token),
                _ => judged.greatest_exclusive,
            };
            if before.is_some_and(|before| before >= token) {
                let before = before.map(Token::get);
                wrong.push(format!("{lock}: token {token} came after {before:?}"));
            }
            if judged.greatest.is_none_or(|(before, _)| before < token) {
                judged.greatest = Some((token, mode));
            }
            if mode == Mode::Exclusive {
                judged.greatest_exclusive = judged.greatest_exclusive.max(Some(token));
            }
        }
        let valid_until = now + remaining;
        let holder = JudgedHolder { client, mode, token, valid_until };
        match judged.holders.get_mut(&id) {
            Some(before) => before.valid_until = before.valid_until.max(valid_until),
            None => drop(judged.holders.insert(id, holder)),
        }
        if is_new {
            self.grants += 1;
            self.note(format!("client {client} holds {lock} with {token} for {remaining:?}"));
        }
        wrong.into_iter().for_each(|wrong| self.violated(wrong));
    }

    /// A client does not use its claim any more.
    pub(super) fn ends(&mut self, client: usize, lock: &str, id: ClaimId, why: &str) {
        let judged = self.locks.entry(lock.to_owned()).or_default();
        judged.ended.insert(id);
        if judged.holders.remove(&id).is_some() {
            self.note(format!("client {client} ends {lock}: {why}"));
        }
    }

    /// A lock could not be had although nothing was in the way.
    pub(super) fn stuck(&mut self, client: usize, lock: &str, why: &str) {
        self.violated(format!("{lock} is stuck for client {client}: {why}"));
    }

    /// What was wrong, and the history before it.
    pub(super) fn violation(&self) -> Option<String> {
        let first = self.violations.first()?;
        let end = self.history.iter().position(|line| line.contains("VIOLATION"))? + 1;
        let shown = &self.history[end.saturating_sub(SHOWN)..end];
        Some(format!("{first}\n{}", shown.join("\n")))
    }
}
