//! Operations on the queues of a shard: the document in, the next document and answers out. The rule is
//! [`lockkit_core::claim_list`]'s; here are documents in and documents out. No I/O.
//!
//! The state machine is built from the document for every attempt. What ends an entry is not a lease of its own but the
//! end of its session: its expiry is now where that is known, otherwise the end of time.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::claim_list::{
    ApplyError, BrokenClaim, ChangeKind, ClaimList, ListOperation, OperationResult, QueuedClaim,
    TokenSequence,
};
use lockkit_core::clock::{ClockPair, Moment};
use lockkit_core::driver::{BreakMode, ClaimId, Patience, SetLimit};
use lockkit_core::state::ClaimState;
use lockkit_core::{BreakRecord, Claim, Error, Key, Result, Token};

use crate::context::StoreContext;
use crate::document::{
    EntryDetails, SessionId, ShardDocument, StoredBreak, StoredEntry, StoredQueue, micros,
};

/// The end of time.
const NEVER: Moment = Moment::from_nanos(u64::MAX);
/// Records of breaks in a queue at most.
const MOST_BREAKS: usize = 16;

/// One operation on a queue.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Acquire { claim: Arc<Claim>, patience: Patience, session: SessionId },
    Renew(Arc<Claim>),
    Release(Arc<Claim>),
    Downgrade(Arc<Claim>),
    Raise(Arc<Claim>, Token),
    Break { key: Key, token: Token, mode: BreakMode, record: BreakRecord },
    Resize { key: Key, limit: SetLimit },
}

impl Operation {
    pub(crate) fn key(&self) -> &Key {
        match self {
            Self::Acquire { claim, .. }
            | Self::Renew(claim)
            | Self::Release(claim)
            | Self::Downgrade(claim)
            | Self::Raise(claim, _) => &claim.key,
            Self::Break { key, .. } | Self::Resize { key, .. } => key,
        }
    }

    fn claim(&self) -> Option<ClaimId> {
        match self {
            Self::Acquire { claim, .. }
            | Self::Renew(claim)
            | Self::Release(claim)
            | Self::Downgrade(claim)
            | Self::Raise(claim, _) => Some(claim.id),
            Self::Break { .. } | Self::Resize { .. } => None,
        }
    }
}

/// What became of an operation.
#[derive(Clone, Debug)]
pub(crate) struct ShardAnswer {
    pub(crate) answer: OperationResult,
    /// The claims ahead of one that waits.
    pub(crate) ahead: u32,
    /// How the claim was broken, if it was.
    pub(crate) broken: Option<BreakRecord>,
    /// The session that keeps the claim alive, if it is in the queue.
    pub(crate) session: Option<SessionId>,
    /// The sessions of the claims in the way of one that was refused.
    pub(crate) in_the_way: Vec<SessionId>,
}

/// What an attempt came to.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// The document to write; the same as before where nothing changed.
    pub(crate) document: ShardDocument,
    pub(crate) changed: bool,
    pub(crate) answers: Vec<Result<ShardAnswer>>,
}

/// A queue while operations are applied to it.
struct OpenQueue {
    queue: ClaimList<Arc<EntryDetails>>,
    limit: Option<u32>,
    breaks: Vec<StoredBreak>,
}

/// What operations are applied with.
pub(crate) struct Applying<'a> {
    pub(crate) context: &'a StoreContext,
    /// How long the stored document is.
    pub(crate) bytes: usize,
    /// Queues that are to be looked at although no operation names them: those of this driver's waiters.
    pub(crate) watched: &'a BTreeSet<Key>,
    /// Records of breaks that may go.
    pub(crate) old_breaks: &'a BTreeSet<String>,
}

