//! The way of a claim through both queues: into the old one, into the new one when it holds there, and
//! out of both.

use std::sync::Arc;

use lockkit_core::clock::Moment;
use lockkit_core::driver::{
    Acquisition, Attempted, ClaimEnd, Grant, LeaseStart, LockDriver, Patience, Released, Renewal,
};
use lockkit_core::{Claim, Error, Lifetime, Token};

use super::MirrorDriver;
use super::state::{MirrorRenewal, MirrorState, at_new, at_old, lost, renewed};

impl MirrorDriver {
    /// Puts a claim into the old queue, and into the new one where it holds there.
    pub(super) async fn acquire_at_both(
        &self,
        claim: &Arc<Claim>,
        patience: Patience,
    ) -> Result<Attempted<Acquisition>, Error> {
        if claim.lifetime == Lifetime::Detached {
            return Err(self.unsupported("claims that outlive their process"));
        }
        let asked = self.clock.now();
        self.remember(claim);
        // Should they not be read now, they are later.
        let (answered, _) = futures_util::future::join(
            self.old.acquire(&at_old(claim), patience),
            self.bases_last_read(&claim.key.namespace),
        )
        .await;
        let Attempted { result: answer, ambiguous } = answered.inspect_err(|error| {
            // It may be there; then core asks again, or releases it.
            if !matches!(error, Error::Backend { .. }) {
                self.forget(claim);
            }
        })?;
        let answered = match answer {
            Acquisition::Granted(old) => self.acquire_at_new(claim, patience, old, asked).await?,
            Acquisition::Queued { ahead } => Acquisition::Queued { ahead }.into(),
            Acquisition::Busy => {
                self.forget(claim);
                Acquisition::Busy.into()
            }
        };
        Ok(Attempted::after(ambiguous + answered.ambiguous, answered.result))
    }

    pub(super) async fn release_at_both(&self, claim: &Arc<Claim>) -> Result<Released, Error> {
        self.forget(claim);
        let (old, new) =
            futures_util::future::join(self.old.release(claim), self.new.release(claim)).await;
        Ok(match (old?, new?) {
            (Released::Removed, _) | (_, Released::Removed) => Released::Removed,
            (Released::NoSuchLock, Released::NoSuchLock) => Released::NoSuchLock,
            _ => Released::NotFound,
        })
    }

    /// Takes a claim back from both, since its owner will not.
    async fn take_back(&self, claim: &Arc<Claim>) -> Result<(), Error> {
        self.release_at_both(claim).await.map(drop)
    }

    /// What a claim that holds in both is granted. Which backend gives the tokens is asked while it holds:
    /// asked earlier, another claim could get a greater one of the new backend in between.
    ///
    /// `None` when the tokens were taken over since it entered the new queue: there its tag tells
    /// everybody another token, so it has left that queue, and is to enter it again. An error when it was
    /// released meanwhile.
    pub(super) async fn grant(
        &self,
        claim: &Arc<Claim>,
        (old, new): (Grant, Grant),
        (asked, under): (Moment, u64),
    ) -> Result<Option<Grant>, Error> {
        match self.state_of(claim) {
            Some(MirrorState::Holds { token, .. }) => {
                return Ok(Some(self.lease(&old, &new, token, asked)));
            }
            Some(state) if state.under() == Some(under) => {}
            // It left that queue after this answer.
            _ => return Ok(None),
        }
        let bases = self.bases(&claim.key.namespace).await?;
        if bases.under() != under {
            self.new.release(claim).await?;
            self.change(claim, |known| known.state = MirrorState::InOld)?;
            return Ok(None);
        }
        match bases.of_both(old.token, new.token) {
            Ok(token) => {
                self.change(claim, |known| known.state = MirrorState::Holds { under, token })?;
                Ok(Some(self.lease(&old, &new, token, asked)))
            }
            Err(error) => {
                self.take_back(claim).await?;
                Err(error)
            }
        }
    }

    /// Renews these at both, and gives the state of each. What fails for one says nothing of others.
    pub(super) async fn renew_both(
        &self,
        claims: &[Arc<Claim>],
    ) -> Vec<Result<MirrorRenewal, Error>> {
        let states: Vec<_> = claims.iter().map(|claim| self.state_of(claim)).collect();
        let in_new = |state: &Option<MirrorState>| {
            state.filter(|state| state.is_in_both()).and_then(MirrorState::under)
        };
        let known = claims.iter().zip(&states).filter(|(_, state)| in_new(state).is_some());
        let in_both: Vec<_> = known.map(|(claim, _)| claim.clone()).collect();
        let (old, new) =
            futures_util::future::join(renewed(&self.old, claims), renewed(&self.new, &in_both))
                .await;
        let (mut old, mut new) = (old.into_iter(), new.into_iter());
        let not_found = || Ok(Renewal::Ended(ClaimEnd::NotFound));
        let mut renewals = Vec::with_capacity(claims.len());
        for state in &states {
            let at_old = old.next().unwrap_or_else(not_found);
            let at_new = in_new(state).map(|under| (under, new.next().unwrap_or_else(not_found)));
            renewals.push(MirrorRenewal::of(at_old, at_new));
        }
        renewals
    }

