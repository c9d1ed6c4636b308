//! The ZooKeeper driver: all cases, against a server alone; but for those about names and of the
//! model, also against an ensemble.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_conformance::{CASES, Harness, Worker};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_lab::{Layout, ServerKind, SharedServer};
use lockkit_zk::zookeeper_client::Client;
use lockkit_zk::{ZkDriver, ZkOptions};
use tokio::sync::OnceCell;

/// Where the cases run: on the server that tests share, or on an ensemble.
#[derive(Default)]
struct ZooKeeper {
    ensemble: Option<Place>,
    alone: OnceCell<Place>,
}

#[derive(Clone)]
struct Place {
    url: String,
    member: String,
}

/// What one session lasts: long for a test, since a busy machine must not end it.
const TTL: Duration = Duration::from_secs(8);

impl ZooKeeper {
    async fn place(&self) -> Result<&Place, Error> {
        match &self.ensemble {
            Some(place) => Ok(place),
            None => self.alone.get_or_try_init(Self::find).await,
        }
    }

    async fn find() -> Result<Place, Error> {
        let server = SharedServer::server(ServerKind::ZooKeeper).await;
        let server = server.map_err(|why| Error::permanent("zookeeper", why))?;
        Ok(Place { url: server.url().to_owned(), member: server.addr().to_string() })
    }
}

#[async_trait]
impl Harness for ZooKeeper {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let options = ZkOptions::parse(&self.place().await?.url)?;
        // A session of an ensemble ends when three servers together are too slow.
        let ttl = if self.ensemble.is_some() { TTL * 2 } else { TTL };
        let options = options.ttl(ttl).tick(Duration::from_millis(500));
        Ok(Arc::new(ZkDriver::connect_with(options).await?))
    }

    fn worker(&self) -> Option<Worker> {
        let program = lockkit_lab::worker::example("zk_worker");
        let Place { url, .. } = self.ensemble.as_ref().or_else(|| self.alone.get())?;
        // (A worker has a long ttl, and a session for it takes as long to end when it is stopped.)
        Some(Worker { program, url: format!("{url}?session_timeout=10s&tick=500ms") })
    }

    /// Nodes of claims and markers; folders go by themselves, some time later, and records of breaks
    /// after a quarter of an hour. The node of a register stays when its value is deleted.
    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        let lost = |why| Error::retryable("zookeeper", why);
        let client = Client::connect(&self.place().await?.member).await.map_err(lost)?;
        let mut count = 0;
        for kind in ["lock", "semaphore"] {
            let folder = format!("/lockkit/n-{namespace}/{kind}");
            for name in client.list_children(&folder).await.unwrap_or_default() {
                let within = client.list_children(&format!("{folder}/{name}")).await;
                let given = |node: &String| node == "limited" || node.starts_with("limit-");
                count += within.unwrap_or_default().iter().filter(|node| !given(node)).count();
            }
        }
        Ok(Some(count as u64))
    }
}

lockkit_conformance::suite!(ZooKeeper::default());

/// The model asks now one driver and now another about the same claim. Here only the session that
/// made a claim can renew it, so these cases are run with one driver.
mod one_session {
    use super::*;

    #[derive(Default)]
    struct OneSession(OnceCell<Arc<dyn LockDriver>>);

    #[async_trait]
    impl Harness for OneSession {
        async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
            let driver = self.0.get_or_try_init(async || ZooKeeper::default().driver().await).await;
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

/// Groups of cases on an ensemble of three, one case after the other.
mod ensemble {
    use super::*;

    fn run(groups: &[&str]) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let group = runtime.block_on(SharedServer::group(Layout::ZooKeeperEnsemble)).unwrap();
        let place = Place { url: group.url().to_owned(), member: group.addr().to_string() };
        for case in CASES.iter().filter(|case| groups.contains(&case.group)) {
            println!("{}", case.name);
            let ensemble = Some(place.clone());
            let harness = || Arc::new(ZooKeeper { ensemble, ..ZooKeeper::default() });
            lockkit_conformance::run::as_test(case.name, harness);
        }
    }

    #[test]
    fn the_cases_about_exclusion_and_order_pass_on_an_ensemble() {
        run(&["exclusion", "order"]);
    }

    #[test]
    fn the_cases_about_modes_and_tokens_pass_on_an_ensemble() {
        run(&["modes", "token"]);
    }

    #[test]
    fn the_cases_about_release_and_cancellation_pass_on_an_ensemble() {
        run(&["release", "cancel"]);
    }

    #[test]
    fn the_cases_about_registers_and_looking_pass_on_an_ensemble() {
        run(&["register", "inspect"]);
    }

    #[test]
    fn the_cases_about_latches_barriers_and_what_happens_once_pass_on_an_ensemble() {
        run(&["latch", "barrier", "once"]);
    }

    #[test]
    fn the_cases_about_elections_and_several_locks_pass_on_an_ensemble() {
        run(&["election", "multi"]);
    }

    #[test]
    fn the_cases_about_limits_and_owners_pass_on_an_ensemble() {
        run(&["resize", "reentrancy"]);
    }

    #[test]
    fn the_cases_about_leases_pass_on_an_ensemble() {
        run(&["lease"]);
    }

    #[test]
    fn the_cases_about_loss_pass_on_an_ensemble() {
        run(&["loss"]);
    }
}
