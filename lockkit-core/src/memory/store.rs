//! All lists of a memory driver and what is remembered beside them. One verb at a time: the
//! driver locks the store around each call here.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::fading::Fading;
use super::line::{Calls, Line, Turn};
use super::watchers::Watchers;
use super::{BACKEND, used_up};
use crate::clock::Moment;
use crate::driver::{Acquisition, Ended, Force, Patience, Released, Renewal, SetLimit};
use crate::state::{Cursor, ListRequest, LockState, Page};
use crate::{BreakRecord, Claim, ClaimId, Error, Key, LossReason, Name, Namespace, Space, Token};

/// The last break of a list that is in use no more is shown for this long.
const LAST_BREAK_STAYS: Duration = Duration::from_secs(60);
/// When this many lists were begun, twice as many are looked at: lists whose claims all ended and
/// that nobody asks for go this way. So there are never many more of them than of the others.
const SWEEP_EVERY: u32 = 32;

/// The counter that all lists take their tokens from, so that nothing has to be remembered of a
/// list that is gone.
#[derive(Debug)]
pub(super) struct Tokens {
    next: u64,
}

impl Tokens {
    pub(super) fn take(&mut self) -> Result<Token, Error> {
        let token = Token::new(self.next).ok_or_else(used_up)?;
        self.next += 1;
        Ok(token)
    }

