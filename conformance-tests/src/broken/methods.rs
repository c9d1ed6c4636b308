//! What the toy does when it is asked: the verbs of the driver trait, each with the places where it
//! can be wrong. Every verb has an await point before and after it acts, as a server's driver has.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::clock::{Clock, Moment, TokioClock};
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, BatchOutcome, BreakMode, ClaimEnd, Grant,
    LeaseStart, LockDriver, Patience, Registers, Released, Renewal, SetLimit, submit_each,
};
use lockkit_core::state::{Health, ListPage, ListRequest, LockState, Page};
use lockkit_core::{
    BreakRecord, Capabilities, Claim, Error, Key, LossReason, Mode, Namespace, Token,
};
use tokio::task::yield_now;

use super::InjectedBug;
use super::toy::{Toy, ToyEntry, ToyQueue};

impl Toy {
    async fn acquire_one(
        &self,
        claim: &Arc<Claim>,
        patience: Patience,
    ) -> Result<Acquisition, Error> {
        self.called()?;
        yield_now().await;
        let mut claim = Claim::clone(claim);
        let id = claim.id;
        if self.is(InjectedBug::LeaksOnCancel) {
            claim.id = ClaimId::random();
        }
        let known_as = claim.id;
        let asked = claim.clone();
        let answer =
            self.on_line(&claim.key.clone(), |line, now| self.enter(line, now, claim, patience));
        if self.is(InjectedBug::SecondLockEndsTheFirst)
            && matches!(answer, Ok(Acquisition::Granted(_)))
        {
            self.end_the_one_before(asked);
        }
        yield_now().await;
        if self.is(InjectedBug::LeaksOnCancel) {
            let mut lines = self.lock_lines();
            let entries = lines.values_mut().flat_map(|line| &mut line.entries);
            entries.filter(|e| e.claim.id == known_as).for_each(|e| e.claim.id = id);
        }
        answer
    }

    async fn release_one(&self, claim: &Arc<Claim>) -> Result<Released, Error> {
        yield_now().await;
        let answer = self.on_line(&claim.key, |line, _| self.leave(line, claim));
        yield_now().await;
        match answer {
            Released::NotFound if self.is(InjectedBug::SaysNoSuchLockToStrangers) => {
                Ok(Released::NoSuchLock)
            }
            Released::Removed => Ok(answer),
            _ if self.is(InjectedBug::ReleaseFailsTheSecondTime) => {
                Err(Error::permanent("toy", "released already"))
            }
            _ => Ok(answer),
        }
    }
}

#[async_trait]
impl LockDriver for Toy {
    fn capabilities(&self) -> &Capabilities {
        self.facts()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        TokioClock::shared()
    }

    fn registers(&self) -> Option<&dyn Registers> {
        Some(self)
    }

    async fn submit(&self, batch: Batch<'_>) -> Result<BatchOutcome, BatchError> {
        let acquire = |one: Acquire| async move {
            let acquired = self.acquire_one(&one.claim, one.patience).await;
            acquired.map(Attempted::from).map_err(|error| {
                BatchError::refused(error)
                    .after(u32::from(self.is(InjectedBug::CallsARefusalAmbiguous)))
            })
        };
        let release = |claim| async move {
            self.release_one(&claim).await.map(Attempted::from).map_err(BatchError::refused)
        };
        let mut outcome = submit_each(batch, acquire, release).await;
        if self.is(InjectedBug::AnswersBatchesBackwards) {
            outcome.released.reverse();
            outcome.acquired.reverse();
        }
        let failed = outcome.acquired.iter().find_map(|acquired| acquired.as_ref().err());
        match failed.filter(|_| self.is(InjectedBug::OneOperationFailsItsBatch)) {
            Some(failed) => Err(failed.clone()),
            None => Ok(outcome),
        }
    }

