//! A trial of everything that locks need of a backend: what reading its settings does not show.
//! For an operator's check; no other operation calls it.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep, timeout};

use crate::capabilities::WakeUp;
use crate::clock::unix_ms;
use crate::driver::{
    Acquisition, Anchored, Grant, LockDriver, Patience, RegisterKey, Renewal, Write, in_time,
};
use crate::registry::Release;
use crate::renewer;
use crate::shared::Core;
use crate::state::{Finding, Severity};
use crate::{Claim, Error, Key, LockManager, Mode, Name, Space};

/// The lock and the register on which it is tried, in the manager's own namespace: rights may be
/// limited to that.
const NAME: &str = "lockkit.doctor";

/// How long what it leaves when it is killed stays.
const TTL: Duration = Duration::from_secs(5);

/// How long it waits for another trial, and for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// For how long the server's clock is watched.
const MEASURE: Duration = Duration::from_secs(2);

/// What is said of its rate, and of how far it is away from this machine's.
const FAST: f64 = 1.01;
const SLOW: f64 = 0.99;
const SKEW: Duration = Duration::from_secs(1);

/// How long a message may take.
const MESSAGE: Duration = Duration::from_secs(1);

/// How long a client has to begin to listen, which it does with its first claim that waits.
const BEGIN: Duration = Duration::from_millis(100);

/// How often a hand-over is tried until a message comes. The third is to the same client as the first,
/// which listens by then, however long that took to begin.
const HAND_OVERS: usize = 3;

impl LockManager {
    /// Tries on the backend what locks need: takes, renews, fences, hands over and releases a lock,
    /// and writes and deletes a register, all named `lockkit.doctor`. Says what failed, with the
    /// backend's own words, which name the right or the setting. Compares the server's clock with this
    /// machine's for two seconds, where renewals tell it.
    ///
    /// `other` is another connection to the same backend: a lock that is handed over within one
    /// client needs no message. Several trials at a time wait for each other, for 5 s at most. About
    /// twenty round trips; on a store with compare-and-swap, which is tried itself first, some hundred.
    /// Nothing stays but what any name leaves.
    ///
    /// # Cancel safety
    /// Dropping it releases what it took, in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
    /// # use lockkit_core::{LockManager, MemoryDriver};
    /// let store = MemoryDriver::new();
    /// let (locks, other) = (LockManager::new(store.clone()), LockManager::new(store));
    /// for finding in locks.probe(&other).await? {
    ///     println!("{}; {}", finding.what, finding.advice);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn probe(&self, other: &Self) -> Result<Vec<Finding>, Error> {
        let sides = [self.core(), other.core()];
        for core in sides {
            core.check_open()?;
            renewer::ensure(&core.registry);
        }
        let mut trial = Trial { sides, findings: Vec::new() };
        match sides[0].driver().examine().await {
            Ok(findings) => trial.findings.extend(findings),
            Err(error) => trial.unexamined(&error),
        }
        // What failed has been written down, and ends the trial.
        let _ = trial.run().await;
        Ok(trial.findings)
    }
}

struct Trial<'a> {
    /// The two clients.
    sides: [&'a Arc<Core>; 2],
    findings: Vec<Finding>,
}

/// Nothing that comes after would work.
struct Over;

/// A claim of one side, which is released when this is dropped before it was.
struct Placed<'a> {
    core: &'a Arc<Core>,
    claim: Arc<Claim>,
    is_released: bool,
    /// Whether the request that queued it was answered.
    is_answered: bool,
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        if self.is_released {
            return;
        }
        let release = Release::of(self.claim.clone(), self.core.clock().now());
        let ambiguous = u32::from(!self.is_answered);
        self.core.registry.release(Release { ambiguous, ..release });
    }
}

/// What listens for a message, until it is dropped.
struct Listening(JoinHandle<Result<(), Error>>, AbortHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.1.abort();
    }
}

impl<'a> Trial<'a> {
    fn says(&mut self, severity: Severity, what: String, advice: &str) {
        self.findings.push(Finding::new(severity, what, advice));
    }

    /// Writes down that the backend refuses this.
    fn refused(&mut self, what: &str, error: &Error, advice: &str) -> Over {
        self.says(Severity::Problem, format!("{what}: {error}"), advice);
        Over
    }

    /// Writes down that what the driver tries of its own accord failed.
    fn unexamined(&mut self, error: &Error) {
        let (severity, advice) = match error.is_retryable() {
            true => (Severity::Note, "ask again once it answers"),
            false => (Severity::Problem, "take no locks there before that is mended"),
        };
        self.says(severity, error.to_string(), advice);
    }

