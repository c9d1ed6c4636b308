//! Claims of a quorum that hold: renewed at a majority of the members, repaired where a member lost them,
//! shortened, downgraded.
//!
//! - A member *counts* for a claim once it has the claim with the quorum's token (it was raised there).
//! - A member *kept* it that counted before and still has it; it is *repaired* where it was acquired again now.
//! - The claim still holds if a majority kept it, or if a majority kept it or repaired it while the last majority's
//!   lease was not over: no other claim can have come and gone in between.

use std::sync::Arc;
use std::time::Duration;

use super::hold::{Hold, QuorumPhase};
use super::round::Answers;
use super::{BACKEND, QuorumInner};
use lockkit_core::clock::Moment;
use lockkit_core::driver::{
    Acquisition, BatchError, ClaimEnd, Grant, LeaseStart, LockDriver, Renewal, trusted_until,
};
use lockkit_core::{BreakRecord, Claim, Error, Mode};

/// One claim that holds, at the beginning of a renewal.
#[derive(Clone)]
struct Held {
    /// Its index among the claims to renew.
    index: usize,
    hold: Arc<Hold>,
    claim: Arc<Claim>,
    grant: Grant,
    until: Moment,
}

/// What one member says of one claim.
enum MemberAnswer {
    /// It was there all the time, and counts.
    Kept(Grant),
    /// It was lost there, and was acquired again.
    Repaired(Grant),
    Broken(BreakRecord),
    Lost,
    Unknown,
}

/// The votes on one claim.
#[derive(Default)]
struct Tally {
    kept: usize,
    repaired: usize,
    lost: usize,
    ttl: Option<Duration>,
    since: Option<Moment>,
    broken: Option<BreakRecord>,
}

impl QuorumInner {
    /// Renews each of these; what cannot be renewed, since too few members answered for it, is an
    /// error of its own.
    pub(super) async fn renew(
        self: &Arc<Self>,
        claims: &[Arc<Claim>],
    ) -> Vec<Result<Renewal, Error>> {
        let mut renewals = Vec::with_capacity(claims.len());
        let mut held = Vec::new();
        let mut waiting = Vec::new();
        for (index, claim) in claims.iter().enumerate() {
            let renewal = self.renew_here(index, claim, &mut held);
            if let Renewal::Waits { .. } = renewal {
                waiting.push((index, claim));
            }
            renewals.push(Ok(renewal));
        }
        let (waiting, ()) =
            tokio::join!(self.renew_waiting(waiting), self.renew_held(held, &mut renewals));
        for (index, renewal) in waiting {
            renewals[index] = Ok(renewal);
        }
        renewals
    }

    /// The answer for a claim that waits or has ended, which this process knows by itself. One that holds is
    /// added to `held`, and its answer is replaced by that of the members.
    fn renew_here(&self, index: usize, claim: &Arc<Claim>, held: &mut Vec<Held>) -> Renewal {
        let not_found = Renewal::Ended(ClaimEnd::NotFound);
        let Some(hold) = self.hold(claim) else {
            return not_found;
        };
        let now = self.clock.now();
        let later = now.after(claim.wait_ttl);
        let mut state = hold.state();
        let state = &mut *state;
        match &mut state.phase {
            QuorumPhase::Waiting { until } if *until <= now => not_found,
            QuorumPhase::Waiting { until } | QuorumPhase::Trying { until } => {
                *until = later.max(*until);
                Renewal::Waits { ahead: 1 }
            }
            QuorumPhase::Held { grant, until } => {
                let (grant, until) = (*grant, *until);
                let ttl = claim.hold_ttl.min(self.options.max_ttl);
                if ttl > state.claim.hold_ttl {
                    // Members must hear of the longer ttl before they count again.
                    state.members.iter_mut().for_each(|member| member.counts = false);
                }
                if ttl != state.claim.hold_ttl {
                    let mut other = Claim::clone(&state.claim);
                    other.hold_ttl = ttl;
                    state.claim = Arc::new(other);
                }
                let claim = state.claim.clone();
                held.push(Held { index, hold: hold.clone(), claim, grant, until });
                not_found
            }
            QuorumPhase::Over => match &state.broken {
                Some((record, _)) => Renewal::Ended(ClaimEnd::Broken(record.clone())),
                None => not_found,
            },
        }
    }

