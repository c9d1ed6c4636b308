//! One list of claims: what each verb does to it. Time is handed in, and whoever is to be woken is
//! written down in [`Calls`], so nothing here waits or wakes.
//!
//! Those who hold are the front of the list. Their summed weight and the place behind the last of
//! them say in one step who is next, so that no verb looks through the list.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::roster::{Entry, Roster};
use super::store::Tokens;
use crate::clock::Moment;
use crate::driver::{Acquisition, Ended, Grant, Patience, Renewal};
use crate::state::Standing;
use crate::{BreakRecord, Claim, ClaimId, Error, LossReason, Mode, Token};

/// Whom to wake once the store is unlocked.
#[derive(Default)]
pub(super) struct Calls(Vec<Arc<Notify>>);

impl Calls {
    pub(super) fn add(&mut self, bell: Arc<Notify>) {
        self.0.push(bell);
    }

    pub(super) fn ring(self) {
        for bell in self.0 {
            bell.notify_one();
        }
    }
}

#[derive(Debug)]
pub(super) struct Line {
    roster: Roster,
    /// What the claims here have in common, while there are any.
    capacity: u32,
    /// Whether a token here was raised, so that tokens are places no more.
    raised: bool,
    /// Whether who stands here, or holds, has changed since the last look.
    changed: bool,
    /// The sum of the weights of those who hold.
    weight: u64,
    /// Places below this one hold, the others wait.
    first_waiting: u64,
    /// Of the waiting claims those that somebody waits for. The first of them keeps the time.
    bells: BTreeMap<u64, Arc<Notify>>,
    timekeeper: u64,
    /// When the timekeeper looks again.
    armed: Moment,
    pub(super) last_break: Option<(Arc<BreakRecord>, Moment)>,
}

/// What a waiting claim is to do.
pub(super) enum Turn {
    Holds(Grant),
    /// Waits for its bell, and until then if it keeps the time.
    Waits(Option<Moment>),
}

