//! Redis, a single server: all cases.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::Harness;
use lockkit_conformance::lab::raw::resp::{self, Reply};
use lockkit_conformance::lab::{Kind, Shared};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_redis::RedisDriver;

struct Redis;

async fn server() -> Result<Shared, Error> {
    Shared::server(Kind::Redis).await.map_err(|e| Error::permanent("lab", e))
}

#[async_trait]
impl Harness for Redis {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        // No case disturbs the server; a machine that stands still for a moment is no failure.
        let url = format!("{}?timeout=30s", server().await?.url());
        Ok(Arc::new(RedisDriver::connect(&url).await?))
    }

    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        let keys = resp::ask(server().await?.addr(), &["KEYS", &format!("*{namespace}*")]).await;
        match keys.map_err(|e| Error::permanent("lab", e))? {
            // Records of breaks are kept for as long as the trait asks, and then go by themselves.
            Reply::Array(keys) => {
                let keys = keys.iter().filter(|key| !key.text().starts_with("lockkit:lock.broken"));
                Ok(Some(keys.count() as u64))
            }
            other => Err(Error::permanent("lab", format!("KEYS answered {other:?}"))),
        }
    }
}

lockkit_conformance::suite!(Redis);
