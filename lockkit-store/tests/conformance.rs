//! The driver over a store in the test's own process: all cases, on paused time and on the machine's.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::{Harness, Time};
use lockkit_core::clock::TokioClock;
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_store::testing::TestStore;
use lockkit_store::{StoreDriver, StoreOptions};

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

    /// Claims in queues, and values that stay.
    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        let mut count = 0;
        for (key, bytes) in self.store.documents() {
            let document = String::from_utf8_lossy(&bytes).into_owned();
            let own = format!("\"namespace\":{:?}", namespace.as_str());
            if key.starts_with("r/") && document.contains(&own) {
                let stays = document.contains("\"ttl_us\":null");
                count += u64::from(stays && !document.contains("\"value\":null"));
            }
            if key.starts_with("l/") {
                // Each queue begins with its namespace, and each of its claims has a session.
                let queues = document.split("\"namespace\":").skip(1);
                let named = format!("{:?}", namespace.as_str());
                let queues = queues.filter(|queue| queue.starts_with(&named));
                count +=
                    queues.map(|queue| queue.matches("\"session\":").count() as u64).sum::<u64>();
            }
        }
        Ok(Some(count))
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