impl Applying<'_> {
    /// Applies operations in their [order](in_order).
    pub(crate) fn apply(&self, before: &ShardDocument, operations: &[&Operation]) -> Attempt {
        let now = self.context.now();
        let observed = self.context.observed_now();
        let clock = self.context.wall_us().saturating_sub(1);
        let mut tokens = TokenSequence::above(before.last.max(clock));
        let untouched = tokens.last();
        let mut open: BTreeMap<Key, OpenQueue> = BTreeMap::new();
        for key in self.keys(before, operations, observed) {
            let queue = before.queues.get(&key).cloned().unwrap_or_default();
            open.insert(key, self.open(queue, now, observed));
        }
        let mut bytes = self.bytes;
        let mut answers: Vec<_> = operations.iter().map(|_| None).collect();
        for at in in_order(operations) {
            let operation = operations[at];
            let Some(queue) = open.get_mut(operation.key()) else { continue };
            answers[at] = Some(self.apply_one(operation, queue, now, &mut tokens, &mut bytes));
        }
        let mut document = before.clone();
        for (key, mut queue) in open {
            let _ = queue.queue.apply(&ListOperation::Advance, now, &mut tokens);
            let stored = self.close(queue);
            match stored.is_empty() {
                true => document.queues.remove(&key),
                false => document.queues.insert(key, stored),
            };
        }
        if tokens.last() > untouched {
            document.last = tokens.last();
        }
        let missing = || Err(self.context.unavailable("the operation has no queue"));
        let answers = answers.into_iter().map(|it| it.unwrap_or_else(missing)).collect();
        let changed = document != *before;
        Attempt { document, changed, answers }
    }

    /// The queues that are looked at: those that are named, and those in which a claim has ended.
    fn keys(
        &self,
        before: &ShardDocument,
        operations: &[&Operation],
        observed: ClockPair,
    ) -> BTreeSet<Key> {
        let mut keys: BTreeSet<Key> = operations.iter().map(|it| it.key().clone()).collect();
        keys.extend(self.watched.iter().filter(|key| before.queues.contains_key(key)).cloned());
        let has_ended = |entry: &StoredEntry| self.has_ended(entry, observed);
        let ended = before.queues.iter().filter(|(_, queue)| queue.entries.iter().any(has_ended));
        keys.extend(ended.map(|(key, _)| key.clone()));
        keys
    }

    fn has_ended(&self, entry: &StoredEntry, observed: ClockPair) -> bool {
        has_ended(self.context, entry, observed)
    }

    fn open(&self, queue: StoredQueue, now: Moment, observed: ClockPair) -> OpenQueue {
        let entries = queue.entries.into_iter().map(|entry| {
            let expires = if self.has_ended(&entry, observed) { now } else { NEVER };
            line_entry(entry, now, expires)
        });
        let line = ClaimList::window(entries, None, queue.limit);
        OpenQueue { queue: line, limit: queue.limit, breaks: queue.breaks }
    }

    fn close(&self, queue: OpenQueue) -> StoredQueue {
        let wall = self.context.wall_ms();
        let entries = queue.queue.entries().map(|entry| stored_entry(entry, wall)).collect();
        let mut breaks = queue.breaks;
        breaks.retain(|it| !self.old_breaks.contains(&it.claim));
        breaks.drain(..breaks.len().saturating_sub(MOST_BREAKS));
        StoredQueue { limit: queue.limit, breaks, entries }
    }

    fn apply_one(
        &self,
        operation: &Operation,
        queue: &mut OpenQueue,
        now: Moment,
        tokens: &mut TokenSequence,
        bytes: &mut usize,
    ) -> Result<ShardAnswer> {
        let verb = match operation {
            Operation::Acquire { claim, patience, session } => {
                return self.acquire(claim, *patience, session, queue, (now, tokens, bytes));
            }
            Operation::Renew(claim) => ListOperation::Renew(claim),
            Operation::Release(claim) => ListOperation::Release(claim),
            Operation::Downgrade(claim) => ListOperation::Downgrade(claim),
            Operation::Raise(claim, token) => ListOperation::Raise(claim, *token),
            Operation::Break { token, mode, .. } => ListOperation::Break(*token, *mode),
            Operation::Resize { limit, .. } => {
                ListOperation::Resize { limit: *limit, given: queue.limit }
            }
        };
        let kept: Vec<_> = match operation {
            Operation::Break { token, .. } => {
                let named = queue.queue.entries().filter(|entry| entry.token == *token);
                named.map(|entry| (entry.id, entry.hold_ttl.max(entry.wait_ttl))).collect()
            }
            _ => Vec::new(),
        };
        let applied = queue.queue.apply(&verb, now, tokens).map_err(|stop| self.stopped(stop))?;
        match (&applied.answer, operation) {
            (OperationResult::Limit(limit), _) => queue.limit = Some(*limit),
            (OperationResult::BrokenClaims(broke), Operation::Break { record, .. }) => {
                for BrokenClaim { id, .. } in broke {
                    let ttl = kept.iter().find(|(it, _)| it == id).map(|(_, ttl)| *ttl);
                    let (claim, ttl_us) = (id.to_hex(), micros(ttl.unwrap_or_default()));
                    queue.breaks.push(StoredBreak { claim, ttl_us, record: record.clone() });
                }
            }
            _ => {}
        }
        Ok(answer(queue, verb.claim(), applied.answer))
    }

    fn acquire(
        &self,
        claim: &Arc<Claim>,
        patience: Patience,
        session: &SessionId,
        queue: &mut OpenQueue,
        (now, tokens, bytes): (Moment, &mut TokenSequence, &mut usize),
    ) -> Result<ShardAnswer> {
        claim.check_permits(queue.limit)?;
        if queue.breaks.iter().any(|it| it.claim == claim.id.to_hex()) {
            return Ok(answer(queue, Some(claim), OperationResult::Broken));
        }
        let is_known = queue.queue.find(&claim.id).is_some();
        let most = self.context.facts.most_bytes / 10 * 9;
        if !is_known && *bytes + claim.weight() > most {
            return Err(self.context.unavailable(
                "too many claims wait in the shard of this lock: its document is nearly full",
            ));
        }
        let details = Arc::new(EntryDetails {
            session: session.clone(),
            queued_ms: self.context.wall_ms(),
            held_ms: 0,
            owner: (*claim.identity).clone(),
            note: claim.note.as_deref().map(str::to_owned),
        });
        let verb = ListOperation::Acquire { claim, with: details, patience, given: queue.limit };
        let applied = queue.queue.apply(&verb, now, tokens).map_err(|stop| self.stopped(stop))?;
        if applied.changes.iter().any(|change| change.kind == ChangeKind::Queued) {
            *bytes += claim.weight();
        }
        Ok(answer(queue, Some(claim), applied.answer))
    }

    fn stopped(&self, stop: ApplyError) -> Error {
        let why = match stop {
            ApplyError::TokensUsedUp => "all tokens up to 2^63 - 1 were given or skipped",
            ApplyError::NeedMore => "the queue is not known as a whole",
        };
        Error::permanent(self.context.backend(), why)
    }
}