    fn placed(&self, side: usize) -> Result<Placed<'a>, Error> {
        let core = self.sides[side];
        let key = Key::new(core.namespace.clone(), Space::Lock, Name::new(NAME)?);
        let ttl = TTL.max(core.driver().capabilities().min_ttl);
        let claim = Claim::new(key, Mode::Exclusive, ttl, ttl, core.identity.clone())
            .with_note(Some("lockkit doctor".into()));
        Ok(Placed { core, claim: Arc::new(claim), is_released: false, is_answered: false })
    }

    async fn run(&mut self) -> Result<(), Over> {
        let (mut held, grant) = self.take().await?;
        self.renew(&held, "renewing").await?;
        self.write_register(&grant).await;
        self.fence(&held).await;
        self.clock(&held).await;
        let mut notified = false;
        for turn in 0..HAND_OVERS {
            let next = (turn + 1) % self.sides.len();
            let (after, notified_now) = self.hand_over(held, next).await?;
            (held, notified) = (after, notified_now);
            if notified {
                break;
            }
        }
        let core = held.core;
        if !notified && core.driver().capabilities().wake_up == WakeUp::Push {
            self.says(
                Severity::Warning,
                "waiters poll: no message came within a second when a lock was handed over to \
                 another client"
                    .to_owned(),
                "locks work, and are handed over later: see the rights to publish and to subscribe, \
                 and whether a pooler stands in between",
            );
        }
        self.release(held).await
    }

    /// Takes the lock, which another trial may have.
    async fn take(&mut self) -> Result<(Placed<'a>, Grant), Over> {
        let until = Instant::now() + PATIENCE;
        loop {
            let advice = "give it the rights of a user of locks, which the page of its backend in \
                          the documentation lists; with the right to read only, use `doctor --read-only`";
            let mut mine =
                self.placed(0).map_err(|error| self.refused("no such name", &error, ""))?;
            let asked = mine.core.driver().acquire(&mine.claim, Patience::Try);
            let is_over = Instant::now() >= until;
            let answer = in_time(mine.core.backend(), PATIENCE, asked).await;
            mine.is_answered = matches!(&answer, Ok(answer) if answer.ambiguous == 0);
            match answer.map(|it| it.result) {
                Ok(Acquisition::Granted(grant)) => return Ok((mine, grant)),
                Ok(_) if is_over => {
                    let holder = self.holder(&mine).await;
                    mine.is_released = mine.is_answered;
                    self.says(
                        Severity::Note,
                        format!("locks were not tried: {holder} has been trying them for 5 s"),
                        "ask again",
                    );
                    return Err(Over);
                }
                Err(error) if is_over || !error.is_retryable() => {
                    // What was refused is not in the queue, and would not be removed.
                    mine.is_released = !error.is_retryable();
                    return Err(self.refused("this login may not take locks", &error, advice));
                }
                // One that does not wait was never in the queue.
                Ok(_) => mine.is_released = mine.is_answered,
                Err(_) => {}
            }
            drop(mine);
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn holder(&self, mine: &Placed<'_>) -> String {
        let state = mine.core.driver().inspect(&mine.claim.key).await.ok();
        let holder = state.and_then(|state| state.holders().next().map(|s| s.identity.to_string()));
        holder.unwrap_or_else(|| "somebody".to_owned())
    }

    /// Renews a claim, which has to hold.
    async fn renew(&mut self, placed: &Placed<'_>, what: &str) -> Result<(), Over> {
        let asked = placed.core.driver().renew_single(&placed.claim);
        let advice = "locks are lost when their leases end";
        match in_time(placed.core.backend(), PATIENCE, asked).await {
            Ok(Renewal::Holds(_)) => Ok(()),
            Ok(other) => {
                let what = format!("{what}: the claim does not hold any more ({other:?})");
                self.says(Severity::Problem, what, advice);
                Err(Over)
            }
            Err(error) => Err(self.refused(&format!("{what} a lock fails"), &error, advice)),
        }
    }

    /// Writes, reads and deletes a register; goes on where that fails.
    async fn write_register(&mut self, grant: &Grant) {
        let core = self.sides[0];
        let (Some(registers), Ok(name)) = (core.driver().registers(), Name::new(NAME)) else {
            return;
        };
        let at = RegisterKey { namespace: core.namespace.clone(), name };
        let tried = async {
            let token = Some(grant.token);
            let value = Some(b"lockkit doctor".to_vec());
            registers.write(&at, &Write { token, ttl: Some(TTL), ..Write::of(value) }).await?;
            registers.load(&at).await?;
            registers.write(&at, &Write { token, ..Write::of(None) }).await
        };
        if let Err(error) = in_time(core.backend(), PATIENCE, tried).await {
            let advice = "locks work; latches, elections and what else keeps a value do not";
            let _ = self.refused("writing a register fails", &error, advice);
        }
    }

    /// Prepares the claim for a transaction that relies on it, where the backend knows such; goes on
    /// where that fails.
    async fn fence(&mut self, held: &Placed<'_>) {
        let asked = held.core.driver().anchor(&held.claim);
        match in_time(held.core.backend(), PATIENCE, asked).await {
            Ok(Anchored::At(_) | Anchored::Ended(_)) | Err(Error::Unsupported { .. }) => {}
            Err(error) => {
                let advice = "locks work; transactions cannot be fenced by them";
                let _ = self.refused("fencing a transaction fails", &error, advice);
            }
        }
    }

    /// Compares the server's clock with this machine's, where renewals tell it: how far it is away, and how
    /// fast it runs.
    async fn clock(&mut self, held: &Placed<'_>) {
        let Some(first) = Reading::of(held).await else { return };
        sleep(MEASURE).await;
        let Some(second) = Reading::of(held).await.filter(|it| it.goes_with(&first)) else {
            return;
        };
        let least = second.time.saturating_sub(first.time).as_secs_f64();
        let (least, most) =
            (least / second.after(&first.begun), least / second.since(&first.ended));
        let margin = self.sides[0].margin();
        let covered =
            MEASURE.as_secs_f64() / MEASURE.saturating_sub(margin.of(MEASURE)).as_secs_f64();
        let what = format!("the server's clock ran {:.0} % as fast as this machine's", least * 1e2);
        if least > covered {
            let advice = "a lease may end before its guard does, until renewals have shown this: mend the \
                          clocks, or set a larger drift margin";
            self.says(Severity::Problem, what, advice);
        } else if least > FAST || most < SLOW {
            let advice = "the drift margin covers this; see how the two machines' clocks are kept";
            self.says(Severity::Warning, what, advice);
        }
        let (ahead, behind) = second.skew();
        let (away, what) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
        if away > SKEW {
            let what =
                format!("the server's clock is {:.1} s {what} this machine's", away.as_secs_f64());
            let advice =
                "leases do not depend on it, until another server with another clock takes over";
            self.says(Severity::Note, what, advice);
        }
    }

    /// Hands the lock over to a claim of the side `next`; says whether a message told that one.
    async fn hand_over(
        &mut self,
        held: Placed<'a>,
        next: usize,
    ) -> Result<(Placed<'a>, bool), Over> {
        let mut waiting =
            self.placed(next).map_err(|error| self.refused("no such name", &error, ""))?;
        let driver = waiting.core.driver();
        let asked = driver.acquire(&waiting.claim, Patience::Wait);
        let answer = in_time(waiting.core.backend(), PATIENCE, asked).await;
        waiting.is_answered = matches!(&answer, Ok(answer) if answer.ambiguous == 0);
        if let Err(error) = answer {
            return Err(self.refused(
                "waiting for a lock fails",
                &error,
                "nobody can wait in line",
            ));
        }
        let mut listening = listen(driver, &waiting.claim);
        sleep(BEGIN).await;
        self.release(held).await?;
        let notified = matches!(timeout(MESSAGE, &mut listening.0).await, Ok(Ok(Ok(()))));
        // Without a notification it finds out by polling, as here.
        self.renew(&waiting, "taking over").await?;
        Ok((waiting, notified))
    }

    async fn release(&mut self, mut held: Placed<'_>) -> Result<(), Over> {
        let asked = held.core.driver().release(&held.claim);
        match in_time(held.core.backend(), PATIENCE, asked).await {
            Ok(_) => {
                held.is_released = true;
                Ok(())
            }
            Err(error) => {
                let advice = "locks stay taken until their leases end";
                Err(self.refused("releasing a lock fails", &error, advice))
            }
        }
    }
}

/// A server's clock, as an answer showed it, between two readings of this machine's clocks.
struct Reading {
    time: Duration,
    run: Arc<str>,
    connection: u64,
    begun: (Instant, Duration),
    ended: (Instant, Duration),
}

impl Reading {
    async fn of(held: &Placed<'_>) -> Option<Self> {
        let now = || (Instant::now(), Duration::from_millis(unix_ms()));
        let begun = now();
        let claims = [held.claim.clone()];
        let asked = held.core.driver().renew_with_evidence(&claims);
        let answers = in_time(held.core.backend(), PATIENCE, asked).await.ok()?;
        let ended = now();
        let evidence = answers.into_iter().next()?.ok()?.evidence?;
        let (run, connection) = (evidence.run.clone(), evidence.connection);
        Some(Self { time: evidence.time?, run, connection, begun, ended })
    }

    fn goes_with(&self, before: &Self) -> bool {
        self.run == before.run && self.connection == before.connection
    }

    /// For how many seconds at most this was read after what began then, and at least after what ended then.
    fn after(&self, begun: &(Instant, Duration)) -> f64 {
        (self.ended.0 - begun.0).as_secs_f64()
    }

    fn since(&self, ended: &(Instant, Duration)) -> f64 {
        (self.begun.0 - ended.0).as_secs_f64()
    }

    /// How far the server's clock is ahead of this machine's, and behind it, at least.
    fn skew(&self) -> (Duration, Duration) {
        (self.time.saturating_sub(self.ended.1), self.begun.1.saturating_sub(self.time))
    }
}

fn listen(driver: &Arc<dyn LockDriver>, claim: &Arc<Claim>) -> Listening {
    let (driver, claim) = (driver.clone(), claim.clone());
    let task = tokio::spawn(async move { driver.notified(&claim).await });
    let abort = task.abort_handle();
    Listening(task, abort)
}
