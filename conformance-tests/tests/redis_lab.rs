//! Redis, a single server and one under sentinels: what its operations cost, and what happens when
//! server or network misbehave.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use lockkit_conformance::lab::raw::resp;
use lockkit_conformance::lab::{Kind, Layout, Server};
use lockkit_conformance::{Concerns, Deletion, Refusal, Site};
use lockkit_core::Error;
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::LockDriver;
use lockkit_redis::RedisDriver;

struct Redis;

#[async_trait]
impl Site for Redis {
    fn kind(&self) -> Kind {
        Kind::Redis
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(RedisDriver::connect(url).await?))
    }

    fn layouts(&self) -> Vec<Layout> {
        vec![Layout::RedisSentinel]
    }

    fn deletions(&self) -> Vec<Deletion> {
        vec![
            Deletion { what: "SCRIPT FLUSH", fault: None, act: |s| ask(s, &["SCRIPT", "FLUSH"]) },
            Deletion {
                what: "FLUSHALL",
                fault: Some(Fault::DataLost),
                act: |s| ask(s, &["FLUSHALL"]),
            },
        ]
    }

    fn refusals(&self) -> Vec<Refusal> {
        vec![
            Refusal {
                what: "the memory is full",
                retryable: true,
                concerns: Concerns::Claims,
                begin: |s| ask(s, &["CONFIG", "SET", "maxmemory", "1"]),
                end: |s| ask(s, &["CONFIG", "SET", "maxmemory", "0"]),
            },
            Refusal {
                what: "the server is a read-only replica",
                retryable: true,
                concerns: Concerns::Claims,
                begin: |s| ask(s, &["REPLICAOF", "127.0.0.1", "1"]),
                end: |s| ask(s, &["REPLICAOF", "NO", "ONE"]),
            },
            Refusal {
                what: "the login is refused",
                retryable: false,
                concerns: Concerns::Newcomers,
                begin: |s| ask(s, &["CONFIG", "SET", "requirepass", PASSWORD]),
                end: |s| Box::pin(forget_password(s)),
            },
        ]
    }

    fn worker(&self) -> Option<PathBuf> {
        Some(env!("CARGO_BIN_EXE_lockkit-conformance").into())
    }
}

const PASSWORD: &str = "not-for-everyone";

fn ask<'a>(server: &'a Server, words: &'static [&'static str]) -> BoxFuture<'a, io::Result<()>> {
    Box::pin(async move { resp::ask(server.addr(), words).await.map(drop) })
}

async fn forget_password(server: &Server) -> io::Result<()> {
    let mut connection = resp::Connection::open(server.addr()).await?;
    connection.call(&["AUTH", PASSWORD]).await?;
    connection.call(&["CONFIG", "SET", "requirepass", ""]).await.map(drop)
}

lockkit_conformance::trials!(Redis);