/// Releases first, so that one makes room for an acquire that came before it; but never before an operation
/// of their own claim: an acquire whose caller is gone must not come after its release.
fn in_order(operations: &[&Operation]) -> Vec<usize> {
    let mut seen = HashSet::new();
    let goes_first = operations.iter().map(|operation| {
        let is_first = operation.claim().is_none_or(|claim| seen.insert(claim));
        is_first && matches!(operation, Operation::Release(_))
    });
    let goes_first: Vec<bool> = goes_first.collect();
    let mut order: Vec<usize> = (0..operations.len()).collect();
    order.sort_by_key(|at| !goes_first[*at]);
    order
}

fn answer(queue: &OpenQueue, claim: Option<&Claim>, answer: OperationResult) -> ShardAnswer {
    let ahead = match answer {
        OperationResult::Waits(sequence) => queue.queue.ahead(sequence),
        _ => 0,
    };
    let id = claim.map(|claim| claim.id.to_hex());
    let broken = queue.breaks.iter().rev().find(|it| Some(&it.claim) == id.as_ref());
    let broken = broken.map(|it| it.record.clone());
    let sequence = claim.and_then(|claim| queue.queue.find(&claim.id));
    let entry = sequence.and_then(|sequence| queue.queue.get(sequence));
    let session = entry.map(|entry| entry.with.session.clone());
    let mut in_the_way = Vec::new();
    if answer == OperationResult::Busy {
        in_the_way.extend(queue.queue.entries().map(|entry| entry.with.session.clone()));
        in_the_way.sort_unstable();
        in_the_way.dedup();
    }
    ShardAnswer { answer, ahead, broken, session, in_the_way }
}

