//! NATS that is killed, paused, cut off and emptied: trials on one server, and a storm on three replicas.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, LockManager, Settings};
use lockkit_lab::storm::{Storm, StormSetup};
use lockkit_lab::{Deployment, Kind, Layout, trials};
use lockkit_store::StoreDriver;

struct Nats;

#[async_trait]
impl Deployment for Nats {
    fn kind(&self) -> Kind {
        Kind::Nats
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(StoreDriver::connect_url(url).await?))
    }

    fn worker(&self) -> Option<PathBuf> {
        Some(lockkit_lab::worker::example("store_worker"))
    }
}

async fn connect(url: String, settings: Settings) -> Result<LockManager, Error> {
    LockManager::with(Arc::new(StoreDriver::connect_url(&url).await?), settings)
}

/// The proxy tells no messages of NATS apart, so only the trials that need none.
mod on_nats {
    use super::*;

    fn trial(name: &str) {
        trials::as_test(name, Arc::new(Nats));
    }

    #[test]
    fn promises_hold_when_the_server_is_killed_and_restarted() {
        trial("robust_03_the_server_is_killed_and_restarted");
    }

    #[test]
    fn promises_hold_when_the_server_is_paused() {
        trial("robust_04_the_server_is_paused");
    }

    #[test]
    fn promises_hold_when_a_client_is_paused() {
        trial("robust_05_a_client_is_paused");
    }

    #[test]
    fn a_client_that_is_cut_off_for_longer_than_its_lease_waits_on() {
        trial("robust_06_a_client_is_cut_off_for_longer_than_its_lease");
    }

    #[test]
    fn a_guard_ends_by_itself_when_the_server_is_gone() {
        trial("loss_03_a_guard_ends_by_itself_when_the_server_is_gone");
    }

    #[test]
    fn tokens_grow_across_a_restart() {
        trial("token_06_tokens_grow_across_a_restart");
    }

    #[test]
    fn tokens_grow_although_all_data_was_lost() {
        trial("token_07_tokens_grow_although_all_data_was_lost");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn three_replicas_whose_leader_is_killed_and_paused_are_acquitted() {
        let storm = Storm::brief(lockkit_lab::worker::example("store_worker"));
        let stage = StormSetup::group(Layout::NatsCluster).await.unwrap();
        let report = storm.acquitted(stage, connect).await;
        assert!(report.count("granted") >= 5 && report.count("faults") >= 2, "{report:?}");
    }
}
