//! Crowds on the backends that run in this process; the trials have the servers.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::LockDriver;
use lockkit_core::{LockManager, MemoryDriver, Settings};
use lockkit_lab::trials::many_waiters::delays_no_other;
use lockkit_sql::SqliteDriver;

fn manager(driver: Arc<dyn LockDriver>) -> LockManager {
    let settings = Settings::default().ttl(Duration::from_secs(30));
    LockManager::with(driver, settings).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_at_one_name_delays_no_other_in_memory() {
    delays_no_other(&manager(Arc::new(MemoryDriver::new()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_at_one_name_delays_no_other_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let driver = SqliteDriver::connect(&format!("sqlite:{}", path.display())).await.unwrap();
    delays_no_other(&manager(Arc::new(driver))).await;
}
