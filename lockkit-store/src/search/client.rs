//! One client of a schedule: a process with a driver, which takes and loses locks as core would.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkit_core::clock::{Clock, Moment, TokioClock};
use lockkit_core::driver::{
    Acquire, Acquisition, Batch, BreakMode, Grant, LockDriver, Patience, Renewal, locked,
};
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Key, Margin, Mode, Name, Namespace, Space};
use rand::Rng;
use rand::rngs::StdRng;
use tokio::time::{sleep, timeout};

use super::TTL;
use super::judge::Judge;
use crate::StoreDriver;
use crate::testing::TestStore;

/// A clock of a machine: shifted, and of another rate, by less than the margin.
#[derive(Debug)]
pub(super) struct SkewedClock {
    pub(super) shift: Duration,
    pub(super) rate: f64,
}

impl Clock for SkewedClock {
    fn now(&self) -> Moment {
        let passed = TokioClock.now().as_nanos() as f64 * self.rate;
        Moment::from_nanos(passed as u64).after(self.shift)
    }
}

/// A client, and what it acts on.
pub(super) struct SearchClient {
    pub(super) number: usize,
    pub(super) driver: StoreDriver,
    pub(super) store: TestStore,
    pub(super) clock: Arc<SkewedClock>,
    pub(super) judge: Arc<Mutex<Judge>>,
}

/// The key of a lock.
pub(super) fn key(name: &str) -> Key {
    let name = Name::new(name).expect("the name is valid");
    Key::new(Namespace::default(), Space::Lock, name)
}

impl SearchClient {
    pub(super) fn claim(&self, lock: &str, mode: Mode) -> Arc<Claim> {
        let me = ClientIdentity::new("h", self.number as u32, "p");
        Arc::new(Claim::new(key(lock), mode, TTL, TTL, Arc::new(me)))
    }

    fn note(&self, what: impl AsRef<str>) {
        let number = self.number;
        locked(&self.judge).note(format!("client {number}: {}", what.as_ref()));
    }

    /// Takes what an answer grants, as long as it is valid; says for how long.
    fn take(&self, claim: &Claim, grant: &Grant, asked: Moment) -> Duration {
        let until = grant.start.or(asked).after(grant.ttl - Margin::default().of(grant.ttl));
        // On the clock of the judge.
        let left = until.since(self.clock.now()).div_f64(self.clock.rate);
        if !left.is_zero() {
            let lock = claim.key.name.as_str();
            let claim = (claim.id, claim.mode);
            locked(&self.judge).holds(self.number, lock, claim, grant.token, left);
        }
        left
    }

    fn ends(&self, claim: &Claim, why: &str) {
        locked(&self.judge).ends(self.number, claim.key.name.as_str(), claim.id, why);
    }

    /// One lock from its acquire to its release.
    pub(super) async fn cycle(&self, lock: &str, random: &mut StdRng) {
        let mode = if random.random_bool(0.8) { Mode::Exclusive } else { Mode::Shared };
        let claim = self.claim(lock, mode);
        let patience = if random.random_bool(0.6) { Patience::Wait } else { Patience::Try };
        let impatience = TTL.mul_f64(random.random_range(0.2..4.0));
        let begun = self.clock.now();
        let acquired = timeout(impatience, self.acquire(&claim, patience)).await;
        let holds = match acquired {
            Ok(Some(Acquisition::Granted(grant))) => !self.take(&claim, &grant, begun).is_zero(),
            Ok(Some(Acquisition::Queued { .. })) => self.wait(&claim, impatience).await,
            Ok(Some(Acquisition::Busy)) => return,
            Ok(None) | Err(_) => false,
        };
        if holds {
            self.hold(&claim, TTL.mul_f64(random.random_range(0.0..3.0))).await;
            if random.random_bool(0.15) {
                self.note(format!("forgets {lock}"));
                return;
            }
        }
        self.ends(&claim, "it is released");
        self.release(&claim).await;
    }

    async fn acquire(&self, claim: &Arc<Claim>, patience: Patience) -> Option<Acquisition> {
        let acquires = [Acquire { claim: claim.clone(), patience }];
        let batch = Batch { releases: &[], acquires: &acquires };
        let outcome = self.driver.submit(batch).await.ok()?;
        outcome.acquired.into_iter().next()?.ok().map(|attempted| attempted.result)
    }

    /// Waits as core does: renews meanwhile.
    async fn wait(&self, claim: &Arc<Claim>, limit: Duration) -> bool {
        let asked = self.clock.now();
        let renewing = async {
            loop {
                sleep(TTL / 3).await;
                if let Ok(Ok(Renewal::Ended(_))) =
                    timeout(TTL, self.driver.renew_single(claim)).await
                {
                    return;
                }
            }
        };
        tokio::select! {
            granted = self.driver.granted(claim) => match granted {
                Ok(grant) => !self.take(claim, &grant, asked).is_zero(),
                Err(_) => false,
            },
            () = renewing => false,
            () = sleep(limit) => false,
        }
    }

    /// Holds and renews; answers may overtake each other.
    pub(super) async fn hold(&self, claim: &Arc<Claim>, time: Duration) {
        let renewing = async {
            loop {
                sleep(TTL / 3).await;
                let asked = self.clock.now();
                match timeout(TTL / 2, self.driver.renew_single(claim)).await {
                    Ok(Ok(Renewal::Holds(grant))) => drop(self.take(claim, &grant, asked)),
                    Ok(Ok(Renewal::Ended(ended))) => {
                        self.ends(claim, &format!("{ended:?}"));
                        return;
                    }
                    _ => {}
                }
            }
        };
        let _ = timeout(time, renewing).await;
    }

    /// Releases until that is answered.
    pub(super) async fn release(&self, claim: &Arc<Claim>) {
        while let Err(error) = self.driver.release(claim).await {
            self.note(format!("release: {error}"));
            sleep(TTL / 4).await;
        }
    }

    /// Breaks a holder gracefully.
    pub(super) async fn break_one(&self, lock: &str) {
        let Ok(state) = self.driver.inspect(&key(lock)).await else { return };
        let Some(token) = state.holders().next().map(|holder| holder.token) else { return };
        self.note(format!("breaks {token} of {lock}"));
        let by = ClientIdentity::unknown();
        let record = BreakRecord::new(by, BreakMode::Graceful, None);
        let broken = self.driver.break_claim(&key(lock), token, BreakMode::Graceful, &record).await;
        self.note(format!("broke {token} of {lock}: {broken:?}"));
    }

    /// Tries until the lock is free; `false` after the limit.
    pub(super) async fn gets(&self, lock: &str, limit: Duration) -> bool {
        let trying = async {
            loop {
                let claim = self.claim(lock, Mode::Exclusive);
                let got = self.acquire(&claim, Patience::Try).await;
                if !matches!(got, Some(Acquisition::Busy)) {
                    self.release(&claim).await;
                }
                if matches!(got, Some(Acquisition::Granted(_))) {
                    return;
                }
                sleep(TTL / 6).await;
            }
        };
        timeout(limit, trying).await.is_ok()
    }
}
