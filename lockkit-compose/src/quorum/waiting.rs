//! How a claim waits. It queues at one member only: the first that answers and has its data, which all
//! clients take that name the members in the same order. All others are only tried, and only once that
//! member has granted the claim: so clients meet at one member first, no vote is split by queues, and a
//! claim that waits holds nothing that another one waits for.
//!
//! A queue may stand still while nothing holds the lock: a client died, a message was lost, a claim got its
//! majority at the other members. So the first claims of a queue look at the other members now and then.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::hold::{Hold, QueuedAt, QuorumPhase};
use super::round::{Outcome, RoundResult, Tries};
use super::{BACKEND, QuorumInner};
use lockkit_core::clock::sleep_until;
use lockkit_core::driver::{
    Acquisition, Attempted, BatchError, Grant, LockDriver, Patience, Renewal,
};
use lockkit_core::{Claim, Error, LossReason};

/// The longest pause between two rounds of a claim that waits in no queue; and the pause between two looks of
/// the first claim in a queue. The k-th looks after k of these.
const PATIENT_ROUNDS: u32 = 3;

/// A queue stands still if that many looks in a row find the lock free.
const FREE_INSPECTIONS: u32 = 2;

/// For how long no claim queues at a member after it did not answer, or kept a free lock from its queue.
const REST: Duration = Duration::from_secs(5);

/// What is done next for a claim that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitingStep {
    /// A round at all members, for a claim that does not wait.
    Try,
    /// The same, and a place in a queue if it is refused.
    Enter,
    /// Leaves the queue, and enters again.
    EnterAgain,
    /// Has the grant of the member in whose queue it was made one of a majority.
    Follow,
    /// A round past the queue in which it waits.
    Pass,
}

/// A claim to renew by its index, as core sees it and as the member in whose queue it is does.
type IndexedClaim<'a> = (usize, &'a Arc<Claim>, QueuedAt);

/// A step that is under way. When it ends, also with its runtime, the next one may begin.
struct StepTaken(Arc<Hold>);

impl Drop for StepTaken {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if let QuorumPhase::Trying { until } = state.phase {
            state.phase = QuorumPhase::Waiting { until };
        }
        drop(state);
        self.0.changed.notify_waiters();
    }
}

