//! One list of claims as a state machine: what each step does to it, for drivers whose backend
//! keeps the list and leaves the rule to the client. No clock, no I/O, no waking: time comes in,
//! and an answer, what changed and whom to wake come out.
//!
//! # Using it
//! A driver loads a list, [applies](ClaimList::apply) a step, and writes what [changed](Change), in one
//! atomic step of its backend (a transaction, a compare-and-swap). Several steps may be applied
//! before anything is written.
//!
//! # Windows
//! Claims that hold are the front of the list, and a step concerns them, the first that wait, and
//! the claim that it names. So a driver need not load all: a [`window`](ClaimList::window) has the front
//! of the queue up to some sequence number, and any claims beyond it that steps name. Where it does not go far
//! enough, [`apply`](ClaimList::apply) says [`ApplyError::NeedMore`], having done nothing of the step, or
//! [`AppliedOperation::more`], having done all but to let the next claims begin to hold. The driver then
//! loads what follows, [extends](ClaimList::extend) the window, and applies the step again, or
//! [`ListOperation::Advance`].

use std::time::Duration;

use crate::claim::ClaimId;
use crate::clock::Moment;
use crate::driver::{BreakMode, Grant, LeaseStart, Patience, Released, SetLimit};
use crate::{Claim, Mode, Token};

mod operation;
mod ordered_entries;
mod states;

pub use operation::{
    AppliedOperation, ApplyError, BrokenClaim, Change, ChangeKind, ListOperation, OperationResult,
    QueuedClaim, TokenSequence,
};
use ordered_entries::OrderedEntries;

/// A list of claims, or a window of it. [`ListOperation`] shows one at work.
#[derive(Debug)]
pub struct ClaimList<W = ()> {
    entries: OrderedEntries<W>,
    /// What the claims here have in common, while there are any.
    capacity: u32,
    /// Whether a token here may differ from its sequence number.
    raised: bool,
    /// The sum of the weights of those who hold.
    weight: u64,
    /// Places below this one hold, the others wait.
    first_waiting: u64,
    /// The queue is known up to this sequence number; `None`: all of it.
    known_to: Option<u64>,
    /// The sequence numbers that were removed since the window was loaded: whatever is loaded later, they stay
    /// empty.
    removed: Vec<u64>,
    changes: Vec<Change>,
}

