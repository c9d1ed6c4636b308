//! The driver over NATS: all cases on one server, and those about exclusion, modes and permits in a bucket
//! with three replicas.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::{CASES, Harness, Worker, run};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_lab::{Kind, LabError, Layout, Shared};
use lockkit_store::{NatsStore, ReadOutcome, Store, StoreDriver};
use tokio::sync::OnceCell;

/// Where the cases run: in the bucket of a server or of a cluster that tests share.
#[derive(Default)]
struct Nats {
    clustered: bool,
    url: OnceCell<String>,
}

impl Nats {
    fn clustered() -> Self {
        Self { clustered: true, ..Self::default() }
    }

    async fn url(&self) -> Result<&str, Error> {
        let url = self.url.get_or_try_init(|| self.find()).await;
        url.map(String::as_str).map_err(|error| Error::permanent("lab", error))
    }

    async fn find(&self) -> Result<String, LabError> {
        let server = match self.clustered {
            true => Shared::group(Layout::NatsCluster).await?,
            false => Shared::server(Kind::Nats).await?,
        };
        Ok(server.url().to_owned())
    }
}

#[async_trait]
impl Harness for Nats {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(StoreDriver::connect_url(self.url().await?).await?))
    }

    fn worker(&self) -> Option<Worker> {
        let url = self.url.get()?.clone();
        Some(Worker { program: lockkit_lab::worker::example("store_worker"), url })
    }

    /// Claims in queues, and values that stay.
    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        let lost = |why| Error::permanent("nats", why);
        let store = NatsStore::connect(self.url().await?).await?;
        let mut count = 0;
        for prefix in ["l/", "r/"] {
            for key in store.list(prefix, None, usize::MAX).await.map_err(lost)? {
                let ReadOutcome::Document(document) = store.get(&key, None).await.map_err(lost)?
                else {
                    continue;
                };
                let document = String::from_utf8_lossy(&document.bytes).into_owned();
                let own = format!("\"namespace\":{:?}", namespace.as_str());
                if prefix == "r/" && document.contains(&own) {
                    let stays = document.contains("\"ttl_us\":null");
                    count += u64::from(stays && !document.contains("\"value\":null"));
                }
                if prefix == "l/" {
                    // Each queue begins with its namespace, and each of its claims has a session.
                    let queues = document.split("\"namespace\":").skip(1);
                    let named = format!("{:?}", namespace.as_str());
                    let queues = queues.filter(|queue| queue.starts_with(&named));
                    count += queues
                        .map(|queue| queue.matches("\"session\":").count() as u64)
                        .sum::<u64>();
                }
            }
        }
        Ok(Some(count))
    }
}

mod on_nats {
    lockkit_conformance::suite!(super::Nats::default());
}

mod on_nats_cluster {
    use super::*;

    fn cases_of(group: &str) {
        for case in CASES.iter().filter(|case| case.group == group) {
            println!("{}", case.name);
            run::as_test(case.name, || Arc::new(Nats::clustered()));
        }
    }

    #[test]
    fn cases_about_exclusion() {
        cases_of("exclusion");
    }

    #[test]
    fn cases_about_modes_and_permits() {
        cases_of("modes");
    }

    #[test]
    fn cases_about_limits_that_change() {
        cases_of("resize");
    }

    #[test]
    fn cases_about_releases() {
        cases_of("release");
    }
}
