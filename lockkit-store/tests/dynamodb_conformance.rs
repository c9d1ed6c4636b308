//! All cases on DynamoDB Local, at a pace for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use aws_credential_types::Credentials;
use lockkit_conformance::{Harness, Worker};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_lab::{Kind, LabError, Shared, create_table};
use lockkit_store::{DynamoStore, ReadOutcome, Store, StoreDriver, StoreOptions};
use tokio::sync::OnceCell;

/// A table of its own for each case, on the server that tests share: listings read all of a table.
#[derive(Default)]
struct Table {
    url: OnceCell<String>,
}

impl Table {
    async fn create() -> Result<String, LabError> {
        static TABLES: AtomicU32 = AtomicU32::new(0);
        let server = Shared::server(Kind::DynamoDb).await?;
        let number = TABLES.fetch_add(1, Ordering::Relaxed);
        let name = format!("case-{}-{number}", std::process::id());
        let created = create_table(server.addr(), &name).await;
        created.map_err(|error| LabError::Answer(error.to_string()))?;
        Ok(format!("dynamodb://{name}?region=us-east-1&endpoint=http://{}", server.addr()))
    }

    async fn store(&self) -> Result<DynamoStore, Error> {
        let url = self.url.get_or_try_init(Self::create).await;
        let url = url.map_err(|error| Error::permanent("lab", error))?;
        let test = |config: lockkit_store::aws_config::ConfigLoader| {
            config.credentials_provider(Credentials::from_keys("test", "secret", None))
        };
        DynamoStore::open_with(url, test).await
    }
}

#[async_trait]
impl Harness for Table {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let options = StoreOptions::default()
            .pace(Duration::from_millis(50))
            .min_ttl(Duration::from_millis(500))
            .skip_probe();
        Ok(Arc::new(StoreDriver::connect(Arc::new(self.store().await?), options).await?))
    }

    fn worker(&self) -> Option<Worker> {
        let url = self.url.get()?.clone();
        Some(Worker { program: lockkit_lab::worker::example("dynamodb_worker"), url })
    }

    /// Claims in queues, and values that stay.
    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        let lost = |why| Error::permanent("dynamodb", why);
        let store = self.store().await?;
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

mod on_dynamodb {
    lockkit_conformance::suite!(super::Table::default());
}
