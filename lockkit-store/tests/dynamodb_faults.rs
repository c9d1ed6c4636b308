//! DynamoDB that is paused and cut off, and that loses answers or carries out requests late: trials on DynamoDB
//! Local, and a storm. Restarts are left out: its data is in its memory, and the service has none.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_credential_types::Credentials;
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, LockManager, Settings};
use lockkit_lab::storm::{Storm, StormSetup};
use lockkit_lab::{Deployment, Kind, trials};
use lockkit_store::{DynamoStore, StoreDriver, StoreOptions};

async fn driver(url: &str) -> Result<StoreDriver, Error> {
    let store = DynamoStore::open_with(url, |config| {
        config.credentials_provider(Credentials::from_keys("test", "secret", None))
    });
    let options =
        StoreOptions::default().pace(Duration::from_millis(50)).min_ttl(Duration::from_millis(500));
    StoreDriver::connect(Arc::new(store.await?), options).await
}

async fn connect(url: String, settings: Settings) -> Result<LockManager, Error> {
    LockManager::with(Arc::new(driver(&url).await?), settings)
}

struct Table;

#[async_trait]
impl Deployment for Table {
    fn kind(&self) -> Kind {
        Kind::DynamoDb
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(driver(url).await?))
    }

    fn worker(&self) -> Option<PathBuf> {
        Some(lockkit_lab::worker::example("dynamodb_worker"))
    }
}

/// Not those that lose each message of each operation in turn: a listing has some hundred. Nor the one in which
/// a wait outlasts its session: on stores it does not.
mod on_dynamodb {
    use super::*;

    fn trial(name: &str) {
        trials::as_test(name, Arc::new(Table));
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
        let storm = Storm::brief(lockkit_lab::worker::example("dynamodb_worker"));
        let stage = StormSetup::server(Kind::DynamoDb, &faults).await.unwrap();
        let report = storm.acquitted(stage, connect).await;
        assert!(report.count("granted") >= 5 && report.count("faults") >= 2, "{report:?}");
    }
}
