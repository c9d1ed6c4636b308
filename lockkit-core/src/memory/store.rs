//! All queues of a memory driver, and what is remembered of them. One operation at a time: the driver
//! locks the store around each call here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::waiting_tasks::{StoreOperation, WaitingTasks};
use super::{BACKEND, used_up};
use crate::claim::ClaimId;
use crate::claim_list::{ChangeKind, ClaimList, ListOperation, OperationResult, TokenSequence};
use crate::clock::Moment;
use crate::driver::{
    Acquisition, BreakMode, Grant, LeaseStart, Patience, Released, Renewal, SetLimit,
};
use crate::state::{Cursor, ListRequest, LockState, Page};
use crate::waiting::watchers::Watchers;
use crate::{BreakRecord, Claim, Error, Key, LossReason, Name, Namespace, Space, Token};

/// The last break of a list that is in use no more is shown for this long.
pub(super) const LAST_BREAK_STAYS: Duration = Duration::from_secs(60);
/// When this many lists were begun, twice as many are looked at: lists whose claims all ended and
/// that are not asked for go this way. So there are never many more of them than of the others.
const SWEEP_EVERY: u32 = 32;

/// A list in use, who waits for it, and how a claim of it was broken last.
#[derive(Debug)]
pub(super) struct QueueState {
    pub(super) queue: ClaimList<Arc<Claim>>,
    waiting: WaitingTasks,
    pub(super) last_break: Option<(Arc<BreakRecord>, Moment)>,
}

/// What a waiting claim is to do.
pub(super) enum WaitState {
    Holds(Grant),
    /// Waits for its task, and until then if it keeps the time.
    Waits(Option<Moment>),
}

#[derive(Debug)]
pub(super) struct QueueStore {
    pub(super) by_key: BTreeMap<Key, Box<QueueState>>,
    /// All lists take their tokens from here, so that nothing has to be remembered of a list that
    /// is gone.
    tokens: TokenSequence,
    /// Why claims that are no longer in a queue, or not for long, were broken.
    broken: ExpiringMap<ClaimId, (Key, Arc<BreakRecord>)>,
    /// The last breaks of lists that are not in use.
    pub(super) last_breaks: ExpiringMap<Key, (Arc<BreakRecord>, Moment)>,
    /// The limits that semaphores were given, for good.
    limits: HashMap<Key, u32>,
    bases: HashMap<Namespace, u64>,
    watchers: Arc<Watchers<Key>>,
    begun: u32,
    swept_to: Option<Key>,
}

impl QueueStore {
    pub(super) fn new(watchers: &Arc<Watchers<Key>>) -> Self {
        Self {
            by_key: BTreeMap::new(),
            tokens: TokenSequence::above(0),
            broken: ExpiringMap::new(),
            last_breaks: ExpiringMap::new(),
            limits: HashMap::new(),
            bases: HashMap::new(),
            watchers: watchers.clone(),
            begun: 0,
            swept_to: None,
        }
    }

    pub(super) fn acquire(
        &mut self,
        claim: &Arc<Claim>,
        patience: Patience,
        operation: &mut StoreOperation,
    ) -> Result<Acquisition, Error> {
        let given = match claim.key.space {
            Space::Lock => None,
            Space::Semaphore => self.limits.get(&claim.key).copied(),
        };
        claim.check_permits(given)?;
        let step = ListOperation::Acquire { claim, with: claim.clone(), patience, given };
        let answer = match self.step(&claim.key, &step, operation)? {
            Some(answer) => answer,
            None => self.begin(&claim.key, &step, operation)?,
        };
        let ahead = self.ahead(&claim.key, &answer);
        let acquired =
            answer.acquisition(claim, ahead, || Ok::<_, Error>(self.why_broken(claim)))?;
        if acquired != Acquisition::Busy {
            // It is in the queue, so why it once ended no longer matters.
            self.broken.take(&claim.id);
        }
        Ok(acquired)
    }

