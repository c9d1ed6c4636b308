//! What a manager's clones, its locks and its guards share, and what all of them ask of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::deadline::{Margin, backoff};
use crate::driver::{LockDriver, SetLimit};
use crate::error::in_time;
use crate::registry::Registry;
use crate::settings::Settings;
use crate::state::LockState;
use crate::{ClientIdentity, Error, Key, Name, Namespace, Space, Token};

/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);

/// The operation that waits for a change.
pub(crate) const WATCH: &str = "watch";

/// What a manager's clones, its locks and its guards share.
pub(crate) struct Core {
    pub(crate) registry: Arc<Registry>,
    pub(crate) settings: Settings,
    pub(crate) namespace: Namespace,
    pub(crate) identity: Arc<ClientIdentity>,
    base: OnceCell<u64>,
    /// Whether a shutdown closes the driver: that of a manager which made it.
    pub(crate) owns_driver: bool,
}

impl Core {
    pub(crate) fn new(
        driver: Arc<dyn LockDriver>,
        settings: Settings,
        namespace: Namespace,
        owns_driver: bool,
    ) -> Self {
        let identity = settings.identity.clone().unwrap_or_else(ClientIdentity::of_this_process);
        Self {
            registry: Registry::new(driver),
            settings,
            namespace,
            identity: Arc::new(identity),
            base: OnceCell::new(),
            owns_driver,
        }
    }

    pub(crate) fn driver(&self) -> &Arc<dyn LockDriver> {
        &self.registry.driver
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.registry.clock
    }

    pub(crate) fn margin(&self) -> Margin {
        self.settings.margin(self.driver().capabilities())
    }

    /// Refuses what is begun after a shutdown, or in a fork.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match self.registry.is_forked() {
            true => Err(Error::Forked),
            false => self.check_running(),
        }
    }

    /// Ends what was begun before a shutdown.
    pub(crate) fn check_running(&self) -> Result<(), Error> {
        match self.registry.closed.load(Ordering::SeqCst) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    pub(crate) fn key(&self, space: Space, name: &str) -> Result<Key, Error> {
        Ok(Key::new(self.namespace.clone(), space, Name::new(name)?))
    }

    pub(crate) fn backend(&self) -> &'static str {
        self.registry.backend()
    }

    /// Asks until there is an answer or an error that stays, for as long as this; `None`: for as
    /// long as it takes. The operation is a word for metrics, and [`WATCH`] where the answer of a
    /// backend that works may take any time.
    pub(crate) async fn repeat<T, F>(
        &self,
        operation: &'static str,
        patience: Option<Duration>,
        mut ask: impl FnMut() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let _waits = self.registry.repeating();
        let until = patience.map(|patience| Instant::now() + patience);
        let mut failures = 0;
        loop {
            self.check_open()?;
            let sent = self.clock().now();
            let answer = match operation {
                WATCH => ask().await,
                _ => self.registry.watched(ask()).await,
            };
            let error = match answer {
                Err(error) if error.is_retryable() => error,
                answer => {
                    self.registry.outages.answered();
                    return answer;
                }
            };
            self.registry.note(operation, sent, &error);
            failures += 1;
            let pause = backoff(failures);
            if until.is_some_and(|until| Instant::now() + pause >= until) {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// As [`repeat`](Self::repeat), but an attempt takes 10 seconds at most, and all of them no
    /// longer than this. Without patience there is one attempt.
    pub(crate) async fn repeat_within<T, F>(
        &self,
        operation: &'static str,
        patience: Duration,
        mut ask: impl FnMut() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let backend = self.backend();
        let attempts = self.repeat(operation, Some(patience), || in_time(backend, ATTEMPT, ask()));
        let limit = if patience.is_zero() { ATTEMPT } else { patience };
        in_time(backend, limit, attempts).await
    }

    /// What one got who waited for as long as it takes.
    pub(crate) fn waited<T>(&self, got: Option<T>) -> Result<T, Error> {
        // A driver answered "busy" to a claim that would have waited.
        got.ok_or_else(|| self.driver().unsupported("waiting in line"))
    }

    /// A list as users see it.
    pub(crate) async fn state(&self, key: &Key) -> Result<LockState, Error> {
        let base = self.namespace_counter().await?;
        Ok(with_offset(self.driver().inspect(key).await?, base))
    }

    /// Refuses, before any I/O, to ask for the limit of a semaphore where the backend keeps none.
    pub(crate) fn check_resize(&self) -> Result<(), Error> {
        self.check_open()?;
        match self.driver().capabilities().resize {
            true => Ok(()),
            false => Err(self.driver().unsupported("resizing a semaphore")),
        }
    }

    /// Gives a semaphore a limit, for as long as this until there is an answer; says which one it has now.
    pub(crate) async fn set_limit(
        &self,
        key: &Key,
        limit: SetLimit,
        patience: Duration,
    ) -> Result<u32, Error> {
        self.check_resize()?;
        self.repeat_within("resize", patience, || self.driver().resize(key, limit)).await
    }

    /// What is added to the backend's tokens, once it was asked for.
    pub(crate) fn known_token_base(&self) -> Option<u64> {
        self.base.get().copied()
    }

    /// What is added to the backend's tokens. One round trip the first time, at most.
    pub(crate) async fn namespace_counter(&self) -> Result<u64, Error> {
        self.base
            .get_or_try_init(|| self.driver().namespace_counter(&self.namespace))
            .await
            .copied()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.registry.is_forked() {
            return;
        }
        self.registry.orphan();
    }
}

/// A state as users see it: with the namespace's base added to the tokens.
pub(crate) fn with_offset(mut state: LockState, base: u64) -> LockState {
    for claim in &mut state.queue {
        let number = claim.token.get().saturating_add(base);
        claim.token = Token::new(number).unwrap_or(claim.token);
        claim.unmark();
    }
    state
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.backend(), self.namespace)
    }
}
