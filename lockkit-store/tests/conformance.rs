//! The driver over a store in the test's own process: all cases, on paused time and on the machine's.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::{Harness, Time};
use lockkit_core::clock::TokioClock;
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_store::testing::TestStore;
use lockkit_store::{StoreDriver, StoreOptions};

#[path = "services/leftovers.rs"]
mod leftovers;

struct InProcess {
    store: TestStore,
    time: Time,
}

impl InProcess {
    fn on(time: Time) -> Self {
        Self { store: TestStore::new(), time }
    }
}

#[async_trait]
impl Harness for InProcess {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let options = match self.time {
            Time::Paused => StoreOptions::default().clock(TokioClock::shared()),
            Time::Real => StoreOptions::default(),
        };
        Ok(Arc::new(StoreDriver::connect(Arc::new(self.store.clone()), options).await?))
    }

    fn time(&self) -> Time {
        self.time
    }

    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        leftovers::leftovers(&self.store, namespace).await
    }
}

mod paused_time {
    use super::*;
    lockkit_conformance::suite!(InProcess::on(Time::Paused));
}

mod real_time {
    use super::*;
    lockkit_conformance::suite!(driver: InProcess::on(Time::Real));
}