    /// The first step of a list.
    fn begin(
        &mut self,
        key: &Key,
        step: &ListOperation<'_, Arc<Claim>>,
        operation: &mut StoreOperation,
    ) -> Result<OperationResult, Error> {
        self.sweep(operation)?;
        let mut list = ClaimList::new();
        let answer =
            list.apply(step, operation.now, &mut self.tokens).map_err(|_| used_up())?.answer;
        if list.is_empty() {
            return Ok(answer); // more permits than the limit that it was given
        }
        let last = self.last_breaks.take(key).map(|(last, _)| last);
        let last_break = last.filter(|(_, at)| operation.now < at.after(LAST_BREAK_STAYS));
        operation.wake_ups.extend(self.watchers.of(key));
        self.by_key.insert(
            key.clone(),
            Box::new(QueueState { queue: list, waiting: WaitingTasks::new(), last_break }),
        );
        Ok(answer)
    }

    fn ahead(&self, key: &Key, answer: &OperationResult) -> u32 {
        match (answer, self.by_key.get(key)) {
            (OperationResult::Waits(sequence), Some(list)) => list.queue.ahead(*sequence),
            _ => 0,
        }
    }

    pub(super) fn release(
        &mut self,
        claim: &Claim,
        operation: &mut StoreOperation,
    ) -> Result<Released, Error> {
        Ok(match self.step(&claim.key, &ListOperation::Release(claim), operation)? {
            Some(OperationResult::Released(released)) => released,
            _ => Released::NoSuchLock,
        })
    }

    /// Gives a semaphore a limit, and says which one it has.
    pub(super) fn resize(
        &mut self,
        key: &Key,
        limit: SetLimit,
        operation: &mut StoreOperation,
    ) -> Result<u32, Error> {
        let given = self.limits.get(key).copied();
        let step = ListOperation::Resize { limit, given };
        let answer = match self.step(key, &step, operation)? {
            Some(answer) => answer,
            None => {
                ClaimList::new()
                    .apply(&step, operation.now, &mut self.tokens)
                    .map_err(|_| used_up())?
                    .answer
            }
        };
        let OperationResult::Limit(limit) = answer else {
            return Err(Error::permanent(BACKEND, "a resize was not answered with a limit"));
        };
        if given != Some(limit) {
            self.limits.insert(key.clone(), limit);
            operation.wake_ups.extend(self.watchers.of(key));
        }
        Ok(limit)
    }

    /// Applies an operation to a claim that is in its queue; says how it ended if it is not.
    pub(super) fn amend(
        &mut self,
        claim: &Claim,
        step: &ListOperation<'_, Arc<Claim>>,
        operation: &mut StoreOperation,
    ) -> Result<Renewal, Error> {
        let answer = self.step(&claim.key, step, operation)?.unwrap_or(OperationResult::NotFound);
        let ahead = self.ahead(&claim.key, &answer);
        answer.renewal(ahead, || Ok(self.why_broken(claim)))
    }

    pub(super) fn break_claim(
        &mut self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
        operation: &mut StoreOperation,
    ) -> Result<bool, Error> {
        let answer = self.step(key, &ListOperation::Break(token, force), operation)?;
        let Some(OperationResult::BrokenClaims(broke)) = answer else { return Ok(false) };
        if broke.is_empty() {
            return Ok(false);
        }
        let record = Arc::new(record.clone());
        for claim in broke {
            self.broken.keep(claim.id, (key.clone(), record.clone()), claim.until);
        }
        match self.by_key.get_mut(key) {
            Some(list) => list.last_break = Some((record, operation.now)),
            None => self.keep_last_break(key, (record, operation.now)),
        }
        Ok(true)
    }

