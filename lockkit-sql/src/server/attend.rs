//! What goes on while claims wait: one task that listens for messages, where the server has them,
//! and one that looks at whoever is to be looked at, all of them in one question. Neither is there
//! before the first claim waits, and both end with the driver.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkit_core::clock::{BootClock, Clock, sleep_until};
use lockkit_core::driver::{Grant, Renewal};

use super::dialect::{Dialect, Verb};
use super::verbs::reason;
use super::wake::{Outcome, Waiter, lock};
use super::{Inner, ServerDriver};

/// The first in line looks so often, where nobody tells it.
const TICK: Duration = Duration::from_millis(10);
/// Nobody in line looks more seldom than this, where nobody tells it.
const SELDOM: Duration = Duration::from_secs(1);
/// The first in line looks no more seldom than this, however long it has been there.
const SELDOM_FIRST: Duration = Duration::from_millis(100);
/// After a look at so many at once there is a rest, of this many times what the look took, so that
/// those who wait for a thousand different locks keep a fifth of one connection busy at most.
const MANY: usize = 32;
const REST: u32 = 4;
/// A look that could not be asked is asked again after this.
const AFTER_FAILURE: Duration = Duration::from_millis(200);
/// A lease ends behind its last microsecond.
const BEHIND: Duration = Duration::from_millis(1);

impl<D: Dialect> ServerDriver<D> {
    /// Has somebody attend to those who wait.
    pub(super) fn attend(&self) {
        let mut tasks = lock(&self.inner.tasks);
        // They end together, with the runtime in which they were started.
        if tasks.iter().any(|task| !task.is_finished()) {
            return;
        }
        tasks.clear();
        self.inner.wakes.listening.store(false, Ordering::Relaxed);
        let inner = Arc::downgrade(&self.inner);
        tasks.push(tokio::spawn(look_when_due(inner.clone())).abort_handle());
        if D::PUSHES {
            tasks.push(tokio::spawn(listen(inner)).abort_handle());
        }
    }

    /// After how long one who waits is to look again: when a lease ends; and where nobody tells it,
    /// the sooner the nearer it is to the front.
    pub(super) fn pause(&self, ahead: u32, lease: Option<Duration>, waiter: &Waiter) -> Duration {
        let lease = lease.map_or(SELDOM, |left| left + BEHIND);
        if self.inner.wakes.is_listening() {
            return lease;
        }
        lease.min(until_the_next_look(ahead, waiter.count_look()))
    }

    /// Looks at these in one question.
    async fn look_at_waiters(&self, waiters: &[Arc<Waiter>]) {
        let pushed = self.inner.wakes.is_listening();
        if pushed {
            return self.move_on(waiters).await;
        }
        let claims: Vec<_> = waiters.iter().map(|waiter| waiter.claim.clone()).collect();
        let Ok(answers) = self.about(Verb::Look, &claims).await else {
            return self.failed(waiters);
        };
        let mut stuck = Vec::new();
        for (waiter, (state, look)) in waiters.iter().zip(answers) {
            match state {
                Renewal::Waits { .. } if look == Some(Duration::ZERO) => stuck.push(waiter.clone()),
                Renewal::Waits { ahead } => {
                    self.inner.wakes.look_in(waiter, self.pause(ahead, look, waiter));
                }
                Renewal::Holds(grant) => waiter.end(Outcome::Holds(grant)),
                Renewal::Ended(ended) => waiter.end(Outcome::Lost(reason(ended))),
            }
        }
        if !stuck.is_empty() {
            self.move_on(&stuck).await;
        }
    }

    /// Renews them, which moves their lines on.
    async fn move_on(&self, waiters: &[Arc<Waiter>]) {
        let claims: Vec<_> = waiters.iter().map(|waiter| waiter.claim.clone()).collect();
        let sent = BootClock.now();
        let Ok(answers) = self.about(Verb::Renew, &claims).await else {
            return self.failed(waiters);
        };
        for (waiter, (state, look)) in waiters.iter().zip(answers) {
            match state {
                Renewal::Waits { ahead } => {
                    self.inner.wakes.look_in(waiter, self.pause(ahead, look, waiter));
                }
                Renewal::Holds(grant) => {
                    waiter.end(Outcome::Holds(Grant { since: Some(sent), ..grant }));
                }
                Renewal::Ended(ended) => waiter.end(Outcome::Lost(reason(ended))),
            }
        }
    }

