//! The program that the tests of this crate start as other processes: it locks by a service, and is
//! killed, frozen and robbed of its clock. With several URLs, separated by spaces, each process takes
//! one: `http://…` or the backend's own.

use std::error::Error;
use std::sync::Arc;

use lockkit_core::driver::LockDriver;
use lockkit_core::{LockManager, Settings};
use lockkit_http::HttpDriver;
use lockkit_redis::RedisDriver;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    lockkit_lab::worker::serve(connect).await
}

async fn connect(url: String, settings: Settings) -> Result<LockManager, lockkit_core::Error> {
    let urls: Vec<&str> = url.split(' ').collect();
    let url = urls[std::process::id() as usize % urls.len()];
    let driver: Arc<dyn LockDriver> = match url.starts_with("redis:") {
        true => Arc::new(RedisDriver::connect(url).await?),
        false => Arc::new(HttpDriver::connect(url).await?),
    };
    LockManager::with(driver, settings)
}