    async fn granted(&self, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let mut place = GivesUpItsPlace {
            toy: self,
            claim,
            enabled: self.is(InjectedBug::LosesRequestOnCancel),
        };
        loop {
            let changed = self.store.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (grant, next_end) = self.poll(claim)?;
            if let Some(mut grant) = grant {
                place.enabled = false;
                if self.is(InjectedBug::WakesLate) {
                    tokio::time::sleep(Duration::from_secs(5)).await;
                }
                if self.is(InjectedBug::CountsAPushedLeaseFromItsArrival) {
                    tokio::time::sleep(Duration::from_millis(150)).await;
                    grant.start = LeaseStart::Sent(TokioClock.now());
                }
                return Ok(grant);
            }
            let end = next_end.since(TokioClock.now()) + Duration::from_millis(1);
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(end) => self.wake_up(&claim.key),
            }
        }
    }

    async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<Renewal, Error>>, Error> {
        self.called()?;
        yield_now().await;
        let renew = |claim: &Arc<Claim>| {
            self.on_line(&claim.key, |line, now| {
                self.promote(line, now);
                self.prolong(line, now, claim)
            })
        };
        let answers = claims.iter().map(renew).map(Ok).collect();
        yield_now().await;
        Ok(answers)
    }

    async fn downgrade(&self, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        yield_now().await;
        let answer = self.on_line(&claim.key, |line, now| {
            let Some(at) = line.position(claim.id) else {
                return Renewal::Ended(ClaimEnd::NotFound);
            };
            line.entries[at].claim.mode = Mode::Shared;
            let grant = self.grant(&line.entries[at]);
            if !self.is(InjectedBug::DowngradeKeepsTheLease) {
                self.prolong(line, now, claim);
            }
            if self.is(InjectedBug::DowngradeGoesToTheEnd) {
                let mut entry = line.entries.remove(at);
                entry.held_since = None;
                entry.queued_at = now;
                line.entries.push(entry);
            }
            Renewal::Holds(grant)
        });
        yield_now().await;
        Ok(answer)
    }

    async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        yield_now().await;
        let answer = self.on_line(key, |line, _| self.break_entry(line, token, force, record));
        yield_now().await;
        Ok(answer)
    }

    async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        yield_now().await;
        Ok(self.inspected(key))
    }

    async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        yield_now().await;
        Ok(self.page_of(request))
    }

    async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>, Error> {
        yield_now().await;
        Ok(self.page_of_namespaces(after, limit))
    }

    async fn changed(&self, key: &Key, seen: &LockState) -> Result<LockState, Error> {
        loop {
            let now = self.inspect(key).await?;
            if self.differs(&now, seen) {
                return Ok(now);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn raise(&self, claim: &Arc<Claim>, token: Token) -> Result<Renewal, Error> {
        yield_now().await;
        Ok(self.on_line(&claim.key, |line, now| {
            let at = line.position(claim.id);
            if let (Some(at), false) = (at, self.is(InjectedBug::ClaimsWhatItCannot))
                && line.entries[at].token < token
            {
                line.last_token = line.last_token.max(token.get());
                line.entries[at].token = token;
                self.raise_waiters(line, at, token);
            }
            self.prolong(line, now, claim)
        }))
    }

    async fn resize(&self, key: &Key, limit: SetLimit) -> Result<u32, Error> {
        yield_now().await;
        let limit = self.on_line(key, |line, _| self.set_limit(line, limit));
        yield_now().await;
        Ok(limit)
    }

    async fn health(&self) -> Result<Health, Error> {
        Ok(Health::well("toy"))
    }
}

/// Takes a claim out of line when the wait for its turn is dropped.
struct GivesUpItsPlace<'a> {
    toy: &'a Toy,
    claim: &'a Arc<Claim>,
    enabled: bool,
}

impl Drop for GivesUpItsPlace<'_> {
    fn drop(&mut self) {
        if self.enabled {
            let toy = self.toy;
            toy.on_line(&self.claim.key, |line, _| toy.leave(line, self.claim));
        }
    }
}

impl Toy {
    /// Gives those who wait behind a claim that was raised greater tokens than it has.
    fn raise_waiters(&self, line: &mut ToyQueue, raised: usize, token: Token) {
        let mut least = token;
        for at in raised + 1..line.entries.len() {
            let entry = &line.entries[at];
            let is_behind = entry.held_since.is_none() && entry.token <= least;
            if is_behind && !self.is(InjectedBug::RaiseForgetsWaiters) {
                line.entries[at].token = self.number(line);
                least = line.entries[at].token;
            }
        }
    }