/// Whether an entry has ended: its session is known to be dead, or its mark has been seen for a TTL (rule 9).
pub(crate) fn has_ended(context: &StoreContext, entry: &StoredEntry, observed: ClockPair) -> bool {
    use crate::rules::StoreRule;
    let sights = &context.sights;
    if sights.is_dead(&entry.details.session) {
        return true;
    }
    let is_over = || sights.mark_is_over(&entry.details.session, &entry.id.to_hex(), observed);
    match context.rules.applies(StoreRule::MarkedForOneTtl) {
        true => entry.broken && is_over(),
        // What the rule forbids: a marked claim has ended at once.
        false => entry.broken,
    }
}

/// The live claims of a queue as people may see them. Changes nothing.
pub(crate) fn claim_states(
    context: &StoreContext,
    queue: &StoredQueue,
    left: impl Fn(&StoredEntry) -> Duration,
) -> Vec<ClaimState> {
    let (now, observed, wall) = (context.now(), context.observed_now(), context.wall_ms());
    let live = queue.entries.iter().filter(|entry| !has_ended(context, entry, observed));
    let by_sequence: BTreeMap<u64, &StoredEntry> =
        live.map(|entry| (entry.sequence, entry)).collect();
    let entries = by_sequence.values().map(|entry| line_entry((*entry).clone(), now, NEVER));
    let line: ClaimList<Arc<EntryDetails>> = ClaimList::window(entries, None, queue.limit);
    let since = |ms: u64| Duration::from_millis(wall.saturating_sub(ms));
    let shown = line.live_entries(now).map(|(entry, mode, holds)| {
        let stored = by_sequence[&entry.sequence];
        let details = &*stored.details;
        let mut state = ClaimState::new(entry.token, mode, details.owner.clone());
        state.note = details.note.clone();
        state.ttl = stored.hold_ttl;
        state.expires_in = left(stored);
        state.queued_for = since(details.queued_ms);
        let held = if stored.holding { since(details.held_ms) } else { Duration::ZERO };
        state.held_for = holds.then_some(held);
        state.broken = stored.broken;
        state
    });
    shown.collect()
}

fn line_entry(entry: StoredEntry, now: Moment, expires: Moment) -> QueuedClaim<Arc<EntryDetails>> {
    QueuedClaim {
        id: entry.id,
        sequence: entry.sequence,
        token: entry.token,
        mode: entry.mode,
        hold_ttl: entry.hold_ttl,
        wait_ttl: entry.wait_ttl,
        queued_at: now,
        asked_at: now,
        expires,
        held_since: entry.holding.then_some(now),
        broken: entry.broken,
        with: entry.details,
    }
}

fn stored_entry(entry: &QueuedClaim<Arc<EntryDetails>>, wall: u64) -> StoredEntry {
    let mut details = entry.with.clone();
    if entry.holds() != (details.held_ms > 0) {
        let held_ms = if entry.holds() { wall } else { 0 };
        details = Arc::new(EntryDetails { held_ms, ..(*details).clone() });
    }
    StoredEntry {
        id: entry.id,
        sequence: entry.sequence,
        token: entry.token,
        mode: entry.mode,
        hold_ttl: entry.hold_ttl,
        wait_ttl: entry.wait_ttl,
        holding: entry.holds(),
        broken: entry.broken,
        details,
    }
}
