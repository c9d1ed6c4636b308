//! One round for one claim: try the members, raise a majority to the greatest token it gave, check
//! that time is left; or give everything back. Runs in a task of its own, so that a caller
//! may go away at any moment.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::hold::{Hold, QuorumPhase};
use super::{BACKEND, QuorumInner};
use crate::named::why;
use lockkit_core::clock::{Moment, sleep_until};
use lockkit_core::driver::{
    Acquire, Acquisition, Attempted, Batch, BatchError, Grant, LeaseStart, LockDriver, Patience,
    Renewal,
};
use lockkit_core::{Claim, Error, Token};

/// When a claim that one member has granted from its queue is tried again at another that refused it:
/// what the last holder has released may not have arrived there. In milliseconds.
const AGAIN_AFTER: [u64; 4] = [1, 2, 4, 8];

/// What came of a round.
pub(super) type Outcome = Result<RoundResult, Error>;

#[derive(Clone, Copy, Debug)]
pub(super) enum RoundResult {
    Granted(Grant),
    Busy,
    /// Too few granted, and perhaps no claim holds: some members granted, or may have refused for a
    /// claim that this client had released.
    Split,
}

/// Which members a round tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tries {
    /// All, under an id that none has met.
    All,
    /// All; this one has the claim in its queue, and has granted it.
    After(usize),
    /// All but this one, under an id that none has met.
    Past(usize),
}

/// What a member says to a try.
type TryResult = Result<Attempted<Acquisition>, BatchError>;

/// What the members said to a try.
struct TryAnswers {
    granted: Vec<(usize, Grant)>,
    /// What it is if the grants are no majority: an error if it is not known.
    refused: Result<(), Error>,
}

/// What came of raising.
#[derive(Default)]
struct Raised {
    /// To this token; `None` when no member granted.
    token: Option<Token>,
    counted: Vec<usize>,
    failed: Option<Error>,
}

/// Answers of members, in the order in which they come.
pub(super) struct Answers<T> {
    coming: mpsc::UnboundedReceiver<(usize, T)>,
    asked: usize,
    since: Moment,
    /// Once enough have answered, the others get as long again and no more.
    grace: Option<Moment>,
}

impl<T: Send + 'static> Answers<T> {
    /// Asks these members at once, each in a task of its own: an answer that comes when no task
    /// listens any more has still been acted upon.
    pub(super) fn of<F>(
        inner: &Arc<QuorumInner>,
        members: impl IntoIterator<Item = usize>,
        ask: impl Fn(usize) -> F,
    ) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let (send, coming) = mpsc::unbounded_channel();
        let mut asked = 0;
        for member in members {
            asked += 1;
            let (asking, send) = (ask(member), send.clone());
            tokio::spawn(async move {
                let answer = asking.await;
                let _ = send.send((member, answer)); // the caller may be gone
            });
        }
        Self { coming, asked, since: inner.clock.now(), grace: None }
    }

    /// The next answer; `None` when all have come, or the time for stragglers is over.
    pub(super) async fn next(&mut self, inner: &QuorumInner) -> Option<(usize, T)> {
        let Some(grace) = self.grace else {
            return self.coming.recv().await;
        };
        tokio::select! {
            biased;
            answer = self.coming.recv() => answer,
            () = sleep_until(&*inner.clock, grace) => None,
        }
    }

    pub(super) fn enough(&mut self, inner: &QuorumInner) {
        let now = inner.clock.now();
        let took = now.since(self.since);
        self.grace.get_or_insert(now.after(took + Duration::from_millis(1)));
    }
}

impl QuorumInner {
    /// A round for a claim that is [`QuorumPhase::Trying`]; the claim is the hold's.
    pub(super) async fn round(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        claim: &Arc<Claim>,
        tries: Tries,
    ) -> Outcome {
        let since = self.clock.now();
        let limit = self.limit(claim.hold_ttl);
        let releasing = self.is_releasing(&claim.key);
        let members = (0..self.members.len()).filter(|member| tries != Tries::Past(*member));
        let mut answers = Answers::of(self, members, |member| {
            let (inner, claim, hold) = (self.clone(), claim.clone(), hold.clone());
            let again = match tries {
                Tries::After(first) if first != member => AGAIN_AFTER.as_slice(),
                _ => &[],
            };
            async move { inner.try_again_at(member, &hold, &claim, limit, again).await }
        });
        let TryAnswers { granted, refused } = self.first_majority(&mut answers).await;
        let outcome = match refused {
            _ if granted.len() >= self.majority() => {
                self.raise_and_grant(hold, claim, since, &granted).await
            }
            Ok(()) if granted.is_empty() && !releasing => Ok(RoundResult::Busy),
            refused => refused.map(|()| RoundResult::Split),
        };
        if !matches!(outcome, Ok(RoundResult::Granted(_))) {
            let is_granted = |member: usize| granted.iter().any(|(other, _)| *other == member);
            let (held, others): (Vec<_>, Vec<_>) =
                hold.pending().into_iter().partition(|(member, _)| is_granted(*member));
            // Also where a driver asked twice, and only one of its requests was answered.
            for (member, _) in others.into_iter().filter(|(_, pending)| pending.is_some()) {
                // It has taken its time already: the round does not wait for it once more.
                let (inner, hold, claim) = (self.clone(), hold.clone(), claim.clone());
                tokio::spawn(async move { inner.withdraw(&hold, &claim, member).await });
            }
            self.give_back(claim, held).await;
        }
        let (inner, hold, claim) = (self.clone(), hold.clone(), claim.clone());
        tokio::spawn(async move { inner.hear_late(answers, &hold, &claim).await });
        outcome
    }