    fn enter(
        &self,
        line: &mut ToyQueue,
        now: Moment,
        claim: Claim,
        patience: Patience,
    ) -> Result<Acquisition, Error> {
        let mut claim = claim;
        if self.is(InjectedBug::KeepsTheFirstNote) {
            claim.note = line.first_note.get_or_insert(claim.note).clone();
        }
        let known = line.position(claim.id);
        if let (Some(at), false) = (known, self.is(InjectedBug::QueuesTwiceWhenAskedTwice)) {
            return self.stay(line, now, at, patience);
        }
        self.check_limit(line, &claim)?;
        let ahead: u64 = line.entries.iter().map(weight).sum();
        let passes = self.passes(line, &claim, patience);
        if patience == Patience::Try && !passes && !self.fits(ahead, claim.mode) {
            return Ok(Acquisition::Busy);
        }
        let id = claim.id;
        let entry = ToyEntry {
            token: self.number(line),
            queued_at: now,
            held_since: passes.then_some(now),
            expires: now.after(if passes { claim.hold_ttl } else { claim.wait_ttl }),
            graceful_break: false,
            claim,
        };
        line.entries.push(entry);
        self.promote(line, now);
        let at = line.position(id).expect("it was just put in");
        Ok(self.state_of(line, at))
    }

    fn end_the_one_before(&self, taken: Claim) {
        let mut latest = self.latest.lock().unwrap_or_else(|e| e.into_inner());
        let id = taken.id;
        if let Some(before) = latest.replace(taken).filter(|before| before.id != id) {
            self.on_line(&before.key, |line, _| self.leave(line, &before));
        }
    }

    /// A claim that is asked for again stays where it is.
    fn stay(
        &self,
        line: &mut ToyQueue,
        now: Moment,
        at: usize,
        patience: Patience,
    ) -> Result<Acquisition, Error> {
        let entry = &mut line.entries[at];
        let holds = entry.held_since.is_some();
        if !holds && patience == Patience::Try {
            line.entries.remove(at);
            return Ok(Acquisition::Busy);
        }
        if let Some(record) = line.broken.get(&entry.claim.id) {
            return Err(Error::lost(LossReason::Broken(record.clone())));
        }
        let ttl = if holds { entry.claim.hold_ttl } else { entry.claim.wait_ttl };
        entry.expires = entry.expires.max(now.after(self.lasts(ttl)));
        Ok(self.state_of(line, at))
    }

    fn check_limit(&self, line: &ToyQueue, claim: &Claim) -> Result<(), Error> {
        let given = line.given.filter(|_| {
            !self.is(InjectedBug::ForgetsTheLimitWhenEmpty) || !line.entries.is_empty()
        });
        let in_use = given.or_else(|| line.entries.first().and_then(|e| e.claim.mode.limit()));
        match (in_use, claim.mode.limit()) {
            (Some(in_use), Some(asked))
                if in_use != asked && !self.is(InjectedBug::AcceptsAnotherLimit) =>
            {
                Err(Error::limit_mismatch(claim.key.name.as_str().to_owned(), in_use, asked))
            }
            _ => Ok(()),
        }
    }

    fn set_limit(&self, line: &mut ToyQueue, limit: SetLimit) -> u32 {
        let in_use = line.entries.first().and_then(|e| e.claim.mode.limit());
        let limit = match limit {
            SetLimit::To(limit) => limit,
            SetLimit::IfUnset(limit) if self.is(InjectedBug::FirstUseResizes) => limit,
            SetLimit::IfUnset(limit) => line.given.or(in_use).unwrap_or(limit),
        };
        line.given = Some(limit);
        if self.is(InjectedBug::ResizeIsForNewcomersOnly) {
            return limit;
        }
        for entry in &mut line.entries {
            if let Mode::Permits { permits, .. } = entry.claim.mode {
                entry.claim.mode = Mode::Permits { permits, limit };
            }
        }
        if self.is(InjectedBug::LoweringEvicts) {
            let mut out = 0;
            line.entries.retain(|e| {
                out += weight(e);
                e.held_since.is_none() || out <= u64::from(limit)
            });
        }
        limit
    }