    /// Asks for what holds in the old queue in the new one as well; an error when it was released meanwhile.
    async fn acquire_at_new(
        &self,
        claim: &Arc<Claim>,
        patience: Patience,
        old: Grant,
        asked: Moment,
    ) -> Result<Attempted<Acquisition>, Error> {
        let mut ambiguous = 0;
        loop {
            let now = self.bases_last_read(&claim.key.namespace).await?.under();
            // Under the lock of the map, so that a release that comes now finds that it was asked for.
            let under = self.change(claim, |known| {
                known.unanswered += 1;
                // An earlier request may have put it in with this tag.
                let under = known.state.under().unwrap_or(now);
                if known.state == MirrorState::InOld {
                    known.state = MirrorState::AskedNew { under };
                }
                under
            })?;
            let answered = self.new.acquire(&at_new(claim, under), patience).await;
            let is_certain = match &answered {
                Ok(answered) => answered.ambiguous == 0,
                Err(error) => !matches!(error, Error::Backend { .. }),
            };
            if is_certain {
                self.change(claim, |known| known.unanswered -= 1)?;
            }
            let answered = match answered {
                Ok(answered) => answered,
                Err(error) => {
                    if is_certain {
                        self.take_back(claim).await?;
                    }
                    return Err(error);
                }
            };
            ambiguous += answered.ambiguous;
            let answer = match answered.result {
                Acquisition::Granted(new) => {
                    match self.grant(claim, (old, new), (asked, under)).await? {
                        Some(grant) => Acquisition::Granted(grant),
                        None => continue, // under the base of now; it is raised once in a move
                    }
                }
                Acquisition::Queued { ahead } => {
                    self.change(claim, |known| known.state = MirrorState::InBoth { under })?;
                    Acquisition::Queued { ahead }
                }
                Acquisition::Busy => {
                    self.take_back(claim).await?;
                    Acquisition::Busy
                }
            };
            return Ok(Attempted::after(ambiguous, answer));
        }
    }

    /// Takes a claim a step further, if it can go one. Only for a caller that has locked its `step`.
    pub(super) async fn step(
        &self,
        claim: &Arc<Claim>,
        renewal: MirrorRenewal,
        asked: Moment,
    ) -> Result<Acquisition, Error> {
        match renewal {
            MirrorRenewal::Holds(old, new, under) => {
                let granted = self.grant(claim, (old, new), (asked, under)).await?;
                Ok(granted.map_or(Acquisition::Queued { ahead: 0 }, Acquisition::Granted))
            }
            MirrorRenewal::HoldsInOld(old) => {
                let answer = self.acquire_at_new(claim, Patience::Wait, old, asked).await?;
                Ok(answer.result)
            }
            MirrorRenewal::WaitsForOld(ahead) | MirrorRenewal::WaitsForNew(ahead) => {
                Ok(Acquisition::Queued { ahead })
            }
            MirrorRenewal::Ended(why) => Err(lost(why)),
        }
    }

    /// The same for a renewal, which gives its state then.
    pub(super) async fn advance(
        &self,
        claim: &Arc<Claim>,
        renewal: MirrorRenewal,
        asked: Moment,
    ) -> Renewal {
        // Its claim at the other one excludes until its owner, who learns it now, lets go.
        if let MirrorRenewal::Ended(why) = renewal {
            return Renewal::Ended(why);
        }
        let Ok(step) = self.change(claim, |known| known.step.clone()) else {
            return Renewal::Ended(ClaimEnd::NotFound);
        };
        // Where its wait takes a step, that one tells what comes of it.
        let Ok(_step) = step.try_lock() else { return Renewal::Waits { ahead: 0 } };
        match self.step(claim, renewal, asked).await {
            Ok(Acquisition::Granted(grant)) => Renewal::Holds(grant),
            Ok(Acquisition::Queued { ahead }) => Renewal::Waits { ahead },
            // The next renewal tries again.
            Err(Error::Backend { .. }) => Renewal::Waits { ahead: 0 },
            Ok(Acquisition::Busy) | Err(_) => Renewal::Ended(ClaimEnd::NotFound),
        }
    }

    /// What both say of a change to a claim that holds in both.
    pub(super) fn changed_lease(
        &self,
        claim: &Arc<Claim>,
        old: Renewal,
        new: Renewal,
        asked: Moment,
    ) -> Renewal {
        match (old, new, self.state_of(claim)) {
            (Renewal::Holds(old), Renewal::Holds(new), Some(MirrorState::Holds { token, .. })) => {
                Renewal::Holds(self.lease(&old, &new, token, asked))
            }
            (Renewal::Ended(why), ..) | (_, Renewal::Ended(why), _) => Renewal::Ended(why),
            _ => Renewal::Waits { ahead: 0 },
        }
    }

    /// The lease that both gave: the shorter, from when it began to count. `asked` is before the
    /// requests were sent.
    fn lease(&self, old: &Grant, new: &Grant, token: Token, asked: Moment) -> Grant {
        let began = |driver: &Arc<dyn LockDriver>, grant: &Grant| match grant.start.moment() {
            Some(since) => self.clock.now().before(driver.clock().now().since(since)).min(asked),
            None => asked,
        };
        let since = began(&self.old, old).min(began(&self.new, new));
        let margin = old.margin.max(new.margin);
        Grant { token, ttl: old.ttl.min(new.ttl), start: LeaseStart::Sent(since), margin }
    }
}