    /// What members answer when the round is over.
    async fn hear_late(
        self: &Arc<Self>,
        mut answers: Answers<TryResult>,
        hold: &Arc<Hold>,
        claim: &Arc<Claim>,
    ) {
        while let Some((member, answer)) = answers.coming.recv().await {
            match answer {
                Ok(Attempted { result: Acquisition::Granted(_), .. }) => {
                    self.add_late_member(hold, claim, member).await;
                }
                Ok(Attempted { ambiguous: 0, .. }) | Err(BatchError { ambiguous: 0, .. }) => {}
                _ => self.withdraw(hold, claim, member).await,
            }
        }
    }

    /// Until when a request for this claim that has not been answered by now is watched for.
    pub(super) fn pending_until(&self, claim: &Claim) -> Moment {
        self.clock.now().after(claim.hold_ttl.max(claim.wait_ttl))
    }

    /// A member did not answer: unless the claim holds (then its end takes care of it), what may
    /// be there, or on its way there, is taken back.
    pub(super) async fn withdraw(self: &Arc<Self>, hold: &Hold, claim: &Arc<Claim>, member: usize) {
        if hold.token_of(claim).is_none() {
            self.give_back(claim, vec![(member, Some(self.pending_until(claim)))]).await;
        }
    }

    /// Collects answers until a majority has granted, or cannot any more.
    async fn first_majority(&self, answers: &mut Answers<TryResult>) -> TryAnswers {
        let (mut granted, mut failed) = (Vec::new(), None);
        let (mut busy, mut failures) = (0, 0);
        while let Some((member, answer)) = answers.next(self).await {
            match answer {
                Ok(Attempted { result: Acquisition::Granted(grant), .. }) => {
                    granted.push((member, grant));
                }
                Ok(_) => busy += 1,
                Err(BatchError { error, .. }) => {
                    failures += 1;
                    failed = Some(error);
                }
            }
            let lost = answers.asked - busy - failures < self.majority();
            if granted.len() >= self.majority() || lost {
                answers.enough(self);
            }
        }
        let refused = match failed {
            Some(error) if busy + granted.len() < self.majority() => {
                let message = format!("no majority of the members answered; {}", why(&error));
                Err(Error::retryable(BACKEND, message))
            }
            _ => Ok(()),
        };
        TryAnswers { granted, refused }
    }

    /// Raises those who granted, and makes it a grant if a majority of them counts in time.
    async fn raise_and_grant(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        claim: &Arc<Claim>,
        since: Moment,
        granted: &[(usize, Grant)],
    ) -> Outcome {
        let raised = self.raise_all(hold, claim, granted).await;
        let Raised { token: Some(token), counted, failed } = raised else {
            return Ok(RoundResult::Busy);
        };
        let by_counted = granted.iter().filter(|(member, _)| counted.contains(member));
        let since = by_counted
            .clone()
            .filter_map(|(member, grant)| self.began(*member, grant))
            .fold(since, Moment::min);
        let ttl = by_counted.clone().map(|(_, grant)| grant.ttl).min().unwrap_or_default();
        let margins = by_counted.map(|(_, grant)| grant.margin);
        let margin = margins.fold(self.options.margin.of(ttl), Duration::max);
        let until = since.after(ttl.saturating_sub(margin));
        if counted.len() < self.majority() || self.clock.now() >= until {
            let why = failed.map_or("it took too long".to_owned(), |error| why(&error));
            let message = format!("the grants of a majority did not count: {why}");
            return Err(Error::retryable(BACKEND, message));
        }
        let grant = Grant { token, ttl, start: LeaseStart::Sent(since), margin };
        let mut state = hold.state();
        if !matches!(state.phase, QuorumPhase::Trying { .. }) {
            return Ok(RoundResult::Busy); // it was given back meanwhile
        }
        state.phase = QuorumPhase::Held { grant, until };
        Ok(RoundResult::Granted(grant))
    }