    /// What the one who waits for this claim is to do.
    pub(super) fn turn(
        &mut self,
        claim: &Claim,
        task: &Arc<Notify>,
        operation: &mut StoreOperation,
    ) -> Result<WaitState, Error> {
        self.step(&claim.key, &ListOperation::Advance, operation)?;
        let list = self.by_key.get_mut(&claim.key);
        let found = list.and_then(|list| {
            let sequence = list.queue.find(&claim.id)?;
            Some((list.queue.get(sequence)?.clone(), list))
        });
        match found {
            Some((entry, _)) if entry.broken => Err(self.lost(claim)),
            Some((entry, _)) if entry.holds() => Ok(WaitState::Holds(Grant {
                token: entry.token,
                ttl: entry.hold_ttl,
                start: LeaseStart::LastAnswered,
                margin: Duration::ZERO,
            })),
            Some((entry, list)) => {
                Ok(WaitState::Waits(list.waiting.add(entry.sequence, task, list.queue.first_end())))
            }
            None => Err(self.lost(claim)),
        }
    }

    /// This claim is not waited for any more.
    pub(super) fn stop_waiting(
        &mut self,
        claim: &Claim,
        task: &Arc<Notify>,
        operation: &mut StoreOperation,
    ) {
        let Some(list) = self.by_key.get_mut(&claim.key) else {
            return;
        };
        if let Some(sequence) = list.queue.find(&claim.id) {
            list.waiting.remove(sequence, task);
        }
        list.waiting.arm_timer(list.queue.first_end(), &mut operation.wake_ups);
    }

    pub(super) fn base(&self, namespace: &Namespace) -> u64 {
        self.bases.get(namespace).copied().unwrap_or(0)
    }

    pub(super) fn raise_counter(&mut self, namespace: &Namespace, base: u64) {
        if base > self.base(namespace) {
            self.bases.insert(namespace.clone(), base);
        }
    }

    /// Applies an operation to a queue: ended claims are removed first; afterwards a task keeps the time,
    /// watchers are notified, and a queue without claims is removed. `None` when the queue has no live
    /// claim.
    fn step(
        &mut self,
        key: &Key,
        step: &ListOperation<'_, Arc<Claim>>,
        operation: &mut StoreOperation,
    ) -> Result<Option<OperationResult>, Error> {
        self.broken.forget(operation.now);
        self.last_breaks.forget(operation.now);
        let Some(list) = self.by_key.get_mut(key) else {
            return Ok(None);
        };
        let mut answer = None;
        let mut changed = false;
        for step in [&ListOperation::Advance, step] {
            // Nothing is beyond this window, so only tokens can be missing.
            let applied =
                list.queue.apply(step, operation.now, &mut self.tokens).map_err(|_| used_up())?;
            for change in &applied.changes {
                changed |= change.kind != ChangeKind::Renewed;
                if change.wakes() {
                    list.waiting.wake(change.sequence, &mut operation.wake_ups);
                }
            }
            if list.queue.is_empty()
                && answer.is_none()
                && applied.answer == OperationResult::Advanced
            {
                break;
            }
            answer = Some(applied.answer);
        }
        list.waiting.arm_timer(list.queue.first_end(), &mut operation.wake_ups);
        if changed {
            operation.wake_ups.extend(self.watchers.of(key));
        }
        if list.queue.is_empty()
            && let Some(list) = self.by_key.remove(key)
            && let Some(last) = list.last_break
        {
            self.keep_last_break(key, last);
        }
        Ok(answer)
    }

    fn keep_last_break(&mut self, key: &Key, (record, at): (Arc<BreakRecord>, Moment)) {
        self.last_breaks.keep(key.clone(), (record, at), at.after(LAST_BREAK_STAYS));
    }

    /// Now and then looks at some lists, in turn, for claims that ended and are not asked for.
    fn sweep(&mut self, operation: &mut StoreOperation) -> Result<(), Error> {
        self.begun += 1;
        if self.begun < SWEEP_EVERY {
            return Ok(());
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
            self.step(key, &ListOperation::Advance, operation)?;
        }
        if keys.len() == some {
            self.swept_to = keys.into_iter().next_back();
        }
        Ok(())
    }

    fn lost(&self, claim: &Claim) -> Error {
        let broken = self.why_broken(claim);
        Error::Lost { reason: broken.map_or(LossReason::Expired, LossReason::Broken) }
    }