impl QuorumInner {
    pub(super) async fn granted(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Grant, Error> {
        let lost = || Error::lost(LossReason::Expired);
        let mut steps = 0;
        loop {
            let hold = self.hold(claim).ok_or_else(lost)?;
            // Listening begins before looking.
            let mut changed = pin!(hold.changed.notified());
            changed.as_mut().enable();
            let (phase, queued) = {
                let state = hold.state();
                (state.phase, state.queued.clone())
            };
            let until = match phase {
                QuorumPhase::Held { grant, .. } => return Ok(grant),
                QuorumPhase::Over => return Err(lost()),
                QuorumPhase::Waiting { until } if until <= self.clock.now() => return Err(lost()),
                QuorumPhase::Trying { .. } => {
                    changed.await;
                    continue;
                }
                QuorumPhase::Waiting { until } => until,
            };
            let next = async {
                match &queued {
                    Some(queued) => self.turn(&hold, queued).await,
                    None => {
                        tokio::time::sleep(self.pause(steps.min(PATIENT_ROUNDS))).await;
                        WaitingStep::Enter
                    }
                }
            };
            let step = tokio::select! {
                biased;
                () = changed => continue,
                step = next => step,
                () = sleep_until(&*self.clock, until) => continue,
            };
            steps += 1;
            let Some(result) = self.next_step(claim, step) else { continue };
            if let Ok(Ok(RoundResult::Granted(grant))) = result.await {
                return Ok(grant);
            }
        }
    }

    /// Begins the next step of a claim that waits, unless one is under way.
    pub(super) fn next_step(
        self: &Arc<Self>,
        claim: &Claim,
        step: WaitingStep,
    ) -> Option<oneshot::Receiver<Outcome>> {
        let hold = self.hold(claim)?;
        let mut state = hold.state();
        let QuorumPhase::Waiting { until } = state.phase else {
            return None;
        };
        state.phase = QuorumPhase::Trying { until };
        drop(state);
        Some(self.begin(hold, step))
    }

    /// Begins a step of a claim that is [`QuorumPhase::Trying`].
    pub(super) fn begin(
        self: &Arc<Self>,
        hold: Arc<Hold>,
        step: WaitingStep,
    ) -> oneshot::Receiver<Outcome> {
        let (tell, result) = oneshot::channel();
        let (inner, taken) = (self.clone(), StepTaken(hold));
        tokio::spawn(async move {
            let outcome = inner.take_step(&taken.0, step).await;
            drop(taken);
            let _ = tell.send(outcome);
        });
        result
    }

    async fn take_step(self: &Arc<Self>, hold: &Arc<Hold>, step: WaitingStep) -> Outcome {
        match step {
            WaitingStep::Try => self.round(hold, &hold.with_new_id(), Tries::All).await,
            WaitingStep::Enter => self.enter(hold).await,
            WaitingStep::EnterAgain => {
                self.leave_behind(hold);
                self.enter(hold).await
            }
            WaitingStep::Follow => self.follow(hold).await,
            WaitingStep::Pass => self.pass(hold).await,
        }
    }

    /// Tries all members, and queues where that is refused; the other way round where locks are known to be
    /// contended, so that a claim that comes does not meet at the others the one whose turn it is.
    async fn enter(self: &Arc<Self>, hold: &Arc<Hold>) -> Outcome {
        let key = hold.claim().key.clone();
        if self.contended.last(&key).is_some()
            && let Some(outcome) = self.queue(hold).await
        {
            return outcome;
        }
        let outcome = self.round(hold, &hold.with_new_id(), Tries::All).await?;
        let is_refused = !matches!(outcome, RoundResult::Granted(_));
        if is_refused
            || self.ordering_member().is_some_and(|first| hold.state().members[first].refused)
        {
            self.contended.saw(key, ());
        }
        match is_refused {
            true => self.queue(hold).await.unwrap_or(Ok(outcome)),
            false => Ok(outcome),
        }
    }

    /// The member at which claims queue.
    fn ordering_member(&self) -> Option<usize> {
        let now = self.clock.now();
        self.members.iter().position(|member| {
            let is_quarantined = member.watched.load(Ordering::Acquire);
            member.driver().is_ok() && !is_quarantined && !member.rests(now)
        })
    }

    fn rest(&self, member: usize) {
        self.members[member].rest(self.clock.now().after(REST));
    }

    /// Queues at the member that orders; `None` where there is none. If the claim is granted there at once,
    /// this goes on to a majority.
    async fn queue(self: &Arc<Self>, hold: &Arc<Hold>) -> Option<Outcome> {
        loop {
            let member = self.ordering_member().filter(|_| hold.is_trying())?;
            let claim = hold.with_new_id();
            let limit = self.limit(claim.hold_ttl);
            let (result, ambiguous) =
                match self.acquire_at(member, &claim, Patience::Wait, limit).await {
                    Ok(Attempted { result, ambiguous }) => (Some(result), ambiguous),
                    Err(BatchError { ambiguous, .. }) => (None, ambiguous),
                };
            let pending_until = (ambiguous > 0).then(|| self.pending_until(&claim));
            let ahead = match result {
                Some(Acquisition::Queued { ahead }) => ahead,
                Some(Acquisition::Granted(_)) => 0,
                Some(Acquisition::Busy) => return None,
                None => {
                    self.rest(member);
                    if pending_until.is_some() {
                        let (inner, pending) = (self.clone(), vec![(member, pending_until)]);
                        tokio::spawn(async move { inner.give_back(&claim, pending).await });
                    }
                    continue;
                }
            };
            let key = claim.key.clone();
            hold.state().queued = Some(QueuedAt { member, claim, ahead, pending_until });
            if !hold.is_trying() {
                let queued = hold.state().queued.take();
                self.leave(queued).await; // it was released meanwhile
                return Some(Ok(RoundResult::Busy));
            }
            if ahead > 0 {
                return Some(Ok(RoundResult::Busy));
            }
            let outcome = self.follow(hold).await;
            if let Ok(RoundResult::Granted(_)) = outcome {
                self.contended.forget(&key);
            } else if self.members[member].rests(self.clock.now()) {
                continue; // the holder is at other members: it queues there, before a later claim does
            }
            return Some(outcome);
        }
    }

    /// A round for a claim that was granted in the queue in which it is. The try there answers with the state
    /// of the claim and begins its lease again, so that this counts from the round's begin as at any other
    /// member.
    async fn follow(self: &Arc<Self>, hold: &Arc<Hold>) -> Outcome {
        let Some((member, claim)) = hold.take_queued(|claim| self.pending_until(claim)) else {
            return Ok(RoundResult::Busy);
        };
        let outcome = self.round(hold, &claim, Tries::After(member)).await;
        // A holder that is not at this member: claims queue at one where it is.
        if !matches!(outcome, Ok(RoundResult::Granted(_)))
            && !hold.state().members[member].refused
            && hold.is_trying()
            && self.may_be_held(&claim).await
        {
            self.rest(member);
        }
        outcome
    }

    async fn pass(self: &Arc<Self>, hold: &Arc<Hold>) -> Outcome {
        let Some(QueuedAt { member, .. }) = hold.queued() else { return Ok(RoundResult::Busy) };
        let outcome = self.round(hold, &hold.with_new_id(), Tries::Past(member)).await;
        if let Ok(RoundResult::Granted(_)) = outcome {
            self.rest(member);
            self.leave_behind(hold);
        }
        outcome
    }

    /// Leaves the queue of a member that may not answer.
    fn leave_behind(self: &Arc<Self>, hold: &Hold) {
        let (inner, queued) = (self.clone(), hold.state().queued.take());
        tokio::spawn(async move { inner.leave(queued).await });
    }

    /// What to do for a claim that waits in a queue, once there is something to do.
    async fn turn(self: &Arc<Self>, hold: &Hold, queued: &QueuedAt) -> WaitingStep {
        tokio::select! {
            biased;
            step = self.promoted(queued) => step,
            step = self.stuck(hold, queued) => step,
        }
    }

    async fn promoted(&self, queued: &QueuedAt) -> WaitingStep {
        let Ok(driver) = self.members[queued.member].driver() else {
            return WaitingStep::EnterAgain;
        };
        loop {
            match driver.granted(&queued.claim).await {
                Ok(_) => return WaitingStep::Follow,
                Err(error) if error.is_retryable() => {
                    tokio::time::sleep(self.pause(PATIENT_ROUNDS)).await;
                }
                Err(_) => return WaitingStep::EnterAgain,
            }
        }
    }

    /// Returns when the queue stands still while the lock seems to be free.
    async fn stuck(self: &Arc<Self>, hold: &Hold, queued: &QueuedAt) -> WaitingStep {
        let mut free = 0;
        while free < FREE_INSPECTIONS {
            let ahead = hold.queued().map_or(1, |queued| queued.ahead.max(1));
            tokio::time::sleep(self.pause(PATIENT_ROUNDS) * ahead).await;
            free = match self.is_free_past(queued.member, &queued.claim.key).await {
                true => free + 1,
                false => 0,
            };
        }
        match self.renew_queued(queued.member, vec![queued.claim.clone()]).await.pop() {
            Some(Ok(Renewal::Waits { .. })) => WaitingStep::Pass,
            Some(Ok(Renewal::Holds(_))) => WaitingStep::Follow,
            _ => WaitingStep::EnterAgain,
        }
    }

    /// Renews claims that wait at a member.
    async fn renew_queued(
        &self,
        member: usize,
        claims: Vec<Arc<Claim>>,
    ) -> Vec<Result<Renewal, Error>> {
        let ttl = claims.iter().map(|claim| claim.hold_ttl).min().unwrap_or_default();
        let count = claims.len();
        let renew = |driver: Arc<dyn LockDriver>| async move { driver.renew(&claims).await };
        match self.ask(member, self.limit(ttl), renew).await {
            Ok(answers) if answers.len() == count => answers,
            _ => {
                self.rest(member);
                let unknown = || Err(Error::retryable(BACKEND, "a member did not answer"));
                std::iter::repeat_with(unknown).take(count).collect()
            }
        }
    }

    /// Renews claims that wait, each with its index, and has them move on. Says where each is then, as far as
    /// that is not known already.
    pub(super) async fn renew_waiting(
        self: &Arc<Self>,
        waiting: Vec<(usize, &Arc<Claim>)>,
    ) -> Vec<(usize, Renewal)> {
        let (mut renewals, mut steps) = (Vec::new(), Vec::new());
        let mut at_members: HashMap<usize, Vec<IndexedClaim<'_>>> = HashMap::new();
        for (index, claim) in waiting {
            match self.hold(claim).and_then(|hold| hold.queued()) {
                Some(queued) => {
                    at_members.entry(queued.member).or_default().push((index, claim, queued));
                }
                // Also claims that no task waits for just now move on.
                None => steps
                    .extend(self.next_step(claim, WaitingStep::Enter).map(|step| (index, step))),
            }
        }
        let asking = at_members.into_iter().map(|(member, those)| async move {
            let claims = those.iter().map(|(.., queued)| queued.claim.clone()).collect();
            (those, self.renew_queued(member, claims).await)
        });
        for (those, answers) in join_all(asking).await {
            for ((index, claim, queued), answer) in those.into_iter().zip(answers) {
                match answer {
                    Ok(Renewal::Waits { ahead }) => {
                        if let Some(hold) = self.hold(claim)
                            && let Some(now) = &mut hold.state().queued
                            && now.claim.id == queued.claim.id
                        {
                            now.ahead = ahead;
                        }
                        renewals.push((index, Renewal::Waits { ahead }));
                    }
                    Ok(Renewal::Holds(_)) => {
                        let step = self.next_step(claim, WaitingStep::Follow);
                        steps.extend(step.map(|step| (index, step)));
                    }
                    _ => drop(self.next_step(claim, WaitingStep::EnterAgain)),
                }
            }
        }
        let results = steps.into_iter().map(|(index, result)| async move { (index, result.await) });
        for (index, result) in join_all(results).await {
            if let Ok(Ok(RoundResult::Granted(grant))) = result {
                renewals.push((index, Renewal::Holds(grant)));
            }
        }
        renewals
    }
}
