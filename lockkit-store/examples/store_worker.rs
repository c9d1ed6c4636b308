//! The program that the tests of this crate start as other processes: it locks, and is killed, frozen
//! and robbed of its clock.

use std::error::Error;
use std::sync::Arc;

use lockkit_core::{LockManager, Settings};
use lockkit_store::StoreDriver;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    lockkit_lab::worker::serve(connect).await
}

async fn connect(url: String, settings: Settings) -> Result<LockManager, lockkit_core::Error> {
    LockManager::with(Arc::new(StoreDriver::connect_url(&url).await?), settings)
}