    fn why_broken(&self, claim: &Claim) -> Option<BreakRecord> {
        let (key, record) = self.broken.get(&claim.id)?;
        (*key == claim.key).then(|| (**record).clone())
    }

    /// How many things are remembered of locks, whatever they are.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.by_key.len() + self.broken.len() + self.last_breaks.len() + self.watchers.len()
    }
}

#[derive(Debug)]
pub(super) struct ExpiringMap<K, V> {
    items: BTreeMap<K, (V, Moment)>,
    ends: BTreeSet<(Moment, K)>,
}

impl<K: Ord + Clone, V> ExpiringMap<K, V> {
    pub(super) fn new() -> Self {
        Self { items: BTreeMap::new(), ends: BTreeSet::new() }
    }

    /// Keeps `value` until then, in place of what was there.
    pub(super) fn keep(&mut self, key: K, value: V, until: Moment) {
        if let Some((_, old)) = self.items.insert(key.clone(), (value, until)) {
            self.ends.remove(&(old, key.clone()));
        }
        self.ends.insert((until, key));
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.items.get(key).map(|(value, _)| value)
    }

    /// The value, and until when it would have been kept.
    pub(super) fn take(&mut self, key: &K) -> Option<(V, Moment)> {
        let (value, until) = self.items.remove(key)?;
        self.ends.remove(&(until, key.clone()));
        Some((value, until))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.items.len().max(self.ends.len())
    }

    /// Drops what has been kept long enough.
    pub(super) fn forget(&mut self, now: Moment) {
        while self.ends.first().is_some_and(|(end, _)| *end <= now) {
            if let Some((_, key)) = self.ends.pop_first() {
                self.items.remove(&key);
            }
        }
    }
}

impl QueueStore {
    /// A list as it is, and when the next of its leases ends. Changes nothing.
    pub(super) fn view(&self, key: &Key, now: Moment) -> (LockState, Option<Moment>) {
        let (claims, next_end, last) = match self.by_key.get(key) {
            Some(list) => {
                let note = |claim: &Claim| claim.note.as_deref().map(str::to_owned);
                let who = |claim: &Arc<Claim>| ((*claim.identity).clone(), note(claim));
                let claims = list.queue.states(now, who);
                let live = list.queue.entries().filter(|entry| entry.is_live(now));
                (claims, live.map(|entry| entry.expires).min(), list.last_break.as_ref())
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
        let after = request.after.as_ref().map(Cursor::decode).transpose()?;
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
            for (key, _) in
                matching.filter(|(_, list)| list.queue.entries().any(|e| e.is_live(now)))
            {
                if states.len() == limit {
                    let next = states.last().map(|last| Cursor::behind(&last.key));
                    return Ok(Page { states, next });
                }
                states.push(self.view(key, now).0);
            }
        }
        Ok(Page { states, next: None })
    }

    /// The namespaces in which a list is in use.
    pub(super) fn namespaces(&self, now: Moment) -> BTreeSet<Namespace> {
        let live = |list: &QueueState| list.queue.entries().any(|e| e.is_live(now));
        let in_use = self.by_key.iter().filter(|(_, list)| live(list));
        in_use.map(|(key, _)| key.namespace.clone()).collect()
    }
}

/// The least name that can begin with this; `None` when no name can.
pub(super) fn least_name(prefix: &str) -> Option<Name> {
    // No name has control characters, so none is less than a space.
    let least = if prefix.is_empty() { " " } else { prefix };
    Name::new(least).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_again_is_kept_until_the_later_end() {
        let at = Moment::from_nanos;
        let mut expiring = ExpiringMap::new();
        expiring.keep("a", 1, at(10));
        expiring.keep("b", 2, at(20));
        expiring.keep("a", 3, at(30));
        expiring.forget(at(10));
        assert_eq!(expiring.get(&"a"), Some(&3));
        expiring.forget(at(20));
        assert_eq!(expiring.get(&"b"), None);
        assert_eq!(expiring.take(&"a"), Some((3, at(30))));
        assert!(expiring.items.is_empty() && expiring.ends.is_empty());
    }
}
