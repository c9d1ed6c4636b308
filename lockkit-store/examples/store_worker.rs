//! The program that the tests of this crate start as other processes: it locks, and is killed, frozen
//! and robbed of its clock.

use std::error::Error;
use std::sync::Arc;

use lockkit_core::{LockManager, Settings};

#[path = "../tests/services/stores.rs"]
mod stores;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    lockkit_lab::worker::serve(connect).await
}

async fn connect(url: String, settings: Settings) -> Result<LockManager, lockkit_core::Error> {
    LockManager::owning(Arc::new(stores::driver(&url).await?), settings)
}