    async fn renew_held(
        self: &Arc<Self>,
        held: Vec<Held>,
        renewals: &mut [Result<Renewal, Error>],
    ) {
        if held.is_empty() {
            return;
        }
        let since = self.clock.now();
        let held = Arc::new(held);
        let mut answers = Answers::of(self, 0..self.members.len(), |member| {
            let (inner, held) = (self.clone(), held.clone());
            async move { inner.renew_at(member, &held).await }
        });
        let mut tallies: Vec<Tally> = held.iter().map(|_| Tally::default()).collect();
        while let Some((member, votes)) = answers.next(self).await {
            for (tally, vote) in tallies.iter_mut().zip(votes) {
                tally.add(vote, |grant| self.began(member, grant));
            }
            if tallies.iter().all(|tally| tally.counted() >= self.majority()) {
                answers.enough(self);
            }
        }
        for (one, tally) in held.iter().zip(tallies) {
            let renewal = self.decide(one, tally, since);
            let unknown = || Error::retryable(BACKEND, "no majority of the members answered");
            renewals[one.index] = renewal.ok_or_else(unknown);
        }
    }

    /// What the votes come to; `None` when too few members could be asked.
    fn decide(self: &Arc<Self>, one: &Held, tally: Tally, since: Moment) -> Option<Renewal> {
        if let Some(record) = tally.broken {
            if record.forced {
                // Members that the break did not reach may still have it. So may members where this renewal
                // acquired it again before it knew of the break.
                let until = self.clock.now().after(one.claim.hold_ttl);
                one.hold.state().broken = Some((record.clone(), until));
                self.end(one);
            }
            return Some(Renewal::Ended(ClaimEnd::Broken(record)));
        }
        // Before `until` the last majority still has it. Afterwards repairs do not count: another claim could
        // have come and gone in the gap.
        let now = self.clock.now();
        let was_repaired_in_time = tally.counted() >= self.majority() && now < one.until;
        if tally.kept >= self.majority() || was_repaired_in_time {
            let ttl = tally.ttl.unwrap_or(one.grant.ttl);
            let since = tally.since.map_or(since, |earlier| earlier.min(since));
            let margin = self.options.margin.of(ttl).max(one.grant.margin);
            let until = since.after(ttl.saturating_sub(margin));
            let grant = Grant { ttl, start: LeaseStart::Sent(since), margin, ..one.grant };
            let mut state = one.hold.state();
            let QuorumPhase::Held { until: before, .. } = state.phase else {
                return Some(Renewal::Ended(ClaimEnd::NotFound));
            };
            state.phase = QuorumPhase::Held { grant, until: until.max(before) };
            return Some(Renewal::Holds(grant));
        }
        let lost = tally.lost > self.members.len() - self.majority();
        if !lost && now < one.until {
            return None;
        }
        self.end(one);
        Some(Renewal::Ended(ClaimEnd::NotFound))
    }

    /// The claim is lost: what members still have of it is given back.
    fn end(self: &Arc<Self>, one: &Held) {
        one.hold.state().phase = QuorumPhase::Over;
        let (inner, one) = (self.clone(), one.clone());
        tokio::spawn(async move {
            inner.give_back(&one.claim, one.hold.pending()).await;
        });
    }

    /// Renews all these claims at one member, and repairs those that it does not have.
    async fn renew_at(self: Arc<Self>, member: usize, held: &[Held]) -> Vec<MemberAnswer> {
        let claims: Vec<_> = held.iter().map(|one| one.claim.clone()).collect();
        let ttl = claims.iter().map(|claim| claim.hold_ttl).min().unwrap_or_default();
        let renewing = self.ask(member, self.limit(ttl), |driver| async move {
            driver.renew_with_evidence(&claims).await
        });
        let clock = &self.members[member].clock;
        let sent = clock.now();
        let answers = match renewing.await {
            Ok(answers) if answers.len() == held.len() => {
                self.watched.hear(member, answers, sent, clock.now())
            }
            _ => return held.iter().map(|_| MemberAnswer::Unknown).collect(),
        };
        let votes = held.iter().zip(answers).map(|(one, answer)| self.judge(member, one, answer));
        futures_util::future::join_all(votes).await
    }

    /// What the answer of a member means for a claim; where the member lost it, acquires it there again.
    async fn judge(
        self: &Arc<Self>,
        member: usize,
        one: &Held,
        answer: Result<Renewal, Error>,
    ) -> MemberAnswer {
        let counts = one.hold.state().members[member].counts;
        match answer {
            Ok(Renewal::Holds(grant)) if counts => MemberAnswer::Kept(grant),
            Ok(Renewal::Holds(grant)) => self.repair(member, one, grant).await,
            Ok(Renewal::Ended(ClaimEnd::Broken(record))) => MemberAnswer::Broken(record),
            Err(_) => MemberAnswer::Unknown,
            _ => {
                one.hold.set_member(&one.claim, member, false);
                let limit = self.limit(one.claim.hold_ttl);
                if one.hold.token_of(&one.claim).is_none() || self.clock.now() >= one.until {
                    return MemberAnswer::Lost;
                }
                let answer = self.try_at(member, &one.hold, &one.claim, limit).await;
                match answer.map(|attempted| attempted.result) {
                    Ok(Acquisition::Granted(grant)) => self.repair(member, one, grant).await,
                    Ok(_) => MemberAnswer::Lost,
                    Err(BatchError { ambiguous: 0, .. }) => MemberAnswer::Unknown,
                    Err(_) => {
                        self.withdraw(&one.hold, &one.claim, member).await;
                        MemberAnswer::Unknown
                    }
                }
            }
        }
    }

