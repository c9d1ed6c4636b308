//! What many who wait cost a server that tells them nothing: counted by the proxy before it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::{Acquisition, Attempted, LockDriver, Patience, Released};
use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
use lockkit_lab::proxy::Protocol;
use lockkit_lab::{Proxy, Server, ServerKind, SharedServer};
use lockkit_sql::{MySqlDriver, ServerOptions};
use sqlx::{Connection, MySqlConnection};
use tokio::task::JoinSet;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(300);
const WAITERS: usize = 1_000;
/// What docs/sql.md says.
const LOOKS_A_SECOND: f64 = 200.0;

struct Scene {
    proxy: Proxy,
    _server: SharedServer,
    /// Through the proxy, which counts.
    counted: MySqlDriver,
    other: MySqlDriver,
    namespace: Namespace,
}

impl Scene {
    async fn set() -> Self {
        let server = SharedServer::server(ServerKind::MariaDb).await.unwrap();
        let proxy = Proxy::start(server.addr(), Protocol::MySql).await.unwrap();
        let options = || ServerOptions::default().timeout(LONG);
        let url = server.url_at(proxy.addr());
        let counted = MySqlDriver::connect_with(&url, options());
        let other = MySqlDriver::connect_with(server.url(), options());
        let (counted, other) = (counted.await.unwrap(), other.await.unwrap());
        let unique = &ClaimId::random().to_hex()[..8];
        let namespace = Namespace::new(format!("waiters-{unique}")).unwrap();
        Self { proxy, _server: server, counted, other, namespace }
    }

    fn claim(&self, name: &str) -> Arc<Claim> {
        let key = Key::new(self.namespace.clone(), Space::Lock, Name::new(name).unwrap());
        let identity = Arc::new(ClientIdentity::of_this_process());
        Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG, identity))
    }

    async fn hold(&self, claims: &[Arc<Claim>]) {
        for claim in claims {
            let held = self.other.acquire(claim, Patience::Try).await.unwrap().result;
            assert!(matches!(held, Acquisition::Granted(_)), "{held:?}");
        }
    }

    /// Puts these in line, and has somebody wait for each.
    async fn wait(&self, claims: &[Arc<Claim>]) -> JoinSet<Arc<Claim>> {
        for some in claims.chunks(50) {
            let asked = some.iter().map(|claim| self.counted.acquire(claim, Patience::Wait));
            for queued in join_all(asked).await {
                assert!(
                    matches!(queued, Ok(Attempted { result: Acquisition::Queued { .. }, .. })),
                    "{queued:?}"
                );
            }
        }
        let mut waiting = JoinSet::new();
        for claim in claims {
            let (driver, claim) = (self.counted.clone(), claim.clone());
            waiting.spawn(async move {
                driver.granted(&claim).await.unwrap();
                claim
            });
        }
        waiting
    }

    /// How many requests there were a second, over some seconds.
    async fn rate(&self) -> f64 {
        self.proxy.reset();
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_secs(3)).await;
        self.proxy.counts().requests as f64 / begun.elapsed().as_secs_f64()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_who_wait_for_one_lock_ask_together_and_take_turns() {
    let scene = Scene::set().await;
    let holder = scene.claim("a");
    scene.hold(std::slice::from_ref(&holder)).await;
    let claims: Vec<_> = (0..WAITERS).map(|_| scene.claim("a")).collect();
    let mut waiting = scene.wait(&claims).await;
    let rate = scene.rate().await;
    assert!(rate <= LOOKS_A_SECOND * 1.1, "{rate} looks a second");
    assert!(waiting.try_join_next().is_none(), "the lock is held");
    assert_eq!(scene.other.release(&holder).await.unwrap(), Released::Removed);
    let mut took = Vec::new();
    for _ in 0..10 {
        let next = timeout(LONG, waiting.join_next()).await.expect("its turn").unwrap().unwrap();
        took.push(next.id);
        assert_eq!(scene.counted.release(&next).await.unwrap(), Released::Removed);
    }
    took.sort();
    took.dedup();
    assert_eq!(took.len(), 10, "each once");
    waiting.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_for_a_thousand_locks_ask_together_too() {
    let scene = Scene::set().await;
    let names: Vec<_> = (0..WAITERS).map(|i| format!("{i}")).collect();
    let holders: Vec<_> = names.iter().map(|name| scene.claim(name)).collect();
    scene.hold(&holders).await;
    let claims: Vec<_> = names.iter().map(|name| scene.claim(name)).collect();
    let mut waiting = scene.wait(&claims).await;
    let rate = scene.rate().await;
    assert!(rate <= LOOKS_A_SECOND * 1.1, "{rate} looks a second");
    assert_eq!(scene.other.release(&holders[417]).await.unwrap(), Released::Removed);
    let next = timeout(LONG, waiting.join_next()).await.expect("its turn").unwrap().unwrap();
    assert_eq!(next.id, claims[417].id);
    waiting.shutdown().await;
}

/// Rows that the server read, and statements that it was sent.
async fn work(admin: &mut MySqlConnection) -> (u64, u64) {
    let counts = "SELECT variable_name, CAST(variable_value AS UNSIGNED) \
        FROM information_schema.global_status WHERE variable_name LIKE 'HANDLER_READ%' \
        OR variable_name = 'COM_STMT_EXECUTE'";
    let counts: Vec<(String, u64)> = sqlx::query_as(counts).fetch_all(admin).await.unwrap();
    let (reads, statements): (Vec<_>, Vec<_>) =
        counts.into_iter().partition(|(name, _)| name.starts_with("HANDLER"));
    (reads.iter().map(|it| it.1).sum(), statements[0].1)
}

/// A thousand who wait were asked about with two million rows read, and renewed with their list locked for
/// as long.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_is_asked_about_and_renewed_by_reading_a_few_rows_for_each() {
    const SOME: usize = 300;
    /// Those of the claim, of its name, of its place, and of the copies of these that are made.
    const FEW: u64 = 60;
    let server = Server::start(ServerKind::MariaDb).await.unwrap();
    let options = ServerOptions::default().timeout(LONG);
    let driver = MySqlDriver::connect_with(&server.url(), options).await.unwrap();
    let claims: Vec<_> = (0..=SOME)
        .map(|_| {
            let key = Key::new(Namespace::default(), Space::Lock, Name::new("a").unwrap());
            let identity = Arc::new(ClientIdentity::of_this_process());
            Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG, identity))
        })
        .collect();
    for claim in &claims {
        driver.acquire(claim, Patience::Wait).await.unwrap();
    }
    let mut admin = MySqlConnection::connect(&server.url()).await.unwrap();
    let most = FEW * SOME as u64;
    let before = work(&mut admin).await;
    driver.renew(&claims).await.unwrap();
    let reads = work(&mut admin).await.0 - before.0;
    assert!(reads < most, "a renewal reads {reads} rows");
    let mut waiting = JoinSet::new();
    for claim in &claims[1..] {
        let (driver, claim) = (driver.clone(), claim.clone());
        waiting.spawn(async move { driver.granted(&claim).await.unwrap() });
    }
    let before = work(&mut admin).await;
    let mut after = before;
    while after.1 - before.1 < 10 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        after = work(&mut admin).await;
    }
    let reads = (after.0 - before.0) / (after.1 - before.1);
    assert!(reads < most, "a look reads {reads} rows");
    waiting.shutdown().await;
}
