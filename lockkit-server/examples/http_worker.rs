//! The program that the tests of this crate start as other processes. As `service BACKEND ADDRESS` it
//! is a server; otherwise it locks by a service, and is killed, frozen and robbed of its clock.

use std::error::Error;
use std::sync::Arc;

use lockkit_core::driver::LockDriver;
use lockkit_core::{LockManager, Settings};
use lockkit_http::HttpDriver;
use lockkit_redis::RedisDriver;
use lockkit_server::{Listen, Service};
use lockkit_sql::SqliteDriver;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["service", backend, address] => serve(backend, address).await,
        _ => lockkit_lab::worker::serve(connect).await,
    }
}

/// Says `ready` once it listens.
async fn serve(backend: &str, address: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let service = Service::new(driver(backend).await?)?;
    let listener = address.parse::<Listen>()?.open().await?;
    println!("ready");
    Ok(lockkit_server::serve(listener, service, std::future::pending()).await?)
}

async fn connect(url: String, settings: Settings) -> Result<LockManager, lockkit_core::Error> {
    LockManager::with(driver(&url).await?, settings)
}

async fn driver(url: &str) -> Result<Arc<dyn LockDriver>, lockkit_core::Error> {
    Ok(match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("redis") => Arc::new(RedisDriver::connect(url).await?),
        Some("sqlite") => Arc::new(SqliteDriver::connect(url).await?),
        _ => Arc::new(HttpDriver::connect(url).await?),
    })
}