    fn failed(&self, waiters: &[Arc<Waiter>]) {
        waiters.iter().for_each(|waiter| self.inner.wakes.look_in(waiter, AFTER_FAILURE));
    }
}

/// After how long one behind so many looks again, that has looked so often in vain.
fn until_the_next_look(ahead: u32, looks: u32) -> Duration {
    let slower = (1 + looks / 16).min(100);
    let seldom = if ahead <= 1 { SELDOM_FIRST } else { SELDOM };
    (TICK * ahead.clamp(1, 1_000) * slower).min(seldom)
}

async fn look_when_due<D: Dialect>(inner: Weak<Inner<D>>) {
    loop {
        let Some(driver) = inner.upgrade().map(|inner| ServerDriver { inner }) else { return };
        let wakes = driver.inner.wakes.clone();
        let mut changed = std::pin::pin!(wakes.changed.notified());
        changed.as_mut().enable();
        // Where nobody tells them, those who would look within half a tick look now: so there are
        // two questions a tick at most, whatever the number of waiters.
        let early = if wakes.is_listening() { Duration::ZERO } else { TICK / 2 };
        let (due, next) = wakes.due(BootClock.now().after(early));
        if !due.is_empty() {
            due.iter().for_each(|waiter| waiter.is_looked_at());
            let begun = tokio::time::Instant::now();
            driver.look_at_waiters(&due).await;
            let took = begun.elapsed();
            if due.len() >= MANY && !wakes.is_listening() {
                drop(driver);
                tokio::time::sleep(took * REST).await;
            }
            continue;
        }
        drop(driver);
        match next {
            None => changed.await,
            Some(at) => tokio::select! {
                () = changed => {}
                () = sleep_until(&BootClock, at) => {}
            },
        }
    }
}

async fn listen<D: Dialect>(inner: Weak<Inner<D>>) {
    let mut failures = 0_u32;
    loop {
        let Some(driver) = inner.upgrade() else { return };
        let (options, wakes) = (driver.connections.options(), driver.wakes.clone());
        drop(driver);
        let heard = |message: Option<&str>| match message {
            Some(message) => wakes.heard(message),
            None => {
                wakes.listening.store(true, Ordering::Relaxed);
                // What came while nobody listened; also to those whose answer is under way, who look
                // as soon as they know that they are in line.
                for waiter in wakes.all() {
                    wakes.look_in(&waiter, Duration::ZERO);
                }
                wakes.registers.notify_waiters();
            }
        };
        let ended = D::listen(&options, &wakes.channel(), &heard).await;
        match wakes.listening.swap(false, Ordering::Relaxed) {
            true => failures = 0,
            false => failures = (failures + 1).min(10),
        }
        if let Err(error) = ended {
            tracing::debug!(%error, "nobody listens for wake-ups now; waiters look by themselves");
        }
        // They had relied on being told.
        for waiter in wakes.all() {
            wakes.look_in(&waiter, Duration::ZERO);
        }
        tokio::time::sleep(Duration::from_millis(25 << failures)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the documentation promises, however long somebody has been waiting.
    #[test]
    fn the_first_in_line_looks_ten_times_a_second_and_everybody_once() {
        for looks in [0, 1, 15, 16, 160, 1_600, 16_000, u32::MAX] {
            for ahead in [0, 1] {
                let pause = until_the_next_look(ahead, looks);
                assert!(pause <= Duration::from_millis(100), "after {looks}: {pause:?}");
            }
            for ahead in [2, 10, 100, 1_000, u32::MAX] {
                let pause = until_the_next_look(ahead, looks);
                assert!(pause <= Duration::from_secs(1), "{ahead}, after {looks}: {pause:?}");
            }
        }
        let ms = Duration::from_millis;
        assert_eq!(until_the_next_look(1, 0), ms(10));
        assert_eq!(until_the_next_look(10, 0), ms(100), "the tenth");
        // Nobody asks more often than every 10 ms.
        assert_eq!(until_the_next_look(0, 0), ms(10));
    }
}