impl Line {
    /// An empty list.
    pub(super) fn new() -> Self {
        Self {
            roster: Roster::new(),
            capacity: 0,
            raised: false,
            changed: false,
            weight: 0,
            first_waiting: 0,
            bells: BTreeMap::new(),
            timekeeper: 0,
            armed: Moment::from_nanos(0),
            last_break: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.roster.is_empty()
    }

    pub(super) fn find(&self, id: &ClaimId) -> Option<u64> {
        self.roster.find(id)
    }

    pub(super) fn entry(&self, seq: u64) -> Option<&Entry> {
        self.roster.get(seq)
    }

    /// Takes out what has ended, and lets those begin to hold who now do. Every verb begins so.
    pub(super) fn settle(&mut self, now: Moment, calls: &mut Calls) {
        let mut left = false;
        while let Some((_, seq)) = self.roster.earliest().filter(|(end, _)| *end <= now) {
            self.take_out(seq, calls);
            left = true;
        }
        if left {
            self.promote(now, calls);
        }
    }

    /// Sees to it that somebody keeps the time: the first who is waited for knows when the next
    /// lease ends. Every verb ends so. Says whether the list has changed.
    pub(super) fn wind(&mut self, calls: &mut Calls) -> bool {
        if let (Some((first, bell)), Some((earliest, _))) =
            (self.bells.first_key_value(), self.roster.earliest())
            && (*first != self.timekeeper || earliest < self.armed)
        {
            self.timekeeper = *first;
            self.armed = earliest;
            calls.add(bell.clone());
        }
        std::mem::take(&mut self.changed)
    }

    pub(super) fn acquire(
        &mut self,
        claim: &Arc<Claim>,
        patience: Patience,
        given: Option<u32>,
        now: Moment,
        tokens: &mut Tokens,
        calls: &mut Calls,
    ) -> Result<Acquisition, Error> {
        if let Some(seq) = self.roster.find(&claim.id) {
            return self.acquire_again(seq, claim, patience, now, calls);
        }
        let mode = claim.mode;
        if self.roster.is_empty() {
            self.capacity = given.unwrap_or(mode.capacity());
        }
        if self.capacity != mode.capacity() {
            return Err(Error::LimitMismatch {
                name: claim.key.name.as_str().to_owned(),
                in_use: self.capacity,
                asked: mode.capacity(),
            });
        }
        let none_waits = self.roster.first_from(self.first_waiting).is_none();
        let holds = none_waits && fits(self.weight, mode, self.capacity);
        if !holds && patience == Patience::Try {
            return Ok(Acquisition::Busy);
        }
        let token = tokens.take()?;
        let entry = Entry::new(claim, token, now, holds);
        let seq = entry.seq;
        self.roster.push(entry);
        self.changed = true;
        if holds {
            self.weight += u64::from(mode.weight());
            self.first_waiting = seq + 1;
            return Ok(Acquisition::Granted(grant(token, claim.hold_ttl)));
        }
        let ahead = count(self.roster.len() - 1);
        Ok(Acquisition::Queued { ahead })
    }

    /// The answer to an acquire got lost, or a try follows a wait.
    fn acquire_again(
        &mut self,
        seq: u64,
        claim: &Claim,
        patience: Patience,
        now: Moment,
        calls: &mut Calls,
    ) -> Result<Acquisition, Error> {
        if patience == Patience::Try && seq >= self.first_waiting {
            self.leave(seq, now, calls);
            return Ok(Acquisition::Busy);
        }
        match self.renew(seq, claim, now) {
            Renewal::Holds(grant) => Ok(Acquisition::Granted(grant)),
            Renewal::Waits { ahead } => Ok(Acquisition::Queued { ahead }),
            Renewal::Ended(Ended::Broken(record)) => {
                Err(Error::Lost { reason: LossReason::Broken(record) })
            }
            Renewal::Ended(_) => Err(Error::Lost { reason: LossReason::Expired }),
        }
    }

    /// Renews a claim that is in the list. Never shortens.
    pub(super) fn renew(&mut self, seq: u64, claim: &Claim, now: Moment) -> Renewal {
        let Some(entry) = self.roster.get_mut(seq) else {
            return Renewal::Ended(Ended::NotInLine);
        };
        if let Some(record) = &entry.broken {
            return Renewal::Ended(Ended::Broken((**record).clone()));
        }
        entry.hold_ttl = claim.hold_ttl;
        let (token, holds) = (entry.token, entry.holds());
        let ttl = if holds { claim.hold_ttl } else { claim.wait_ttl };
        let expires = entry.expires().max(now.after(ttl));
        self.roster.set_expiry(seq, expires);
        if holds { Renewal::Holds(grant(token, ttl)) } else { self.waits(seq) }
    }

    /// Takes a claim out, and lets those begin to hold who now do.
    pub(super) fn leave(&mut self, seq: u64, now: Moment, calls: &mut Calls) {
        self.take_out(seq, calls);
        self.promote(now, calls);
    }

    /// Ends the lease of a holder `ttl` from now.
    pub(super) fn shorten(&mut self, seq: u64, ttl: Duration, now: Moment) -> Renewal {
        let Some(entry) = self.roster.get(seq) else {
            return Renewal::Ended(Ended::NotInLine);
        };
        if let Some(record) = &entry.broken {
            return Renewal::Ended(Ended::Broken((**record).clone()));
        }
        if !entry.holds() {
            return self.waits(seq);
        }
        let token = entry.token;
        self.roster.set_expiry(seq, now.after(ttl));
        Renewal::Holds(grant(token, ttl))
    }

    /// Makes a holder that is alone one of those who share, and renews it. One that waits is only
    /// renewed.
    pub(super) fn downgrade(
        &mut self,
        seq: u64,
        claim: &Claim,
        now: Moment,
        calls: &mut Calls,
    ) -> Renewal {
        let renewal = self.renew(seq, claim, now);
        if let Renewal::Holds(_) = renewal
            && let Some(entry) = self.roster.get_mut(seq)
            && entry.mode == Mode::Exclusive
        {
            entry.mode = Mode::Shared;
            self.weight -= u64::from(Mode::Exclusive.weight());
            self.weight += u64::from(Mode::Shared.weight());
            self.changed = true;
            self.promote(now, calls);
        }
        renewal
    }

    /// Gives a claim at least this token, and those who wait behind it greater ones. Looks through
    /// the list if anyone waits; only quorums raise, and they keep nobody waiting.
    pub(super) fn raise(
        &mut self,
        seq: u64,
        claim: &Claim,
        token: Token,
        now: Moment,
        tokens: &mut Tokens,
    ) -> Result<Renewal, Error> {
        let renewal = self.renew(seq, claim, now);
        let behind = |e: &&Entry| e.seq > seq && !e.holds() && e.token <= token;
        match self.roster.get(seq) {
            Some(entry) if entry.broken.is_none() && entry.token < token => (),
            _ => return Ok(renewal),
        }
        let behind: Vec<u64> = if self.roster.first_from(self.first_waiting).is_some() {
            self.roster.iter().filter(behind).map(|e| e.seq).collect()
        } else {
            Vec::new()
        };
        tokens.go_beyond(token, behind.len())?;
        self.raised = true;
        self.changed = true;
        self.set_token(seq, token);
        for waiting in behind {
            let later = tokens.take()?;
            self.set_token(waiting, later);
        }
        Ok(match renewal {
            Renewal::Holds(grant) => Renewal::Holds(Grant { token, ..grant }),
            other => other,
        })
    }

    /// The claims with this token: one at most, unless tokens were raised to the same.
    pub(super) fn with_token(&self, token: Token) -> Vec<u64> {
        if !self.raised {
            return Vec::from_iter(self.roster.get(token.get()).map(|e| e.seq));
        }
        let same = self.roster.iter().filter(|e| e.token == token);
        same.map(|e| e.seq).collect()
    }

    /// Marks a claim, so that it is renewed no longer.
    pub(super) fn mark_broken(&mut self, seq: u64, record: &Arc<BreakRecord>, calls: &mut Calls) {
        if let Some(entry) = self.roster.get_mut(seq) {
            entry.broken = Some(record.clone());
            self.changed = true;
        }
        if let Some(bell) = self.bells.get(&seq) {
            calls.add(bell.clone());
        }
    }

    /// What the one who waits for this claim is to do; keeps its bell while it waits.
    pub(super) fn turn(&mut self, seq: u64, bell: &Arc<Notify>) -> Option<Result<Turn, Error>> {
        let entry = self.roster.get(seq)?;
        if let Some(record) = &entry.broken {
            let reason = LossReason::Broken((**record).clone());
            return Some(Err(Error::Lost { reason }));
        }
        if entry.holds() {
            return Some(Ok(Turn::Holds(grant(entry.token, entry.hold_ttl))));
        }
        self.bells.insert(seq, bell.clone());
        if self.bells.first_key_value().is_some_and(|(s, _)| *s != seq) {
            return Some(Ok(Turn::Waits(None)));
        }
        let (earliest, _) = self.roster.earliest()?;
        self.timekeeper = seq;
        self.armed = earliest;
        Some(Ok(Turn::Waits(Some(earliest))))
    }

    /// Nobody waits for this claim any more.
    pub(super) fn hush(&mut self, seq: u64, bell: &Arc<Notify>) {
        if self.bells.get(&seq).is_some_and(|b| Arc::ptr_eq(b, bell)) {
            self.bells.remove(&seq);
        }
    }

    /// The live claims as people see them, and when the next of their leases ends. Who would begin
    /// to hold if anybody touched the list is shown as holding: so says the rule.
    pub(super) fn view(&self, now: Moment) -> (Vec<Standing>, Option<Moment>) {
        let mut ahead = 0;
        let mut next_end = None;
        let live = self.roster.iter().filter(|e| e.is_live(now));
        let line = live.map(|entry| {
            // Who holds goes on, also where the limit was lowered.
            let holds = entry.holds() || fits(ahead, entry.mode, self.capacity);
            ahead += u64::from(entry.mode.weight());
            let end = entry.expires();
            next_end = Some(next_end.map_or(end, |other| end.min(other)));
            standing(entry, self.shown_mode(entry), holds, now)
        });
        (line.collect(), next_end)
    }

    /// What the claims here have in common.
    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Gives the list another limit. Those who hold stay, those who now may begin to.
    pub(super) fn resize(&mut self, limit: u32, now: Moment, calls: &mut Calls) {
        self.changed |= self.capacity != limit;
        self.capacity = limit;
        self.promote(now, calls);
    }

    /// The limit is the list's, whatever it was when the claim came.
    fn shown_mode(&self, entry: &Entry) -> Mode {
        match entry.mode {
            Mode::Permits { permits, .. } => Mode::Permits { permits, limit: self.capacity },
            other => other,
        }
    }

    pub(super) fn has_live(&self, now: Moment) -> bool {
        self.roster.iter().any(|e| e.is_live(now))
    }

    fn take_out(&mut self, seq: u64, calls: &mut Calls) {
        let Some(entry) = self.roster.remove(seq) else {
            return;
        };
        self.changed = true;
        if entry.holds() {
            self.weight -= u64::from(entry.mode.weight());
        }
        if let Some(bell) = self.bells.remove(&seq) {
            calls.add(bell);
        }
    }

    /// Lets those who wait begin to hold, from the front, as far as the weights admit.
    fn promote(&mut self, now: Moment, calls: &mut Calls) {
        while let Some(next) = self.roster.first_from(self.first_waiting)
            && fits(self.weight, next.mode, self.capacity)
        {
            let seq = next.seq;
            self.weight += u64::from(next.mode.weight());
            self.first_waiting = seq + 1;
            self.changed = true;
            // One that was broken while it waited gets no new lease.
            if next.broken.is_none() {
                let expires = next.expires().max(now.after(next.hold_ttl));
                self.roster.set_expiry(seq, expires);
            }
            if let Some(entry) = self.roster.get_mut(seq) {
                entry.held_since = Some(now);
            }
            if let Some(bell) = self.bells.remove(&seq) {
                calls.add(bell);
            }
        }
    }

    fn waits(&self, seq: u64) -> Renewal {
        let ahead = count(self.roster.ahead(seq));
        Renewal::Waits { ahead }
    }

    fn set_token(&mut self, seq: u64, token: Token) {
        if let Some(entry) = self.roster.get_mut(seq) {
            entry.token = token;
        }
    }
}

/// The rule of [`queue`](crate::queue), with the capacity of the list, which may not be that of
/// the claim any more.
fn fits(ahead: u64, mode: Mode, capacity: u32) -> bool {
    ahead + u64::from(mode.weight()) <= u64::from(capacity)
}

/// The ttl counts from the last request about the claim that core sent: it began or renewed the
/// lease, or came before the claim's turn did.
fn grant(token: Token, ttl: Duration) -> Grant {
    Grant { token, ttl, since: None }
}

fn count(claims: usize) -> u32 {
    u32::try_from(claims).unwrap_or(u32::MAX)
}

fn standing(entry: &Entry, mode: Mode, holds: bool, now: Moment) -> Standing {
    let claim = &entry.claim;
    let mut standing = Standing::new(entry.token, mode, (*claim.identity).clone());
    standing.note = claim.note.as_deref().map(str::to_owned);
    standing.ttl = entry.hold_ttl;
    standing.expires_in = entry.expires().since(now);
    standing.queued_for = now.since(entry.queued_at);
    standing.held_for = holds.then(|| entry.held_since.map_or(Duration::ZERO, |t| now.since(t)));
    standing.broken = entry.broken.is_some();
    standing
}
