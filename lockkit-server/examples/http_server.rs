//! A server that the tests of this crate start as another process, to freeze and kill it:
//! `http_server sqlite:PATH|redis://… ADDRESS`. Says `ready` once it listens.

use std::error::Error;
use std::sync::Arc;

use lockkit_core::driver::LockDriver;
use lockkit_redis::RedisDriver;
use lockkit_server::{Listen, Service};
use lockkit_sql::SqliteDriver;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let [backend, address] = <[String; 2]>::try_from(std::env::args().skip(1).collect::<Vec<_>>())
        .map_err(|_| "usage: http_server BACKEND ADDRESS")?;
    let driver: Arc<dyn LockDriver> = match backend.starts_with("sqlite:") {
        true => Arc::new(SqliteDriver::connect(&backend).await?),
        false => Arc::new(RedisDriver::connect(&backend).await?),
    };
    let listener = address.parse::<Listen>()?.open().await?;
    println!("ready");
    Ok(lockkit_server::serve(listener, Service::new(driver)?, std::future::pending()).await?)
}
