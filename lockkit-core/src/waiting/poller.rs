//! What goes on while claims wait: one task that listens for messages, and one that asks about all
//! claims that are due. Both end with the driver.

use std::hash::Hash;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::pace::RequestBudget;
use super::{Waiter, Waiters};
use crate::clock::sleep_until;
use crate::concurrency::locked;
use crate::driver::{Renewal, backoff};
use crate::{Claim, Error, LossReason};

/// Without messages, claims that would be asked about within this are asked about now, too.
const TOGETHER: Duration = Duration::from_millis(5);
/// After asking about so many at once there is a rest, of this many times what it took: claims that
/// wait for a thousand different locks keep a fifth of one connection busy at most.
const MANY: usize = 32;
const REST: u32 = 4;
/// What could not be asked is asked again after this.
const AFTER_FAILURE: Duration = Duration::from_millis(200);

/// Why listening ended.
type ListenError = Box<dyn std::error::Error + Send + Sync>;

/// A driver that has its waiting claims attended to.
pub trait PolledDriver: Send + Sync + 'static {
    /// What messages call a claim.
    type Name: Eq + Hash + Send + Sync + 'static;

    /// Its claims that wait.
    fn waiting(&self) -> &Waiters<Self::Name>;

    /// Asks about these claims, in one request where the backend can, and lets their lists move on.
    /// Answers each in the order given, as [`renew`](crate::driver::LockDriver::renew) does, and
    /// says after how long the lease ends on which a waiting one depends.
    ///
    /// Core did not send this request: where it renewed, a grant counts from its sending
    /// ([`Renewal::counted_from`]); where it only read, from the last request of core that was answered.
    fn ask(
        &self,
        claims: &[Arc<Claim>],
    ) -> impl Future<Output = Vec<Result<(Renewal, Option<Duration>), Error>>> + Send;

    /// Listens for messages until the connection breaks; says when it
    /// [is listening](Waiters::listening_started). Never returns where there are no messages. Must not keep
    /// the driver alive while it waits.
    fn listen(driver: Weak<Self>) -> impl Future<Output = Result<(), ListenError>> + Send;
}

impl<K: Eq + Hash + Send + Sync + 'static> Waiters<K> {
    /// Has the claims of this driver attended to from now on.
    pub fn start_polling<D: PolledDriver<Name = K>>(&self, driver: &Arc<D>) {
        let mut tasks = locked(&self.tasks);
        // They end together, with the runtime in which they were started.
        if tasks.iter().any(|task| !task.is_finished()) {
            return;
        }
        self.notified.store(false, Ordering::Relaxed);
        let driver = Arc::downgrade(driver);
        *tasks = vec![
            tokio::spawn(ask_when_due(driver.clone())).abort_handle(),
            tokio::spawn(listen(driver)).abort_handle(),
        ];
    }

    fn asked(&self, waiter: &Waiter, answer: Result<(Renewal, Option<Duration>), Error>) {
        match answer {
            Ok((Renewal::Waits { ahead }, lease)) => self.queued(&waiter.claim.id, ahead, lease),
            Ok((Renewal::Holds(grant), _)) => self.grant(waiter, grant),
            Ok((Renewal::Ended(ended), _)) => {
                waiter.end(Err(Error::Lost { reason: LossReason::from(ended) }));
            }
            Err(error) if error.is_retryable() => {
                let mut note = locked(&waiter.note);
                // The lost answer of this very request may be why.
                note.ask_now = false;
                self.arm(&mut note, AFTER_FAILURE);
            }
            Err(error) => waiter.end(Err(error)),
        }
    }
}

async fn ask_when_due<D: PolledDriver>(driver: Weak<D>) {
    let mut budget = RequestBudget::default();
    while let Some(driver) = driver.upgrade() {
        let waiting = driver.waiting();
        let (clock, now) = (waiting.clock.clone(), waiting.clock.now());
        let (mut due, next) = waiting.due(now);
        if !due.is_empty() && !waiting.gets_notifications() {
            let wait = budget.wait(now);
            if !wait.is_zero() {
                drop(driver);
                sleep_until(&*clock, now.after(wait)).await;
                continue;
            }
            budget.spend(now);
            due = waiting.due(now.after(TOGETHER)).0;
        }
        if due.is_empty() {
            let rearmed = waiting.rearmed.clone();
            drop(driver);
            match next {
                None => rearmed.notified().await,
                Some(at) => tokio::select! {
                    () = rearmed.notified() => {}
                    () = sleep_until(&*clock, at) => {}
                },
            }
            continue;
        }
        due.iter().for_each(|waiter| locked(&waiter.note).ask_now = false);
        let begun = tokio::time::Instant::now();
        let claims: Vec<_> = due.iter().map(|waiter| waiter.claim.clone()).collect();
        for (waiter, answer) in due.iter().zip(driver.ask(&claims).await) {
            waiting.asked(waiter, answer);
        }
        if due.len() >= MANY && !waiting.gets_notifications() {
            drop(driver);
            tokio::time::sleep(begun.elapsed() * REST).await;
        }
    }
}

async fn listen<D: PolledDriver>(driver: Weak<D>) {
    let mut failures = 0;
    loop {
        let ended = D::listen(driver.clone()).await;
        let Some(driver) = driver.upgrade() else { return };
        let waiting = driver.waiting();
        failures = if waiting.notified.swap(false, Ordering::Relaxed) { 1 } else { failures + 1 };
        if let Err(error) = ended {
            tracing::debug!(%error, "nobody listens for wake-ups now; the driver asks");
        }
        // They had relied on being told.
        waiting.ask_about_all();
        drop(driver);
        // What keeps failing, as behind a pooler or without the right, is tried less and less often.
        tokio::time::sleep(backoff(failures) * (failures / 8).clamp(1, 25)).await;
    }
}