    /// Gives only greater ones than `token` from here on; an error when fewer than `needed` are
    /// left then.
    pub(super) fn go_beyond(&mut self, token: Token, needed: usize) -> Result<(), Error> {
        let next = self.next.max(token.get() + 1);
        if next - 1 > i64::MAX as u64 - needed as u64 {
            return Err(used_up());
        }
        self.next = next;
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Lines {
    by_key: BTreeMap<Key, Box<Line>>,
    tokens: Tokens,
    /// Why claims that are in line no more, or not for long, were broken.
    broken: Fading<ClaimId, (Key, Arc<BreakRecord>)>,
    /// The last breaks of lists that are not in use.
    last_breaks: Fading<Key, (Arc<BreakRecord>, Moment)>,
    /// The limits that semaphores were given, for good.
    limits: HashMap<Key, u32>,
    bases: HashMap<Namespace, u64>,
    pub(super) watchers: Watchers<Key>,
    begun: u32,
    swept_to: Option<Key>,
}

impl Lines {
    pub(super) fn new() -> Self {
        Self {
            by_key: BTreeMap::new(),
            tokens: Tokens { next: 1 },
            broken: Fading::new(),
            last_breaks: Fading::new(),
            limits: HashMap::new(),
            bases: HashMap::new(),
            watchers: Watchers::new(),
            begun: 0,
            swept_to: None,
        }
    }

    pub(super) fn acquire(
        &mut self,
        claim: &Arc<Claim>,
        patience: Patience,
        now: Moment,
        calls: &mut Calls,
    ) -> Result<Acquisition, Error> {
        let (weight, capacity) = (claim.mode.weight(), claim.mode.capacity());
        let given = match claim.key.space {
            Space::Lock => None,
            Space::Semaphore => self.limits.get(&claim.key).copied(),
        };
        if weight == 0 || (weight > capacity && given.is_none()) {
            let message = format!("{weight} permits of {capacity}: ask for 1 to {capacity}");
            return Err(Error::config(message));
        }
        let known = self.step(&claim.key, now, calls, |line, tokens, calls| {
            line.acquire(claim, patience, given, now, tokens, calls)
        });
        let answer = match known {
            Some(answer) => answer?,
            None => self.begin(claim, patience, given, now, calls)?,
        };
        if answer != Acquisition::Busy {
            // It is in line, so why it once ended is over and done.
            self.broken.take(&claim.id);
        }
        Ok(answer)
    }

    /// The first claim of a list.
    fn begin(
        &mut self,
        claim: &Arc<Claim>,
        patience: Patience,
        given: Option<u32>,
        now: Moment,
        calls: &mut Calls,
    ) -> Result<Acquisition, Error> {
        self.sweep(now, calls);
        let mut line = Box::new(Line::new());
        let answer = line.acquire(claim, patience, given, now, &mut self.tokens, calls)?;
        if answer == Acquisition::Busy {
            return Ok(answer); // more permits than the limit that it was given
        }
        let last = self.last_breaks.take(&claim.key).map(|(last, _)| last);
        line.last_break = last.filter(|(_, at)| now < at.after(LAST_BREAK_STAYS));
        if line.wind(calls) {
            self.watchers.call(&claim.key, calls);
        }
        self.by_key.insert(claim.key.clone(), line);
        Ok(answer)
    }

    pub(super) fn renew(&mut self, claim: &Claim, now: Moment, calls: &mut Calls) -> Renewal {
        self.on_claim(claim, now, calls, |line, seq, _, _| line.renew(seq, claim, now))
    }

    pub(super) fn release(&mut self, claim: &Claim, now: Moment, calls: &mut Calls) -> Released {
        let found = self.step(&claim.key, now, calls, |line, _, calls| {
            let seq = line.find(&claim.id)?;
            line.leave(seq, now, calls);
            Some(())
        });
        match found {
            Some(Some(())) => Released::Removed,
            Some(None) => Released::NotInLine,
            None => Released::NoSuchLock,
        }
    }

    /// Gives a semaphore a limit, and says which one it has.
    pub(super) fn resize(
        &mut self,
        key: &Key,
        limit: SetLimit,
        now: Moment,
        calls: &mut Calls,
    ) -> u32 {
        let in_use = self.step(key, now, calls, |line, _, calls| {
            if let SetLimit::To(limit) = limit {
                line.resize(limit, now, calls);
            }
            line.capacity()
        });
        let given = self.limits.get(key).copied();
        let limit = match limit {
            SetLimit::To(limit) => limit,
            SetLimit::IfUnset(limit) => given.or(in_use).unwrap_or(limit),
        };
        if given != Some(limit) {
            self.limits.insert(key.clone(), limit);
        }
        limit
    }

    /// Does something to a claim if it is in line; says how it ended if it is not.
    pub(super) fn on_claim(
        &mut self,
        claim: &Claim,
        now: Moment,
        calls: &mut Calls,
        verb: impl FnOnce(&mut Line, u64, &mut Tokens, &mut Calls) -> Renewal,
    ) -> Renewal {
        let known = self.step(&claim.key, now, calls, |line, tokens, calls| {
            line.find(&claim.id).map(|seq| verb(line, seq, tokens, calls))
        });
        known.flatten().unwrap_or_else(|| match self.why_broken(claim) {
            Some(record) => Renewal::Ended(Ended::Broken((*record).clone())),
            None => Renewal::Ended(Ended::NotInLine),
        })
    }

    pub(super) fn break_claim(
        &mut self,
        key: &Key,
        token: Token,
        force: Force,
        record: BreakRecord,
        now: Moment,
        calls: &mut Calls,
    ) -> bool {
        let record = Arc::new(record);
        let mut broken = Vec::new();
        self.step(key, now, calls, |line, _, calls| {
            for seq in line.with_token(token) {
                let Some(entry) = line.entry(seq) else {
                    continue;
                };
                let ttl = entry.hold_ttl.max(entry.claim.wait_ttl);
                broken.push((entry.claim.id, entry.expires().max(now.after(ttl))));
                line.last_break = Some((record.clone(), now));
                match force {
                    Force::Polite => line.mark_broken(seq, &record, calls),
                    Force::Immediate => line.leave(seq, now, calls),
                }
            }
        });
        let any = !broken.is_empty();
        for (id, until) in broken {
            self.broken.keep(id, (key.clone(), record.clone()), until);
        }
        any
    }

    /// What the one who waits for this claim is to do.
    pub(super) fn turn(
        &mut self,
        claim: &Claim,
        bell: &Arc<Notify>,
        now: Moment,
        calls: &mut Calls,
    ) -> Result<Turn, Error> {
        let turn =
            self.step(&claim.key, now, calls, |line, _, _| line.turn(line.find(&claim.id)?, bell));
        turn.flatten().unwrap_or_else(|| {
            let reason = match self.why_broken(claim) {
                Some(record) => LossReason::Broken((*record).clone()),
                None => LossReason::Expired,
            };
            Err(Error::Lost { reason })
        })
    }

    /// Nobody waits for this claim any more.
    pub(super) fn hush(&mut self, claim: &Claim, bell: &Arc<Notify>, calls: &mut Calls) {
        let Some(line) = self.by_key.get_mut(&claim.key) else {
            return;
        };
        if let Some(seq) = line.find(&claim.id) {
            line.hush(seq, bell);
        }
        if line.wind(calls) {
            self.watchers.call(&claim.key, calls);
        }
    }

    /// A list as it is, and when the next of its leases ends. Changes nothing.
    pub(super) fn view(&self, key: &Key, now: Moment) -> (LockState, Option<Moment>) {
        let (claims, next_end, last) = match self.by_key.get(key) {
            Some(line) => {
                let (claims, next_end) = line.view(now);
                (claims, next_end, line.last_break.as_ref())
            }
            None => (Vec::new(), None, self.last_breaks.get(key)),
        };
        let last = last
            .filter(|(_, at)| next_end.is_some() || now < at.after(LAST_BREAK_STAYS))
            .map(|(record, _)| (**record).clone());
        (LockState::new(key.clone(), claims, last), next_end)
    }

    /// A page in the order of space and name.
    pub(super) fn list(&self, request: &ListRequest, now: Moment) -> Result<Page, Error> {
        let limit = request.limit.max(1);
        let after = request.after.as_ref().map(read_cursor).transpose()?;
        let mut states: Vec<LockState> = Vec::new();
        for space in [Space::Lock, Space::Semaphore] {
            if request.space.is_some_and(|only| only != space)
                || after.as_ref().is_some_and(|(s, _)| *s > space)
            {
                continue;
            }
            let key = |name| Key::new(request.namespace.clone(), space, name);
            let from = match &after {
                Some((s, name)) if *s == space => Bound::Excluded(key(name.clone())),
                _ => match least_name(&request.prefix) {
                    Some(name) => Bound::Included(key(name)),
                    None => continue,
                },
            };
            let matching = self.by_key.range((from, Bound::Unbounded)).take_while(|(key, _)| {
                key.namespace == request.namespace
                    && key.space == space
                    && key.name.as_str().starts_with(&request.prefix)
            });
            for (key, _) in matching.filter(|(_, line)| line.has_live(now)) {
                if states.len() == limit {
                    let next = states.last().map(|last| write_cursor(&last.key));
                    return Ok(Page { states, next });
                }
                states.push(self.view(key, now).0);
            }
        }
        Ok(Page { states, next: None })
    }

    pub(super) fn base(&self, namespace: &Namespace) -> u64 {
        self.bases.get(namespace).copied().unwrap_or(0)
    }

    pub(super) fn raise_base(&mut self, namespace: &Namespace, base: u64) {
        if base > self.base(namespace) {
            self.bases.insert(namespace.clone(), base);
        }
    }

    /// What every verb does around its own work: ended claims go first; afterwards somebody keeps
    /// the time, who watches is told, and a list without claims is gone. `None` when there is no
    /// live claim to do anything about.
    fn step<R>(
        &mut self,
        key: &Key,
        now: Moment,
        calls: &mut Calls,
        verb: impl FnOnce(&mut Line, &mut Tokens, &mut Calls) -> R,
    ) -> Option<R> {
        self.broken.forget(now);
        self.last_breaks.forget(now);
        let line = self.by_key.get_mut(key)?;
        line.settle(now, calls);
        let result = (!line.is_empty()).then(|| verb(line, &mut self.tokens, calls));
        // A lease that was shortened to nothing, say, is over by now: the timekeeper sees to it.
        if line.wind(calls) {
            self.watchers.call(key, calls);
        }
        if line.is_empty()
            && let Some(line) = self.by_key.remove(key)
            && let Some((record, at)) = line.last_break
        {
            let until = at.after(LAST_BREAK_STAYS);
            self.last_breaks.keep(key.clone(), (record, at), until);
        }
        result
    }

    /// Now and then looks at some lists, in turn, for claims that ended and that nobody asks for.
    fn sweep(&mut self, now: Moment, calls: &mut Calls) {
        self.begun += 1;
        if self.begun < SWEEP_EVERY {
            return;
        }
        self.begun = 0;
        let from = match self.swept_to.take() {
            Some(key) => Bound::Excluded(key),
            None => Bound::Unbounded,
        };
        let some = 2 * SWEEP_EVERY as usize;
        let range = self.by_key.range((from, Bound::Unbounded));
        let keys: Vec<Key> = range.take(some).map(|(key, _)| key.clone()).collect();
        for key in &keys {
            self.step(key, now, calls, |_, _, _| ());
        }
        if keys.len() == some {
            self.swept_to = keys.into_iter().next_back();
        }
    }

    fn why_broken(&self, claim: &Claim) -> Option<Arc<BreakRecord>> {
        let (key, record) = self.broken.get(&claim.id)?;
        (*key == claim.key).then(|| record.clone())
    }

    /// How many things are remembered of locks, whatever they are.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.by_key.len() + self.broken.len() + self.last_breaks.len() + self.watchers.len()
    }
}

/// The least name that can begin with this; `None` when no name can.
fn least_name(prefix: &str) -> Option<Name> {
    // No name has control characters, so none is less than a space.
    let least = if prefix.is_empty() { " " } else { prefix };
    Name::new(least).ok()
}

fn write_cursor(key: &Key) -> Cursor {
    let space = match key.space {
        Space::Lock => b'l',
        Space::Semaphore => b's',
    };
    let name = key.name.as_str().bytes();
    Cursor(std::iter::once(space).chain(name).collect())
}

fn read_cursor(cursor: &Cursor) -> Result<(Space, Name), Error> {
    let parts = cursor.0.split_first().and_then(|(space, name)| {
        let space = match space {
            b'l' => Space::Lock,
            b's' => Space::Semaphore,
            _ => return None,
        };
        let name = Name::new(std::str::from_utf8(name).ok()?).ok()?;
        Some((space, name))
    });
    parts.ok_or_else(|| Error::config(format!("this cursor is not of a {BACKEND} listing")))
}
