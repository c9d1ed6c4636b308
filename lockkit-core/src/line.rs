//! One list of claims as a state machine: what each step does to it, for drivers whose backend
//! keeps the list and leaves the rule to the client. No clock, no I/O, no waking: time comes in,
//! and an answer, what changed and whom to wake come out.
//!
//! # Using it
//! A driver loads a list, [applies](Line::apply) a step, and writes what [changed](Change), in one
//! atomic step of its backend (a transaction, a compare-and-swap). Several steps may be applied
//! before anything is written.
//!
//! # Windows
//! Claims that hold are the front of the list, and a step concerns them, the first that wait, and
//! the claim that it names. So a driver need not load all: a [`window`](Line::window) has the front
//! of the list up to some place, and any claims beyond it that steps name. Where it does not go far
//! enough, [`apply`](Line::apply) says [`Stop::NeedMore`], having done nothing of the step, or
//! [`Applied::more`], having done all but to let the next claims begin to hold. The driver then
//! loads what follows, [extends](Line::extend) the window, and applies the step again, or
//! [`Verb::Look`].

use std::time::Duration;

use crate::claim::ClaimId;
use crate::clock::Moment;
use crate::driver::{BreakMode, Grant, LeaseStart, Patience, Released, SetLimit};
use crate::state::ClaimState;
use crate::{Claim, ClientIdentity, Mode, Token};

mod roster;
mod verb;

use roster::Roster;
pub use verb::{Answer, Applied, Broke, Change, Entry, Stop, Tokens, Verb, What};

/// A list of claims, or a window of it. [`Verb`] shows one at work.
#[derive(Debug)]
pub struct Line<W = ()> {
    roster: Roster<W>,
    /// What the claims here have in common, while there are any.
    capacity: u32,
    /// Whether a token here may be another number than its place.
    raised: bool,
    /// The sum of the weights of those who hold.
    weight: u64,
    /// Places below this one hold, the others wait.
    first_waiting: u64,
    /// The list is known up to this place; `None`: all of it.
    known_to: Option<u64>,
    /// The places that were left since the window was loaded: whatever is loaded later, they stay
    /// empty.
    left: Vec<u64>,
    changes: Vec<Change>,
}

