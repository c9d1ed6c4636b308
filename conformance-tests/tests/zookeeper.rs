//! The ZooKeeper driver: all cases, against a server alone.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_conformance::Harness;
use lockkit_conformance::lab::{Kind, Shared};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_zk::zookeeper_client::Client;
use lockkit_zk::{ZkDriver, ZkOptions};

struct ZooKeeper;

/// What one session lasts: long for a test, since a busy machine must not end it.
const TTL: Duration = Duration::from_secs(8);

impl ZooKeeper {
    async fn options() -> Result<ZkOptions, Error> {
        let server = Shared::server(Kind::ZooKeeper).await;
        let server = server.map_err(|why| Error::permanent("zookeeper", why))?;
        Ok(ZkOptions::parse(server.url())?.ttl(TTL).tick(Duration::from_millis(500)))
    }
}

#[async_trait]
impl Harness for ZooKeeper {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(ZkDriver::connect_with(Self::options().await?).await?))
    }

    /// Nodes of claims, markers and registers; folders go by themselves, some time later, and
    /// records of breaks after a quarter of an hour.
    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        let server = Shared::server(Kind::ZooKeeper).await;
        let server = server.map_err(|why| Error::permanent("zookeeper", why))?;
        let lost = |why| Error::retryable("zookeeper", why);
        let client = Client::connect(&server.addr().to_string()).await.map_err(lost)?;
        let folder = format!("/lockkit/n-{namespace}/lock");
        let mut count = 0;
        for name in client.list_children(&folder).await.unwrap_or_default() {
            let within = client.list_children(&format!("{folder}/{name}")).await;
            count += within.unwrap_or_default().len() as u64;
        }
        Ok(Some(count))
    }
}

lockkit_conformance::suite!(ZooKeeper);

/// The model asks now one driver and now another about the same claim. Here only the session that
/// made a claim can renew it, so these cases are run with one driver.
mod one_session {
    use super::*;
    use tokio::sync::OnceCell;

    #[derive(Default)]
    struct OneSession(OnceCell<Arc<dyn LockDriver>>);

    #[async_trait]
    impl Harness for OneSession {
        async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
            let driver = self.0.get_or_try_init(|| ZooKeeper.driver()).await;
            driver.cloned()
        }
    }

    fn run(case: &str) {
        lockkit_conformance::run::as_test(case, || Arc::new(OneSession::default()));
    }

    #[test]
    fn random_commands_are_answered_as_the_model_answers() {
        run("model_01_random_commands_are_answered_as_the_model_answers");
    }

    #[test]
    fn semaphores_are_answered_as_the_model_answers() {
        run("model_02_semaphores_are_answered_as_the_model_answers");
    }
}
