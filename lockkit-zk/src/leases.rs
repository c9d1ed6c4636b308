//! Ends the claims of this process that nobody renewed: their session lives on, so nothing else
//! would. And lets go of sessions in which no claim lives any more. One task for all, which ends with
//! the driver.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use lockkit_core::Error;
use lockkit_core::clock::{BootClock, Clock, sleep_until};

use crate::driver::Inner;
use crate::places::Place;

impl Inner {
    /// Starts the task unless it runs. (It ends when its runtime does.)
    pub(crate) fn watch_leases(self: &Arc<Self>) {
        let mut task = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(|task| task.is_finished()) {
            *task = Some(tokio::spawn(run(Arc::downgrade(self))));
        }
    }

    /// Takes a claim out whose lease is over, however long that takes to reach the server.
    async fn end(&self, place: &Place) {
        let mut pause = Duration::from_millis(25);
        while !place.session.has_ended() {
            let ended: Result<(), Error> = match &place.node {
                Some(node) => {
                    // What was downgraded has a marker; most have none.
                    let marker = place.marker();
                    if node.name.starts_with("x-") {
                        drop(place.session.client.delete(&marker, None));
                    }
                    self.delete(&place.session, &node.path).await.map(drop)
                }
                None => self.remove_all(&place.session, &place.folder, &place.tag).await,
            };
            match ended {
                Err(error) if error.is_retryable() => {}
                Err(error) => return tracing::warn!(%error, "a claim that is over stays"),
                Ok(()) => return,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}

async fn run(inner: Weak<Inner>) {
    loop {
        let Some(strong) = inner.upgrade() else {
            return;
        };
        // Looks up now and then, to see whether the driver is still there.
        let latest = BootClock.now().after(Duration::from_secs(1));
        let (over, next) = strong.places.take_over(latest);
        strong.sessions.close_idle();
        for place in over {
            let inner = strong.clone();
            tokio::spawn(async move { inner.end(&place).await });
        }
        let earlier = strong.places.earlier.clone();
        drop(strong);
        tokio::select! {
            () = sleep_until(&BootClock, next) => {}
            () = earlier.notified() => {}
        }
    }
}