impl<W: Clone> Line<W> {
    /// An empty list.
    pub fn new() -> Self {
        Self {
            roster: Roster::new(),
            capacity: 0,
            raised: false,
            weight: 0,
            first_waiting: 0,
            known_to: None,
            left: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// A list that was loaded: all claims up to the place `known_to` (`None`: all), and any others.
    /// `given` is the limit that a semaphore was given.
    pub fn window(
        entries: impl IntoIterator<Item = Entry<W>>,
        known_to: Option<u64>,
        given: Option<u32>,
    ) -> Self {
        let mut line = Self { raised: true, ..Self::new() };
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort_by_key(|entry| entry.place);
        line.capacity = given.or(entries.first().map(|e| e.mode.capacity())).unwrap_or(0);
        line.fill(entries, known_to);
        line
    }

    /// More of the list: all claims up to the place `known_to` (`None`: all). Those that are known
    /// stay as they are, or away.
    pub fn extend(&mut self, more: impl IntoIterator<Item = Entry<W>>, known_to: Option<u64>) {
        let mut entries: Vec<_> = self.roster.iter().cloned().collect();
        let is_new = |entry: &Entry<W>| {
            self.roster.get(entry.place).is_none() && !self.left.contains(&entry.place)
        };
        entries.extend(more.into_iter().filter(is_new));
        entries.sort_by_key(|entry| entry.place);
        self.fill(entries, known_to);
    }

    fn fill(&mut self, entries: Vec<Entry<W>>, known_to: Option<u64>) {
        self.known_to = known_to;
        self.roster = Roster::new();
        self.weight = 0;
        for entry in entries {
            if entry.holds() {
                self.weight += u64::from(entry.mode.weight());
                self.first_waiting = entry.place + 1;
            }
            self.roster.push(entry);
        }
    }

    /// The place up to which the list is known; `None`: all of it.
    pub fn known_to(&self) -> Option<u64> {
        self.known_to
    }

    /// Whether nobody is there.
    pub fn is_empty(&self) -> bool {
        self.roster.is_empty()
    }

    /// Where the claim with this id stands.
    pub fn find(&self, id: &ClaimId) -> Option<u64> {
        self.roster.find(id)
    }

    /// The claim at a place.
    pub fn get(&self, place: u64) -> Option<&Entry<W>> {
        self.roster.get(place)
    }

    /// How many claims stand before a place, as far as the window shows.
    pub fn ahead(&self, place: u64) -> u32 {
        u32::try_from(self.roster.ahead(place)).unwrap_or(u32::MAX)
    }

    /// The lease that ends first.
    pub fn first_end(&self) -> Option<Moment> {
        self.roster.earliest().map(|(end, _)| end)
    }

    /// All claims in their order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry<W>> {
        self.roster.iter()
    }

    /// The live claims as they are to be shown: with the mode in force, and whether each holds.
    /// One that would begin to hold at the next step is shown as holding.
    pub fn shown(&self, now: Moment) -> impl Iterator<Item = (&Entry<W>, Mode, bool)> {
        let mut ahead = 0;
        self.roster.iter().filter(move |e| e.is_live(now)).map(move |entry| {
            // Who holds goes on, also where the limit was lowered.
            let holds = entry.holds() || self.fits(ahead, entry.mode);
            ahead += u64::from(entry.mode.weight());
            let mode = match entry.mode {
                Mode::Permits { permits, .. } => Mode::Permits { permits, limit: self.capacity },
                other => other,
            };
            (entry, mode, holds)
        })
    }

    /// The live claims as people may see them; `who` says what the driver kept of each: its
    /// identity and its note.
    pub fn standings(
        &self,
        now: Moment,
        who: impl Fn(&W) -> (ClientIdentity, Option<String>),
    ) -> Vec<ClaimState> {
        let standing = |(entry, mode, holds): (&Entry<W>, Mode, bool)| {
            let (identity, note) = who(&entry.with);
            let held_for = entry.held_since.map_or(Duration::ZERO, |since| now.since(since));
            let mut standing = ClaimState::new(entry.token, mode, identity);
            standing.note = note;
            standing.ttl = entry.hold_ttl;
            standing.expires_in = entry.expires.since(now);
            standing.queued_for = now.since(entry.queued_at);
            standing.held_for = holds.then_some(held_for);
            standing.broken = entry.broken;
            standing
        };
        self.shown(now).map(standing).collect()
    }

    /// Does a step. Every step begins with what time did: claims that have ended leave, and those
    /// that may begin to hold do.
    pub fn apply(
        &mut self,
        step: &Verb<'_, W>,
        now: Moment,
        tokens: &mut Tokens,
    ) -> Result<Applied, Stop> {
        while let Some((_, place)) = self.roster.earliest().filter(|(end, _)| *end <= now) {
            self.take_out(place);
        }
        self.promote(now)?;
        let answer = match step {
            Verb::Look => Answer::Looked,
            Verb::Acquire { claim, with, patience, given } => match self.roster.find(&claim.id) {
                Some(place) => self.acquire_again(place, claim, *patience, now),
                None => self.acquire(claim, with, *patience, *given, now, tokens)?,
            },
            Verb::Renew(claim) => self.on_claim(claim, |line, at| line.renew(at, claim, now)),
            Verb::Release(claim) => Answer::Released(self.release(&claim.id)),
            Verb::Shorten(claim, ttl) => {
                self.on_claim(claim, |line, at| line.shorten(at, *ttl, now))
            }
            Verb::Downgrade(claim) => {
                self.on_claim(claim, |line, at| line.downgrade(at, claim, now))
            }
            Verb::Raise(claim, token) => match self.roster.find(&claim.id) {
                Some(place) => self.raise(place, claim, *token, now, tokens)?,
                None => Answer::Gone,
            },
            Verb::Break(token, force) => Answer::Broke(self.break_claims(*token, *force, now)),
            Verb::Resize { limit, given } => self.resize(*limit, *given),
        };
        let more = self.promote(now).is_err();
        Ok(Applied { answer, changes: std::mem::take(&mut self.changes), more })
    }

    fn on_claim(&mut self, claim: &Claim, verb: impl FnOnce(&mut Self, u64) -> Answer) -> Answer {
        match self.roster.find(&claim.id) {
            Some(place) => verb(self, place),
            None => Answer::Gone,
        }
    }

    fn acquire(
        &mut self,
        claim: &Claim,
        with: &W,
        patience: Patience,
        given: Option<u32>,
        now: Moment,
        tokens: &mut Tokens,
    ) -> Result<Answer, Stop> {
        let mode = claim.mode;
        if self.roster.is_empty() {
            self.capacity = given.unwrap_or(mode.capacity());
        }
        if self.capacity != mode.capacity() {
            return Ok(Answer::OtherLimit(self.capacity));
        }
        let holds = self.first_waiter()?.is_none() && self.fits(self.weight, mode);
        if !holds && patience == Patience::Try {
            return Ok(Answer::Busy);
        }
        let token = tokens.take()?;
        let place = token.get();
        let ttl = if holds { claim.hold_ttl } else { claim.wait_ttl };
        self.roster.push(Entry {
            id: claim.id,
            place,
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
        self.note(place, claim.id, What::Came);
        if !holds {
            return Ok(Answer::Waits(place));
        }
        self.weight += u64::from(mode.weight());
        self.first_waiting = place + 1;
        Ok(Answer::Holds(grant(token, claim.hold_ttl)))
    }

    /// The answer to an acquire got lost, or a try follows a wait.
    fn acquire_again(
        &mut self,
        place: u64,
        claim: &Claim,
        patience: Patience,
        now: Moment,
    ) -> Answer {
        if patience == Patience::Try && place >= self.first_waiting {
            self.take_out(place);
            return Answer::Busy;
        }
        self.renew(place, claim, now)
    }

    /// Never shortens.
    fn renew(&mut self, place: u64, claim: &Claim, now: Moment) -> Answer {
        let Some(entry) = self.roster.get_mut(place) else {
            return Answer::Gone;
        };
        if entry.broken {
            return Answer::Broken;
        }
        (entry.hold_ttl, entry.wait_ttl) = (claim.hold_ttl, claim.wait_ttl);
        entry.asked_at = entry.asked_at.max(now);
        let ttl = if entry.holds() { claim.hold_ttl } else { claim.wait_ttl };
        let expires = entry.expires.max(now.after(ttl));
        self.set_expiry(place, expires);
        self.standing(place, ttl)
    }

    /// Takes a claim out.
    fn release(&mut self, id: &ClaimId) -> Released {
        match self.roster.find(id) {
            Some(place) => {
                self.take_out(place);
                Released::Removed
            }
            None if self.roster.is_empty() => Released::NoSuchLock,
            None => Released::NotFound,
        }
    }

    /// Ends the lease of a holder `ttl` from now.
    fn shorten(&mut self, place: u64, ttl: Duration, now: Moment) -> Answer {
        match self.roster.get(place) {
            Some(entry) if entry.broken => return Answer::Broken,
            Some(entry) if entry.holds() => self.set_expiry(place, now.after(ttl)),
            _ => {}
        }
        self.standing(place, ttl)
    }

    /// Makes a holder that is alone one of those who share, and renews it. One that waits is only
    /// renewed.
    fn downgrade(&mut self, place: u64, claim: &Claim, now: Moment) -> Answer {
        let answer = self.renew(place, claim, now);
        if let Answer::Holds(_) = answer
            && let Some(entry) = self.roster.get_mut(place)
            && entry.mode == Mode::Exclusive
        {
            entry.mode = Mode::Shared;
            let id = entry.id;
            self.weight -= u64::from(Mode::Exclusive.weight());
            self.weight += u64::from(Mode::Shared.weight());
            self.note(place, id, What::Changed);
        }
        answer
    }

    /// Gives a claim at least this token, and those who wait behind it greater ones.
    fn raise(
        &mut self,
        place: u64,
        claim: &Claim,
        token: Token,
        now: Moment,
        tokens: &mut Tokens,
    ) -> Result<Answer, Stop> {
        let raises = self.roster.get(place).is_some_and(|e| !e.broken && e.token < token);
        if !raises {
            return Ok(self.renew(place, claim, now));
        }
        if self.known_to.is_some() {
            return Err(Stop::NeedMore);
        }
        let behind = |e: &&Entry<W>| e.place > place && !e.holds() && e.token <= token;
        let behind: Vec<u64> = match self.first_waiter()? {
            Some(_) => self.roster.iter().filter(behind).map(|e| e.place).collect(),
            None => Vec::new(),
        };
        tokens.go_beyond(token, behind.len())?;
        self.raised = true;
        self.renew(place, claim, now);
        self.set_token(place, token);
        for waiting in behind {
            let later = tokens.take()?;
            self.set_token(waiting, later);
        }
        Ok(self.standing(place, claim.hold_ttl))
    }

    /// Marks or takes out the claims with this token: one at most, unless tokens were raised to the
    /// same.
    fn break_claims(&mut self, token: Token, force: BreakMode, now: Moment) -> Vec<Broke> {
        let places: Vec<u64> = match self.raised {
            false => self.roster.get(token.get()).map(|e| e.place).into_iter().collect(),
            true => self.roster.iter().filter(|e| e.token == token).map(|e| e.place).collect(),
        };
        let mut broke = Vec::new();
        for place in places {
            let Some(entry) = self.roster.get_mut(place) else {
                continue;
            };
            let ttl = entry.hold_ttl.max(entry.wait_ttl);
            let id = entry.id;
            broke.push(Broke { id, until: entry.expires.max(now.after(ttl)) });
            match force {
                BreakMode::Forced => self.take_out(place),
                BreakMode::Graceful => {
                    entry.broken = true;
                    self.note(place, id, What::Broken);
                }
            }
        }
        broke
    }

    /// Those who hold stay, whatever the limit.
    fn resize(&mut self, limit: SetLimit, given: Option<u32>) -> Answer {
        let in_use = (!self.roster.is_empty()).then_some(self.capacity);
        let limit = match limit {
            SetLimit::To(limit) => limit,
            SetLimit::IfUnset(limit) => given.or(in_use).unwrap_or(limit),
        };
        self.capacity = limit;
        Answer::Limit(limit)
    }

    fn take_out(&mut self, place: u64) {
        let Some(entry) = self.roster.remove(place) else {
            return;
        };
        if entry.holds() {
            self.weight -= u64::from(entry.mode.weight());
        }
        if self.known_to.is_some() {
            self.left.push(place);
        }
        self.note(place, entry.id, What::Left);
    }

    /// Lets those who wait begin to hold, from the front, as far as the weights admit.
    fn promote(&mut self, now: Moment) -> Result<(), Stop> {
        while let Some(next) = self.first_waiter()?
            && self.fits(self.weight, next.mode)
        {
            let (place, id) = (next.place, next.id);
            // One that was broken while it waited gets no new lease.
            let expires = match next.broken {
                true => next.expires,
                false => next.expires.max(now.max(next.asked_at).after(next.hold_ttl)),
            };
            self.weight += u64::from(next.mode.weight());
            self.first_waiting = place + 1;
            self.roster.set_expiry(place, expires);
            if let Some(entry) = self.roster.get_mut(place) {
                entry.held_since = Some(now);
            }
            self.note(place, id, What::Began);
        }
        Ok(())
    }

    /// The first claim that waits.
    fn first_waiter(&self) -> Result<Option<&Entry<W>>, Stop> {
        let first = self.roster.first_from(self.first_waiting);
        match self.known_to {
            Some(end) if first.is_none_or(|e| e.place > end) => Err(Stop::NeedMore),
            _ => Ok(first),
        }
    }

    /// The rule of [`queue`](crate::queue), with the capacity of the list, which may not be that
    /// of the claim any more.
    fn fits(&self, ahead: u64, mode: Mode) -> bool {
        ahead + u64::from(mode.weight()) <= u64::from(self.capacity)
    }

    fn standing(&self, place: u64, ttl: Duration) -> Answer {
        match self.roster.get(place) {
            Some(entry) if entry.holds() => Answer::Holds(grant(entry.token, ttl)),
            Some(_) => Answer::Waits(place),
            None => Answer::Gone,
        }
    }

    fn set_expiry(&mut self, place: u64, expires: Moment) {
        self.roster.set_expiry(place, expires);
        if let Some(entry) = self.roster.get(place) {
            let id = entry.id;
            self.note(place, id, What::Renewed);
        }
    }

    fn set_token(&mut self, place: u64, token: Token) {
        if let Some(entry) = self.roster.get_mut(place) {
            entry.token = token;
            let id = entry.id;
            self.note(place, id, What::Changed);
        }
    }

    fn note(&mut self, place: u64, id: ClaimId, what: What) {
        self.changes.push(Change { place, id, what });
    }
}

impl<W: Clone> Default for Line<W> {
    fn default() -> Self {
        Self::new()
    }
}

/// The ttl counts from the last request about the claim that core sent: it began or renewed the
/// lease, or came before the claim's turn did.
fn grant(token: Token, ttl: Duration) -> Grant {
    Grant { token, ttl, start: LeaseStart::LastAnswered, margin: Duration::ZERO }
}
