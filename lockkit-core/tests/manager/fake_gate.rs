//! A gate that tests make, in front of nothing: its calls fail, get lost or come late when it is told so.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::driver::{Gate, GateAttempt, GateRenewal};
use lockkit_core::{Claim, Error, Name};
use tokio::time::{Instant, sleep};

/// One gate, for all names: its owner and when its lease ends.
type Leased = Option<(String, Instant)>;

/// What happens to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GateMood {
    FailBefore,
    /// It is done, and the answer gets lost.
    FailAfter,
    /// It is done so much later; that there was no answer is known at once.
    StuckFor(Duration),
    /// It is done at once, and the answer comes so much later.
    Late(Duration),
    /// It is done so much later.
    Slow(Duration),
}

#[derive(Clone, Default)]
pub(crate) struct FakeGate {
    leased: Arc<Mutex<Leased>>,
    moods: Arc<Mutex<VecDeque<(&'static str, GateMood)>>>,
    always: Arc<Mutex<Option<(&'static str, GateMood)>>>,
    calls: Arc<Mutex<Vec<&'static str>>>,
}

pub(crate) const NEIGHBOUR: &str = "a neighbour";

impl FakeGate {
    pub(crate) fn owner(&self) -> Option<String> {
        let leased = self.leased.lock().unwrap();
        leased.as_ref().filter(|(_, end)| Instant::now() < *end).map(|(owner, _)| owner.clone())
    }

    /// The neighbour takes it, whether it is free or not.
    pub(crate) fn seize(&self, ttl: Duration) {
        *self.leased.lock().unwrap() = Some((NEIGHBOUR.to_owned(), Instant::now() + ttl));
    }

    pub(crate) fn delete(&self) {
        *self.leased.lock().unwrap() = None;
    }

    /// The next call of this kind meets this mood.
    pub(crate) fn next(&self, call: &'static str, mood: GateMood) {
        self.moods.lock().unwrap().push_back((call, mood));
    }

    /// Every call of this kind meets this mood from now on, unless another is next.
    pub(crate) fn always(&self, call: &'static str, mood: GateMood) {
        *self.always.lock().unwrap() = Some((call, mood));
    }

    /// All calls are carried out again.
    pub(crate) fn recovers(&self) {
        *self.always.lock().unwrap() = None;
    }

    pub(crate) fn calls(&self, call: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|one| **one == call).count()
    }

    async fn call<T: Send + 'static>(
        &self,
        call: &'static str,
        act: impl Fn(&Self) -> T + Send + 'static,
    ) -> Result<T, Error> {
        self.calls.lock().unwrap().push(call);
        let mood = {
            let mut moods = self.moods.lock().unwrap();
            let at = moods.iter().position(|(one, _)| *one == call);
            at.and_then(|at| moods.remove(at))
        };
        let mood = mood.or(*self.always.lock().unwrap()).filter(|(one, _)| *one == call);
        let lost = || Err(Error::retryable("fake gate", "the connection was cut"));
        match mood.map(|(_, mood)| mood) {
            None => Ok(act(self)),
            Some(GateMood::FailBefore) => lost(),
            Some(GateMood::FailAfter) => {
                act(self);
                lost()
            }
            Some(GateMood::StuckFor(d)) => {
                let this = self.clone();
                tokio::spawn(async move {
                    sleep(d).await;
                    act(&this);
                });
                lost()
            }
            Some(GateMood::Late(d)) => {
                let answer = act(self);
                sleep(d).await;
                Ok(answer)
            }
            Some(GateMood::Slow(d)) => {
                sleep(d).await;
                Ok(act(self))
            }
        }
    }

    /// Lengthens the lease of this owner, if it has one.
    fn lengthen(&self, owner: &str, ttl: Duration) -> bool {
        let now = Instant::now();
        match &mut *self.leased.lock().unwrap() {
            Some((one, end)) if one == owner && now < *end => {
                *end = (*end).max(now + ttl);
                true
            }
            _ => false,
        }
    }
}

impl fmt::Debug for FakeGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeGate")
    }
}

#[async_trait]
impl Gate for FakeGate {
    fn check_name(&self, name: &Name) -> Result<(), Error> {
        match name.as_str() {
            "refused" => Err(Error::config("no neighbour has such a name")),
            _ => Ok(()),
        }
    }

    async fn check_distinct(&self, names: &[Name]) -> Result<(), Error> {
        let twins = names.iter().filter(|name| name.as_str().starts_with("twin")).count();
        match twins {
            2.. => Err(Error::config("these names are one for neighbours")),
            _ => Ok(()),
        }
    }

    async fn take(&self, claim: &Arc<Claim>) -> Result<GateAttempt, Error> {
        let (owner, ttl) = (claim.gate_owner(), claim.hold_ttl);
        self.call("take", move |this| {
            let now = Instant::now();
            if this.lengthen(&owner, ttl) {
                return GateAttempt::Taken { ttl };
            }
            let mut leased = this.leased.lock().unwrap();
            match &*leased {
                Some((_, end)) if now < *end => GateAttempt::Busy { remaining: Some(*end - now) },
                _ => {
                    *leased = Some((owner.clone(), now + ttl));
                    GateAttempt::Taken { ttl }
                }
            }
        })
        .await
    }

    async fn keep(&self, claims: &[Arc<Claim>]) -> Result<Vec<Result<GateRenewal, Error>>, Error> {
        let claims: Vec<_> = claims.iter().map(|it| (it.gate_owner(), it.hold_ttl)).collect();
        self.call("keep", move |this| {
            let kept = claims.iter().map(|(owner, ttl)| match this.lengthen(owner, *ttl) {
                true => Ok(GateRenewal::Kept { ttl: *ttl }),
                false => Ok(GateRenewal::NotFound),
            });
            kept.collect()
        })
        .await
    }

    async fn give(&self, claim: &Arc<Claim>) -> Result<(), Error> {
        let owner = claim.gate_owner();
        self.call("give", move |this| {
            let mut leased = this.leased.lock().unwrap();
            leased.take_if(|(one, _)| *one == owner);
        })
        .await
    }
}
