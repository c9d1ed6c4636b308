//! A fleet moves from a Redis to a SQLite file under load, program by program; what it did is
//! recorded and judged.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockkit_compose::MirrorDriver;
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::LockDriver;
use lockkit_core::{LockManager, Settings};
use lockkit_lab::history::register::GuardedRegisters;
use lockkit_lab::history::{History, RecordedPromises, judge};
use lockkit_lab::storm::client::{self, Orders};
use lockkit_lab::{ServerKind, SharedServer};
use lockkit_redis::RedisDriver;
use lockkit_sql::SqliteDriver;
use tokio::sync::{mpsc, watch};

const TTL: Duration = Duration::from_secs(1);
const PROGRAMS: u32 = 4;

/// Where a fleet comes from and goes to, as each of its programs knows it.
#[derive(Clone)]
struct House {
    url: String,
    file: String,
    settings: Settings,
    orders: Orders,
}

impl House {
    async fn redis(&self) -> Arc<dyn LockDriver> {
        Arc::new(RedisDriver::connect(&self.url).await.unwrap())
    }

    async fn sqlite(&self) -> Arc<dyn LockDriver> {
        Arc::new(SqliteDriver::connect(&self.file).await.unwrap())
    }

    fn manager(&self, driver: Arc<dyn LockDriver>) -> LockManager {
        LockManager::with(driver, self.settings.clone()).unwrap()
    }

    async fn mirror(&self) -> LockManager {
        self.manager(Arc::new(MirrorDriver::new(self.redis().await, self.sqlite().await)))
    }

    /// Some clients at work for a while; `run` numbers the runs of a program.
    async fn work(&self, locks: LockManager, program: u32, run: u32, lasts: Duration) {
        let client = program * 1000 + run * 10;
        client::run(locks, Orders { client, lasts, ..self.orders.clone() }).await.unwrap();
    }

    /// One program's way: old, mirror, new.
    async fn go(self, program: u32, left: mpsc::Sender<()>, moved: watch::Receiver<bool>) {
        let alone = Duration::from_millis(600) * (program + 1);
        self.work(self.manager(self.redis().await), program, 0, alone).await;
        drop(left);
        let mut run = 1;
        while !*moved.borrow() || run < program + 3 {
            self.work(self.mirror().await, program, run, Duration::from_millis(500)).await;
            run += 1;
        }
        let alone = Duration::from_millis(600) * (PROGRAMS + 1 - program);
        self.work(self.manager(self.sqlite().await), program, run, alone).await;
    }
}

async fn house(folder: &Path) -> House {
    let redis = SharedServer::server(ServerKind::Redis).await.unwrap();
    let namespace = format!("moving-{}", &ClaimId::random().to_hex()[..12]);
    House {
        url: format!("{}?timeout=30s", redis.url()),
        file: format!("sqlite:{}", folder.join("locks.db").display()),
        settings: Settings::default().ttl(TTL).wait_ttl(TTL * 3).namespace(namespace),
        orders: Orders {
            seed: 2026,
            lasts: Duration::ZERO,
            client: 0,
            tasks: 2,
            locks: 2,
            hot: false,
            ttl: TTL,
            wait_ttl: TTL * 3,
            registers: GuardedRegisters::default().serve().unwrap(),
            folder: folder.to_owned(),
        },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_moves_from_redis_to_sqlite_is_acquitted() {
    let folder = tempfile::tempdir().unwrap();
    let house = house(folder.path()).await;
    let (left, mut all_left) = mpsc::channel(1);
    let (moved, has_moved) = watch::channel(false);
    let mut fleet = tokio::task::JoinSet::new();
    for program in 1..=PROGRAMS {
        fleet.spawn(house.clone().go(program, left.clone(), has_moved.clone()));
    }
    drop(left);
    // The last program that used the old one alone is through: the new one takes over.
    assert_eq!(all_left.recv().await, None);
    let (old, new) = (house.manager(house.redis().await), house.manager(house.sqlite().await));
    let base = new.admin().take_over_tokens(&old.admin()).await.unwrap();
    assert!(base > 1 << 50);
    moved.send(true).unwrap();
    while let Some(done) = fleet.join_next().await {
        done.unwrap();
    }
    let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|e| e == "jsonl"));
    let history = History::load(files).unwrap();
    let mirror = house.mirror().await;
    let promises = RecordedPromises::of(mirror.capabilities(), TTL * 10, TTL * 3);
    let judgement = judge(&history, &promises);
    assert!(judgement.acquitted(), "{:#?}", judgement.violations);
    assert!(judgement.counts["granted"] > 100, "{:?}", judgement.counts);
    println!("{:?}", judgement.counts);
}
