//! Ends the claims of this process that nobody renewed: their session lives on, so nothing else
//! would. And lets go of sessions in which no claim lives any more, and of folders that were left. One task for all, which ends with
//! the driver.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkit_core::clock::{Clock, SteadyClock, sleep_until};
use lockkit_core::driver::{backoff, locked};
use lockkit_core::{Error, Mode};

use crate::locks::Locks;
use crate::places::Place;

impl Locks {
    /// Starts the task unless it runs. (It ends when its runtime does.)
    pub(crate) fn watch_leases(self: &Arc<Self>) {
        let mut task = locked(&self.leases);
        if task.as_ref().is_none_or(|task| task.is_finished()) {
            *task = Some(tokio::spawn(run(Arc::downgrade(self))));
        }
    }

    /// Takes a claim out whose lease is over, however long that takes to reach the server.
    async fn end(&self, place: &Place) {
        let mut failures: u32 = 0;
        while !place.session.has_ended() {
            let ended: Result<(), Error> = match &place.node {
                Some(node) => {
                    // Whether it was downgraded is not known here.
                    let Place { session, folder, tag, .. } = place;
                    let taken = self.take_out(session, folder, &node.name, tag, Mode::Shared);
                    taken.await.map(drop).map_err(Error::from)
                }
                None => self.remove_all(&place.session, &place.folder, &place.tag).await,
            };
            match ended {
                Ok(()) => return,
                Err(error) if error.is_retryable() => {}
                // It ends with the session, of which this may have the last use.
                Err(_) if !self.sessions.has(&place.session) => return,
                // The right to delete it may be given back.
                Err(error) if failures == 0 => tracing::warn!(%error, "a claim that is over stays"),
                Err(_) => {}
            }
            failures += 1;
            tokio::time::sleep(backoff(failures)).await;
        }
    }
}

async fn run(locks: Weak<Locks>) {
    loop {
        let Some(strong) = locks.upgrade() else {
            return;
        };
        // Looks up now and then, to see whether the driver is still there.
        let latest = SteadyClock.now().after(Duration::from_secs(1));
        let (over, next) = strong.places.take_over(latest);
        strong.sessions.close_idle();
        strong.remove_many_folders();
        for place in over {
            let locks = strong.clone();
            strong.background.spawn(async move { locks.end(&place).await });
        }
        let earlier = strong.places.earlier.clone();
        drop(strong);
        tokio::select! {
            () = sleep_until(&SteadyClock, next) => {}
            () = earlier.notified() => {}
        }
    }
}
