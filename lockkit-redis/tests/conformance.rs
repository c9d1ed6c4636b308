//! Redis, a single server: all cases.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use lockkit_conformance::{Harness, Worker};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};
use lockkit_lab::raw::resp::{self, RespReply};
use lockkit_lab::{ServerKind, SharedServer};
use lockkit_redis::RedisDriver;

struct Redis;

/// Where the server is, once a driver was made.
static URL: OnceLock<String> = OnceLock::new();

async fn server() -> Result<SharedServer, Error> {
    SharedServer::server(ServerKind::Redis).await.map_err(|e| Error::permanent("lab", e))
}

#[async_trait]
impl Harness for Redis {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        // No case disturbs the server; a machine that stands still for a moment is no failure.
        let server = server().await?;
        let url = URL.get_or_init(|| format!("{}?timeout=30s", server.url()));
        Ok(Arc::new(RedisDriver::connect(url).await?))
    }

    fn worker(&self) -> Option<Worker> {
        let program = lockkit_lab::worker::example("redis_worker");
        Some(Worker { program, url: URL.get()?.clone() })
    }

    /// The listing of Redis is the one that goes through other keys, too.
    fn many(&self) -> usize {
        5_000
    }

    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        let addr = server().await?.addr();
        let keys = ask(addr, &["KEYS", &format!("*{namespace}*")]).await?;
        let RespReply::Array(keys) = keys else {
            return Err(Error::permanent("lab", format!("KEYS answered {keys:?}")));
        };
        let mut count = 0;
        for key in keys.iter().map(RespReply::text) {
            let kept = match key.split_once(":{").map_or("", |(kind, _)| kind) {
                // A record of a break is kept for as long as the trait asks. That it goes by itself is
                // what makes it none that is left.
                "lockkit:lock.broken" | "lockkit:sem.broken" => {
                    ask(addr, &["PTTL", key]).await? != RespReply::Number(-1)
                }
                "lockkit:sem.limit" => true,
                // What is remembered of the writes of a register, and values that end by themselves.
                "lockkit:register" => {
                    ask(addr, &["HEXISTS", key, "value"]).await? == RespReply::Number(0)
                        || ask(addr, &["HEXISTS", key, "until"]).await? == RespReply::Number(1)
                }
                _ => false,
            };
            count += u64::from(!kept);
        }
        Ok(Some(count))
    }
}

async fn ask(addr: std::net::SocketAddr, words: &[&str]) -> Result<RespReply, Error> {
    resp::ask(addr, words).await.map_err(|e| Error::permanent("lab", e))
}

lockkit_conformance::suite!(Redis);
