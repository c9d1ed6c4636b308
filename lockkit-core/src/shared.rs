//! What a manager's clones, its locks and its guards share, and what all of them ask of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tokio::sync::OnceCell;

use crate::clock::Clock;
use crate::driver::LockDriver;
use crate::registry::Registry;
use crate::settings::Settings;
use crate::state::LockState;
use crate::ticket::Ticket;
use crate::{Error, Identity, Key, Name, Namespace, Space, Token};

/// What a manager's clones, its locks and its guards share.
pub(crate) struct Core {
    pub(crate) registry: Arc<Registry>,
    pub(crate) settings: Settings,
    pub(crate) namespace: Namespace,
    pub(crate) identity: Arc<Identity>,
    base: OnceCell<u64>,
}

impl Core {
    pub(crate) fn new(
        driver: Arc<dyn LockDriver>,
        settings: Settings,
        namespace: Namespace,
    ) -> Self {
        let identity = settings.identity.clone().unwrap_or_else(Identity::of_this_process);
        Self {
            registry: Registry::new(driver),
            settings,
            namespace,
            identity: Arc::new(identity),
            base: OnceCell::new(),
        }
    }

    pub(crate) fn driver(&self) -> &Arc<dyn LockDriver> {
        &self.registry.driver
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.registry.clock
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match self.registry.closed.load(Ordering::SeqCst) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    pub(crate) fn key(&self, space: Space, name: &str) -> Result<Key, Error> {
        Ok(Key::new(self.namespace.clone(), space, Name::new(name)?))
    }

    pub(crate) fn check_ticket(&self, ticket: &Ticket) -> Result<(), Error> {
        if ticket.namespace() == &self.namespace {
            return Ok(());
        }
        let (theirs, ours) = (ticket.namespace(), &self.namespace);
        let message = format!("this ticket is for the prefix {theirs:?}, not {ours:?}: set it");
        Err(Error::Config(message))
    }

    /// What is added to the backend's tokens. One round trip the first time, at most.
    pub(crate) async fn token_base(&self) -> Result<u64, Error> {
        self.base.get_or_try_init(|| self.driver().token_base(&self.namespace)).await.copied()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.registry.orphan();
    }
}

/// A state as users see it: with the namespace's base added to the tokens.
pub(crate) fn rebased(mut state: LockState, base: u64) -> LockState {
    for standing in &mut state.line {
        let number = standing.token.get().saturating_add(base);
        standing.token = Token::new(number).unwrap_or(standing.token);
        standing.unmark();
    }
    state
}

/// Now, for people.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_millis() as u64
}
