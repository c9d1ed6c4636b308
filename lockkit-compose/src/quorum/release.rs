//! How claims are given back: at all members at once, and on and on where an answer is missing, until
//! nothing of the claim can be there any more.

use std::collections::HashMap;
use std::iter::repeat_n;
use std::sync::{Arc, Weak};

use super::hold::{QueuedAt, QuorumPhase};
use super::round::Answers;
use super::{BACKEND, QuorumInner};
use lockkit_core::clock::Moment;
use lockkit_core::driver::{LockDriver, Released, locked};
use lockkit_core::{Claim, Error, Key};

impl QuorumInner {
    pub(super) async fn release(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Released, Error> {
        let Some(hold) = self.holds().remove(&claim.id) else {
            return self.released_by_others(claim).await;
        };
        let (phase, inner, queued) = {
            let mut state = hold.state();
            let phase = std::mem::replace(&mut state.phase, QuorumPhase::Over);
            (phase, state.claim.clone(), state.queued.take())
        };
        hold.changed.notify_waiters();
        self.leave(queued).await;
        if let QuorumPhase::Waiting { .. } = phase {
            return Ok(Released::Removed);
        }
        let clear = |answers: &[_]| self.is_clear(answers);
        let answers = self.release_at_members(&inner, hold.pending(), clear).await;
        match phase {
            QuorumPhase::Held { .. } | QuorumPhase::Over => self.released_by(&answers),
            // The step that is under way gives back what it still gets.
            QuorumPhase::Trying { .. } | QuorumPhase::Waiting { .. } => Ok(Released::Removed),
        }
    }

    /// Takes a claim out of the queue in which it waits.
    pub(super) async fn leave(self: &Arc<Self>, queued: Option<QueuedAt>) {
        if let Some(QueuedAt { member, claim, pending_until, .. }) = queued {
            self.give_back(&claim, vec![(member, pending_until)]).await;
        }
    }

    /// The claim is unknown here: says whether anybody has the lock.
    async fn released_by_others(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Released, Error> {
        let all = (0..self.members.len()).map(|member| (member, None));
        let clear = |answers: &[_]| self.is_clear(answers);
        let answers = self.release_at_members(claim, all.collect(), clear).await;
        self.released_by(&answers)
    }

    /// Whether it is known what a release did, whatever those say who have not answered yet.
    fn is_clear(&self, answers: &[Result<Released, Error>]) -> bool {
        let missing = self.members.len() - answers.len();
        let answered = answers.iter().flatten().copied();
        let if_all_answered = |what| {
            let all: Vec<_> = answered.clone().chain(repeat_n(what, missing)).map(Ok).collect();
            self.released_by(&all).ok()
        };
        let removed = if_all_answered(Released::Removed);
        [Released::NotFound, Released::NoSuchLock].map(if_all_answered) == [removed; 2]
    }

    fn released_by(&self, answers: &[Result<Released, Error>]) -> Result<Released, Error> {
        let count = |what| answers.iter().flatten().filter(|r| **r == what).count();
        let answered = answers.iter().flatten().count();
        if answered < self.majority() {
            return Err(Error::retryable(BACKEND, "no majority of the members answered"));
        }
        let removed = count(Released::Removed);
        let silent = self.members.len() - answered;
        Ok(if removed > 0 && removed + silent >= self.majority() {
            Released::Removed
        } else if count(Released::NoSuchLock) >= self.majority() {
            Released::NoSuchLock
        } else {
            Released::NotFound
        })
    }

    /// Releases a claim at these members. What is not answered in time is released on in the
    /// background; and so is, until the moment given, what may yet arrive there.
    pub(super) async fn give_back(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        members: Vec<(usize, Option<Moment>)>,
    ) {
        self.release_at_members(claim, members, |_| true).await;
    }

    /// The same, and what they answer. The last ones are not waited for once a majority has
    /// answered and `clear` says that they change nothing.
    pub(super) async fn release_at_members(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        members: Vec<(usize, Option<Moment>)>,
        clear: impl Fn(&[Result<Released, Error>]) -> bool + Send,
    ) -> Vec<Result<Released, Error>> {
        let pending: HashMap<_, _> = members.iter().copied().collect();
        let mut all = Vec::with_capacity(members.len());
        let mut answers =
            Answers::of(self, members.into_iter().map(|(member, _)| member), |member| {
                let (inner, claim, pending) = (self.clone(), claim.clone(), pending[&member]);
                async move {
                    let answer = inner.release_at(member, &claim).await;
                    inner.release_until_sure(member, &claim, pending, &answer);
                    answer
                }
            });
        while let Some((_, answer)) = answers.next(self).await {
            all.push(answer);
            if all.iter().flatten().count() >= self.majority() && clear(&all) {
                answers.enough(self);
            }
        }
        all
    }

    async fn release_at(&self, member: usize, claim: &Arc<Claim>) -> Result<Released, Error> {
        let (limit, mine) = (self.limit(claim.hold_ttl), claim.clone());
        let releasing = self.releasing(&claim.key);
        let release = |driver: Arc<dyn LockDriver>| async move {
            let answer = driver.release(&mine).await;
            drop(releasing);
            answer
        };
        self.ask(member, limit, release).await
    }

    /// To be kept while a release of this lock is under way at a member, for as long as it takes.
    fn releasing(&self, key: &Key) -> Arc<()> {
        let mut all = locked(&self.releasing);
        if all.len().is_power_of_two() {
            all.retain(|_, releasing| releasing.strong_count() > 0);
        }
        if let Some(releasing) = all.get(key).and_then(Weak::upgrade) {
            return releasing;
        }
        let releasing = Arc::default();
        all.insert(key.clone(), Arc::downgrade(&releasing));
        releasing
    }

    pub(super) fn is_releasing(&self, key: &Key) -> bool {
        let all = locked(&self.releasing);
        all.get(key).is_some_and(|releasing| releasing.strong_count() > 0)
    }

    /// Goes on releasing while something of the claim may be at the member, or on its way there.
    fn release_until_sure(
        self: &Arc<Self>,
        member: usize,
        claim: &Arc<Claim>,
        pending: Option<Moment>,
        answer: &Result<Released, Error>,
    ) {
        let until = match (answer, pending) {
            (Err(_), _) => self.pending_until(claim),
            (Ok(Released::Removed), _) | (_, None) => return,
            (_, Some(until)) => until,
        };
        let (inner, claim, failed) = (self.clone(), claim.clone(), answer.is_err());
        tokio::spawn(async move {
            let mut tries = 1;
            while inner.clock.now() < until {
                tokio::time::sleep(inner.pause(tries)).await;
                tries += 1;
                match inner.release_at(member, &claim).await {
                    Ok(Released::Removed) => return,
                    Ok(_) if failed && pending.is_none() => return,
                    _ => {}
                }
            }
        });
    }
}
