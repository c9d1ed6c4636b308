//! A member of a quorum: its driver, once it is connected, and what is known of its data.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;

use lockkit_core::Error;
use lockkit_core::capabilities::Capabilities;
use lockkit_core::clock::{Clock, Moment};
use lockkit_core::driver::{LockDriver, ServerRun, backoff, locked};

/// Makes a driver; may be called again and again.
pub(super) type Connect =
    Arc<dyn Fn() -> BoxFuture<'static, Result<Arc<dyn LockDriver>, Error>> + Send + Sync>;

/// How long one attempt to connect may take.
pub(super) const LONGEST_ATTEMPT: Duration = Duration::from_secs(10);

pub(super) struct Member {
    /// What errors call it.
    pub(super) name: String,
    driver: Arc<OnceLock<Arc<dyn LockDriver>>>,
    pub(super) capabilities: Capabilities,
    pub(super) clock: Arc<dyn Clock>,
    /// Whether its quarantine is being watched.
    pub(super) watched: AtomicBool,
    /// The run of its server that was last found to count.
    run: Mutex<Option<ServerRun>>,
    /// Until when no claim queues there.
    rests_until: Mutex<Option<Moment>>,
}

impl Member {
    pub(super) fn new(name: String, driver: Arc<dyn LockDriver>) -> Self {
        let member = Self::like(name, &driver);
        let _ = member.driver.set(driver); // there was none
        member
    }

    /// One that could not be reached, and is connected in the background. Until that is done it passes
    /// for a member like this one, and each request of it fails.
    pub(super) fn away(name: String, alike: &Arc<dyn LockDriver>, connect: Connect) -> Self {
        let member = Self::like(name, alike);
        tokio::spawn(connect_at_last(connect, Arc::downgrade(&member.driver)));
        member
    }

    fn like(name: String, driver: &Arc<dyn LockDriver>) -> Self {
        Self {
            name,
            driver: Arc::default(),
            capabilities: *driver.capabilities(),
            clock: driver.clock(),
            watched: AtomicBool::new(false),
            run: Mutex::default(),
            rests_until: Mutex::default(),
        }
    }

    pub(super) fn rests(&self, now: Moment) -> bool {
        locked(&self.rests_until).is_some_and(|until| now < until)
    }

    pub(super) fn rest(&self, until: Moment) {
        *locked(&self.rests_until) = Some(until);
    }

    pub(super) fn knows(&self, run: &ServerRun) -> bool {
        locked(&self.run).as_ref() == Some(run)
    }

    pub(super) fn remember(&self, run: ServerRun) {
        *locked(&self.run) = Some(run);
    }

    pub(super) fn driver(&self) -> Result<&Arc<dyn LockDriver>, Error> {
        let backend = self.capabilities.backend;
        let away = || Error::retryable(backend, "it could not be reached yet").at(&self.name);
        self.driver.get().ok_or_else(away)
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Member").field(&self.driver.get()).finish()
    }
}

/// Tries until it is connected, or the quorum is gone.
async fn connect_at_last(connect: Connect, member: Weak<OnceLock<Arc<dyn LockDriver>>>) {
    for failures in 1.. {
        tokio::time::sleep(backoff(failures)).await;
        if member.strong_count() == 0 {
            return;
        }
        let answer = tokio::time::timeout(LONGEST_ATTEMPT, connect()).await;
        let Some(member) = member.upgrade() else { return };
        match answer {
            Ok(Ok(driver)) => {
                let _ = member.set(driver); // only this sets it
                return;
            }
            Ok(Err(error)) => tracing::warn!(%error, failures, "a member is not connected yet"),
            Err(_) => {
                tracing::warn!(failures, "a member does not answer, and is not connected yet")
            }
        }
    }
}
