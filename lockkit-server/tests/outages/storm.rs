//! A storm of a few seconds: clients in Rust and Python through two servers and past them, on one
//! backend, while servers and clients are killed and frozen.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::LockManager;
use lockkit_lab::storm::{Storm, StormSetup};
use lockkit_redis::RedisDriver;

#[tokio::test(flavor = "multi_thread")]
async fn clients_through_two_servers_and_past_them_are_acquitted() {
    let program = lockkit_lab::worker::example("http_worker");
    let stage = StormSetup::service(&program).await.unwrap();
    let mut storm = Storm::brief(program);
    (storm.processes, storm.lasts) = (4, storm.lasts.max(Duration::from_secs(12)));
    let look = |url: String, settings| async move {
        LockManager::with(Arc::new(RedisDriver::connect(&url).await?), settings)
    };
    let report = storm.acquitted(stage, look).await;
    assert!(report.count("granted") > 0 && report.count("faults") > 0, "{report:?}");
}
