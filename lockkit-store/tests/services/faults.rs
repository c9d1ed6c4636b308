//! Services that are killed, paused, cut off and emptied, that lose answers or carry out requests late: trials,
//! and storms.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, LockManager, Settings};
use lockkit_lab::storm::{Storm, StormSetup};
use lockkit_lab::{Deployment, LabError, Layout, ServerKind, trials};

use crate::stores;

struct Service(ServerKind);

#[async_trait]
impl Deployment for Service {
    fn kind(&self) -> ServerKind {
        self.0
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(stores::driver(url).await?))
    }

    fn worker(&self) -> Option<PathBuf> {
        Some(lockkit_lab::worker::example("store_worker"))
    }
}

async fn is_acquitted(stage: Result<StormSetup, LabError>) {
    let connect = async |url: String, settings: Settings| {
        LockManager::with(Arc::new(stores::driver(&url).await?), settings)
    };
    let storm = Storm::brief(lockkit_lab::worker::example("store_worker"));
    let report = storm.acquitted(stage.unwrap(), connect).await;
    assert!(report.count("granted") >= 5 && report.count("faults") >= 2, "{report:?}");
}

/// The proxy tells no messages of NATS apart, so only the trials that need none.
mod on_nats {
    use super::*;

    fn trial(name: &str) {
        trials::as_test(name, Arc::new(Service(ServerKind::Nats)));
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
        is_acquitted(StormSetup::group(Layout::NatsCluster).await).await;
    }
}

/// On DynamoDB Local. Not those that lose each message of each operation in turn: a listing has some hundred. Nor
/// the one in which a wait outlasts its session: on stores it does not. Restarts are left out: its data is in its
/// memory, and the service has none.
mod on_dynamodb {
    use super::*;

    fn trial(name: &str) {
        trials::as_test(name, Arc::new(Service(ServerKind::DynamoDb)));
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
    fn tokens_grow_although_all_data_was_lost() {
        trial("token_07_tokens_grow_although_all_data_was_lost");
    }

    #[test]
    fn a_register_write_whose_answer_was_lost_is_distinguished_from_a_conflict() {
        trial("register_06_a_write_whose_answer_was_lost_is_distinguished_from_a_conflict");
    }

    /// Answers are lost; a partition and a pause hold requests back, which are carried out late.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_storm_of_lost_and_late_answers_is_acquitted() {
        let faults = [Fault::ConnectionCut, Fault::Partition, Fault::ServerPaused];
        is_acquitted(StormSetup::server(ServerKind::DynamoDb, &faults).await).await;
    }
}
