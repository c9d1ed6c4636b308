//! The quorum over a Redis server, a SQLite file and a store in memory: all cases about the
//! driver that apply.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_compose::{QuorumDriver, QuorumOptions};
use lockkit_conformance::Harness;
use lockkit_core::clock::BootClock;
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, MemoryDriver};
use lockkit_lab::{Server, ServerKind};
use lockkit_redis::RedisDriver;
use lockkit_sql::SqliteDriver;
use tokio::sync::OnceCell;

struct Mixed {
    redis: OnceCell<Server>,
    folder: tempfile::TempDir,
    memory: MemoryDriver,
}

impl Mixed {
    fn new() -> Self {
        Self {
            redis: OnceCell::new(),
            folder: tempfile::tempdir().expect("a temporary folder can be made"),
            memory: MemoryDriver::with_clock(BootClock::shared()),
        }
    }
}

#[async_trait]
impl Harness for Mixed {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let redis = self.redis.get_or_try_init(|| Server::start(ServerKind::Redis)).await;
        let redis = redis.map_err(|e| Error::permanent("lab", e))?.url();
        let redis = format!("{redis}?timeout=30s");
        let sqlite = format!("sqlite:{}", self.folder.path().join("locks.db").display());
        let members: Vec<Arc<dyn LockDriver>> = vec![
            Arc::new(RedisDriver::connect(&redis).await?),
            Arc::new(SqliteDriver::connect(&sqlite).await?),
            Arc::new(self.memory.clone()),
        ];
        // As in the quorum over Redis: no case is about members that do not answer.
        let options = QuorumOptions::default().max_ttl(Duration::from_secs(10 * 365 * 86_400));
        let options = options.member_limit(Duration::from_secs(30));
        Ok(Arc::new(QuorumDriver::new(members, options)?))
    }
}

lockkit_conformance::suite!(driver: Mixed::new());