    /// Whether a bug lets a newcomer pass those who wait.
    fn passes(&self, line: &ToyQueue, claim: &Claim, patience: Patience) -> bool {
        let holders = line.entries.iter().filter(|e| e.held_since.is_some());
        let held: u64 = holders.map(weight).sum();
        let fits = self.fits(held, claim.mode);
        match self.bug {
            Some(InjectedBug::TryOvertakes) => patience == Patience::Try && fits,
            Some(InjectedBug::ReadersOvertakeWriters) => claim.mode == Mode::Shared && fits,
            Some(InjectedBug::SmallOvertakesLarge) => claim.mode.limit().is_some() && fits,
            _ => false,
        }
    }

    pub(super) fn state_of(&self, line: &ToyQueue, at: usize) -> Acquisition {
        match line.entries[at].held_since {
            Some(_) => Acquisition::Granted(self.grant(&line.entries[at])),
            None => Acquisition::Queued { ahead: at as u32 },
        }
    }

    fn grant(&self, entry: &ToyEntry) -> Grant {
        let twice = if self.is(InjectedBug::ReportsALongerTtl) { 2 } else { 1 };
        Grant {
            token: entry.token,
            ttl: entry.claim.hold_ttl * twice,
            start: LeaseStart::LastAnswered,
            margin: Duration::ZERO,
        }
    }

    /// The claim's grant if it holds, and when to ask again if not.
    fn poll(&self, claim: &Claim) -> Result<(Option<Grant>, Moment), Error> {
        let now = TokioClock.now();
        let lines = self.lock_lines();
        let line = lines.get(&self.key(&claim.key));
        let found = line.and_then(|line| Some((line, line.position(claim.id)?)));
        let Some((line, at)) = found else {
            return Err(Error::lost(LossReason::Expired));
        };
        let entry = &line.entries[at];
        if entry.graceful_break
            && let Some(record) = line.broken.get(&claim.id)
            && !self.is(InjectedBug::GrantsTheBroken)
        {
            return Err(Error::lost(LossReason::Broken(record.clone())));
        }
        let grant = entry.held_since.map(|_| self.grant(entry));
        let next_end = line.entries.iter().map(|e| e.expires).min();
        let next_end = next_end.filter(|end| *end > now);
        Ok((grant, next_end.unwrap_or(now.after(Duration::from_secs(60)))))
    }

    /// Lets a list move on after a lease may have ended.
    fn wake_up(&self, key: &Key) {
        self.on_line(key, |_, _| ());
    }

    pub(super) fn leave(&self, line: &mut ToyQueue, claim: &Claim) -> Released {
        if self.is(InjectedBug::ReleaseForgetsWhoBroke) {
            line.broken.remove(&claim.id);
            line.last_break = None;
        }
        let empty = line.entries.is_empty();
        let any = self.is(InjectedBug::ReleasesWithoutId) && !empty;
        let Some(at) = line.position(claim.id).or(any.then_some(0)) else {
            return if empty { Released::NoSuchLock } else { Released::NotFound };
        };
        let entry = line.entries.remove(at);
        if self.is(InjectedBug::ForgetsToWakeAfterGivingUp) && entry.held_since.is_none() {
            // As if the others still stood behind it.
            let long_gone = entry.claim.key.clone();
            let mut ghost = entry;
            ghost.claim.id = ClaimId::random();
            ghost.claim.key = long_gone;
            line.entries.insert(at, ghost);
        }
        Released::Removed
    }

    fn break_entry(
        &self,
        line: &mut ToyQueue,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
    ) -> bool {
        let any = self.is(InjectedBug::OldTokenBreaksTheSuccessor) && !line.entries.is_empty();
        let found = line.entries.iter().position(|e| e.token == token);
        let Some(at) = found.or(any.then_some(0)) else {
            return false;
        };
        let id = line.entries[at].claim.id;
        line.last_break = Some(record.clone());
        if self.is(InjectedBug::GracefulBreakIsForgotten) && force == BreakMode::Graceful {
            return true;
        }
        line.broken.insert(id, record.clone());
        let at_once = match force {
            BreakMode::Graceful => self.is(InjectedBug::GracefulBreakActsAtOnce),
            BreakMode::Forced => !self.is(InjectedBug::ForcedBreakWaits),
        };
        if at_once {
            line.entries.remove(at);
        } else {
            line.entries[at].graceful_break = true;
        }
        true
    }
}

fn weight(entry: &ToyEntry) -> u64 {
    u64::from(entry.claim.mode.weight())
}