impl<W: Clone> ClaimList<W> {
    /// An empty list.
    pub fn new() -> Self {
        Self {
            entries: OrderedEntries::new(),
            capacity: 0,
            raised: false,
            weight: 0,
            first_waiting: 0,
            known_to: None,
            removed: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// A queue that was loaded: all claims up to the sequence number `known_to` (`None`: all), and any others.
    /// `given` is the limit that a semaphore was given.
    pub fn window(
        entries: impl IntoIterator<Item = QueuedClaim<W>>,
        known_to: Option<u64>,
        given: Option<u32>,
    ) -> Self {
        let mut list = Self { raised: true, ..Self::new() };
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort_by_key(|entry| entry.sequence);
        list.capacity = given.or(entries.first().map(|e| e.mode.capacity())).unwrap_or(0);
        list.fill(entries, known_to);
        list
    }

    /// More of the queue: all claims up to the sequence number `known_to` (`None`: all). Those that are known
    /// stay as they are, or away.
    pub fn extend(
        &mut self,
        more: impl IntoIterator<Item = QueuedClaim<W>>,
        known_to: Option<u64>,
    ) {
        let mut entries: Vec<_> = self.entries.iter().cloned().collect();
        let is_new = |entry: &QueuedClaim<W>| {
            self.entries.get(entry.sequence).is_none() && !self.removed.contains(&entry.sequence)
        };
        entries.extend(more.into_iter().filter(is_new));
        entries.sort_by_key(|entry| entry.sequence);
        self.fill(entries, known_to);
    }

    fn fill(&mut self, entries: Vec<QueuedClaim<W>>, known_to: Option<u64>) {
        self.known_to = known_to;
        self.entries = OrderedEntries::new();
        self.weight = 0;
        for entry in entries {
            if entry.holds() {
                self.weight += u64::from(entry.mode.weight());
                self.first_waiting = entry.sequence + 1;
            }
            self.entries.push(entry);
        }
    }

    /// The sequence number up to which the queue is known; `None`: all of it.
    pub fn known_to(&self) -> Option<u64> {
        self.known_to
    }

    /// Whether it has no claims.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Where the claim with this id stands.
    pub fn find(&self, id: &ClaimId) -> Option<u64> {
        self.entries.find(id)
    }

    /// The claim of a sequence number.
    pub fn get(&self, sequence: u64) -> Option<&QueuedClaim<W>> {
        self.entries.get(sequence)
    }

    /// How many claims are ahead of a sequence number, as far as the window goes.
    pub fn ahead(&self, sequence: u64) -> u32 {
        u32::try_from(self.entries.ahead(sequence)).unwrap_or(u32::MAX)
    }

    /// The lease that ends first.
    pub fn first_end(&self) -> Option<Moment> {
        self.entries.earliest().map(|(end, _)| end)
    }

    /// All claims in their order.
    pub fn entries(&self) -> impl Iterator<Item = &QueuedClaim<W>> {
        self.entries.iter()
    }

    /// Does a step. Every step begins with what time did: claims that have ended leave, and those
    /// that may begin to hold do.
    pub fn apply(
        &mut self,
        step: &ListOperation<'_, W>,
        now: Moment,
        tokens: &mut TokenSequence,
    ) -> Result<AppliedOperation, ApplyError> {
        while let Some((_, sequence)) = self.entries.earliest().filter(|(end, _)| *end <= now) {
            self.remove_claim(sequence);
        }
        self.promote(now)?;
        let found = step.claim().and_then(|claim| self.entries.find(&claim.id));
        let answer = match (step, found) {
            (ListOperation::Advance, _) => OperationResult::Advanced,
            (ListOperation::Acquire { claim, patience, .. }, Some(sequence)) => {
                self.acquire_again(sequence, claim, *patience, now)
            }
            (ListOperation::Acquire { claim, with, patience, given }, None) => {
                self.acquire(claim, with, *patience, *given, now, tokens)?
            }
            (ListOperation::Release(_), _) => OperationResult::Released(self.release(found)),
            (ListOperation::Break(token, force), _) => {
                OperationResult::BrokenClaims(self.break_claims(*token, *force, now))
            }
            (ListOperation::Resize { limit, given }, _) => self.resize(*limit, *given),
            (_, None) => OperationResult::NotFound,
            (ListOperation::Renew(claim), Some(sequence)) => self.renew(sequence, claim, now),
            (ListOperation::Shorten(_, ttl), Some(sequence)) => self.shorten(sequence, *ttl, now),
            (ListOperation::Downgrade(claim), Some(sequence)) => {
                self.downgrade(sequence, claim, now)
            }
            (ListOperation::Raise(claim, token), Some(sequence)) => {
                self.raise(sequence, claim, *token, now, tokens)?
            }
        };
        let more = self.promote(now).is_err();
        Ok(AppliedOperation { answer, changes: std::mem::take(&mut self.changes), more })
    }

    fn acquire(
        &mut self,
        claim: &Claim,
        with: &W,
        patience: Patience,
        given: Option<u32>,
        now: Moment,
        tokens: &mut TokenSequence,
    ) -> Result<OperationResult, ApplyError> {
        let mode = claim.mode;
        if self.entries.is_empty() {
            self.capacity = given.unwrap_or(mode.capacity());
        }
        if self.capacity != mode.capacity() {
            return Ok(OperationResult::OtherLimit(self.capacity));
        }
        let holds = self.first_waiter()?.is_none() && self.fits(self.weight, mode);
        if !holds && patience == Patience::Try {
            return Ok(OperationResult::Busy);
        }
        let token = tokens.take()?;
        let sequence = token.get();
        let ttl = if holds { claim.hold_ttl } else { claim.wait_ttl };
        self.entries.push(QueuedClaim {
            id: claim.id,
            sequence,
            token,
            mode,
            hold_ttl: claim.hold_ttl,
            wait_ttl: claim.wait_ttl,
            queued_at: now,
            asked_at: now,
            expires: now.after(ttl),
            held_since: holds.then_some(now),
            broken: false,
            with: with.clone(),
        });
        self.note(sequence, claim.id, ChangeKind::Queued);
        if !holds {
            return Ok(OperationResult::Waits(sequence));
        }
        self.weight += u64::from(mode.weight());
        self.first_waiting = sequence + 1;
        Ok(OperationResult::Holds(grant(token, claim.hold_ttl)))
    }

    /// The answer to an acquire got lost, or a try follows a wait.
    fn acquire_again(
        &mut self,
        sequence: u64,
        claim: &Claim,
        patience: Patience,
        now: Moment,
    ) -> OperationResult {
        if patience == Patience::Try && sequence >= self.first_waiting {
            self.remove_claim(sequence);
            return OperationResult::Busy;
        }
        self.renew(sequence, claim, now)
    }

    /// Never shortens.
    fn renew(&mut self, sequence: u64, claim: &Claim, now: Moment) -> OperationResult {
        let Some(entry) = self.entries.get_mut(sequence) else {
            return OperationResult::NotFound;
        };
        if entry.broken {
            return OperationResult::Broken;
        }
        (entry.hold_ttl, entry.wait_ttl) = (claim.hold_ttl, claim.wait_ttl);
        entry.asked_at = entry.asked_at.max(now);
        let ttl = if entry.holds() { claim.hold_ttl } else { claim.wait_ttl };
        let expires = entry.expires.max(now.after(ttl));
        self.set_expiry(sequence, expires);
        self.result_of(sequence, ttl)
    }

    /// Takes a claim out, where it was found.
    fn release(&mut self, found: Option<u64>) -> Released {
        match found {
            Some(sequence) => {
                self.remove_claim(sequence);
                Released::Removed
            }
            None if self.entries.is_empty() => Released::NoSuchLock,
            None => Released::NotFound,
        }
    }

    /// Ends the lease of a holder `ttl` from now.
    fn shorten(&mut self, sequence: u64, ttl: Duration, now: Moment) -> OperationResult {
        match self.entries.get(sequence) {
            Some(entry) if entry.broken => return OperationResult::Broken,
            Some(entry) if entry.holds() => self.set_expiry(sequence, now.after(ttl)),
            _ => {}
        }
        self.result_of(sequence, ttl)
    }

    /// Makes a holder that is alone one of those who share, and renews it. One that waits is only
    /// renewed.
    fn downgrade(&mut self, sequence: u64, claim: &Claim, now: Moment) -> OperationResult {
        let answer = self.renew(sequence, claim, now);
        if let OperationResult::Holds(_) = answer
            && let Some(entry) = self.entries.get_mut(sequence)
            && entry.mode == Mode::Exclusive
        {
            entry.mode = Mode::Shared;
            let id = entry.id;
            self.weight -= u64::from(Mode::Exclusive.weight());
            self.weight += u64::from(Mode::Shared.weight());
            self.note(sequence, id, ChangeKind::Changed);
        }
        answer
    }

    /// Gives a claim at least this token, and those who wait behind it greater ones.
    fn raise(
        &mut self,
        sequence: u64,
        claim: &Claim,
        token: Token,
        now: Moment,
        tokens: &mut TokenSequence,
    ) -> Result<OperationResult, ApplyError> {
        let raises = self.entries.get(sequence).is_some_and(|e| !e.broken && e.token < token);
        if !raises {
            return Ok(self.renew(sequence, claim, now));
        }
        if self.known_to.is_some() {
            return Err(ApplyError::NeedMore);
        }
        let behind = |e: &&QueuedClaim<W>| e.sequence > sequence && !e.holds();
        // A claim that gets another token gets one beyond all others, so those behind it need others, too.
        let behind: Vec<u64> = match self.first_waiter()? {
            Some(_) => {
                let waiters = self.entries.iter().filter(behind);
                waiters.skip_while(|e| e.token > token).map(|e| e.sequence).collect()
            }
            None => Vec::new(),
        };
        tokens.go_beyond(token, behind.len())?;
        self.raised = true;
        self.renew(sequence, claim, now);
        self.set_token(sequence, token);
        for waiting in behind {
            let later = tokens.take()?;
            self.set_token(waiting, later);
        }
        Ok(self.result_of(sequence, claim.hold_ttl))
    }

    /// Marks or takes out the claims with this token: one at most, unless tokens were raised to the
    /// same.
    fn break_claims(&mut self, token: Token, force: BreakMode, now: Moment) -> Vec<BrokenClaim> {
        let sequences: Vec<u64> = match self.raised {
            false => self.entries.get(token.get()).map(|e| e.sequence).into_iter().collect(),
            true => self.entries.iter().filter(|e| e.token == token).map(|e| e.sequence).collect(),
        };
        let mut broke = Vec::new();
        for sequence in sequences {
            let Some(entry) = self.entries.get_mut(sequence) else {
                continue;
            };
            let ttl = entry.hold_ttl.max(entry.wait_ttl);
            let id = entry.id;
            broke.push(BrokenClaim { id, until: entry.expires.max(now.after(ttl)) });
            match force {
                BreakMode::Forced => self.remove_claim(sequence),
                BreakMode::Graceful => {
                    entry.broken = true;
                    self.note(sequence, id, ChangeKind::Broken);
                }
            }
        }
        broke
    }

    /// Those who hold stay, whatever the limit.
    fn resize(&mut self, limit: SetLimit, given: Option<u32>) -> OperationResult {
        let in_use = (!self.entries.is_empty()).then_some(self.capacity);
        let limit = match limit {
            SetLimit::To(limit) => limit,
            SetLimit::IfUnset(limit) => given.or(in_use).unwrap_or(limit),
        };
        self.capacity = limit;
        OperationResult::Limit(limit)
    }

    fn remove_claim(&mut self, sequence: u64) {
        let Some(entry) = self.entries.remove(sequence) else {
            return;
        };
        if entry.holds() {
            self.weight -= u64::from(entry.mode.weight());
        }
        if self.known_to.is_some() {
            self.removed.push(sequence);
        }
        self.note(sequence, entry.id, ChangeKind::Removed);
    }

    /// Lets those who wait begin to hold, from the front, as far as the weights admit.
    fn promote(&mut self, now: Moment) -> Result<(), ApplyError> {
        while let Some(next) = self.first_waiter()?
            && self.fits(self.weight, next.mode)
        {
            let (sequence, id) = (next.sequence, next.id);
            // One that was broken while it waited gets no new lease.
            let expires = match next.broken {
                true => next.expires,
                false => next.expires.max(now.max(next.asked_at).after(next.hold_ttl)),
            };
            self.weight += u64::from(next.mode.weight());
            self.first_waiting = sequence + 1;
            self.entries.set_expiry(sequence, expires);
            if let Some(entry) = self.entries.get_mut(sequence) {
                entry.held_since = Some(now);
            }
            self.note(sequence, id, ChangeKind::Promoted);
        }
        Ok(())
    }

    /// The first claim that waits.
    fn first_waiter(&self) -> Result<Option<&QueuedClaim<W>>, ApplyError> {
        let first = self.entries.first_from(self.first_waiting);
        match self.known_to {
            Some(end) if first.is_none_or(|e| e.sequence > end) => Err(ApplyError::NeedMore),
            _ => Ok(first),
        }
    }

    /// The rule of [`queue`](crate::queue), with the capacity of the list, which may not be that
    /// of the claim any more.
    fn fits(&self, ahead: u64, mode: Mode) -> bool {
        ahead + u64::from(mode.weight()) <= u64::from(self.capacity)
    }

    fn result_of(&self, sequence: u64, ttl: Duration) -> OperationResult {
        match self.entries.get(sequence) {
            Some(entry) if entry.holds() => OperationResult::Holds(grant(entry.token, ttl)),
            Some(_) => OperationResult::Waits(sequence),
            None => OperationResult::NotFound,
        }
    }

    fn set_expiry(&mut self, sequence: u64, expires: Moment) {
        self.entries.set_expiry(sequence, expires);
        if let Some(entry) = self.entries.get(sequence) {
            let id = entry.id;
            self.note(sequence, id, ChangeKind::Renewed);
        }
    }

    fn set_token(&mut self, sequence: u64, token: Token) {
        if let Some(entry) = self.entries.get_mut(sequence) {
            entry.token = token;
            let id = entry.id;
            self.note(sequence, id, ChangeKind::Changed);
        }
    }

    fn note(&mut self, sequence: u64, id: ClaimId, kind: ChangeKind) {
        self.changes.push(Change { sequence, id, kind });
    }
}

impl<W: Clone> Default for ClaimList<W> {
    fn default() -> Self {
        Self::new()
    }
}

/// The ttl counts from the last request about the claim that core sent: it began or renewed the
/// lease, or came before the claim's turn did.
fn grant(token: Token, ttl: Duration) -> Grant {
    Grant { token, ttl, start: LeaseStart::LastAnswered, margin: Duration::ZERO }
}