    /// Raises those who granted to the greatest token among them, and waits for a majority.
    async fn raise_all(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        claim: &Arc<Claim>,
        granted: &[(usize, Grant)],
    ) -> Raised {
        let token = granted.iter().map(|(_, grant)| grant.token).max();
        let mut raised = Raised { token, ..Raised::default() };
        let Some(token) = raised.token else { return raised };
        let mut raises = Answers::of(self, granted.iter().map(|(member, _)| *member), |member| {
            let (inner, hold, claim) = (self.clone(), hold.clone(), claim.clone());
            async move { inner.raise_at(member, &hold, &claim, token).await }
        });
        while let Some((member, answer)) = raises.next(self).await {
            match answer {
                Ok(()) => raised.counted.push(member),
                Err(error) => raised.failed = Some(error),
            }
            if raised.counted.len() >= self.majority() {
                raises.enough(self);
            }
        }
        raised
    }

    /// The same as [`try_at`](Self::try_at), and again after these pauses as long as it is refused.
    async fn try_again_at(
        &self,
        member: usize,
        hold: &Hold,
        claim: &Arc<Claim>,
        limit: Duration,
        pauses: &[u64],
    ) -> TryResult {
        let mut answer = self.try_at(member, hold, claim, limit).await;
        for pause in pauses {
            let refused = Ok(&Attempted::from(Acquisition::Busy));
            if answer.as_ref().map_err(drop) != refused || !hold.is_about(claim) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(*pause)).await;
            answer = self.try_at(member, hold, claim, limit).await;
        }
        answer
    }

    /// Acquires a claim at a member if it can hold there at once.
    pub(super) async fn try_at(
        &self,
        member: usize,
        hold: &Hold,
        claim: &Arc<Claim>,
        limit: Duration,
    ) -> TryResult {
        let answered = self.acquire_at(member, claim, Patience::Try, limit).await;
        let ambiguous = match &answered {
            Ok(attempted) => attempted.ambiguous,
            Err(error) => error.ambiguous,
        };
        let mut state = hold.state();
        if state.claim.id == claim.id {
            let at_member = &mut state.members[member];
            let result = answered.as_ref().map(|attempted| attempted.result);
            at_member.refused = matches!(result, Ok(Acquisition::Busy));
            if ambiguous > 0 {
                at_member.pending_until = Some(self.pending_until(claim));
            }
        }
        answered
    }

    /// Acquires a claim at a member. Only a claim that nothing holds at other members may wait there: of
    /// two that wait for each other's members, neither would get a majority.
    pub(super) async fn acquire_at(
        &self,
        member: usize,
        claim: &Arc<Claim>,
        patience: Patience,
        limit: Duration,
    ) -> TryResult {
        let acquires = [Acquire { claim: claim.clone(), patience }];
        let acquiring = self.ask_counting(member, limit, |driver| async move {
            let batch = Batch { releases: &[], acquires: &acquires };
            let outcome = driver.submit(batch).await?.acquired.pop();
            outcome.unwrap_or_else(|| Err(BatchError::unknown(driver.no_reply())))
        });
        acquiring.await
    }

    /// Raises a claim that a member has just granted, and makes sure that the member is not one
    /// that came back empty or with old data. Only then does it count.
    ///
    /// The sign and the run are looked for *after* the grant: a member that lost its data before
    /// granting has lost its sign as well, and one that came back with old data is another run.
    pub(super) async fn raise_at(
        self: &Arc<Self>,
        member: usize,
        hold: &Hold,
        claim: &Arc<Claim>,
        token: Token,
    ) -> Result<(), Error> {
        let limit = self.limit(claim.hold_ttl);
        let raising = async {
            let mine = claim.clone();
            let raise =
                |driver: Arc<dyn LockDriver>| async move { driver.raise(&mine, token).await };
            match self.ask(member, limit, raise).await? {
                Renewal::Holds(grant) if grant.token >= token => Ok(()),
                _ => Err(Error::retryable(BACKEND, "a member lost the claim while it was raised")),
            }
        };
        let ttl = claim.hold_ttl;
        let (raised, sign, run) =
            tokio::join!(raising, self.check_sign(member, ttl), self.check_run(member, ttl));
        raised.and(sign).and(run)?;
        hold.set_member(claim, member, true);
        Ok(())
    }

    /// A member granted late: it joins those who hold, or the claim is given back there.
    async fn add_late_member(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        claim: &Arc<Claim>,
        member: usize,
    ) {
        if let Some(token) = hold.token_of(claim) {
            let _ = self.raise_at(member, hold, claim, token).await; // a renewal tries again
        }
        if hold.token_of(claim).is_none() {
            self.give_back(claim, vec![(member, None)]).await;
        }
    }
}