    /// The member has the claim, but it was not raised there yet.
    async fn repair(self: &Arc<Self>, member: usize, one: &Held, grant: Grant) -> MemberAnswer {
        if one.hold.token_of(&one.claim).is_none() {
            self.give_back(&one.claim, vec![(member, None)]).await;
            return MemberAnswer::Lost;
        }
        match self.raise_at(member, &one.hold, &one.claim, one.grant.token).await {
            Ok(()) => MemberAnswer::Repaired(grant),
            Err(_) => MemberAnswer::Unknown,
        }
    }

    pub(super) async fn shorten(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        ttl: Duration,
    ) -> Result<Renewal, Error> {
        let longest = self.options.max_ttl;
        if ttl > longest {
            return Err(Error::Config(format!("this quorum keeps leases of {longest:?} at most")));
        }
        // Lowered before the requests are sent: a majority may keep the claim no longer from then on.
        if let Some(hold) = self.hold(claim)
            && let QuorumPhase::Held { until, .. } = &mut hold.state().phase
        {
            *until = trusted_until(self.clock.now(), ttl, self.options.margin).min(*until);
        }
        let shorten = move |driver: Arc<dyn LockDriver>, claim: Arc<Claim>| async move {
            driver.shorten(&claim, ttl).await
        };
        self.at_all(claim, shorten).await
    }

    pub(super) async fn downgrade(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Renewal, Error> {
        let downgrade = |driver: Arc<dyn LockDriver>, claim: Arc<Claim>| async move {
            driver.downgrade(&claim).await
        };
        let renewal = self.at_all(claim, downgrade).await?;
        if let (Renewal::Holds(_), Some(hold)) = (&renewal, self.hold(claim)) {
            let mut state = hold.state();
            state.claim = Arc::new(Claim::clone(&state.claim).with_mode(Mode::Shared));
        }
        Ok(renewal)
    }

    /// Does something to a claim that holds at all members where it counts; says what a majority
    /// says.
    async fn at_all<F>(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        ask: impl Fn(Arc<dyn LockDriver>, Arc<Claim>) -> F + Copy + Send + Sync + 'static,
    ) -> Result<Renewal, Error>
    where
        F: Future<Output = Result<Renewal, Error>> + Send + 'static,
    {
        let since = self.clock.now();
        let mut held = Vec::new();
        let here = self.hold(claim).map(|_| self.renew_here(0, claim, &mut held));
        let Some(one) = held.pop() else {
            return Ok(here.unwrap_or(Renewal::Ended(ClaimEnd::NotFound)));
        };
        let limit = self.limit(one.claim.hold_ttl);
        let mut answers = Answers::of(self, 0..self.members.len(), |member| {
            let (inner, claim) = (self.clone(), one.claim.clone());
            async move { inner.ask(member, limit, |driver| ask(driver, claim)).await }
        });
        let mut tally = Tally::default();
        while let Some((member, answer)) = answers.next(self).await {
            let counts = one.hold.state().members[member].counts;
            let vote = match answer {
                Ok(Renewal::Holds(grant)) if counts => MemberAnswer::Kept(grant),
                Ok(Renewal::Ended(ClaimEnd::Broken(record))) => MemberAnswer::Broken(record),
                Ok(Renewal::Ended(_)) => MemberAnswer::Lost,
                _ => MemberAnswer::Unknown,
            };
            tally.add(vote, |grant| self.began(member, grant));
            if tally.kept >= self.majority() {
                answers.enough(self);
            }
        }
        let renewal = self.decide(&one, tally, since);
        renewal.ok_or_else(|| Error::retryable(BACKEND, "no majority of the members answered"))
    }
}

impl Tally {
    fn counted(&self) -> usize {
        self.kept + self.repaired
    }

    fn add(&mut self, vote: MemberAnswer, began: impl Fn(&Grant) -> Option<Moment>) {
        let grant = match vote {
            MemberAnswer::Kept(grant) => {
                self.kept += 1;
                grant
            }
            MemberAnswer::Repaired(grant) => {
                self.repaired += 1;
                grant
            }
            MemberAnswer::Lost => {
                self.lost += 1;
                return;
            }
            MemberAnswer::Broken(record) => {
                self.broken = Some(record);
                return;
            }
            MemberAnswer::Unknown => return,
        };
        self.ttl = Some(self.ttl.map_or(grant.ttl, |ttl| ttl.min(grant.ttl)));
        self.since = self.since.into_iter().chain(began(&grant)).min();
    }
}
