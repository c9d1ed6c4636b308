//! A set-up that is compared, and the suite's harness for whatever a function connects to.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use lockkit_core::driver::LockDriver;
use lockkit_core::promises::Promises;
use lockkit_core::{Capabilities, Error};

use crate::{Harness, Worker};

/// Makes a driver of its own onto a backend: a connection as another program would have it.
pub type Connector =
    Arc<dyn Fn() -> BoxFuture<'static, Result<Arc<dyn LockDriver>, Error>> + Send + Sync>;

/// The same backend by a way on which requests are counted.
#[derive(Clone)]
pub struct Counted {
    /// Connects by that way.
    pub connect: Connector,
    /// How many requests have passed.
    pub requests: Arc<dyn Fn() -> u64 + Send + Sync>,
}

/// A set-up that takes part, connected.
#[derive(Clone)]
pub struct Subject {
    name: String,
    location: String,
    capabilities: Capabilities,
    promises: Promises,
    harness: Arc<Reached>,
    counted: Option<Counted>,
}

impl Subject {
    /// Connects for the first time. `place` is what may be shown of its URL; a `worker` makes the
    /// cases about other processes applicable.
    ///
    /// # Errors
    /// The driver's.
    pub async fn new(
        name: impl Into<String>,
        place: impl Into<String>,
        connect: Connector,
        worker: Option<Worker>,
    ) -> Result<Self, Error> {
        let first = connect().await?;
        first.health().await?;
        let capabilities = *first.capabilities();
        let promises = first.promises().await?;
        let harness = Arc::new(Reached { connect, first, worker });
        let (name, place) = (name.into(), place.into());
        Ok(Self { name, location: place, capabilities, promises, harness, counted: None })
    }

    /// With a way on which requests are counted, which is used for that alone.
    #[must_use]
    pub fn counted_by(mut self, counted: Option<Counted>) -> Self {
        self.counted = counted;
        self
    }

    /// The way on which requests are counted, if there is one.
    pub(super) fn counted(&self) -> Option<&Counted> {
        self.counted.as_ref()
    }

    /// What it is called in the tables.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is, without secrets.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// What its driver states.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// What is kept under each fault as its servers were set up when it was reached.
    pub fn promises(&self) -> &Promises {
        &self.promises
    }

    /// It as a backend that cases run against.
    pub fn harness(&self) -> Arc<dyn Harness> {
        self.harness.clone()
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("name", &self.name).finish_non_exhaustive()
    }
}

struct Reached {
    connect: Connector,
    first: Arc<dyn LockDriver>,
    worker: Option<Worker>,
}

#[async_trait]
impl Harness for Reached {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        // What lives in one process is reached through one driver.
        match self.first.capabilities().shared_between_processes {
            true => (self.connect)().await,
            false => Ok(self.first.clone()),
        }
    }

    fn worker(&self) -> Option<Worker> {
        self.worker.clone()
    }
}
